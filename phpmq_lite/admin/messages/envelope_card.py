"""Describes an envelope: its content, its verdict, and why its message failed."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self, cast

from phpmq_lite.envelopes.dead_letter_record import DeadLetterBlock, read_block, redrive_content
from phpmq_lite.envelopes.indexed_fields import INDEX_BYTES, IndexedFields
from phpmq_lite.envelopes.schema_registry import SchemaRegistry
from phpmq_lite.envelopes.validation import (
    REASONS,
    EmptyListData,
    EnvelopeProblem,
    Verdict,
    lint,
    validate,
)
from phpmq_lite.queue_settings import QueueSettings, home_of
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.messages import MessageRow

CARD_BYTES: Final = INDEX_BYTES  # pages do not validate larger envelopes
THREAD_BYTES: Final = 4 * 1024  # larger envelopes are validated in a thread; 64 KiB takes 6 ms
PROBLEMS_SHOWN: Final = 50
TEXT_CHARACTERS: Final = 2_000  # maximum number of characters shown per text
MEMBERS: Final = ("lang", "queue", "created_at", "schema_version")  # members of meta that are shown


@dataclass(slots=True, frozen=True)
class EnvelopeCard:
    """An envelope's content and problems.

    For a dead-letter record, ``verdict`` and ``problems`` apply to what a redrive would send.
    ``members`` contains the values of ``MEMBERS`` as written, with long texts shortened, and None
    for each missing or unreadable member.
    """

    index: IndexedFields
    members: Mapping[str, Any]
    verdict: Verdict
    problems: tuple[EnvelopeProblem, ...]  # at most PROBLEMS_SHOWN, with the verdict's first
    hidden: int  # number of omitted problems
    block: DeadLetterBlock | None
    is_wrapped: bool  # whether a record contains the original message as a string

    @property
    def reason(self) -> str | None:
        """The reason for the verdict, or None if consumers can handle the message."""
        return self.verdict.problem.reason if self.verdict.problem else None

    @property
    def remarks(self) -> int:
        """The number of problems that matter only to the producer."""
        return self.hidden + sum(problem.reason not in REASONS for problem in self.problems)


@dataclass(slots=True, frozen=True)
class VerdictBadge:
    """A verdict as shown in a row of a table; ``kind`` is a CSS class."""

    kind: str
    text: str
    title: str


# -- single messages


def looks_like_envelope(index: IndexedFields | None) -> bool:
    """Return whether a body has a URN or at least two other members of an envelope."""
    if index is None:
        return False
    others = (index.trace_id, index.meta_id, index.attempts)
    return index.urn is not None or sum(value is not None for value in others) > 1


@dataclass(slots=True, frozen=True)
class JudgeOptions:
    """Rules for validating an envelope.

    With ``is_meant``, the body must be an envelope; with ``is_strict``, a payload that does not
    match its schema is rejected.
    """

    empty_list_data: EmptyListData = "php"
    is_meant: bool = False
    is_strict: bool = False
    schemas: SchemaRegistry | None = None

    @classmethod
    def of(cls, settings: QueueSettings | None, schemas: SchemaRegistry) -> Self:
        """Return the rules of a queue, or the default rules if it does not exist."""
        is_meant = settings is not None and settings.payload_policy == "envelope"
        is_strict = is_meant and settings is not None and settings.schema_mode == "quarantine"
        return cls(empty_list_data_of(settings), is_meant, is_strict, schemas)


async def inspect_content(content: bytes, rules: JudgeOptions) -> EnvelopeCard | None:
    """Return a body's card, or None if it is not an envelope and is not meant to be."""
    if len(content) <= THREAD_BYTES:
        return make_card(content, rules)
    return await asyncio.to_thread(make_card, content, rules)


