"""The broker's state for Spark: subscriptions, staged rows and published versions.

Claimed messages are on disk only (table ``claim``), so memory does not grow with their number.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from typing import Final

from phpmq_lite.errors import RefusedError
from phpmq_lite.model import ROW_BITS, Batch, PipelineRows
from phpmq_lite.writes import (
    CreateSubscription,
    DeleteSubscription,
    DropStage,
    ForgetPublishedVersion,
    RecordAppIdUse,
    RecordPublishedVersion,
    SealStage,
    UpdateSubscription,
)

SUBSCRIPTIONS_MAX: Final = 1_000


@dataclass(slots=True, eq=False)
class Subscription:
    """A subscription, whose commands run one after another and take several batches each.

    Claims are numbered from 1 without gaps; all claims up to ``acked_upto`` are acknowledged.
    """

    subscription_id: int
    name: str
    queue_id: int
    next_claim: int
    acked_upto: int
    is_busy: bool = False
    _waiting: deque[Callable[[], None]] = field(default_factory=deque)
    _is_starting_work: bool = False  # True while ``finish`` is starting work that waited

    @property
    def last_claim(self) -> int:
        """Return the last claim number, or 0 if there are no claims."""
        return self.next_claim - 1

    def run(self, work: Callable[[], None]) -> None:
        """Start ``work`` in the open batch, or after earlier work has called ``finish``.

        Raises the RefusedError of ``work`` if it started immediately; waiting work must not raise.
        """
        if self.is_busy:
            self._waiting.append(work)
            return
        self.is_busy = True
        try:
            work()
        except RefusedError:
            self.finish()
            raise

    def finish(self) -> None:
        """Mark the current work as finished, and start the next waiting work."""
        self.is_busy = False
        if self._is_starting_work:  # the work ended immediately, so the loop below continues
            return
        self._is_starting_work = True
        while self._waiting and not self.is_busy:
            self.is_busy = True
            self._waiting.popleft()()
        self._is_starting_work = False

    def store(self, batch: Batch) -> None:
        """Store the subscription's queue and claim numbers with the open batch."""
        row = UpdateSubscription(
            self.queue_id, self.next_claim, self.acked_upto, self.subscription_id
        )
        batch.writes.append(row)


class Subscriptions(dict[str, Subscription]):
    """All subscriptions by name; the table ``subscription`` is the source of truth."""

    def __init__(self, stored: PipelineRows) -> None:
        super().__init__()
        self._next_id = 1
        for row in stored.subscriptions:
            self[row[1]] = Subscription(*row)
            self._next_id = max(self._next_id, row[0] + 1)

    def create(self, batch: Batch, name: str, queue_id: int) -> Subscription:
        """Create a subscription as part of the open batch.

        Raises RefusedError: ``too_many_subscriptions``.
        """
        if len(self) >= SUBSCRIPTIONS_MAX:
            raise RefusedError(
                "too_many_subscriptions",
                f"cannot create {name!r}: the limit is {SUBSCRIPTIONS_MAX} subscriptions",
            )
        subscription = self[name] = Subscription(self._next_id, name, queue_id, 1, 0)
        self._next_id += 1
        batch.writes.append(
            CreateSubscription(subscription.subscription_id, name, queue_id, batch.wall_ms)
        )
        return subscription

    def remove(self, batch: Batch, subscription: Subscription) -> None:
        """Remove a subscription that no longer holds messages."""
        del self[subscription.name]
        batch.writes.append(DeleteSubscription(subscription.subscription_id))


STAGE_KEPT_MS: Final = 86_400_000  # unpublished stages are dropped after this time
APP_ID_KEPT_MS: Final = 30 * 86_400_000  # app_ids used this recently are always kept
APP_IDS: Final = 10_000  # maximum number of app_ids per owner
MIXED_POLICIES: Final = "several"  # marks a StageQueue with several policies; not a real policy
SINGLE_USES: Final = 1_000  # number of single-use app_ids kept per owner; older ones are forgotten


@dataclass(slots=True)
class StageQueue:
    """The rows staged under one token for one queue."""

    queue_id: int
    rows: int = 0
    bytes: int = 0
    bad_rows: int = 0  # number of rows to be dead-lettered when published
    bad_bytes: int = 0
    least_ttl_s: int | None = None  # None if no row expires
    policy: str = ""  # the policy that rows were validated against; empty without validation

    def add(self, other: "StageQueue") -> None:
        self.rows += other.rows
        self.bytes += other.bytes
        self.bad_rows += other.bad_rows
        self.bad_bytes += other.bad_bytes
        if other.least_ttl_s is not None:
            self.least_ttl_s = min(self.least_ttl_s or other.least_ttl_s, other.least_ttl_s)
        if other.policy != self.policy:
            self.policy = MIXED_POLICIES


