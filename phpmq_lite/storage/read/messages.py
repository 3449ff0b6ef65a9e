"""Reads messages, bodies, events and history for the web pages.

Each page has a limited number of rows; ``read_pool.py`` limits the time.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hmac import compare_digest
from time import monotonic
from typing import Final

from phpmq_lite.model import ALIVE, BEFORE_ALL, State, checksum, number_of, priority_of
from phpmq_lite.storage.read.read_pool import Page, RowReader

PAGE_ROWS: Final = 200  # maximum number of rows per page
BODY_WHOLE_BYTES: Final = 256 * 1024  # maximum size of a body that is shown in full
BODY_HEAD_BYTES: Final = 64 * 1024  # number of bytes shown of a larger body
BODY_PART_BYTES: Final = 1 << 20  # number of body bytes per read
SHA256_BYTES: Final = 8 << 20  # for larger bodies, only the download includes the hash
EVENT_ROWS: Final = 500
LINK_ROWS: Final = 100
TRASH_SCANNED: Final = 1_000  # number of deleted messages scanned per page
EXPIRING_ROWS: Final = 10_000
HEADS_SHOWN: Final = 50  # maximum number of heads of groups on a page
_HEADS_SCANNED: Final = 1_000
_HISTORY_SLICE: Final = 20_000  # number of offsets per read if no index matches the filter
_HISTORY_LIMIT_S: Final = 1.0  # time limit for all slices of a page
_ID_DIGITS: Final = frozenset("0123456789abcdef")


@dataclass(slots=True, frozen=True)
class MessageRow:
    """A live or settled message, with fields in the order of the columns in messages.sql.

    Fields ending in ``_at`` are in Unix ms.  ``offset``, ``reason`` and ``settled_at`` are
    None while the message is live; names and addresses are None if their rows were removed.
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
    meta_id: str | None
    attempts: int | None  # number of attempts declared in the envelope
    source_seq: int | None
    source_token: int | None
    source_queue: str | None
    source_reason: str | None
    preview: bytes | None  # at most 480 bytes; None if the body is missing or empty
    ready_at: int | None = None  # None if it was ready when it was published
    deliver_at: int | None = None  # the date that was given, if one was
    retries: int | None = None  # failed attempts that workers reported
    group: str | None = None
    unique_key: str | None = None
    due_at: int | None = None  # when a scheduled message becomes ready
    head_since: int | None = None  # first dispatch of the head of a group
    erased_at: int | None = None  # when its data was erased

    @property
    def message_id(self) -> str:
        return wire_id(self.seq, self.token)

    @property
    def is_alive(self) -> bool:
        return self.state in ALIVE

    @property
    def priority(self) -> int:
        return priority_of(self.position)

    @property
    def number(self) -> int:
        """Place in the queue among messages of the same priority."""
        return number_of(self.position)

    @property
    def attempt(self) -> int:
        """Number of the attempt that the current or the next delivery is."""
        return 1 + self.charged + (self.retries or 0)

    @property
    def scheduled_for(self) -> int | None:
        """Unix ms when a scheduled message becomes ready: its date, or the end of its delay."""
        if self.state != State.SCHEDULED:
            return None
        return self.due_at if self.deliver_at is None else self.deliver_at

    @property
    def waiting_since(self) -> int:
        """Unix ms since which the message is ready, or when it was published."""
        return self.ready_at or self.published_at

    @property
    def source_id(self) -> str | None:
        """Id of the message to which this dead letter refers, if that is still in the history."""
        if self.source_seq is None or self.source_token is None:
            return None
        return wire_id(self.source_seq, self.source_token)


@dataclass(slots=True, frozen=True)
class Body:
    """The body of a message, or the beginning of a large body."""

    size: int
    content: bytes
    is_damaged: bool | None  # whether the CRC is wrong; None if only a part was read

    @property
    def is_whole(self) -> bool:
        return len(self.content) == self.size


@dataclass(slots=True, frozen=True)
class EventRow:
    """An exceptional event in the life of a message."""

    at_ms: int
    kind: str
    detail: str | None
    count: int = 1  # of equal events in a row; of kind "more", all those between other rows
    last_at: int | None = None  # Unix ms of the last of them, if there are several


@dataclass(slots=True, frozen=True)
class LinkRow:
    """An event that links a message to another message."""

    seq: int
    at_ms: int
    kind: str
    other: str  # id of the linked message

    @property
    def other_seq(self) -> int:
        """Number in the linked message's id, or 0 if the id is invalid."""
        return seq_of(self.other) if is_message_id(self.other) else 0


