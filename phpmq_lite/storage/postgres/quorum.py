"""Whether a commit is on a majority of the servers, and the errors that say otherwise.

The setting is read in the session that commits, before and after COMMIT: Patroni's plain mode, for
example, empties it while commits wait, and PostgreSQL then reports them as successful.
"""

import re
from typing import Any, Final, NamedTuple

from phpmq_lite.errors import (
    BatchRefusedError,
    EpochEndedError,
    NotWritableError,
    OutcomeUnknownError,
)

EPOCH_ENDED: Final = "PMQ01"  # raised by begin_batch
# Nothing is stored, and trying again may help: resources, locks, a server that became a replica.
_TEMPORARY: Final = ("25006", "40001", "40P01", "53", "55P03", "57014", "58030")
_REFUSED: Final = ("22", "23", "54")  # nothing is stored: a value, a constraint, a limit
# Tables whose constraints always hold, and the checks of them that are ours; a key of another table
# that is taken, for example, is repaired when the core loads its state again.
_INVARIANT_TABLES: Final = ("message", "history", "epoch")
_INVARIANT_CHECKS: Final = ("message_state_check", "history_outcome_check")
_BROKEN: Final = ("08", "57P")  # the connection has ended or is about to

# Columns: those of Quorum.
QUORUM_SQL: Final = (
    "SELECT current_setting('synchronous_standby_names'), pg_conf_load_time()::text,"
    " (extract(epoch FROM clock_timestamp()) * 1000)::bigint, pg_postmaster_start_time()::text,"
    " clock_timestamp() < pg_conf_load_time() + interval '2 s'"
)
_COUNTED: Final = re.compile(r"\s*(?:(?:ANY|FIRST)\s+)?(\d+)\s*\(", re.IGNORECASE)


def required_replicas(names: str) -> int:
    """Return how many replicas a value of ``synchronous_standby_names`` requires."""
    counted = _COUNTED.match(names)
    return int(counted[1]) if counted else int(bool(names.strip()))


class Quorum(NamedTuple):
    """An answer to ``QUORUM_SQL``."""

    names: str  # synchronous_standby_names
    loaded_at: str  # when the session read the configuration
    server_ms: int  # Unix ms
    started_at: str  # when the server was started
    is_fresh: bool  # whether the configuration was read less than 2 s ago

    @property
    def replicas(self) -> int:
        """How many replicas must have flushed a commit; 0 without synchronous replication."""
        return required_replicas(self.names)


class ConnectionBrokenError(Exception):
    """The connection to the server broke, so what it was doing may or may not have happened."""


def quorum_problem(
    before: Quorum, after: Quorum, notices: list[str], trusted: Quorum | None = None
) -> str | None:
    """Return why a successful COMMIT may not be replicated, or None if it is.

    A session reads the setting before the checkpointer does, without which no commit waits.  So a
    new setting is not relied on at once, unless ``trusted``, the last quorum without a problem,
    shows that there was one before on this server.
    """
    if notices:
        return f"the server warned at COMMIT: {notices[0]}"
    if not before.replicas or not after.replicas:
        return "synchronous_standby_names names no quorum of replicas"
    if before[:2] != after[:2]:
        return "the server's configuration changed during a commit"
    if after.is_fresh and (trusted is None or trusted.started_at != after.started_at):
        return "synchronous_standby_names may have been set just now"
    return None


def failure_of(
    sqlstate: str | None, text: str, table: str | None = None, constraint: str | None = None
) -> Exception:
    """Return the error to raise for an error that a statement before COMMIT reported.

    ``table`` and ``constraint`` are named by errors about constraints.
    """
    state = sqlstate or ""
    if state == EPOCH_ENDED:
        return EpochEndedError(text)
    if not state or state.startswith(_BROKEN):
        return ConnectionBrokenError(text)
    if state.startswith(_TEMPORARY):
        return NotWritableError(text)
    is_broken = table in _INVARIANT_TABLES and (
        constraint in _INVARIANT_CHECKS if state == "23514" else state.startswith("23")
    )
    if state.startswith(_REFUSED) and not is_broken:
        return BatchRefusedError(f"{state}: {text}")
    return OutcomeUnknownError(f"{state}: {text}")


def summary(error: Any) -> str:
    """Return the first line of an error's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
