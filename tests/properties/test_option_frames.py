"""Random clients, some of which send frames of ours: who receives which frame, and that all live.

Clients that send published frames only receive 003, and a 007 for each key that they sent.
"""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.frame_options import write_options
from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import (
    BrokerFrame,
    Dispatch,
    DispatchWithInfo,
    ReceiptFrame,
    Welcome,
    WireLimits,
)
from phpmq_lite.server.session import Session
from tests.properties.test_engine_pipeline import IN_MEMORY
from tests.support.engine_driver import EngineDriver, FakeTransport, disable_timers

QUEUES: Final = ("orders", "mails")
KINDS: Final = ("published", "confirming", "ours", "ours")  # of clients

seconds = st.sampled_from([0, 0.5, 1, 2, -1, 1e300, "1"])
texts = st.sampled_from(["a", "b", "", "\u00e4" * 40, "x" * 2_000, "\0", 5])
publish_options = st.fixed_dictionaries(
    {},
    optional={
        "ttl_s": seconds, "delay_s": seconds, "priority": st.integers(-1, 256), "group": texts,
        "unique_key": texts, "if_exists": st.sampled_from(["keep", "replace", "other"]),
    },
)  # fmt: skip
settle_options = st.fixed_dictionaries(
    {"action": st.sampled_from(["retry", "retry", "dead_letter", "extend", "extend", "other"])},
    optional={
        "delay_s": seconds, "hold_s": seconds, "attempt": st.integers(0, 3), "error": texts,
        "reason": texts, "failed": st.booleans(),
    },
)  # fmt: skip
consume_options = st.fixed_dictionaries(
    {}, optional={"info": st.booleans(), "keep": st.booleans(), "later": st.just(1)}
)
steps = st.lists(
    st.tuples(
        st.integers(0, len(KINDS) - 1),  # who
        st.sampled_from(
            [
                "publish",
                "consume",
                "acknowledge",
                "requeue",
                "dead letter",
                "publish with",
                "consume with",
                "settle",
                "hello",
                "advance",
            ]
        ),  # what, if the client's kind sends it; fmt: skip
        st.sampled_from(QUEUES),
        st.integers(0, 5),
        publish_options,
        settle_options,
        consume_options,
    ),
    max_size=40,
)


class RandomClient:
    """A session without a socket, and all frames that it received."""

    def __init__(self, driver: EngineDriver, kind: str) -> None:
        self.kind = kind
        self.frames: list[BrokerFrame] = []
        self.has_info: dict[str, bool] = {}  # by queue, as its last 002 or 012 says
        self.keys: Counter[bytes] = Counter()  # not yet answered
        self.hellos: Counter[bytes] = Counter()
        self.held: list[tuple[str, bytes]] = []  # queue and id of each dispatch
        self.transport = FakeTransport(self._take)
        self.session = Session(driver.context, ServerSide(WireLimits(), http_guard=False), "unix")
        self.session.connection_made(self.transport)
        self._side = ClientSide()

    def _take(self, frame: Any) -> None:
        self.frames.append(frame)
        match frame:
            case Dispatch():
                assert not self.has_info[frame.queue], "a 003 for a consumer that asked for 013"
                self.held.append((frame.queue, frame.message_id))
            case DispatchWithInfo():
                assert self.has_info[frame.queue], "a 013 for a consumer that did not ask for it"
                self.held.append((frame.queue, frame.message_id))
            case ReceiptFrame():
                self.keys[frame.key] -= 1
            case Welcome():
                self.hellos[frame.key] -= 1

    def send(self, step: tuple[Any, ...]) -> None:
        _, what, queue, number, publish, settle, consume = step
        side, is_ours = self._side, self.kind == "ours"
        key = None if self.kind == "published" else b"key %d" % number
        name, message_id = self.held[number % len(self.held)] if self.held else (queue, b"0" * 32)
        match what:
            case "publish":
                self._expect(key)
                data = side.publish(queue, b"body", number, key)
            case "consume":
                self.has_info[queue] = False
                data = side.consume(queue, number)
            case "acknowledge":
                data = side.acknowledge(name, message_id)
            case "requeue":
                data = side.requeue(name, message_id, number)
            case "dead letter":
                data = side.dead_letter(name, message_id)
            case "publish with" if is_ours:
                self._expect(key)
                data = side.publish_with_options(queue, b"body", write_options(publish), key)
            case "consume with" if is_ours:
                self.has_info[queue] = consume.get("info", False)
                data = side.consume_with_options(queue, number, write_options(consume))
            case "settle" if is_ours:
                data = side.settle(
                    name, message_id, write_options(settle), b"new" if number == 5 else None
                )
            case "hello" if is_ours:
                self.hellos[b"key %d" % number] += 1
                data = side.hello(b"key %d" % number, write_options(publish))
            case _:
                return
        self.session.data_received(data)

    def _expect(self, key: bytes | None) -> None:
        if key is not None:
            self.keys[key] += 1

    def check(self) -> None:
        kinds: set[type] = set(map(type, self.frames))
        allowed: dict[str, set[type]] = {
            "published": {Dispatch},
            "confirming": {Dispatch, ReceiptFrame},
            "ours": {Dispatch, ReceiptFrame, DispatchWithInfo, Welcome},
        }
        assert kinds <= allowed[self.kind], "a frame that it cannot know"
        if not self.transport.is_closed:
            assert not any(self.keys.values()), "a key without a receipt, or with several"
            assert not any(self.hellos.values()), "a hello without a welcome, or with several"


@given(steps=steps)
def test_nobody_receives_a_frame_of_ours_unasked(steps: list[tuple[Any, ...]]) -> None:
    with (
        tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        disable_timers(patch)
        asyncio.run(run(EngineDriver(Path(folder)), steps))


async def run(driver: EngineDriver, steps: list[tuple[Any, ...]]) -> None:
    try:
        driver.start()
        clients = [RandomClient(driver, kind) for kind in KINDS]
        for step in steps:
            if step[1] == "advance":
                driver.advance(step[3])
            else:
                client = clients[step[0]]
                if client.transport.is_closed:  # its 012 was invalid
                    client = clients[step[0]] = RandomClient(driver, client.kind)
                client.send(step)
            await driver.settle()
            for client in clients:
                client.check()
        await driver.stop()
    finally:
        driver.close()
