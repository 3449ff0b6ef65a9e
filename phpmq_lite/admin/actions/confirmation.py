"""What the page that asks before an action says, and what must be typed to confirm it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.settings import Settings

PRODUCTION = "production"


FormField = tuple[str, tuple[Any, ...]]  # a macro of action_fields.html and its arguments


@dataclass(slots=True, frozen=True, kw_only=True)
class Confirmation:
    """The page that asks before an action, ``confirm.html``: its sentences, fields and button."""

    title: str
    text: str
    button: str  # a verb with its object
    url: str  # of the form
    back: str  # the page to return to
    number: str = ""  # of a message, after the title
    queue: str | None = None  # or another name, after the title
    crumbs: Sequence[tuple[str, str]] = ()  # title and URL of the pages above
    hidden: Sequence[tuple[str, object]] = ()
    fields: Sequence[FormField] = ()
    typed: Collection[str] = ()
    reason: str = "optional"  # required, optional, or "" for none
    is_danger: bool = False
    is_disabled: bool = False  # there is nothing to act on
    preview: tuple[str, str] | None = None  # search and action of a selection to look at first


def is_production(settings: Settings) -> bool:
    """Return whether the environment of this broker is named production."""
    return settings.ui.environment.strip().casefold() == PRODUCTION


def texts_to_type(settings: Settings, count: int, queues: Collection[str]) -> tuple[str, ...]:
    """Return the texts that confirm an action, the one to ask for first; (): none is needed.

    The number of messages is always accepted; the queue's name, if all are in one queue.
    """
    if count <= settings.ui.confirm_count and not is_production(settings):
        return ()
    return (*queues, str(count)) if len(queues) == 1 else (str(count),)


def check_typed_text(needed: Collection[str], typed: str | None) -> None:
    """Refuse an action that was not confirmed; characters that cannot be typed may be escaped.

    Raises:
        Problem: 422, with the text to type.
    """
    accepted = {form for text in needed for form in (text, formats.escape_hidden(text))}
    if not needed or (typed is not None and typed in accepted):
        return
    what = "was confirmed with another text" if typed else "was not confirmed"
    raise Problem(
        422, "not_confirmed", f"This {what}. Nothing was changed.",
        field="confirm", bound=" or ".join(map(formats.escape_hidden, needed)),
    )  # fmt: skip
