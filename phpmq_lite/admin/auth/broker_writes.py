"""Write rows of accounts and refused logins through the broker."""

from collections.abc import Callable, Sequence
from typing import Any

from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator import operations
from phpmq_lite.model import AuditEntry
from phpmq_lite.writes import AdvanceAudit, Write

Reply = Callable[[Any], None]


def store_rows(
    core: Broker, entry: AuditEntry | None, rows: Sequence[Write], answer: Reply
) -> None:
    """Write rows with their audit row, if they have one; answers after the commit."""
    operations.write(core, entry, rows, answer)


def write_audit_row(core: Broker, entry: AuditEntry, more: int, answer: Reply) -> None:
    """Write an audit row, or have it count more; answers after the commit."""
    if entry.audit_id is None:
        entry.count += more
        operations.record_only(core, entry)
    else:
        core.state.batch.writes.append(AdvanceAudit(more, entry.result, entry.audit_id))
    core.state.batch.replies.append((answer, None))
