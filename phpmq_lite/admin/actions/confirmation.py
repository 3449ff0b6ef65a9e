"""The confirmation page before an action, and the text to type on it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.settings import Settings

PRODUCTION = "production"


FormField = tuple[str, tuple[Any, ...]]  # a macro in action_fields.html and its arguments


@dataclass(slots=True, frozen=True, kw_only=True)
class Confirmation:
    """The sentences, fields and button of the confirmation page, ``confirm.html``."""

    title: str
    text: str
    button: str  # a verb with its object
    url: str  # where the form is sent
    back: str  # the page to return to
    number: str = ""  # message number shown after the title
    queue: str | None = None  # queue or other name shown after the title
    crumbs: Sequence[tuple[str, str]] = ()  # titles and URLs of the parent pages
    hidden: Sequence[tuple[str, object]] = ()
    fields: Sequence[FormField] = ()
    typed: Collection[str] = ()
    reason: str = "optional"  # required, optional, or "" for none
    is_danger: bool = False
    is_disabled: bool = False  # there is nothing to act on
    preview: tuple[str, str] | None = None  # search and action of a selection to preview


def is_production(settings: Settings) -> bool:
    """Return whether this broker's environment is named production."""
    return settings.ui.environment.strip().casefold() == PRODUCTION


def texts_to_type(settings: Settings, count: int, queues: Collection[str]) -> tuple[str, ...]:
    """Return the texts that confirm an action, beginning with the one to ask for; () if none.

    The number of messages is always accepted; the queue's name only if all are in one queue.
    """
    if count <= settings.ui.confirm_count and not is_production(settings):
        return ()
    return (*queues, str(count)) if len(queues) == 1 else (str(count),)


def check_typed_text(needed: Collection[str], typed: str | None) -> None:
    """Refuse an unconfirmed action; characters that cannot be typed may be escaped.

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
