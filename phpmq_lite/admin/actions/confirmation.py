"""What must be typed before many messages are changed."""

from collections.abc import Collection

from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.settings import Settings

PRODUCTION = "production"


def is_production(settings: Settings) -> bool:
    """Tell whether this broker is named as the one that matters."""
    return settings.ui.environment.strip().casefold() == PRODUCTION


def texts_to_type(settings: Settings, count: int, queues: Collection[str]) -> tuple[str, ...]:
    """Give the texts of which one has to be typed, the one to ask for first; (): none.

    The count in digits always does; the name, where all are in one queue.
    """
    if count <= settings.ui.confirm_count and not is_production(settings):
        return ()
    return (*queues, str(count)) if len(queues) == 1 else (str(count),)


def check_typed_text(needed: Collection[str], typed: str | None) -> None:
    """Refuse what was not confirmed; escapes stand for what nobody can type.

    Raises:
        Problem: 422, naming what has to be typed.
    """
    accepted = {form for text in needed for form in (text, formats.escape_hidden(text))}
    if not needed or (typed is not None and typed in accepted):
        return
    what = "was confirmed with another text" if typed else "was not confirmed"
    raise Problem(
        422, "not_confirmed", f"This {what}. Nothing was changed.",
        field="confirm", bound=" or ".join(map(formats.escape_hidden, needed)),
    )  # fmt: skip
