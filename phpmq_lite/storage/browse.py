"""Pages for the admin: what is in the queues and the history, read without touching it.

Each page has a limit on its rows; ``readers.py`` has the limit on its time.
"""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from hmac import compare_digest
from time import monotonic
from typing import Any, Final

from phpmq_lite.model import State, checksum
from phpmq_lite.storage.readers import Readers, Row

PAGE_ROWS: Final = 200  # at most
BODY_WHOLE_BYTES: Final = 256 * 1024  # shown whole up to here
BODY_HEAD_BYTES: Final = 64 * 1024  # of a larger one
EVENT_ROWS: Final = 500
EXPIRING_ROWS: Final = 10_000
_HISTORY_SLICE: Final = 20_000  # offsets looked at in one read when a filter has no index
_HISTORY_LIMIT_S: Final = 1.0  # for all slices of one page
_ID_DIGITS: Final = frozenset("0123456789abcdef")


@dataclass(slots=True, frozen=True)
class MessageRow:
    """A message as stored, alive or settled; the order is that of the columns in browse.sql.

    Times ending in ``_at`` are Unix milliseconds.  ``offset``, ``reason`` and ``settled_at``
    are None while it is alive; names and addresses are None where their row is gone.
    """

    offset: int | None
    seq: int
    token: int
    queue_id: int
    queue: str | None
    position: int
    state: int
    reason: str | None
    settled_at: int | None
    ttl_s: int | None
    deadline_at: int | None
    published_at: int
    first_dispatched_at: int | None
    last_dispatched_at: int | None
    deliveries: int
    charged: int
    size: int
    crc: int
    publisher: int | None
    publisher_kind: str | None
    publisher_address: str | None
    consumer: int | None
    consumer_kind: str | None
    consumer_address: str | None
    urn: str | None
    trace_id: str | None
    source_seq: int | None
    source_token: int | None
    source_queue: str | None
    source_reason: str | None
    preview: bytes | None  # at most 480 bytes; None: there is no body, or it is empty

    @property
    def message_id(self) -> str:
        """The id on the wire, 32 hex digits."""
        return wire_id(self.seq, self.token)

    @property
    def is_alive(self) -> bool:
        """Tell whether it is ready or dispatched."""
        return self.state in (State.READY, State.DISPATCHED)

    @property
    def source_id(self) -> str | None:
        """The id of the message that this dead-letter record is about, while history has it."""
        if self.source_seq is None or self.source_token is None:
            return None
        return wire_id(self.source_seq, self.source_token)


@dataclass(slots=True, frozen=True)
class DeadGroup:
    """Dead-letter records that share queue, origin and reason; None: published by a client."""

    queue_id: int
    queue: str
    origin: str | None
    reason: str | None
    records: int
    size: int  # bytes of their bodies
    first_at: int
    last_at: int
    last_seq: int
    last_token: int

    @property
    def sample_id(self) -> str:
        """The id of the newest record."""
        return wire_id(self.last_seq, self.last_token)


@dataclass(slots=True, frozen=True)
class Body:
    """The content of a message, or the beginning of a large one."""

    size: int
    content: bytes
    is_damaged: bool | None  # the stored CRC differs; None: not all of it was read

    @property
    def is_whole(self) -> bool:
        """Tell whether ``content`` is all of it."""
        return len(self.content) == self.size


@dataclass(slots=True, frozen=True)
class EventRow:
    """One unusual turn of a life."""

    at_ms: int
    kind: str
    detail: str | None


@dataclass(slots=True, frozen=True)
class HistoryPage:
    """Settled messages, newest first, and how far was looked.

    ``searched_to`` is the last offset looked at where the time ran out first, else None.
    """

    rows: list[MessageRow]
    has_more: bool
    searched_to: int | None
    lowest: int | None
    highest: int | None


def wire_id(seq: int, token: int) -> str:
    """Give the message id as it stands on the wire: 16 hex digits each."""
    return f"{seq:016x}{token:016x}"


def is_message_id(text: str) -> bool:
    """Tell whether ``text`` can be a message id: 32 lower-case hex digits."""
    return len(text) == 32 and _ID_DIGITS.issuperset(text)


