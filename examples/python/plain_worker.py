"""A worker that uses the plain client: any bodies, no envelopes, and retries with delays.

    cd examples/python
    python plain_worker.py [QUEUE [HOST:PORT]]

In another terminal: ``phpmq-lite publish orders --body '{"order_id": 42, "total": 9.9}'``.
SIGTERM and Ctrl-C stop it after the current message; the other messages are requeued.
"""

import asyncio
import json
import signal
import sys

from phpmq_lite.client import connect

DELAYS_S = (0.5, 2)  # before the second and the third attempt


class HopelessError(Exception):
    """The message can never be handled, so a retry would not help."""


def handle(body: bytes) -> None:
    """Handle an order."""
    try:
        order = json.loads(body)
    except ValueError as error:
        raise HopelessError("not JSON") from error
    if order["total"] < 0:
        raise ValueError(f"order {order['order_id']} costs {order['total']}")
    print(f"order {order['order_id']}", flush=True)


async def work(queue: str, address: str) -> None:
    """Handle messages one by one, with up to ten in flight."""
    async with (
        connect(address) as client,
        client.consume(queue, credit=10, info=True) as deliveries,
    ):
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, deliveries.close)
        async for delivery in deliveries:
            try:
                handle(delivery.body)
            except HopelessError as error:
                print(f"{delivery.message_id} was dead-lettered: {error}", flush=True)
                delivery.dead_letter("hopeless", exception=error)  # a record in <queue>.dlq
            except Exception as error:
                attempt = delivery.attempt or 1
                print(f"{delivery.message_id} failed, attempt {attempt}: {error!r}", flush=True)
                if attempt > len(DELAYS_S):
                    delivery.dead_letter("failed", exception=error)
                else:
                    delivery.retry(DELAYS_S[attempt - 1], exception=error)
            else:
                delivery.ack()


if __name__ == "__main__":
    queue, address = (*sys.argv[1:], *("orders", "127.0.0.1:9100")[len(sys.argv) - 1 :])
    asyncio.run(work(queue, address))
