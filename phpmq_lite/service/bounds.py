"""The limits of the core, of retention and of disk space, according to the settings."""

from phpmq_lite.model import Limits
from phpmq_lite.settings import Settings
from phpmq_lite.storage.disk_space import DiskSpaceBounds
from phpmq_lite.storage.retention import RetentionBounds


def broker_limits(settings: Settings) -> Limits:
    """Return the core's limits according to the broker's settings."""
    limits, receipts = settings.limits, settings.receipts
    return Limits(
        queues=limits.max_queues,
        window=limits.window,
        bodies_bytes=limits.body_cache,
        credit=limits.credit,
        credit_bytes=limits.credit_bytes,
        held=limits.held,
        held_bytes=limits.held_bytes,
        batch_commands=limits.batch_commands,
        batch_bytes=limits.batch_bytes,
        receipts=receipts.limit,
        receipt_window_ms=receipts.window_s * 1_000,
    )


def retention_bounds(settings: Settings) -> RetentionBounds:
    """Return the limits on how much is kept of the history, the receipts and the audit log."""
    history, receipts = settings.history, settings.receipts
    return RetentionBounds(
        age_ms=int(history.days * 86_400_000),
        rows=history.rows,
        bytes=history.bytes,
        deleted_share=history.deleted_share,
        receipt_window_ms=receipts.window_s * 1_000,
        audit_age_ms=int(settings.audit.days * 86_400_000),
        audit_rows=settings.audit.rows,
        audit_refusals=settings.audit.refusals,
        clients=history.clients,
    )


def disk_space_bounds(settings: Settings) -> DiskSpaceBounds:
    """Return the disk-space limits at which publishing stops, and the size of the reserve."""
    limits, storage = settings.limits, settings.storage
    # A batch uses twice its size: once in the write-ahead log and once in the database.
    least = 2 * (limits.batch_bytes + limits.max_content)
    return DiskSpaceBounds(
        free_bytes=storage.free_bytes,
        max_bytes=storage.max_bytes,
        ballast_bytes=max(storage.ballast_bytes, least) if storage.ballast_bytes else 0,
    )