def make_card(content: bytes, rules: JudgeOptions) -> EnvelopeCard | None:
    """Validate a body; return None if it is not an envelope and is not meant to be.  Pure."""
    block = read_block(content)
    original = content if block is None else redrive_content(content)
    verdict = validate(original, rules.empty_list_data)
    if not (rules.is_meant or block is not None or looks_like_envelope(verdict.index)):
        return None
    # A wrapper's first member is ``raw``, which contains the original message.
    is_wrapper = content.lstrip(b" \t\r\n{")[:5] == b'"raw"'
    is_wrapped = block is not None and original != content and is_wrapper
    document = _read(original if is_wrapped else content) if verdict.index is not None else {}
    problems = list(lint(original, rules.empty_list_data))
    index, first = verdict.index or IndexedFields(None, None, None, None), verdict.problem
    if first is None and rules.schemas is not None and index.urn is not None:
        data = {} if verdict.is_tolerated else document.get("data")
        first = rules.schemas.check(index.urn, data, is_on_wire=True)
        if rules.is_strict and first is not None:
            verdict = replace(verdict, problem=first)
    if first is not None:
        problems = [first, *(problem for problem in problems if problem != first)]
    attempts = document.get("attempts")
    if block is not None and isinstance(attempts, int) and not isinstance(attempts, bool):
        # show the record's attempts, although a redrive resets them to 0
        index = IndexedFields(index.urn, index.trace_id, index.meta_id, attempts)
    if not isinstance(meta := document.get("meta"), dict):
        meta = {}
    return EnvelopeCard(
        index,
        {name: _plain(meta.get(name)) for name in MEMBERS},
        verdict,
        tuple(problems[:PROBLEMS_SHOWN]),
        max(0, len(problems) - PROBLEMS_SHOWN),
        block,
        is_wrapped,
    )


def _read(content: bytes) -> dict[str, Any]:
    """Parse a body, or return an empty dict if it is not a JSON object."""
    try:
        document = json.loads(  # a very long integer stays text
            content.decode(), parse_int=lambda text: int(text) if len(text) <= 19 else text
        )
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _plain(value: Any) -> Any:
    """Return a value for display: texts are shortened; objects and lists are only named."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return shorten(value)
        case dict():
            return "an object"
        case list():
            return "a list"
    return value


def shorten(text: str | None) -> str:
    if text is None:
        return ""
    return text if len(text) <= TEXT_CHARACTERS else f"{text[:TEXT_CHARACTERS]} …"


def is_too_large(row: MessageRow) -> bool:
    """Return whether a message may be an envelope but is too large to validate."""
    return row.size > CARD_BYTES and (row.preview or b"").lstrip()[:1] == b"{"


def is_settled_by_verdict(row: MessageRow) -> bool:
    """Return whether a message was settled, or a record created, because of a verdict."""
    return row.reason in REASONS or row.source_reason in REASONS


def other_queue(card: EnvelopeCard, row: MessageRow) -> str:
    """Return the queue named in the envelope if it is not the message's queue, else ``""``."""
    queue = card.members["queue"]
    home = card.block.original_queue if card.block is not None else row.queue
    if not isinstance(queue, str) or not queue or home is None:
        return ""
    return queue if queue not in (home, home_of(home)) else ""


# -- queue settings


def empty_list_data_of(settings: QueueSettings | None) -> EmptyListData:
    """Return the setting that determines when ``data: []`` in an envelope is read as ``{}``."""
    return "php" if settings is None else cast(EmptyListData, settings.empty_list_data)


# -- table rows


class RowVerdicts:
    """Validates the envelopes in the rows of a page, each when its row is rendered.

    A row is skipped if its body is incomplete or its reason is already a verdict.
    """

    def __init__(self, queues: Callable[[], Iterable[QueueStatus]]) -> None:
        self._queues = queues
        self._settings: dict[int, EmptyListData] | None = None

    def of(self, row: MessageRow) -> VerdictBadge | None:
        """Return a row's badge, or None if there is no problem or the row is not validated."""
        content = row.preview
        if content is None or len(content) != row.size or content[:1] != b"{":
            return None
        if is_settled_by_verdict(row):  # the row already shows the reason
            return None
        verdict = validate(content, self._empty_list_data(row.queue_id))
        if not looks_like_envelope(verdict.index):
            return None
        if verdict.problem is not None:
            return VerdictBadge("bad", verdict.problem.reason, shorten(verdict.problem.detail))
        if verdict.is_tolerated:
            return VerdictBadge("warn", "tolerated", "data: [] is read as {}")
        return None

    def _empty_list_data(self, queue_id: int) -> EmptyListData:
        if self._settings is None:
            self._settings = {
                queue.queue_id: empty_list_data_of(queue.settings)
                for queue in self._queues()
                if queue.settings.empty_list_data != "php"
            }
        return self._settings.get(queue_id, "php")
