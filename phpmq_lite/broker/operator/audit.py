"""Audit-log rows, each stored in the same transaction as the change that it describes."""

from phpmq_lite.broker.broker import Broker
from phpmq_lite.model import AuditEntry
from phpmq_lite.writes import AUDIT_BYTES, AdvanceAudit, InsertAudit, bounded_text


def record(core: Broker, entry: AuditEntry, number: int, *, is_last: bool = True) -> None:
    """Record an audit row for an entry; if it already has one, add ``number`` to the count.

    The row says ``running`` until the last part of the work is done.  After a restart, such a row
    shows that the work was interrupted.
    """
    entry.count += number
    result = entry.result if is_last else "running"
    writes = core.batch.writes
    texts = {
        name: bounded_text(result if name == "result" else getattr(entry, name), limit)
        for name, limit in AUDIT_BYTES.items()
    }
    if entry.audit_id is not None:
        writes.append(AdvanceAudit(number, texts["result"], entry.audit_id))
        return
    entry.audit_id = core.take_audit_number()
    core.audit_counts[entry.action] += 1
    at_ms = core.now.wall_ms
    writes.append(InsertAudit(entry.audit_id, at_ms, number=entry.count, **texts))
