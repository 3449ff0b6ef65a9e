"""Maps the settings to the bounds of the core and of storage."""

from phpmq_lite.broker.broker import Broker
from phpmq_lite.model import Limits
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.settings import Settings
from phpmq_lite.storage.disk_space import DiskSpaceBounds
from phpmq_lite.storage.write.retention import RetentionBounds


def broker_limits(settings: Settings) -> Limits:
    """Return the limits of the core."""
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


def set_limits(core: Broker, limits: Limits) -> None:
    """Change the limits of a running core, except those of windows and receipts, set at start.

    If more messages are held than the new limit allows, nothing is dispatched until fewer are.
    """
    core.limits = core.state.limits = limits


def queue_defaults(settings: Settings) -> QueueSettings:
    """Return the settings of a queue that sets none itself."""
    return QueueSettings(**settings.queues.model_dump())


def retention_bounds(settings: Settings) -> RetentionBounds:
    """Return how much history, how many receipts and how much of the audit log are kept."""
    history, receipts = settings.history, settings.receipts
    return RetentionBounds(
        age_ms=int(history.days * 86_400_000),
        rows=history.rows,
        bytes=history.bytes,
        deleted_share=history.deleted_share,
        receipt_window_ms=receipts.window_s * 1_000,
        receipts=receipts.limit,
        audit_age_ms=int(settings.audit.days * 86_400_000),
        audit_rows=settings.audit.rows,
    )


def disk_space_bounds(settings: Settings) -> DiskSpaceBounds:
    """Return when publishing stops for lack of space, and the size of the reserve."""
    limits, storage = settings.limits, settings.storage
    # What one batch needs: its space in the write-ahead log, and again in the database.
    least = 2 * (limits.batch_bytes + limits.max_content)
    return DiskSpaceBounds(
        free_bytes=storage.free_bytes,
        max_bytes=storage.max_bytes,
        ballast_bytes=max(storage.ballast_bytes, least) if storage.ballast_bytes else 0,
    )