@dataclass(slots=True)
class StageState:
    """The rows staged under one token."""

    stage_id: int
    token: str
    until_ms: int  # steady-clock time at which the stage is dropped
    rows: int = 0
    bytes: int = 0
    is_whole: bool = False  # True once the last row has been staged
    is_sealed: bool = False  # True for what is left of a partial publish
    actor: str = ""  # who staged the rows; empty if they were staged before the last restart
    queues: dict[int, StageQueue] = field(default_factory=dict)  # keyed by queue_id

    @property
    def first_row(self) -> int:
        return self.stage_id << ROW_BITS


@dataclass(slots=True, frozen=True)
class StageWriter:
    """A publisher, with the owner of its app_ids and the queues that it may publish to.

    An empty ``owner`` stands for the local machine without accounts, which may use every app_id.
    """

    owner: str = ""
    may_use: Callable[[str], bool] = lambda _queue: True


@dataclass(slots=True)
class KnownAppId:
    """The version, owner and last use of an app_id."""

    version: int  # highest published version
    owner: str | None  # None if the next writer becomes the owner
    used_ms: int  # steady-clock time of the last use
    is_single: bool = False  # used for one publish only, so forgetting it cannot cause duplicates


class KnownAppIds:
    """The owner and the highest published version of each app_id.

    The table ``published`` is the source of truth; this is a copy in memory.  Publishing under a
    forgotten app_id is no longer exactly-once, so each owner has a limit, and only app_ids that
    have not been used for 30 days are forgotten.
    """

    def __init__(self, stored: PipelineRows) -> None:
        self.by_name: dict[str, KnownAppId] = {}
        # Keyed by owner and is_single; least recently used first.
        self._groups: dict[tuple[str | None, bool], dict[str, KnownAppId]] = defaultdict(dict)
        for app_id, version, owner, used_ms, is_single in stored.published:
            self._put(app_id, KnownAppId(version, owner, used_ms, bool(is_single)))

    def check(
        self, writer: StageWriter, app_id: str, now_ms: int, *, is_single: bool
    ) -> KnownAppId | None:
        """Return the stored state of an app_id, or None if the app_id is new.

        Raises RefusedError: ``foreign_app_id`` or ``too_many_app_ids``.
        """
        app = self.by_name.get(app_id)
        if app is None:
            if not is_single:
                self._check_room(writer.owner or None, now_ms)
        elif writer.owner and app.owner not in (None, writer.owner):
            raise RefusedError(
                "foreign_app_id",
                f"the app_id {app_id!r} belongs to another user: choose another txnAppId or "
                "checkpoint, or have an admin transfer it with `phpmq-lite pipeline transfer`",
            )
        return app

    def record_version(
        self,
        batch: Batch,
        now_ms: int,
        writer: StageWriter,
        app_id: str,
        version: int,
        rows: int,
        *,
        is_single: bool,
    ) -> None:
        app = self.by_name.get(app_id)
        owner = (app.owner if app else None) or writer.owner or None
        is_single = app.is_single if app else is_single
        self._make_room(batch, owner, now_ms, is_single=is_single)
        self._put(app_id, KnownAppId(version, owner, now_ms, is_single))
        row = RecordPublishedVersion(
            app_id, version, batch.wall_ms, rows, owner, now_ms, int(is_single)
        )
        batch.writes.append(row)

    def record_use(self, batch: Batch, now_ms: int, writer: StageWriter, app_id: str) -> None:
        """Record the use of an app_id by a repeated publish that had no effect."""
        app = self.by_name[app_id]
        self._move(batch, now_ms, app_id, app.owner or writer.owner or None)

    def transfer(self, batch: Batch, now_ms: int, app_id: str, owner: str | None) -> None:
        """Transfer an app_id to another owner, or to its next writer if ``owner`` is None.

        Raises RefusedError: ``unknown_app_id`` or ``too_many_app_ids``.
        """
        app = self.by_name.get(app_id)
        if app is None:
            raise RefusedError("unknown_app_id", f"no version was published under {app_id!r}")
        if app.owner != owner and not app.is_single:
            self._check_room(owner, now_ms)
        self._move(batch, now_ms, app_id, owner)

    def _put(self, app_id: str, app: KnownAppId) -> None:
        self._take(app_id)
        self.by_name[app_id] = self._groups[app.owner, app.is_single][app_id] = app

    def _take(self, app_id: str) -> None:
        app = self.by_name.pop(app_id, None)
        if app is not None:
            del self._groups[app.owner, app.is_single][app_id]

    def _move(self, batch: Batch, now_ms: int, app_id: str, owner: str | None) -> None:
        app = self.by_name[app_id]
        self._put(app_id, KnownAppId(app.version, owner, now_ms, app.is_single))
        batch.writes.append(RecordAppIdUse(owner, now_ms, app_id))

    def _check_room(self, owner: str | None, now_ms: int) -> None:
        own = self._groups[owner, False]
        if len(own) >= APP_IDS and next(iter(own.values())).used_ms > now_ms - APP_ID_KEPT_MS:
            raise RefusedError(
                "too_many_app_ids",
                f"{len(own)} app_ids were used in the last 30 days; the limit is {APP_IDS} per "
                "user. Publish increasing versions under one app_id (txnAppId and "
                "txnVersion, or the same checkpoint) instead of using a new one each time.",
            )

    def _make_room(self, batch: Batch, owner: str | None, now_ms: int, *, is_single: bool) -> None:
        own = self._groups[owner, is_single]
        limit, until_ms = (SINGLE_USES, now_ms) if is_single else (APP_IDS, now_ms - APP_ID_KEPT_MS)
        while len(own) >= limit and next(iter(own.values())).used_ms <= until_ms:
            oldest = next(iter(own))
            self._take(oldest)
            batch.writes.append(ForgetPublishedVersion(oldest))


