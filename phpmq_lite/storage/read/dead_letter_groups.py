"""Groups the newest dead letters from all dead-letter queues by cause.

Queues with millions of records are read newest first, for a limited time.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, NamedTuple

from phpmq_lite.queue_settings import DEAD_LETTER_SUFFIX
from phpmq_lite.storage.read.messages import wire_id
from phpmq_lite.storage.read.read_pool import RowReader

LIMIT_S: Final = 1.5
DEEP_LIMIT_S: Final = 10.0  # time limit if a longer search is requested
SPANS: Final = 28  # number of bars in the chart
SPAN_MS: Final = 6 * 3_600_000  # time span of one bar; all bars together cover seven days
CAUSE_CHARACTERS: Final = 200
CAUSE_WILDCARDS: Final = 7  # search patterns allow one more wildcard, which is used at the end
_SLICE: Final = 100  # number of records read from a queue at a time
_FIRST_SLICE: Final = 20
_FIRST_ROUND_FACTOR: Final = 1.5  # multiplies the time limit until each queue has been read once
_MAX_GROUPS: Final = 2_000  # once there are this many groups, further causes are merged

# Matches text that varies between similar failures: words with a digit, joined by punctuation.
_VARYING: Final = re.compile(r"[\w+-]*[0-9][\w+-]*(?:[.:,@/]+[\w+-]*[0-9][\w+-]*)*")

_ERROR: Final = re.compile(rb'"error" ?: ?"((?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*)("?)')
_INCOMPLETE_ESCAPE: Final = re.compile(  # matches an incomplete escape at the end of the block
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\u[0-9a-fA-F]{0,3})?$"
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_STATED: Final = {  # for each block member, a pattern that matches plain, complete text
    name: re.compile(rb'"%b" ?: ?"([^"\\\x00-\x1f]{1,259})"' % name.encode())
    for name in ("reason", "detail", "original_queue")
}


class FailureCause(NamedTuple):
    """A worker's error text, with ``*`` for parts that vary, and whether the text is complete."""

    text: str
    is_whole: bool


@dataclass(slots=True)
class DeadLetterGroup:
    """Dead letters with the same queue, origin, URN, reason and cause, any of which may be None.

    ``stated`` contains the members that provided origin and reason if a program published the
    dead letter and the broker does not know the original message.
    """

    queue_id: int
    queue: str
    origin_id: int | None
    urn: str | None
    reason: str | None
    cause: str | None  # worker's error text, with * for numbers and ids
    origin: str | None = None
    stated: tuple[tuple[str, str], ...] = ()
    is_whole: bool = True  # whether the cause is complete; otherwise, any text may follow it
    records: int = 0
    size: int = 0  # total size of the bodies in bytes
    first_at: int = 0
    last_at: int = 0
    last_seq: int = 0
    sample_id: str = ""  # message id of the newest record
    died_again: int = 0  # number of records that died again after a redrive
    arrivals: Counter[int] = field(default_factory=Counter)  # records by time span

    @property
    def bars(self) -> list[int]:
        return [self.arrivals[span] for span in range(SPANS)]


@dataclass(slots=True, frozen=True)
class DeadLetterPage:
    """Groups of dead letters, newest first; ``scanned`` of ``total`` have been read."""

    groups: list[DeadLetterGroup]
    scanned: int
    total: int


def strip_numbers(text: str) -> str:
    """Replace ids, addresses and numbers with *, because they vary between similar failures."""
    return re.sub(r"\*(?:[\s*]*\*)+", "*", _VARYING.sub("*", text))


def cause_of(block: bytes | None) -> FailureCause | None:
    """Return the worker's error text from a block, or None if there is none.

    Bytes are matched, because parsing JSON took five times as long and bodies may be malformed.
    """
    match = _ERROR.search(block) if block else None
    if match is None:
        return None
    raw, is_whole = match[1], bool(match[2])
    try:
        if not is_whole:
            raw = _INCOMPLETE_ESCAPE.sub(b"", raw).decode(errors="ignore").encode()
        text = str(json.loads(f'"{raw.decode()}"')) if b"\\" in raw else raw.decode()
        text.encode()
    except ValueError:  # not UTF-8, not JSON, or an incomplete character that cannot be displayed
        text, is_whole = raw.partition(b"\\")[0].decode(errors="replace"), False
    is_whole = is_whole and len(text) <= CAUSE_CHARACTERS
    text = text[:CAUSE_CHARACTERS] if is_whole else text[:CAUSE_CHARACTERS].rstrip("\ufffd")
    bare = strip_numbers(_CONTROL.sub("*", text))
    if not any(map(str.isalpha, bare)) and not _CONTROL.search(text):
        bare = text  # keep a bare number, because * alone would match any text
    pieces = bare.split("*")
    if len(pieces) > CAUSE_WILDCARDS + 1:
        return FailureCause("*".join(pieces[: CAUSE_WILDCARDS + 1]), False)
    return FailureCause(bare, is_whole)


