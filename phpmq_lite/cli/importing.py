"""What imports have in common: they publish under keys, remember what is stored, count and tell."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from phpmq_lite.cli.main import CommandError
from phpmq_lite.cli.options import talk
from phpmq_lite.cli.output import Column
from phpmq_lite.client.blocking_client import BlockingClient
from phpmq_lite.client.publish_each import KeyedMessage, NoAnswerError, publish_each
from phpmq_lite.logs import escape
from phpmq_lite.moving.journal import Journal

Command = TypeVar("Command", bound=Callable[..., Any])

_COUNTS: Final = (
    Column("found", "FOUND", is_number=True),
    Column("held", "HELD", is_number=True),
    Column("before", "BEFORE", is_number=True),  # stored by an earlier run
)
_STORED: Final = Column("stored", "STORED", is_number=True)
_NAMED: Final = 10  # errors that are shown one by one; a paused queue may refuse a million
NOT_VALID: Final = Column("not_valid", "NOT VALID", is_number=True)


@dataclass(slots=True, frozen=True)
class Item:
    """A message as it was found, and what becomes of it."""

    group: tuple[str, str, str]  # what it is counted with, see Tally
    name: str  # for errors: "jobs row 7 for orders"
    message: KeyedMessage | None  # None: a worker there has it
    problem: str | None = None  # what is wrong with an envelope


@dataclass(slots=True)
class Tally:
    """Counts by group; ``heads`` are the keys and titles of a group's three parts."""

    heads: tuple[Column, Column, Column]
    journal: Journal | None
    judged: tuple[Column, ...] = ()  # what is shown of envelopes
    waiting: int = 0  # to be published
    stored: int = 0
    held: int = 0
    errors: int = 0
    _groups: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)

    def count(self, item: Item) -> bool:
        """Count what was found; tell whether it is to be published."""
        group = self._group(item)
        group["found"] += 1
        if item.problem is not None:
            group["not_valid"] += 1
            reasons = group["reasons"]
            reasons[item.problem] = reasons.get(item.problem, 0) + 1
        if item.message is None:
            group["held"] += 1
            self.held += 1
        elif self.journal is not None and self.journal.has(item.message.key):
            group["before"] += 1
        else:
            self.waiting += 1
            return True
        return False

    def store(self, item: Item) -> None:
        """Count what the broker has now."""
        self._group(item)["stored"] += 1
        self.stored += 1

    def rows(self) -> list[dict[str, Any]]:
        """Return the groups, in the order in which they were seen first."""
        return list(self._groups.values())

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a table of the groups."""
        return (*self.heads, *_COUNTS, *self.judged, _STORED)

    def end(self, *, is_dry: bool) -> None:
        """Say what was done.

        Raises:
            CommandError: something could not be stored.
        """
        if self.held:
            talk(f"{self.held:,} left out: a worker has reserved them; run this again later")
        talk(f"{self.waiting:,} would be published" if is_dry else f"{self.stored:,} stored")
        if self.errors:
            raise CommandError(f"{self.errors:,} could not be stored")

    def _group(self, item: Item) -> dict[str, Any]:
        names = (head.key for head in self.heads)
        fresh = dict(zip(names, item.group, strict=True)) | {
            "found": 0, "held": 0, "before": 0, "not_valid": 0, "reasons": {}, "stored": 0,
        }  # fmt: skip
        return self._groups.setdefault(item.group, fresh)


def publish(client: BlockingClient, items: Sequence[Item], tally: Tally) -> list[bool]:
    """Count all, publish what is to be published, in order; tell of each whether it is stored.

    Raises:
        CommandError: the broker does not answer.
    """
    due = [at for at, item in enumerate(items) if tally.count(item)]
    messages = [message for at in due if (message := items[at].message) is not None]
    outcomes = publish_each(client, messages)
    if tally.journal is not None:
        done = zip(messages, outcomes, strict=True)
        tally.journal.add(message.key for message, outcome in done if outcome is None)
    is_stored = [item.message is not None for item in items]
    for at, outcome in zip(due, outcomes, strict=True):
        if isinstance(outcome, NoAnswerError):
            raise CommandError(f"{outcome}; run this again, nothing is stored twice")
        if outcome is None:
            tally.store(items[at])
        else:
            is_stored[at] = False
            tally.errors += 1
            if tally.errors <= _NAMED:
                talk(f"{escape(items[at].name)}: {escape(str(outcome))}")
    return is_stored


def journal_option(command: Command) -> Command:
    """Add ``--journal``."""
    return click.option(
        "--journal", "journal_path", type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Remember in FILE what is stored, so that a run next week leaves it out too. "
        "One for each broker.",
    )(command)  # fmt: skip


@contextmanager
def opened(path: Path | None) -> Iterator[Journal | None]:
    """Open the journal, where there is to be one."""
    if path is None:
        yield None
    else:
        with closing(Journal(path)) as journal:
            yield journal
