"""Dead-letter records are in the order of the messages, in whichever batch these died."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.testing import running_service
from tests.support.engine_stores import engine_store as engine_store
from tests.support.http_users import wait_until
from tests.support.socket_client import SocketClient

BODIES = [b"%03d" % number for number in range(100)]


@pytest.mark.parametrize("how", ["client", "expired"])
async def test_records_of_a_batch_are_in_the_order_of_the_messages(
    tmp_path: Path, engine_store: dict[str, Any], how: str
) -> None:
    queues = {"on_expire": "dead_letter"}
    async with running_service(tmp_path / "data", store=engine_store, queues=queues) as broker:

        def die() -> None:
            with SocketClient(broker.port) as peer:
                peer.store("others", *[b""] * 470)  # a set of numbers around 512 begins with 512
                if how == "expired":
                    peer.store("orders", *BODIES, ttl_s=1)
                    return
                peer.store("orders", *BODIES)
                peer.consume("orders", len(BODIES))
                found = peer.dispatches(len(BODIES))
                letters = [peer.side.dead_letter(d.queue, d.message_id) for d in found]
                peer.send(b"".join(letters))
                peer.barrier()

        def records() -> list[bytes]:
            with SocketClient(broker.port) as peer:
                peer.consume("orders.dlq", len(BODIES))
                return [json.loads(one)["raw"].encode() for one in peer.bodies(len(BODIES))]

        await asyncio.to_thread(die)
        engine = broker.service.handle.engine
        assert engine is not None

        def is_dead() -> bool:
            queue = engine.core.queues.get("orders.dlq")
            return queue is not None and queue.row.live_count == len(BODIES)

        await wait_until(is_dead)
        assert await asyncio.to_thread(records) == BODIES