def stated_source(block: bytes | None) -> tuple[tuple[str, str], ...]:
    """Find the detail (or reason) and the queue in a block by matching bytes."""
    members: dict[str, str] = {}
    for name, pattern in _STATED.items():
        value = pattern.search(block) if block else None
        if value is not None:
            members[name] = value[1].decode(errors="replace")
    if "detail" in members:
        members.pop("reason", None)
    return tuple(sorted(members.items()))


class DeadLetterGroups(RowReader):
    """Groups dead-letter records by cause."""

    file = "messages"

    async def groups(
        self,
        now_ms: int,
        *,
        queues: frozenset[int] | None = None,
        names: Iterable[str] = (),
        limit_s: float = LIMIT_S,
    ) -> DeadLetterPage:
        """Group the newest records; ``names`` are dead-letter queues that do not end in .dlq."""
        named = frozenset(names)
        queues_with_records = [
            (queue_id, name, count)
            for queue_id, name, count in await self._read("filled_queues")
            if (name.endswith(DEAD_LETTER_SUFFIX) or name in named)
            and (queues is None or queue_id in queues)
        ]
        total = sum(count for _, _, count in queues_with_records)
        by_cause: dict[tuple[object, ...], DeadLetterGroup] = {}
        walks = {queue_id: (name, 1 << 62) for queue_id, name, _ in queues_with_records}
        slice_ = _FIRST_SLICE  # read a few records of each queue first, then more
        began_s = monotonic()
        ends_s, scanned = began_s + limit_s * _FIRST_ROUND_FACTOR, 0
        while walks:  # take turns so that no queue is left out
            for queue_id, (name, before) in list(walks.items()):
                slice_began_s = monotonic()
                count, place = await self._slice(by_cause, queue_id, name, before, now_ms, slice_)
                scanned += count
                if count < slice_:
                    del walks[queue_id]
                else:
                    walks[queue_id] = name, place
                now_s = monotonic()
                if now_s + (now_s - slice_began_s) > ends_s:  # no time for another slice
                    walks.clear()
                    break
            ends_s, slice_ = began_s + limit_s, _SLICE
            if monotonic() > ends_s:
                break
        groups = sorted(by_cause.values(), key=lambda group: -group.last_seq)
        await self._add_names(groups)
        return DeadLetterPage(groups, scanned, max(total, scanned))

    async def _slice(
        self,
        by_cause: dict[tuple[object, ...], DeadLetterGroup],
        queue_id: int,
        name: str,
        before: int,
        now_ms: int,
        limit: int,
    ) -> tuple[int, int]:
        """Add one slice of records; return the number of records and the lowest position."""
        place = {"queue_id": queue_id, "before": before, "limit": limit}
        rows = await self._read("newest_dead_letters", **place)
        since_ms = now_ms - SPANS * SPAN_MS
        for _, seq, origin, urn, reason, at_ms, size, is_again, block in rows:
            cause = cause_of(block)
            said = stated_source(block) if origin is None and reason is None else ()
            key = (queue_id, origin, urn, reason, cause, said)
            if key not in by_cause and len(by_cause) >= _MAX_GROUPS:
                urn, cause, said = None, None, ()
                key = (queue_id, origin, urn, reason, cause, said)
            group = by_cause.get(key)
            if group is None:
                text, is_whole = cause or (None, True)
                group = DeadLetterGroup(queue_id, name, origin, urn, reason, text, stated=said)
                group.is_whole, group.first_at = is_whole, at_ms
                by_cause[key] = group
            group.records += 1
            group.size += size
            group.died_again += is_again
            group.first_at = min(group.first_at, at_ms)
            group.last_at = max(group.last_at, at_ms)
            group.last_seq = max(group.last_seq, seq)
            if at_ms >= since_ms:
                group.arrivals[min((at_ms - since_ms) // SPAN_MS, SPANS - 1)] += 1
        return len(rows), rows[-1][0] if rows else before

    async def _add_names(self, groups: Sequence[DeadLetterGroup]) -> None:
        origins = json.dumps([group.origin_id for group in groups if group.origin_id is not None])
        seqs = json.dumps([group.last_seq for group in groups])
        names: dict[int, str] = dict(await self._readers.read("search", "names", queues=origins))
        tokens: dict[int, int] = dict(await self._read("tokens", seqs=seqs))
        for group in groups:
            group.origin = names.get(group.origin_id or 0)
            if group.stated:
                said = dict(group.stated)
                group.origin = said.get("original_queue")
                group.reason = said.get("detail") or said.get("reason")
            group.sample_id = wire_id(group.last_seq, tokens.get(group.last_seq, 0))
