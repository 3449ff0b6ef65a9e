"""The audit's rows: each is stored in the transaction of what it tells about."""

from phpmq_lite.broker.broker import Broker
from phpmq_lite.model import AuditEntry


def record(core: Broker, entry: AuditEntry, number: int, *, is_last: bool = True) -> None:
    """Have an entry count ``number`` more; the first time its row is stored, later it counts on.

    Until the last part of the work is done the row says ``running``: a restart that finds one
    knows that the work was interrupted.
    """
    entry.count += number
    result = entry.result if is_last else "running"
    rare = core.state.batch.rare
    if entry.audit_id is not None:
        rare.append(("audit", "advance", (number, to_storable_text(result), entry.audit_id)))
        return
    entry.audit_id = core.number_audit()
    core.audited[entry.action] += 1
    texts = (entry.reason, result, entry.detail, entry.request_id)
    rare.append((
        "audit",
        "insert",
        (
            entry.audit_id,
            core.state.now.wall_ms,
            *map(
                to_storable_text,
                (entry.actor, entry.source, entry.address, entry.action, entry.target),
            ),
            entry.count,
            *map(to_storable_text, texts),
        ),
    ))  # fmt: skip


def to_storable_text(text: str) -> str:
    """Make text that SQLite takes of any: half a surrogate pair can come in by JSON."""
    return text.encode("utf-8", "backslashreplace").decode()