def sealed_token(key: str, version: int, number: int) -> str:
    """Return a token that no client can name, because it contains spaces."""
    return f"{key} {version} {number:05}"


def parse_sealed_token(token: str) -> tuple[str, int] | None:
    """Return the key and the version of a sealed token, or None for a client's token."""
    key, *numbers = token.split(" ")
    return (key, int(numbers[0])) if numbers else None


class StagingArea:
    """All tokens, oldest first, and the app_ids under which they are published.

    ``sealed`` holds the remaining tokens of partial publishes, by hashed app_id and version.
    """

    def __init__(self, stored: PipelineRows) -> None:
        self.stages: dict[str, StageState] = {}
        self.sealed: dict[str, dict[int, list[StageState]]] = {}
        self.next_id = stored.next_stage_id
        by_id: dict[int, StageState] = {}
        for stage_id, token, until_ms, rows, size in stored.staged:
            stage = by_id[stage_id] = StageState(
                stage_id, token, until_ms, rows, size, is_whole=True
            )
            if parse_sealed_token(token) is None:
                self.stages[token] = stage
        for stage in sorted(by_id.values(), key=lambda stage: stage.token):
            if (parsed := parse_sealed_token(stage.token)) is not None:
                key, version = parsed
                stage.is_sealed = True
                self.sealed.setdefault(key, {}).setdefault(version, []).append(stage)
        for row in stored.parts:
            by_id[row[0]].queues[row[1]] = StageQueue(*row[1:])
        self.bytes = sum(stage.bytes for stage in by_id.values())
        self.rows = sum(stage.rows for stage in by_id.values())
        self.parts = sum(len(stage.queues) for stage in by_id.values())
        self.app_ids = KnownAppIds(stored)

    @property
    def due_ms(self) -> int | None:
        """Return the steady-clock time, in ms, at which the next token is dropped, or None."""
        if not (self.stages or self.sealed):
            return None
        sealed = [stages[0] for versions in self.sealed.values() for stages in versions.values()]
        return min(stage.until_ms for stage in (*islice(self.stages.values(), 1), *sealed))

    def drop_old(self, batch: Batch, now_ms: int) -> None:
        """Drop tokens that have expired; ``now_ms`` is on the steady clock."""
        while (old := next(iter(self.stages.values()), None)) and old.until_ms <= now_ms:
            self.drop(batch, old.token)
        for key, versions in list(self.sealed.items()):
            for version, stages in list(versions.items()):
                if stages[0].until_ms <= now_ms:
                    self._unseal(batch, key, version, len(stages))

    def unfinished(self, app_id: str) -> dict[int, list[StageState]]:
        """Return the remaining tokens of an app_id's partial publishes, by version."""
        return self.sealed.get(_key(app_id), {}) if self.sealed else {}

    def seal(
        self, batch: Batch, now_ms: int, app_id: str, version: int, stages: Sequence[StageState]
    ) -> None:
        """Seal a partial publish's remaining tokens so that no client can publish or drop them."""
        key, until_ms = _key(app_id), now_ms + APP_ID_KEPT_MS
        for number, stage in enumerate(stages):
            del self.stages[stage.token]
            stage.token, stage.until_ms = sealed_token(key, version, number), until_ms
            stage.is_sealed = True
            batch.writes.append(SealStage(stage.token, until_ms, stage.stage_id))
        self.sealed.setdefault(key, {})[version] = list(stages)

    def unseal(self, batch: Batch, app_id: str, version: int, count: int) -> None:
        """Remove the first ``count`` sealed tokens of a partial publish."""
        self._unseal(batch, _key(app_id), version, count)

    def _unseal(self, batch: Batch, key: str, version: int, count: int) -> None:
        stages = self.sealed[key][version]
        for stage in stages[:count]:
            self._remove(batch, stage)
        del stages[:count]
        if not stages:
            del self.sealed[key][version]
        if not self.sealed[key]:
            del self.sealed[key]

    def drop(self, batch: Batch, token: str) -> bool:
        """Drop a token and remove its rows in the background; return False for an unknown token."""
        stage = self.stages.pop(token, None)
        if stage is None:
            return False
        self._remove(batch, stage)
        return True

    def _remove(self, batch: Batch, stage: StageState) -> None:
        self.bytes -= stage.bytes
        self.rows -= stage.rows
        self.parts -= len(stage.queues)
        batch.writes.append(DropStage(stage.stage_id))


def _key(app_id: str) -> str:
    return sha256(app_id.encode()).hexdigest()
