"""Confirmations of changes: the page ``confirm.html``, and the text that it asks to type."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.input import Form
from phpmq_lite.admin.http.problems import Problem, invalid
from phpmq_lite.settings import Settings

FormField = tuple[str, tuple[Any, ...]]  # name and arguments of a macro in actions.html


@dataclass(slots=True, frozen=True, kw_only=True)
class Confirmation:
    """The text, fields and button of the confirmation page ``confirm.html``."""

    title: str
    text: str
    button: str  # button label: a verb and its object
    url: str  # URL that the form is submitted to
    back: str  # URL of the page to return to
    number: str = ""  # message number shown after the title
    queue: str | None = None  # name of a queue or other object shown after the title
    crumbs: Sequence[tuple[str, str]] = ()  # titles and URLs of the parent pages, outermost first
    hidden: Sequence[tuple[str, object]] = ()
    fields: Sequence[FormField] = ()
    typed: Collection[str] = ()
    reason: str = "optional"  # "required", "optional", or "" to omit the field
    is_danger: bool = False
    is_disabled: bool = False  # true if the action would affect nothing
    preview: tuple[str, str] | None = None  # search and action for the preview

    def check(self, form: Form) -> None:
        """Raise a 422 ``Problem`` for a form without the text to type or a required reason."""
        check_typed_text(self.typed, form.raw("confirm"))
        if self.reason == "required" and not form.reason():
            detail = "Enter a reason for the audit log. Nothing was changed."
            problem = invalid(detail, "reason", "at least 1 character")
            problem.says_unchanged = True
            raise problem


def texts_to_type(settings: Settings, count: int, queues: Collection[str]) -> tuple[str, ...]:
    """Return the accepted confirmation texts, suggested text first, or () if none is required.

    The message count is always accepted, the queue name only if all messages are in one queue.
    """
    is_production = settings.ui.environment.strip().casefold() == "production"
    if count <= settings.ui.confirm_count and not is_production:
        return ()
    return (*queues, str(count)) if len(queues) == 1 else (str(count),)


def check_typed_text(needed: Collection[str], typed: str | None) -> None:
    """Refuse with 422 an unconfirmed action; what cannot be typed can be entered as escapes."""
    accepted = {form for text in needed for form in (text, formats.escape_hidden(text))}
    if not needed or (typed is not None and typed in accepted):
        return
    detail = "The confirmation text does not match" if typed else "The action was not confirmed"
    detail += ". Nothing was changed."
    bound = " or ".join(map(formats.escape_hidden, needed))
    raise Problem(422, "not_confirmed", detail, field="confirm", bound=bound, says_unchanged=True)
