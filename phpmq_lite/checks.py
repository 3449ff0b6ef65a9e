"""What can be wrong with a broker: a row each, from which the places that report it derive theirs.

``/readyz``, the notices on the overview, the System page, ``check``, ``doctor`` and the Prometheus
rules in ``deploy/`` report the same conditions, but know different things: a notice knows the last
minute, ``doctor`` also checks a stopped broker, ``check`` and Prometheus read an API.  So each
measures for itself, and the names, bounds and severities stand here.  A new check is a row, and a
measuring function where it is reported; ``tests/docs/test_deploy.py`` compares the rules.

What only ``doctor`` or only Prometheus can notice has no row, such as permissions and ports, and
that a broker is gone or keeps restarting.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, StrEnum
from typing import Final, NamedTuple


class Level(StrEnum):
    """How bad a condition is, in ascending order."""

    OK = "ok"
    WARN = "warn"  # it works, but at a risk
    BAD = "bad"

    @property
    def rank(self) -> int:
        """The position in ascending order, which is also the exit code of a monitoring plugin."""
        return list(Level).index(self)


class Bounds(NamedTuple):
    """The values beyond which a condition is a warning, or bad; None if it never is."""

    warn: float | None = None
    bad: float | None = None
    is_floor: bool = False  # whether lower values are worse
    is_inclusive: bool = False  # whether the bound itself is already too much

    def level(self, value: float) -> Level:
        """Return the most severe level whose bound the value passes."""
        for level, bound in ((Level.BAD, self.bad), (Level.WARN, self.warn)):
            if bound is not None:
                excess = bound - value if self.is_floor else value - bound
                if excess > 0 or (self.is_inclusive and excess == 0):
                    return level
        return Level.OK


NEVER: Final = Bounds()
IF_ANY_WARN: Final = Bounds(warn=0)  # the value is a count, or 1 for yes
IF_ANY_BAD: Final = Bounds(bad=0)
RECENT_MS: Final = 86_400_000  # notices count dead letters and expiries over this period


class CheckDefinition(NamedTuple):
    """What a check measures, and beyond which values each place reports it."""

    measures: str  # with its unit; a condition has the value 0 or 1
    title: str = ""  # what a notice is about; the queue, if the check concerns one
    ready: str = ""  # name in /readyz, where it must be good unless ``is_degraded``
    is_degraded: bool = False  # whether a broker that fails this in /readyz is still ready
    notice: Bounds = NEVER
    page: Bounds = NEVER  # on the System page
    command: Bounds = NEVER  # of ``check``
    doctor: Bounds = NEVER
    alerts: Mapping[str, float | None] = {}  # Prometheus rules, with their bound, if they have one
    route: str = "system"  # page that a notice links to
    link: str = "Storage"  # text of the link


_C = CheckDefinition


class Check(Enum):
    """A condition that requires attention, in the order in which notices have them."""

    # fmt: off
    STARTED = _C("whether startup is complete", ready="migrated", alerts={"PhpmqNotReady": 0})
    ACTIVE = _C("whether a broker of the database is active", ready="role",
        alerts={"PhpmqNoActiveBroker": 0})
    LISTENERS = _C("listeners that are not open", ready="listeners")
    DRAINING = _C("whether the broker drains", ready="not draining")
    BATCHES = _C("age of the oldest batch without an answer, s", ready="batches",
        page=Bounds(warn=1))
    LAST_ERROR = _C("whether there was an error", "Broker", notice=IF_ANY_BAD, link="System")
    STORING = _C("whether nothing can be stored", "Storage", ready="writable",
        notice=IF_ANY_BAD, alerts={"PhpmqStoringStopped": 1})
    SHORTAGE = _C("whether publishing is stopped for lack of space", "Publishing",
        ready="disk", is_degraded=True, notice=IF_ANY_BAD, alerts={"PhpmqPublishingStopped": 1})
    # Rules cannot know the size of the disk, so their bounds are free bytes.
    DISK = _C(
        "used share of the disk; for the command, free percentage; on the page, free share", "Disk",
        notice=Bounds(0.85, 0.93, is_inclusive=True), page=Bounds(bad=0.02, is_floor=True),
        command=Bounds(15.0, 5.0, is_floor=True, is_inclusive=True),
        alerts={"PhpmqDiskAlmostFull": 2 << 30, "PhpmqDiskFull": 512 << 20})
    WAL = _C("size of the write-ahead log, in multiples of storage.wal_bytes",
        "Write-ahead log", notice=Bounds(warn=2), page=Bounds(warn=2), doctor=Bounds(warn=2),
        alerts={"PhpmqWalLong": 256 << 20})
    DAMAGE = _C("damage that the scrub or a delivery found", "Damage", notice=IF_ANY_BAD,
        alerts={"PhpmqDamage": 0, "PhpmqDamagedBody": 0}, route="backups", link="Scrub")
    BACKUP_FAILED = _C("whether the last backup failed", "Backup", notice=IF_ANY_BAD,
        command=IF_ANY_WARN, alerts={"PhpmqBackupFailed": 0}, route="backups", link="Backups")
    BACKUP_AGE = _C(
        "age of the newest backup, in intervals of the schedule; for the command, s", "Backup",
        notice=Bounds(warn=2), command=Bounds(26 * 3_600, 50 * 3_600, is_inclusive=True),
        doctor=Bounds(warn=2), route="backups", link="Backups")
    ASYNCHRONOUS = _C("whether the last commit was confirmed without a quorum", "Replication",
        ready="replicas", is_degraded=True, notice=IF_ANY_BAD,
        alerts={"PhpmqConfirmedWithoutQuorum": 1})
    QUORUM = _C("replicas that can confirm commits beyond those that must", "Replication",
        ready="replicas", is_degraded=True, notice=Bounds(1, 0, is_floor=True),
        doctor=Bounds(1, 0, is_floor=True), alerts={"PhpmqReplicaMissing": None})
    REPLICA_LAG = _C("how far a replica is behind, s", "Replication", ready="replicas",
        is_degraded=True, notice=Bounds(warn=10), page=Bounds(warn=10),
        alerts={"PhpmqReplicaLags": 10})
    DATABASE_STATE = _C("whether the server's state cannot be read", "Database",
        notice=IF_ANY_WARN)
    TRANSACTION = _C("age of the oldest transaction, s", "Transaction",
        notice=Bounds(warn=600), alerts={"PhpmqOldTransaction": 3_600})
    CONNECTIONS = _C("used share of max_connections; for doctor, free connections", "Database",
        notice=Bounds(warn=0.9), doctor=Bounds(warn=10, is_floor=True))
    SERVER_DISK = _C("free share of the server's disk", "Disk",
        notice=Bounds(bad=0.1, is_floor=True))
    STANDBY = _C("lag of the standby, s; infinite if it fails", "Standby",
        notice=Bounds(bad=60), doctor=Bounds(bad=60),
        alerts={"PhpmqStandbyFailing": 1, "PhpmqStandbyLags": 30}, link="System")
    CLOCK_DOUBT = _C("whether an operator must decide if the clock is right", "Clock",
        notice=IF_ANY_BAD, link="Decide")
    CLOCK_JUMPS = _C("changes of the clock since startup", "Clock", notice=IF_ANY_WARN,
        page=IF_ANY_WARN, link="System")
    REFUSALS = _C("messages refused in the last hour", "Publishers", notice=IF_ANY_WARN,
        alerts={"PhpmqPublishesRefused": 0}, link="System")
    SCHEDULES = _C("failed runs of a schedule within a day", notice=IF_ANY_WARN,
        alerts={"PhpmqScheduleFailed": 0}, route="schedule", link="Runs")
    READERS = _C("connections that are not being read", notice=IF_ANY_WARN, page=IF_ANY_WARN,
        alerts={"PhpmqReadersPaused": 0}, route="clients", link="See clients")
    LOOP_LAG = _C("delay of the event loop, s", page=Bounds(warn=0.1),
        alerts={"PhpmqLoopLag": 0.5})
    COMMITS = _C("duration of a commit, s", page=Bounds(warn=0.5),
        alerts={"PhpmqCommitSlow": 0.5})
    EXPIRING = _C("messages that expire within 10 minutes without a consumer",
        notice=IF_ANY_BAD, link="See messages")
    AGE = _C("age of the oldest ready message, s; for the notice, in multiples of alert_age_s",
        notice=Bounds(bad=1), command=Bounds(300, 3_600, is_inclusive=True),
        alerts={"PhpmqOldestMessageTooOld": 900}, link="See messages")
    BACKLOG = _C("ready messages; for the notice, those above alert_messages",
        notice=IF_ANY_BAD, command=Bounds(1_000, 10_000, is_inclusive=True), link="See messages")
    CONSUMERS = _C("ready messages without a consumer", notice=IF_ANY_WARN,
        alerts={"PhpmqBacklogWithoutConsumer": 0}, link="See messages")
    GROWTH = _C("growth of the ready messages within 5 minutes, although they are consumed",
        notice=Bounds(warn=100, is_inclusive=True), alerts={"PhpmqBacklogGrows": 1_000},
        link="Charts")
    PAUSED = _C("paused sides of a queue", notice=IF_ANY_WARN, alerts={"PhpmqQueuePaused": 0},
        link="Resume")
    UNREAD = _C("messages expired within a day without having been dispatched",
        notice=IF_ANY_WARN, alerts={"PhpmqExpiredUnread": 0}, link="History")
    QUARANTINED = _C("messages quarantined within a day", notice=IF_ANY_WARN,
        link="Envelopes")
    DEAD_LETTERS = _C("dead letters; for the notice, of the last day", notice=IF_ANY_WARN,
        command=Bounds(1, 100, is_inclusive=True), alerts={"PhpmqDeadLetters": 0},
        link="Dead letters")
    READER_STOPPED = _C("time since a history reader with unread messages reported, s",
        notice=Bounds(warn=26 * 3_600), command=Bounds(warn=26 * 3_600, is_inclusive=True),
        alerts={"PhpmqHistoryReaderStopped": 26 * 3_600}, route="insights", link="Readers")
    READER_LATE = _C(
        "share of the retention time that a history reader has left; for the command, s left",
        notice=Bounds(0.5, 0.1, is_floor=True),
        command=Bounds(24 * 3_600, 2 * 3_600, is_floor=True, is_inclusive=True),
        alerts={"PhpmqHistoryReaderLate": 0.5, "PhpmqHistoryReaderOvertaken": 0.1},
        route="insights", link="Readers")
    HELD = _C("time for which a client has held a message, in multiples of half the timeout",
        notice=Bounds(warn=1), link="Consumers")
    # fmt: on


CHECKS: Final[Mapping[Check, CheckDefinition]] = {check: check.value for check in Check}


def asynchronous_text(reason: str) -> str:
    """Return why messages are confirmed although no quorum of replicas has them."""
    return (
        f"Messages are confirmed without a quorum: {reason}. A failover of the database can lose "
        "them (store.allow_asynchronous)"
    )


def problems(
    measurements: Iterable[tuple[Check, float, str]],
) -> Iterator[tuple[Check, Level, str]]:
    """Yield check, level and text of each measurement whose value passes a bound of its notice."""
    for check, value, text in measurements:
        level = CHECKS[check].notice.level(value)
        if level is not Level.OK:
            yield check, level, text
