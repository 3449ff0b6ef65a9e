"""The audit's rows: each is stored in the transaction of what it tells about."""

from phpmq_lite.broker.broker import Broker
from phpmq_lite.model import AuditEntry
from phpmq_lite.writes import AdvanceAudit, InsertAudit


def record(core: Broker, entry: AuditEntry, number: int, *, is_last: bool = True) -> None:
    """Have an entry count ``number`` more; the first time its row is stored, later it counts on.

    Until the last part of the work is done the row says ``running``: a restart that finds one
    knows that the work was interrupted.
    """
    entry.count += number
    result = entry.result if is_last else "running"
    writes = core.state.batch.writes
    if entry.audit_id is not None:
        writes.append(AdvanceAudit(number, to_storable_text(result), entry.audit_id))
        return
    entry.audit_id = core.number_audit()
    core.audited[entry.action] += 1
    text = to_storable_text
    writes.append(
        InsertAudit(
            entry.audit_id, core.state.now.wall_ms, text(entry.actor), text(entry.source),
            text(entry.address), text(entry.action), text(entry.target), entry.count,
            text(entry.reason), text(result), text(entry.detail), text(entry.request_id),
        )
    )  # fmt: skip


def to_storable_text(text: str) -> str:
    """Make text that SQLite takes of any: half a surrogate pair can come in by JSON."""
    return text.encode("utf-8", "backslashreplace").decode()