class Browser:
    """What the pages ask for.

    All methods may raise ReadTooLongError, and StorageError where the database cannot be read.
    Pages are in the order they are shown; ``limit`` above ``PAGE_ROWS`` is cut to it.
    """

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def _read(self, name: str, **parameters: Any) -> list[Row]:
        return await self._readers.read("browse", name, **parameters)

    # -- queues

    async def oldest_ready(self, queue_ids: Iterable[int]) -> dict[int, int]:
        """Say when the first ready message of each queue was published; empty ones are left out."""
        asked = json.dumps(list(queue_ids))
        rows = await self._read("oldest_ready", queue_ids=asked)
        return {queue_id: published_at for queue_id, published_at in rows if published_at}

    async def expiring(self, before_ms: int) -> dict[int, tuple[int, int]]:
        """Count ready messages whose deadline is before that time: queue_id -> (count, soonest).

        The soonest ``EXPIRING_ROWS`` are counted, so counts that add up to it are lower bounds.
        """
        rows = await self._read("expiring", before_ms=before_ms, limit=EXPIRING_ROWS)
        return {queue_id: (count, soonest_ms) for queue_id, count, soonest_ms in rows}

    async def messages(
        self,
        queue_id: int,
        *,
        after: int | None = None,
        before: int | None = None,
        state: State | None = None,
        limit: int = 50,
    ) -> list[MessageRow]:
        """Give a page of a queue in order, behind or ahead of a position (exclusive)."""
        is_backwards = before is not None
        position = before if before is not None else after if after is not None else -1
        kind = "held" if state is State.DISPATCHED else "messages"
        parameters: dict[str, Any] = {"queue_id": queue_id, "position": position}
        if kind == "messages":
            parameters["state"] = state
        rows = await self._read(
            f"{kind}_{'before' if is_backwards else 'after'}", **parameters, limit=_page(limit)
        )
        return [MessageRow(*row) for row in (reversed(rows) if is_backwards else rows)]

    async def dead_groups(self, limit: int = PAGE_ROWS) -> list[DeadGroup]:
        """Group the records of all dead-letter queues by origin and reason, newest first."""
        rows = await self._read("dead_groups", limit=_page(limit))
        return [DeadGroup(*row) for row in rows]

    # -- one message

    async def message(self, message_id: str) -> MessageRow | None:
        """Find a message, alive or settled; None where the id is unknown or its row is gone."""
        if not is_message_id(message_id):
            return None
        seq = int(message_id[:16], 16)
        rows = await self._read("by_seq", seq=seq) if seq < 1 << 63 else []
        if not rows:
            return None
        found = MessageRow(*rows[0])
        return found if compare_digest(found.message_id, message_id) else None

    async def was_given(self, message_id: str) -> bool:
        """Tell whether this broker has given out the number in this id: then its row is gone."""
        rows = await self._read("next_number")
        return bool(rows) and 0 < int(message_id[:16], 16) < int(rows[0][0])

    async def body(self, message: MessageRow) -> Body | None:
        """Give the body, of one above 256 KiB the first 64 KiB; None where there is none."""
        rows = await self._read(
            "body_head", seq=message.seq, whole=BODY_WHOLE_BYTES, head=BODY_HEAD_BYTES
        )
        if not rows:
            return None
        size, content = rows[0][0], rows[0][1] or b""  # substr of an empty BLOB is NULL
        is_whole = len(content) == size
        return Body(size, content, _is_damaged(message, content) if is_whole else None)

    async def whole_body(self, message: MessageRow) -> Body | None:
        """Give the body, however large."""
        rows = await self._read("body", seq=message.seq)
        if not rows:
            return None
        content = rows[0][0]
        is_damaged = await asyncio.to_thread(_is_damaged, message, content)
        return Body(len(content), content, is_damaged)

    async def events(self, seq: int) -> list[EventRow]:
        """Give the unusual turns of one life, oldest first."""
        return [EventRow(*row) for row in await self._read("events", seq=seq, limit=EVENT_ROWS)]

    # -- history

    async def history(
        self,
        *,
        before: int | None = None,
        after: int | None = None,
        queue_id: int | None = None,
        outcome: State | None = None,
        limit: int = 50,
    ) -> HistoryPage:
        """Give settled messages older than ``before``, newer than ``after``, or the newest.

        A filter has no index: it looks at slices of offsets until the page is full, the end is
        reached or a second is over; then ``searched_to`` says where to continue.
        """
        lowest, highest = (await self._read("history_ends"))[0]
        if lowest is None or highest is None:
            return HistoryPage([], False, None, None, None)
        limit = _page(limit)
        is_newer = after is not None
        step = _HISTORY_SLICE if queue_id is not None or outcome is not None else 1 << 62
        start = after if after is not None else highest + 1 if before is None else before
        rows: list[Row] = []
        ends_s = monotonic() + _HISTORY_LIMIT_S
        while start < highest if is_newer else start > lowest:
            stop = min(start + step, highest) if is_newer else max(start - step, lowest)
            rows += await self._read(
                "history_newer" if is_newer else "history_older",
                start=start, stop=stop, queue_id=queue_id, outcome=outcome,
                limit=limit + 1 - len(rows),
            )  # fmt: skip
            start = stop
            if len(rows) > limit or monotonic() > ends_s:
                break
        is_done = len(rows) > limit or (start >= highest if is_newer else start <= lowest)
        page = [MessageRow(*row) for row in rows[:limit]]
        return HistoryPage(
            page[::-1] if is_newer else page,
            len(rows) > limit,
            None if is_done else start,
            lowest,
            highest,
        )


def _page(limit: int) -> int:
    return max(1, min(limit, PAGE_ROWS))


def _is_damaged(message: MessageRow, content: bytes) -> bool:
    return checksum(message.seq, content) != message.crc
