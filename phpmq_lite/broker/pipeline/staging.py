"""Two-phase publishing: rows are staged under tokens, then published in one transaction.

One transaction may publish any number of rows, so the writer thread copies them with SQL.  The core
reserves their numbers and counts them; the windows load them from disk.  Contents are inspected
when they are staged.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from phpmq_lite.broker import transitions, validation
from phpmq_lite.broker.broker import Broker, deadline_of
from phpmq_lite.broker.delivery_limits import group_of
from phpmq_lite.broker.pipeline.state import STAGE_KEPT_MS, StageQueue, StageState, StageWriter
from phpmq_lite.broker.queue import Queue
from phpmq_lite.broker.validation import INSPECTED_BYTES_MAX, NO_ENVELOPE
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import (
    BEFORE_ALL,
    AuditEntry,
    CopiedRows,
    EnvelopeInspection,
    EnvelopeInspector,
    InspectedRow,
    Reply,
    has_room,
)
from phpmq_lite.writes import (
    AdmitCopiedRows,
    CopyStagedRows,
    CreateStage,
    QuarantinedRows,
    UpdateStage,
    UpdateStageQueue,
)

STAGE_SLICE: Final = 1_000  # maximum number of rows per ``stage`` call
TOKEN_ROWS: Final = 100_000
TOKEN_BYTES: Final = 64 << 20  # maximum total size of the bodies staged under a token
TOKENS: Final = 10_000
STAGED_BYTES: Final = 1 << 30  # limit for all tokens together, like the next two
STAGED_ROWS: Final = 10_000_000
STAGED_PARTS: Final = 100_000  # maximum number of queues in memory, counted once for each token
PUBLISH_ROWS: Final = 100_000
PUBLISH_BYTES: Final = 256 << 20
PUBLISH_BAD: Final = 1_000  # maximum number of invalid rows, which are dead-lettered
PUBLISH_BAD_BYTES: Final = 16 << 20  # total size of invalid bodies, which pass through the core

TOKEN: Final = re.compile(r"[!-~]{1,128}")
ANY_WRITER: Final = StageWriter()

StagedRow = tuple[str, bytes, int | None]  # queue, body, ttl_s (None: default; 0: no expiry)


class _NewRow(NamedTuple):
    queue: Queue
    policy: str  # the queue's validation policy when the row was inspected
    body: bytes
    ttl_s: int | None


class StagingStatus(NamedTuple):
    """Number of rows and bytes staged under a token."""

    rows: int
    bytes: int


class StagedPublishResult(NamedTuple):
    """Result of ``publish_staged``."""

    published: int  # number of published rows, including quarantined ones
    is_repeated: bool  # True if this or a higher version was already published
    quarantined: int
    remaining: int = 0  # rows left for the next call with the same version
    is_resumed: bool = False  # True if it continued an earlier publish and dropped new tokens


# -- staging


def stage(
    core: Broker,
    reply: Callable[[StagingStatus], None],
    entry: AuditEntry,
    token: str,
    rows: Sequence[StagedRow],
    *,
    after: int,
    is_whole: bool,
) -> None:
    """Store rows under a token, in order.  Reply with ``StagingStatus``.

    ``after`` is the number of rows that the token already has; 0 creates the token.  ``is_whole``
    marks the last rows.  Missing queues are created.  TTLs start when the rows are published, and
    publishing them stores the audit row.

    Raises RefusedError: ``draining``, ``bad_token``, ``token_staged``, ``unknown_token``, ``gap``,
    ``too_many``, ``too_large``, ``stage_full``, ``disk_full``, ``database_full``, ``bad_name`` or
    ``too_many_queues``.
    """
    _check_stage(core, entry.actor, token, rows, after)
    queues = _get_or_create_queues(core, [row[0] for row in rows], entry.actor)
    policies = {queue.queue_id: _validation_policy(queue) for queue in queues.values()}
    new_rows = [
        _NewRow(queues[name], policies[queues[name].queue_id], body, ttl_s)
        for name, body, ttl_s in rows
    ]
    if not any(queue.validates for queue in queues.values()):
        envelopes = core.inspector
        inspections = [_inspect(envelopes, row.queue, row.body) for row in new_rows]
        _store(core, entry.actor, token, new_rows, inspections, reply, is_whole=is_whole)
        return
    works = [_background_inspection(core, row.queue, row.body) for row in new_rows]

    def check_and_store(inspections: list[EnvelopeInspection]) -> None:
        _check_stage(core, entry.actor, token, rows, after)
        _store(core, entry.actor, token, new_rows, inspections, reply, is_whole=is_whole)

    def resume(inspections: list[EnvelopeInspection]) -> None:
        core.run_late(partial(check_and_store, inspections), reply)

    core.batch.background.append((lambda: [work() for work in works], resume))


def _check_stage(
    core: Broker, actor: str, token: str, rows: Sequence[StagedRow], after: int
) -> None:
    core.check_not_draining()
    if (shut := core.registry.publishing_stop) is not None:
        raise RefusedError(shut.kind.code, shut.detail)
    if not TOKEN.fullmatch(token):
        raise RefusedError(
            "bad_token", f"{token[:50]!r}: a token must have 1 to 128 printable ASCII characters"
        )
    staging = core.staging
    stage = staging.stages.get(token)
    if stage is None:
        if after:
            raise RefusedError("unknown_token", f"nothing is staged under token {token!r}")
    elif stage.is_whole or not after:
        raise RefusedError("token_staged", f"token {token!r} already exists")
    elif stage.rows != after:
        raise RefusedError("gap", f"{stage.rows} rows are already staged, but after is {after}")
    if len(rows) > STAGE_SLICE:
        raise RefusedError("too_many", f"{len(rows)} rows given; the limit is {STAGE_SLICE}")
    if after + len(rows) > TOKEN_ROWS:
        detail = f"{after + len(rows)} rows under token {token!r}; the limit is {TOKEN_ROWS}"
        raise RefusedError("too_many", detail)
    size = sum(len(body) for _, body, _ in rows)
    stage_bytes = size + (0 if stage is None else stage.bytes)
    if stage_bytes > TOKEN_BYTES:
        detail = f"{stage_bytes} bytes under token {token!r}; the limit is {TOKEN_BYTES}"
        raise RefusedError("too_large", detail)
    names = len({row[0] for row in rows})  # upper bound: some queues may already be counted
    bounds: tuple[tuple[str, int, int, int, Callable[[StageState], int]], ...] = (
        ("tokens", len(staging.stages), int(stage is None), TOKENS, lambda _: 1),
        ("bytes", staging.bytes, size, STAGED_BYTES, lambda stage: stage.bytes),
        ("rows", staging.rows, len(rows), STAGED_ROWS, lambda stage: stage.rows),
        ("queues", staging.parts, names, STAGED_PARTS, lambda stage: len(stage.queues)),
    )
    for unit, total, more, limit, of in bounds:
        if total + more > limit:
            own = sum(of(stage) for stage in staging.stages.values() if stage.actor == actor)
            if not has_room(own, total, more, limit):
                raise RefusedError(
                    "stage_full",
                    f"{total + more} {unit} would be staged, {own} of them by you so far;"
                    f" the limit is {limit}. Publish or unstage some.",
                )


def _get_or_create_queues(core: Broker, names: Sequence[str], creator: str) -> dict[str, Queue]:
    """Return queues by name, after creating either all missing ones or none."""
    names = list(dict.fromkeys(names))
    new = [name for name in names if core.destination(name, creator, create=True) is None]
    new = [name for name in new if not core.registry.counts_with_origin(name)]
    core.check_queues(creator, len(new))
    queues = {name: core.registry.get_or_create(core.batch, name, creator) for name in names}
    return {name: queue for name, queue in queues.items() if queue is not None}


def _inspect(envelopes: EnvelopeInspector | None, queue: Queue, body: bytes) -> EnvelopeInspection:
    """Inspect content the way ``transitions.publish`` does."""
    if (
        envelopes is None
        or not queue.inspects
        or len(body) > INSPECTED_BYTES_MAX
        or body[:1] != b"{"
    ):
        return NO_ENVELOPE
    indexed = envelopes.index(body)
    return NO_ENVELOPE if indexed is None else EnvelopeInspection(indexed)


def _background_inspection(core: Broker, queue: Queue, body: bytes) -> Any:
    """Return a function that inspects content in a thread, with the current settings."""
    if not queue.validates:
        return partial(_inspect, core.inspector, queue, body)
    validate = validation.background_validation(core, queue, body)
    return lambda: validate().inspection


def _store(
    core: Broker,
    actor: str,
    token: str,
    rows: Sequence[_NewRow],
    inspections: Sequence[EnvelopeInspection],
    reply: Reply,
    *,
    is_whole: bool,
) -> None:
    staging, writes = core.staging, core.batch.writes
    stage = staging.stages.get(token)
    if stage is None:
        stage = staging.stages[token] = StageState(
            staging.next_id, token, core.now.steady_ms + STAGE_KEPT_MS, actor=actor
        )
        staging.next_id += 1
        writes.append(CreateStage(stage.stage_id, token, core.now.wall_ms, stage.until_ms))
    touched: dict[int, StageQueue] = {}
    for (queue, policy, body, ttl_s), inspection in zip(rows, inspections, strict=True):
        kept_s, _ = deadline_of(queue.settings.default_ttl_s if ttl_s is None else ttl_s, 0)
        part = stage.queues.get(queue.queue_id)
        if part is None:
            part = stage.queues[queue.queue_id] = StageQueue(queue.queue_id, policy=policy)
            staging.parts += 1
        touched[queue.queue_id] = part
        size, is_bad = len(body), inspection.reason is not None
        part.add(StageQueue(queue.queue_id, 1, size, int(is_bad), size * is_bad, kept_s, policy))
        urn, trace_id, meta_id, attempts = inspection.indexed
        record_id, record = inspection.record or (None, None)
        inspected = InspectedRow(
            row_id=stage.first_row + stage.rows,
            queue_id=queue.queue_id,
            ttl_s=kept_s,
            token=core.take_token(),
            urn=urn,
            trace_id=trace_id,
            meta_id=meta_id,
            attempts=attempts,
            reason=inspection.reason,
            detail=inspection.detail or None,
            record_id=record_id,
            record=record,
            content=body,
            group_name=group_of(queue.settings.group_by, inspection.indexed[0], body, None),
        )
        core.batch.staged_rows.append(inspected)
        stage.rows += 1
        staging.rows += 1
        stage.bytes += size
        staging.bytes += size
        core.batch.created_bytes += size  # counts towards the batch limit
    stage.is_whole = is_whole
    for part in touched.values():
        writes.append(UpdateStageQueue(stage_id=stage.stage_id, **asdict(part)))
    writes.append(UpdateStage(stage.rows, stage.bytes, int(is_whole), stage.stage_id))
    core.reply(reply, StagingStatus(stage.rows, stage.bytes))


def _validation_policy(queue: Queue) -> str:
    """Return the settings that affect validation and groups; empty if the queue has neither."""
    settings = queue.settings
    if not queue.validates:
        return settings.group_by
    names = (settings.payload_policy, settings.schema_mode, settings.empty_list_data)
    return " ".join(filter(None, (*names, settings.group_by)))


def unstage(
    core: Broker,
    reply: Callable[[int], None],
    _entry: AuditEntry,
    tokens: Sequence[str],
    *,
    writer: StageWriter = ANY_WRITER,
) -> None:
    """Drop unpublished tokens without an audit row.  Reply with the number of dropped tokens.

    Tokens with rows for queues that the writer may not use are skipped.
    """
    core.reply(reply, _drop_tokens(core, tokens, writer))


def _drop_tokens(core: Broker, tokens: Sequence[str], writer: StageWriter) -> int:
    count = 0
    for token in dict.fromkeys(tokens):
        stage = core.staging.stages.get(token)
        if stage is not None and _foreign_queue(core, writer, stage) is None:
            count += core.staging.drop(core.batch, token)
    return count


def _foreign_queue(core: Broker, writer: StageWriter, stage: StageState) -> str | None:
    for queue_id in stage.queues:
        queue = core.queues_by_id.get(queue_id)
        removed = core.registry.removed_name(queue_id) or f"number {queue_id}"
        name = removed if queue is None else queue.name
        if not writer.may_use(name):
            return name
    return None


# -- publishing


@dataclass(slots=True)
class _StagedPublish:
    """The arguments of one ``publish_staged`` call, and the rows that must be dead-lettered."""

    core: Broker
    entry: AuditEntry
    writer: StageWriter
    app_id: str
    version: int
    is_single: bool
    tokens: Sequence[str]
    reply: Reply
    in_parts: bool = False
    spans: list[list[int]] = field(default_factory=list)  # row-number ranges that have been read
    bad: list[InspectedRow] = field(default_factory=list)  # invalid rows in those ranges

    def begin(self) -> None:
        """Check the publish, read its invalid rows, if there are any, and then store it."""
        core = self.core
        core.check_not_draining()
        app_ids, now_ms = core.staging.app_ids, core.now.steady_ms
        app = app_ids.check(self.writer, self.app_id, now_ms, is_single=self.is_single)
        if app is not None and self.version <= app.version:
            app_ids.record_use(core.batch, now_ms, self.writer, self.app_id)
            _drop_tokens(core, self.tokens, self.writer)
            core.record_audit(self.entry, 0)
            core.reply(self.reply, StagedPublishResult(0, True, 0))
            return
        unfinished = core.staging.unfinished(self.app_id)
        sealed = unfinished.get(self.version)
        if unfinished and sealed is None:
            raise RefusedError(
                "unfinished_version",
                f"version {next(iter(unfinished))} of {self.app_id!r} is only partly published;"
                f" repeat it with the same rows before publishing version {self.version}",
            )
        all_stages = self._stages() if sealed is None else sealed
        stages = _first_stages(all_stages) if sealed is not None or self.in_parts else all_stages
        for stage in all_stages:
            if (foreign := _foreign_queue(core, self.writer, stage)) is not None:
                detail = f"token {stage.token!r} has rows for another user's queue {foreign!r}"
                raise RefusedError("foreign_queue", detail)
        parts = _queue_sums(stages)
        queues = self._check_queues(parts)
        spans = [
            [s.first_row, s.first_row + s.rows]
            for s in stages
            if any(part.bad_rows for part in s.queues.values())
        ]
        if spans != self.spans:  # not read yet, or a token has been staged again since
            self.spans = spans
            core.batch.queries.append((QuarantinedRows(json.dumps(spans)), self.resume))
            return
        self._store(stages, parts, queues, all_stages)

    def resume(self, rows: list[tuple[Any, ...]]) -> None:
        """Keep the invalid rows and check again, because tokens and queues may have changed."""
        self.bad = [InspectedRow(*row) for row in rows]
        self.core.run_late(self.begin, self.reply)

    def _stages(self) -> list[StageState]:
        stages = []
        for token in dict.fromkeys(self.tokens):
            stage = self.core.staging.stages.get(token)
            if stage is None:
                raise RefusedError("unknown_token", f"nothing is staged under token {token!r}")
            if not stage.is_whole:
                raise RefusedError("token_open", f"the last rows of token {token!r} are missing")
            stages.append(stage)
        return stages

    def _check_queues(self, parts: dict[int, StageQueue]) -> dict[int, Queue]:
        """Return the queues by id, or raise RefusedError if one does not accept all of its rows."""
        core = self.core
        queues = {}
        for queue_id, part in parts.items():
            queue = core.registry.get_or_recreate(core.batch, queue_id, self.entry.actor)
            if queue is None:
                raise RefusedError(
                    "too_many_queues",
                    f"queue number {queue_id} was removed after its rows were staged and cannot"
                    f" be recreated, because the limit of {core.limits.queues} queues is reached",
                )
            if _validation_policy(queue) != part.policy:
                raise RefusedError(
                    "queue_changed",
                    f"the validation settings of {queue.name!r} have changed since the rows were"
                    " staged",
                )
            refusal = queue.refusal(part.rows, part.bytes)
            if refusal is None and part.bad_rows:
                full = core.registry.dead_letter_refusal(
                    core.batch, queue, part.bad_rows, part.bad_bytes
                )
                refusal = None if full is None else full.refusal
            if refusal is not None:
                core.refuse(
                    queue,
                    refusal,
                    f"{queue.name!r} cannot accept {part.rows} messages: {refusal.reason}",
                )
            queues[queue_id] = queue
        return queues

    def _store(
        self,
        stages: list[StageState],
        parts: dict[int, StageQueue],
        queues: dict[int, Queue],
        all_stages: list[StageState],
    ) -> None:
        """Publish ``stages``, the first of ``all_stages``, and keep the others for later calls."""
        core, is_resumed = self.core, bool(stages) and stages[0].is_sealed
        staging, now_ms = core.staging, core.now.steady_ms
        remaining = sum(stage.rows for stage in all_stages[len(stages) :])
        client = core.client_number_of(self.entry)
        for row in self.bad:
            queue, ttl_s = queues[row.queue_id], row.ttl_s or 0
            transitions.publish(core, queue, row.content, ttl_s, client, row.inspection)
        first = core.next_number
        for stage in stages:
            # Only valid rows become messages; the row numbers of invalid rows are skipped.
            copy = CopyStagedRows(
                offset=core.next_number - stage.first_row,
                at_ms=core.now.wall_ms,
                steady_ms=now_ms,
                publisher=client,
                first_row=stage.first_row,
                end_row=stage.first_row + stage.rows,
            )
            core.batch.writes.append(copy)
            begin = core.next_number
            core.next_number += stage.rows
            if any(queue.has_groups for queue in queues.values()):
                core.batch.writes.append(AdmitCopiedRows(begin, core.next_number))
            staging.drop(core.batch, stage.token)
        if is_resumed:
            _drop_tokens(core, self.tokens, self.writer)
            staging.unseal(core.batch, self.app_id, self.version, len(stages))
        elif remaining:
            staging.seal(core.batch, now_ms, self.app_id, self.version, all_stages[len(stages) :])
        counts = {part.queue_id: part.rows - part.bad_rows for part in parts.values()}
        core.batch.copied.append(CopiedRows(first, core.next_number, client, counts))
        for queue_id, part in parts.items():
            self._count(queues[queue_id], part, first)
        total = sum(part.rows for part in parts.values())
        version = self.version - 1 if remaining else self.version  # the version is not yet complete
        staging.app_ids.record_version(
            core.batch, now_ms, self.writer, self.app_id, version, total, is_single=self.is_single
        )
        core.record_audit(self.entry, total)
        result = StagedPublishResult(total, False, len(self.bad), remaining, is_resumed)
        core.reply(self.reply, result)

    def _count(self, queue: Queue, part: StageQueue, first: int) -> None:
        """Count the rows that the writer adds to a queue after the end of its window."""
        core = self.core
        rows, size = part.rows - part.bad_rows, part.bytes - part.bad_bytes
        core.add_counts(queue, rows, size)
        queue.counters.published += rows
        queue.counters.count_source(self.entry.source, part.rows)
        core.batch.created_bytes += size
        if part.least_ttl_s is not None:
            core.note_deadline(core.now.steady_ms + part.least_ttl_s * 1_000)
        window = queue.window
        if rows and first <= max(
            queue.claimed_to, BEFORE_ALL if window is None else window.covered_to
        ):
            core.restart_window(queue)  # they are before messages of a lower priority
        elif rows and window is not None:
            window.reaches_end = False
            core.request_dispatch(queue)


def _first_stages(stages: Sequence[StageState]) -> list[StageState]:
    """Return as many of the first stages as fit in one publish, but at least one."""
    total = StageQueue(0)
    for count, stage in enumerate(stages):
        for part in stage.queues.values():
            total.add(part)
        if count and _limit_error(total) is not None:
            return list(stages[:count])
    return list(stages)


def _limit_error(total: StageQueue) -> RefusedError | None:
    if total.rows > PUBLISH_ROWS:
        return RefusedError("too_many", f"{total.rows} rows given; the limit is {PUBLISH_ROWS}")
    if total.bytes > PUBLISH_BYTES:
        return RefusedError("too_large", f"{total.bytes} bytes given; the limit is {PUBLISH_BYTES}")
    if total.bad_rows > PUBLISH_BAD or total.bad_bytes > PUBLISH_BAD_BYTES:
        return RefusedError(
            "too_many_quarantined",
            f"{total.bad_rows} rows ({total.bad_bytes} bytes) would be quarantined; the limit is"
            f" {PUBLISH_BAD} rows and {PUBLISH_BAD_BYTES} bytes per publish",
        )
    return None


def _queue_sums(stages: Sequence[StageState]) -> dict[int, StageQueue]:
    """Return the row counts and sizes of all stages, summed by queue.

    Raises RefusedError: the total exceeds the limits of one publish.
    """
    sums: dict[int, StageQueue] = {}
    total = StageQueue(0)
    for stage in stages:
        for part in stage.queues.values():
            empty = StageQueue(part.queue_id, policy=part.policy)
            sums.setdefault(part.queue_id, empty).add(part)
            total.add(part)
    if (error := _limit_error(total)) is not None:
        raise error
    return sums


def publish_staged(
    core: Broker,
    reply: Callable[[StagedPublishResult], None],
    entry: AuditEntry,
    app_id: str,
    version: int,
    tokens: Sequence[str],
    *,
    writer: StageWriter = ANY_WRITER,
    is_single: bool = False,
    in_parts: bool = False,
) -> None:
    """Publish all rows under ``tokens``, in one transaction.  Reply with ``StagedPublishResult``.

    With ``in_parts``, several calls with the same version publish more rows than fit in one
    transaction.  The first call seals, for 30 days, the tokens that do not fit; each later call
    publishes some of these, in order, whatever tokens it names.  The version counts as published
    once no token remains.

    The broker keeps the highest version of each ``app_id``.  If ``version`` is not higher, nothing
    is published and the tokens are dropped.  An ``app_id`` belongs to its first writer and is kept
    for at least 30 days after its last use.  With ``is_single``, it is used for this publish only
    and may be forgotten earlier; repeating the publish then fails, because its tokens are gone.

    All rows are added at the end of their queues, in the order of the tokens.  If the publish is
    refused, nothing is published and the tokens stay.  Raises RefusedError: ``bad_app_id``,
    ``bad_version``, ``foreign_app_id``, ``too_many_app_ids``, ``draining``, ``unknown_token``,
    ``token_open``, ``foreign_queue``, ``too_many``, ``too_large``, ``too_many_quarantined``,
    ``too_many_queues``, ``queue_changed``, ``unfinished_version``, ``paused`` or ``queue_full``.
    """
    if not 0 < len(app_id) <= 256 or not app_id.isprintable():
        raise RefusedError(
            "bad_app_id", f"{app_id[:50]!r}: an app_id must have 1 to 256 printable characters"
        )
    if not 0 <= version < 1 << 63:
        raise RefusedError("bad_version", f"version is {version}; it must be 0 to 2^63 - 1")
    if len(tokens) > TOKENS:
        raise RefusedError("too_many", f"{len(tokens)} tokens given; the limit is {TOKENS}")
    _StagedPublish(core, entry, writer, app_id, version, is_single, tokens, reply, in_parts).begin()


def transfer_app_id(
    core: Broker, reply: Callable[[None], None], entry: AuditEntry, app_id: str, owner: str | None
) -> None:
    """Transfer an app_id to ``owner``; if None, the next writer becomes owner.  Reply with None.

    Raises RefusedError: ``unknown_app_id`` or ``too_many_app_ids``.
    """
    core.staging.app_ids.transfer(core.batch, core.now.steady_ms, app_id, owner)
    core.record_audit(entry, 1)
    core.reply(reply, None)
