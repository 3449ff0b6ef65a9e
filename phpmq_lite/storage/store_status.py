"""What pages, metrics and health checks show about the store, whichever engine it is."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Replica:
    """A server that replicates the database; None means that the broker may not see the value."""

    name: str
    address: str | None = None
    state: str | None = None
    is_counted: bool | None = None  # whether it counts for the quorum
    lag_bytes: int | None = None  # written on the primary, but not flushed on the replica
    lag_s: float | None = None

    @property
    def is_ready(self) -> bool:
        """Return whether it can confirm a commit; True if the broker may not see that."""
        return self.state in ("streaming", None) and self.is_counted is not False


@dataclass(slots=True, frozen=True)
class ServerStatus:
    """The PostgreSQL server that accepts writes, as last read; sizes are in bytes."""

    version: str
    database_bytes: int
    schema: int  # number of the newest applied migration
    has_checksums: bool  # whether the server verifies the checksums of its pages
    connections: int
    max_connections: int
    folder: str | None  # the server's data folder, if it is on this machine and the role may see it
    replicas: tuple[Replica, ...] = ()
    oldest_transaction: str | None = None  # it keeps VACUUM from removing rows
    oldest_transaction_s: float = 0.0
    disk_free: int = 0  # of the folder's disk
    disk_bytes: int = 0  # 0 if unknown


@dataclass(slots=True, frozen=True)
class StoreStatus:
    """The state of the store; the defaults describe SQLite."""

    engine: str = "SQLite"
    is_reached: bool = True  # False: a standby, or a broker that starts, does not reach the server
    place: str = ""  # hosts and database, without secrets
    is_active: bool = True  # False: a standby
    active_broker: str = ""  # name of the active broker's machine, if this one is a standby
    standby_problem: str = ""  # why this standby could not take over
    epoch: int = 0  # raised by each broker that takes over
    quorum: str = ""  # the servers' setting for synchronous replication
    replicas_required: int = 0  # how many replicas must confirm a commit
    allows_asynchronous: bool = False  # store.allow_asynchronous
    asynchronous: str | None = None  # why the last commit was confirmed without a quorum
    asynchronous_commits: int = 0  # since startup, as below
    reconnects: int = 0
    unknown_batches: int = 0  # batches of unknown outcome, which were found or stored again
    server: ServerStatus | None = None  # None until it has been read
    problem: str | None = None  # why the server cannot be read at the moment
    oldest_work_s: float = 0.0  # age of what the server has not answered, such as a heartbeat
    # How long ago the replica was written that pages show while no broker is active, in seconds.
    replica_age_s: float | None = None

    @property
    def has_file(self) -> bool:
        """Return whether the database is a file of this machine, which the broker looks after."""
        return self.engine == "SQLite"

    @property
    def replicas_ready(self) -> int | None:
        """Return how many replicas can confirm commits, or None if that is not known."""
        return (
            None
            if self.server is None
            else sum(replica.is_ready for replica in self.server.replicas)
        )
