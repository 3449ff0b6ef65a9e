"""The state of a copy of the store, which keeps brokers from its source and its target."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Self

Progress = Callable[[str, int, int | None], None]  # phase, rows done, rows in total


@dataclass(slots=True)
class CopyState:
    """A copy and its progress, stored in the target with each block, and in the source."""

    copy_id: str
    source: str
    target: str
    at_ms: int  # Unix ms
    is_verified: bool = False  # whether all rows are there
    # table -> rows, bytes (as text), seconds, replaced (characters), shortened (texts), and
    # after (the last row's key)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

    def refusal(self, place: str = "") -> str:
        """Return why no broker may start on the target or, in the source ``place``, on it."""
        date = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.at_ms / 1_000))
        if not place:
            return (
                f"the database is an incomplete copy of {self.source}, begun on {date}: run "
                "`phpmq-lite store copy` again"
            )
        was = "was" if self.is_verified else "is being"
        return (
            f"this data {was} copied to {self.target} on {date}. If the copy is not used and this "
            f"data is to be used again, run `phpmq-lite store release {place}`"
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))
