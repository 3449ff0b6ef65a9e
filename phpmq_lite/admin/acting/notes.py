"""What the next page says after an action: a sentence, what takes it back, a link."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Note:
    """A sentence; ``undo`` is a token, ``link`` a URL of ours with its words."""

    text: str
    undo: str | None = None
    link: tuple[str, str] | None = None
