"""What an operator can change: one call per operation of the broker."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from phpmq_lite.admin.base.context import Context, Reply
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator import operations, publishing
from phpmq_lite.broker.operator.message_actions import Action, ActionOptions, ActionOutcome
from phpmq_lite.broker.operator.publishing import Published
from phpmq_lite.model import AuditEntry
from phpmq_lite.storage.read.accounts import put_saved
from phpmq_lite.writes import DeleteSavedItem, Write

ANSWER_S: Final = 30.0

Outgoing = tuple[bytes, int | None]  # body, ttl_s


async def call(context: Context, command: Callable[[Broker, Reply], None]) -> Any:
    """Run a command in the next batch; TimeoutError after 30 s, it may still be done then."""
    async with asyncio.timeout(ANSWER_S):
        return await context.engine.call(command)


async def act_on_messages(
    context: Context, entry: AuditEntry, action: Action, seqs: Sequence[int], options: ActionOptions
) -> ActionOutcome:
    """Do something to messages, at most a slice of them."""
    made: ActionOutcome = await call(
        context, lambda core, ok: operations.act_on_messages(core, entry, action, seqs, options, ok)
    )
    return made


async def publish(
    context: Context,
    entry: AuditEntry,
    queue: str,
    messages: Sequence[Outgoing],
    *,
    key: bytes | None = None,
    source: tuple[int, str] | None = None,
) -> Published:
    """Store messages at the end of a queue, all or none; returns their ids, and which are dead.

    Args:
        context: of the application.
        entry: row of the audit.
        queue: made where there is none.
        messages: body and time to live of each.
        key: repeated, it stores nothing and gives the first ids.
        source: seq of the message that this one is made from, and how: ``edit``.
    """
    ids: Published = await call(
        context,
        lambda core, ok: publishing.publish(core, entry, queue, messages, ok, key=key,
                                            source=source),
    )  # fmt: skip
    return ids


async def purge(
    context: Context,
    entry: AuditEntry,
    queue: str,
    *,
    with_dispatched: bool = False,
    limit: int | None = None,
) -> int:
    """Settle what is in a queue as deleted; returns how many messages that were."""
    return int(
        await call(
            context,
            lambda core, ok: operations.purge(
                core, entry, queue, ok, with_dispatched=with_dispatched, limit=limit
            ),
        )
    )


async def redrive(
    context: Context,
    entry: AuditEntry,
    records: str,
    *,
    target: str | None = None,
    ttl_s: int | None = None,
    limit: int | None = None,
    queues: frozenset[int] | None = None,
) -> int:
    """Send the records of a queue back to where they died, or to ``target``; returns how many.

    ``queues`` are those that they may go back to; None: all.
    """
    return int(
        await call(
            context,
            lambda core, ok: operations.redrive(
                core, entry, records, ok, target=target, ttl_s=ttl_s, limit=limit, queues=queues
            ),
        )
    )


async def pause(
    context: Context, entry: AuditEntry, queue: str, side: str, *, is_paused: bool
) -> None:
    """Stop or resume a side of a queue: delivery, or publishing (also called publish)."""
    side = "publishing" if side == "publish" else side
    await call(context, lambda core, ok: operations.pause(core, entry, queue, side, is_paused, ok))


async def configure(
    context: Context,
    entry: AuditEntry,
    queue: str,
    changes: Mapping[str, Any],
    check: Callable[[Broker], None] = lambda core: None,
) -> dict[str, Any]:
    """Change settings of a queue, None for the default; returns all of them.

    ``check`` is called with the change, so nothing comes in between; what it raises is refused.
    """

    def run(core: Broker, answer: Reply) -> None:
        check(core)
        operations.configure(core, entry, queue, dict(changes), answer)

    made: dict[str, Any] = await call(context, run)
    return made


async def create_queue(context: Context, entry: AuditEntry, queue: str) -> bool:
    """Make an empty queue; tells whether it is new."""
    return bool(
        await call(context, lambda core, ok: operations.create_queue(core, entry, queue, ok))
    )


async def remove_queue(
    context: Context,
    entry: AuditEntry,
    queue: str,
    check: Callable[[Broker], None] = lambda core: None,
) -> None:
    """Remove a queue that is empty, not pinned and without consumers."""

    def run(core: Broker, answer: Reply) -> None:
        check(core)
        operations.remove_queue(core, entry, queue, answer)

    await call(context, run)


async def disconnect(
    context: Context, entry: AuditEntry, client: int, queues: frozenset[int] | None
) -> int:
    """Close a connection; returns how many messages go back to their place.

    ``queues`` are those that it may consume; None: any.
    """
    return int(
        await call(
            context,
            lambda core, ok: operations.disconnect(core, entry, client, ok, queues=queues),
        )
    )


async def write_rows(context: Context, entry: AuditEntry, rows: Sequence[Write]) -> None:
    """Write rare rows with their audit row, nothing else."""
    await call(context, lambda core, ok: operations.write(core, entry, rows, ok))


async def save_item(
    context: Context, entry: AuditEntry, kind: str, name: str, content: object
) -> None:
    """Save something under a name, over what was there: a view, a template, a label."""
    await write_rows(
        context, entry, [put_saved(kind, name, content, context.now_ms(), entry.actor)]
    )


async def forget_item(context: Context, entry: AuditEntry, kind: str, name: str) -> None:
    """Take a saved thing away."""
    await write_rows(context, entry, [DeleteSavedItem(kind, name)])
