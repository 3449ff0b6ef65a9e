"""Audit-log rows, each stored in the same transaction as the change that it describes."""

from phpmq_lite.broker.broker import Broker
from phpmq_lite.model import AuditEntry
from phpmq_lite.writes import AdvanceAudit, InsertAudit


def record(core: Broker, entry: AuditEntry, number: int, *, is_last: bool = True) -> None:
    """Record an audit row for an entry; if it already has one, add ``number`` to the count.

    The row says ``running`` until the last part of the work is done.  After a restart, such a row
    shows that the work was interrupted.
    """
    entry.count += number
    result = entry.result if is_last else "running"
    writes = core.state.batch.writes
    if entry.audit_id is not None:
        writes.append(AdvanceAudit(number, to_storable_text(result), entry.audit_id))
        return
    entry.audit_id = core.take_audit_number()
    core.audit_counts[entry.action] += 1
    text = to_storable_text
    writes.append(
        InsertAudit(
            entry.audit_id, core.state.now.wall_ms, text(entry.actor), text(entry.source),
            text(entry.address), text(entry.action), text(entry.target), entry.count,
            text(entry.reason), text(result), text(entry.detail), text(entry.request_id),
        )
    )  # fmt: skip


def to_storable_text(text: str) -> str:
    """Escape lone surrogates, which JSON may contain but SQLite cannot store."""
    return text.encode("utf-8", "backslashreplace").decode()
