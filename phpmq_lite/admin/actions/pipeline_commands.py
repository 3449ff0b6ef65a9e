"""What Spark can change: one call per operation of the broker."""

from collections.abc import Sequence

from phpmq_lite.admin.actions.commands import call
from phpmq_lite.admin.base.context import Context
from phpmq_lite.broker.pipeline import claims, staging
from phpmq_lite.broker.pipeline.staging import PublishedStage, Staged, StagedRow
from phpmq_lite.broker.pipeline.state import StageWriter
from phpmq_lite.model import AuditEntry


async def claim(
    context: Context,
    entry: AuditEntry,
    subscription: str,
    queue: str,
    *,
    max_messages: int,
    max_bytes: int,
    after: int | None = None,
) -> int:
    """Claim new messages, or none where there are claims behind ``after``; gives the last number.

    The first call makes the subscription.
    """
    return int(
        await call(
            context,
            lambda core, ok: claims.claim(
                core, entry, subscription, queue, max_messages, max_bytes, ok, after=after
            ),
        )
    )


async def ack_claims(context: Context, entry: AuditEntry, subscription: str, upto: int) -> int:
    """Settle the claims up to a number, itself included, as acked; gives how many were."""
    return int(
        await call(context, lambda core, ok: claims.ack_claims(core, entry, subscription, upto, ok))
    )


async def release_claims(
    context: Context, entry: AuditEntry, subscription: str, *, forget: bool = False
) -> int:
    """Send all claims back to their places; gives how many.  ``forget``: the name goes too."""
    return int(
        await call(
            context,
            lambda core, ok: claims.release_claims(core, entry, subscription, ok, forget=forget),
        )
    )


async def stage(
    context: Context,
    entry: AuditEntry,
    token: str,
    rows: Sequence[StagedRow],
    *,
    after: int,
    is_whole: bool,
) -> Staged:
    """Store a slice of the rows of a token; gives rows and bytes of the token so far.

    ``after`` is how many rows were sent before, 0 makes the token; ``is_whole`` ends it.
    """
    stored: Staged = await call(
        context,
        lambda core, ok: staging.stage(
            core, entry, token, rows, ok, after=after, is_whole=is_whole
        ),
    )
    return stored


async def publish_staged(
    context: Context,
    entry: AuditEntry,
    app_id: str,
    version: int,
    tokens: Sequence[str],
    *,
    writer: StageWriter,
    is_single: bool = False,
    in_parts: bool = False,
) -> PublishedStage:
    """Publish tokens in one transaction; gives how many messages, and if it was done before.

    With ``in_parts``, what is more than a transaction takes remains for the next call.
    """
    done: PublishedStage = await call(
        context,
        lambda core, ok: staging.publish_staged(
            core,
            entry,
            app_id,
            version,
            tokens,
            ok,
            writer=writer,
            is_single=is_single,
            in_parts=in_parts,
        ),
    )
    return done


async def unstage(
    context: Context, entry: AuditEntry, tokens: Sequence[str], writer: StageWriter
) -> int:
    """Drop tokens that are not published; gives how many there were."""
    return int(
        await call(
            context, lambda core, ok: staging.unstage(core, entry, tokens, ok, writer=writer)
        )
    )


async def transfer_app_id(
    context: Context, entry: AuditEntry, app_id: str, owner: str | None
) -> None:
    """Transfer an app_id to another owner; None: to its next writer."""
    await call(context, lambda core, ok: staging.transfer_app_id(core, entry, app_id, owner, ok))
