"""What an operator can change, for pages and API alike: commands to the engine."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from phpmq_lite.admin.context import Answer, Context
from phpmq_lite.broker.core import Broker
from phpmq_lite.errors import RefusedError

ANSWER_S: Final = 30.0
DEAD_LETTER_SUFFIX: Final = ".dlq"

Piece = tuple[bytes, int | None]  # body, ttl_s


async def _call(context: Context, command: Callable[[Broker, Answer], None]) -> Any:
    async with asyncio.timeout(ANSWER_S):
        return await context.engine.call(command)


async def purge(context: Context, queue: str, *, with_dispatched: bool) -> int:
    """Settle what is in a queue as deleted; returns how many messages that were."""
    return int(await _call(context, lambda core, ok: core.purge(queue, with_dispatched, ok)))


async def pause(context: Context, queue: str, side: str, *, is_paused: bool) -> None:
    """Stop or resume a side of a queue: delivery, or publishing (also called publish)."""
    side = "publishing" if side == "publish" else side
    await _call(context, lambda core, ok: core.pause(queue, side, is_paused, ok))


def dead_letter_queue(queue: str) -> str:
    """Give the queue that has the records of a queue; the name of such a queue stays."""
    return queue.removesuffix(DEAD_LETTER_SUFFIX) + DEAD_LETTER_SUFFIX


async def redrive(
    context: Context,
    queue: str,
    *,
    target: str | None = None,
    ttl_s: int | None = None,
    limit: int | None = None,
) -> int:
    """Send dead-letter records back to where they died, or to ``target``; returns how many."""
    records = dead_letter_queue(queue)
    return int(
        await _call(context, lambda core, ok: core.redrive(records, target, ttl_s, limit, ok))
    )


async def publish(context: Context, queue: str, messages: Sequence[Piece]) -> list[str]:
    """Store messages at the end of a queue, all or none; returns their ids after the commit.

    Raises:
        RefusedError: the queue does not take them; nothing is stored.
    """
    ids: list[str] = []

    def publish_all(core: Broker, answer: Answer) -> None:
        check_room(core, queue, messages)

        def collect(message_id: str) -> None:
            ids.append(message_id)
            if len(ids) == len(messages):
                answer(ids)

        for body, ttl_s in messages:
            core.publish_local(0, queue, body, ttl_s, collect)

    await _call(context, publish_all)
    return ids


def check_room(core: Broker, queue: str, messages: Sequence[Piece]) -> None:
    """Refuse all where the queue's bounds would stop some of them half-way.

    Raises:
        RefusedError: naming the bound.
    """
    known = core.lives.queues.get(queue)
    if known is None:
        return
    settings, row = known.settings, known.row
    if settings.max_messages and row.live_count + len(messages) > settings.max_messages:
        raise RefusedError(
            "queue_full",
            f"the queue has {row.live_count} messages, its limit is {settings.max_messages}",
        )
    count = sum(len(body) for body, _ in messages)
    if settings.max_bytes and row.live_bytes + count > settings.max_bytes:
        raise RefusedError(
            "queue_full", f"the queue has {row.live_bytes} bytes, its limit is {settings.max_bytes}"
        )
