"""Rows and refusals on their way to the broker's operations."""

from collections.abc import Callable, Sequence
from typing import Any

from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator import operations
from phpmq_lite.model import AuditEntry
from phpmq_lite.writes import AdvanceAudit, Write

Answer = Callable[[Any], None]


def store(core: Broker, entry: AuditEntry | None, rows: Sequence[Write], answer: Answer) -> None:
    """Write rows with their audit row, if they have one; answers after the commit."""
    operations.write(core, entry, rows, answer)


def note(core: Broker, entry: AuditEntry, more: int, answer: Answer) -> None:
    """Write an audit row, or have it count more; answers after the commit."""
    if entry.audit_id is None:
        entry.count += more
        operations.record_only(core, entry)
    else:
        core.state.batch.writes.append(AdvanceAudit(more, entry.result, entry.audit_id))
    core.state.batch.replies.append((answer, None))