@dataclass(slots=True, frozen=True)
class HistoryPage:
    """Settled messages, newest first, and how far the history was searched.

    ``searched_to`` is the last offset read if the time limit was reached, otherwise None.
    """

    rows: list[MessageRow]
    has_more: bool
    searched_to: int | None
    lowest: int | None
    highest: int | None


def wire_id(seq: int, token: int) -> str:
    """Return the wire format of a message id: seq and token, each as 16 hex digits."""
    return f"{seq:016x}{token:016x}"


def seq_of(message_id: str) -> int:
    return int(message_id[:16], 16)


def is_message_id(text: str) -> bool:
    """Return whether ``text`` looks like a message id: 32 lower-case hex digits."""
    return len(text) == 32 and _ID_DIGITS.issuperset(text)


class MessageReader(RowReader):
    """Reads messages for the web pages, in display order; ``limit`` is at most ``PAGE_ROWS``."""

    file = "messages"

    async def oldest_ready_at(self, queue_ids: Iterable[int]) -> dict[int, int]:
        """Return since when each queue's oldest ready message is ready, omitting empty queues."""
        return dict(await self._read("oldest_ready", queue_ids=json.dumps(list(queue_ids))))

    async def expiring(self, before_ms: int) -> dict[int, tuple[int, int]]:
        """Return how many ready messages expire before a time, and the first deadline, by queue_id.

        Only the ``EXPIRING_ROWS`` soonest are counted; if that many are found, more may exist.
        """
        rows = await self._read("expiring", before_ms=before_ms, limit=EXPIRING_ROWS)
        return {queue_id: (count, soonest_ms) for queue_id, count, soonest_ms in rows}

    async def count_expiring(self, until_ms: int, before_number: int, limit: int) -> int:
        """Count at most ``limit`` ready messages with a steady deadline up to ``until_ms``.

        Messages and positions numbered ``before_number`` or higher are not counted.
        """
        rows = await self._read("count_expiring", moment=until_ms, number=before_number, most=limit)
        return int(rows[0][0])

    async def messages(
        self,
        queue_id: int,
        *,
        after: int | None = None,
        before: int | None = None,
        states: Iterable[State] = ALIVE,
        limit: int = 50,
    ) -> list[MessageRow]:
        """Return a page of a queue's messages in order, after or before a position (exclusive)."""
        is_backwards = before is not None
        position = before if before is not None else after if after is not None else BEFORE_ALL
        rows = await self._all(
            MessageRow,
            "messages_before" if is_backwards else "messages_after",
            queue_id=queue_id,
            position=position,
            states=sum(1 << state for state in states),
            limit=_page(limit),
        )
        return rows[::-1] if is_backwards else rows

    async def blocking_heads(self, queue_id: int) -> list[MessageRow]:
        """Return messages in flight that block others of their groups, the longest first."""
        limits = {"among": _HEADS_SCANNED, "limit": HEADS_SHOWN}
        rows = await self._read("blocking_heads", queue_id=queue_id, **limits)
        return await self.rows([seq for (seq,) in rows])

    async def message(self, message_id: str) -> MessageRow | None:
        """Return a live or settled message, or None if it is unknown or its row was removed."""
        if not is_message_id(message_id):
            return None
        seq = seq_of(message_id)
        row = await self._one(MessageRow, "by_seq", seq=seq) if seq < 1 << 63 else None
        return row if row and compare_digest(row.message_id, message_id) else None

    async def by_unique_key(self, queue_id: int, unique_key: str) -> MessageRow | None:
        """Return the live message of a queue with a unique key, or None if there is none."""
        rows = await self._read("by_unique_key", queue_id=queue_id, unique_key=unique_key)
        return next(iter(await self.rows([seq for (seq,) in rows])), None)

    async def was_assigned(self, message_id: str) -> bool:
        """Return whether this broker assigned the number in an id, even if its row was removed."""
        rows = await self._read("next_number")
        return 0 < seq_of(message_id) < int(rows[0][0])

    async def rows(self, seqs: Sequence[int]) -> list[MessageRow]:
        """Return live and settled messages in the order of the given seqs, at most one page."""
        if not seqs:
            return []
        rows = await self._all(MessageRow, "by_seqs", seqs=json.dumps(list(seqs[:PAGE_ROWS])))
        by_seq = {row.seq: row for row in rows}
        return [by_seq[seq] for seq in seqs if seq in by_seq]

    async def body(self, message: MessageRow) -> Body | None:
        """Return a body, or its first 64 KiB if it exceeds 256 KiB; None if it does not exist."""
        size = message.size if message.size <= BODY_WHOLE_BYTES else BODY_HEAD_BYTES
        part = await self.body_part(message, 0, size)
        if part is None:
            return None
        is_damaged = _is_damaged(message, part.content) if part.is_whole else None
        return Body(part.size, part.content, is_damaged)

    async def body_part(self, message: MessageRow, start: int, size: int) -> Body | None:
        """Return part of a body without reading the rest, or None if the body does not exist."""
        rows = await self._read("body_part", seq=message.seq, start=start, size=size)
        return Body(rows[0][0], rows[0][1] or b"", None) if rows else None

    async def bodies(self, seqs: Sequence[int]) -> dict[int, bytes]:
        """Return complete bodies, keyed by seq; the caller must limit their total size."""
        rows = await self._read("bodies", seqs=json.dumps(list(seqs)))
        return {seq: content or b"" for seq, content in rows}

    async def sha256(self, message: MessageRow) -> str | None:
        """Return the SHA-256 of a body, read in parts, or None if missing or larger than 8 MiB."""
        if message.size > SHA256_BYTES:
            return None
        sha256 = hashlib.sha256()
        for start in range(0, message.size, BODY_PART_BYTES):
            part = await self.body_part(message, start, BODY_PART_BYTES)
            if part is None or not part.content:
                return None
            await asyncio.to_thread(sha256.update, part.content)
        return sha256.hexdigest()

    async def whole_body(self, message: MessageRow) -> Body | None:
        rows = await self._read("body", seq=message.seq)
        if not rows:
            return None
        content = rows[0][0]
        is_damaged = await asyncio.to_thread(_is_damaged, message, content)
        return Body(len(content), content, is_damaged)

    async def events(self, seq: int) -> list[EventRow]:
        return await self._all(EventRow, "events", seq=seq, limit=EVENT_ROWS)

    async def links(self, seqs: Iterable[int]) -> list[LinkRow]:
        """Return a message's links to others, such as redrive, restore, edit and dead letter."""
        return await self._all(LinkRow, "links", seqs=json.dumps(list(seqs)), limit=LINK_ROWS)

    async def with_copies(self, seqs: Sequence[int], rounds: int) -> list[int]:
        """Return messages and, after those from which they are reached, all that have their data.

        These are dead-letter records and what was restored, redriven or edited, and the messages
        from which these were made, over at most ``rounds`` links.
        """
        related = dict.fromkeys(seqs)
        latest = [*related]
        for _ in range(rounds):
            linked: dict[int, None] = {}
            for at in range(0, len(latest), PAGE_ROWS):
                rows = await self._read("copies", seqs=json.dumps(latest[at : at + PAGE_ROWS]))
                for seq, other in rows:
                    linked[seq or (seq_of(other) if is_message_id(other) else 0)] = None
            latest = [seq for seq in linked if seq and seq not in related]
            if not latest:
                break
            related |= dict.fromkeys(latest)
        return [*related]

    async def stored(self, seqs: Sequence[int]) -> tuple[dict[int, str], ...]:
        """Return the ids by seq of live messages, of settled ones, and of erased ones."""
        parts: tuple[dict[int, str], ...] = ({}, {}, {})
        for at in range(0, len(seqs), PAGE_ROWS):
            rows = await self._read("stored_of", seqs=json.dumps(seqs[at : at + PAGE_ROWS]))
            for seq, id_, part in rows:
                parts[part][seq] = id_
        return parts

    async def seqs_at(self, first: int, last: int) -> list[int]:
        """Return the messages at a range of offsets, both inclusive."""
        return [seq for (seq,) in await self._read("seqs_at_offsets", first=first, last=last)]

    async def staged_tokens(self, trace_ids: Sequence[str]) -> list[str]:
        """Return the tokens under which rows with these traces are staged."""
        rows = await self._read("staged_tokens", traces=json.dumps(trace_ids))
        return [token for (token,) in rows]

    async def retries(self, rows: Iterable[MessageRow]) -> dict[int, list[EventRow]]:
        """Return the retries of those messages that have any, by seq, oldest first."""
        seqs = [row.seq for row in rows if row.retries]
        events: dict[int, list[EventRow]] = {}
        if seqs:
            stored = await self._read("retries", seqs=json.dumps(seqs), limit=EVENT_ROWS)
            for seq, *event in stored:
                events.setdefault(seq, []).append(EventRow(*event))
        return events

    async def history(
        self,
        *,
        before: int | None = None,
        after: int | None = None,
        queue_id: int | None = None,
        outcome: State | None = None,
        since: int | None = None,
        until: int | None = None,
        limit: int = 50,
    ) -> HistoryPage:
        """Return settled messages below offset ``before`` or above ``after``, or else the newest.

        ``since`` and ``until`` (exclusive) bound the time of settlement in Unix ms.  No index
        covers acked messages of all queues; they are read in slices of offsets until the page is
        full, the end is reached or a second has passed; ``searched_to`` says where to continue.
        """
        lowest, highest = (await self._read("history_ends"))[0]
        if lowest is None or highest is None:
            return HistoryPage([], False, None, None, None)
        bottom = lowest if since is None else await self._offset_at(since, lowest, highest)
        top = highest if until is None else await self._offset_at(until, lowest, highest) - 1
        name, parameters = _history_statement(queue_id, outcome)
        limit = _page(limit)
        is_newer = after is not None
        step = _HISTORY_SLICE if name == "acked" else 1 << 62
        start = max(after, bottom - 1) if after is not None else min(before or top + 1, top + 1)
        rows: list[MessageRow] = []
        ends_s = monotonic() + _HISTORY_LIMIT_S
        while start < top if is_newer else start > bottom:
            stop = min(start + step, top) if is_newer else max(start - step, bottom)
            rows += await self._all(
                MessageRow,
                f"{name}_{'newer' if is_newer else 'older'}",
                start=start,
                stop=stop,
                limit=limit + 1 - len(rows),
                **parameters,
            )
            start = stop
            if len(rows) > limit or monotonic() > ends_s:
                break
        is_done = len(rows) > limit or (start >= top if is_newer else start <= bottom)
        page = rows[:limit][::-1] if is_newer else rows[:limit]
        searched_to = None if is_done else start
        return HistoryPage(page, len(rows) > limit, searched_to, lowest, highest)

    async def _offset_at(self, at_ms: int, lowest: int, highest: int) -> int:
        """Find the first offset settled at or after a time, by bisection: times never decrease."""
        low, high = lowest, highest + 1
        while low < high:
            middle = (low + high) // 2
            rows = await self._read("settled_at", at=middle)
            if rows and rows[0][1] < at_ms:
                low = int(rows[0][0]) + 1
            else:
                high = middle
        return low

    async def trash(
        self, *, before: int | None = None, queues: frozenset[int] | None = None, limit: int = 50
    ) -> Page[MessageRow, int]:
        """Return restorable deleted messages, newest first, scanning a limited number of rows.

        ``queues`` are the ids of the queues that the caller can see; None means all.  The next page
        starts before the offset ``next``.
        """
        scanned = await self._read(
            "newest_deleted",
            start=1 << 62 if before is None else before,
            looked=TRASH_SCANNED,
            queues=None if queues is None else json.dumps(sorted(queues)),
        )
        restorable = [(offset, seq) for offset, seq, is_restorable in scanned if is_restorable]
        page = restorable[: _page(limit)]
        rows = await self.rows([seq for _, seq in page])
        if len(restorable) > len(page):
            return Page(rows, page[-1][0])
        is_cut = len(scanned) == TRASH_SCANNED
        return Page(rows, int(scanned[-1][0]) if is_cut else None, is_cut=is_cut)


def _history_statement(queue_id: int | None, outcome: State | None) -> tuple[str, dict[str, int]]:
    """Return the name of the statement with a matching index, and its parameters."""
    if queue_id is not None and outcome is not None:
        return "queue_outcome", {"queue_id": queue_id, "outcome": outcome}
    if queue_id is not None:
        return "queue", {"queue_id": queue_id}
    if outcome is None:
        return "history", {}
    return ("acked" if outcome is State.ACKED else "outcome"), {"outcome": outcome}


def _page(limit: int) -> int:
    return max(1, min(limit, PAGE_ROWS))


def _is_damaged(message: MessageRow, content: bytes) -> bool:
    return checksum(message.seq, content) != message.crc
