"""What a session sends, and when, while one batch commits and the next one is open."""

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from phpmq_lite.broker.broker import Broker
from phpmq_lite.errors import OutcomeUnknownError, RefusedError
from phpmq_lite.model import Limits
from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.server.session import EndDetector, descriptor_of, write_data
from tests.support.builds import NEEDS_SOURCES
from tests.support.engine_driver import (
    EngineClient,
    EngineDriver,
    FakeTransport,
    disable_timers,
)

MakeDriver = Callable[[Limits], EngineDriver]
CLIENT = ClientSide()


async def consumer(driver: EngineDriver, credit: int, *bodies: bytes) -> EngineClient:
    """Return a client that holds stored messages with these bodies."""
    publisher = EngineClient(driver)
    publisher.publish("orders", *bodies)
    program = EngineClient(driver)
    program.consume("orders", credit)
    await driver.settle()
    assert program.bodies == list(bodies)
    return program


async def put(driver: EngineDriver, program: EngineClient, *bodies: bytes, **options: Any) -> None:
    """Publish, and leave the batch uncommitted."""
    assert driver.writer.batch is None
    program.publish("orders", *bodies, **options)
    await driver.run_until_idle()
    assert driver.writer.batch is not None


# -- stored messages


@NEEDS_SOURCES
async def test_stored_message_is_sent_before_its_dispatch_is_stored(driver: EngineDriver) -> None:
    worker = await consumer(driver, 1, b"a")
    EngineClient(driver).publish("orders", b"b")
    await driver.settle()
    worker.acknowledge(worker.got[0])
    await driver.run_until_idle()
    assert driver.writer.batch is not None
    assert worker.bodies == [b"a", b"b"]
    assert driver.rows("SELECT state FROM message WHERE seq = 2") == [(0,)]


async def test_stored_message_is_sent_during_another_commit(driver: EngineDriver) -> None:
    worker = await consumer(driver, 1, b"a")
    publisher = EngineClient(driver)
    publisher.publish("orders", b"b")
    await driver.settle()
    await put(driver, publisher, b"c")
    number = driver.core.batch_number
    worker.acknowledge(worker.got[0])
    await driver.run_until_idle()
    assert driver.core.batch_number == number + 1
    assert worker.bodies == [b"a", b"b"]


async def test_new_message_is_sent_after_its_commit(driver: EngineDriver) -> None:
    worker = await consumer(driver, 10)
    await put(driver, EngineClient(driver), b"a")
    assert worker.got == []
    await driver.end_commit()
    assert worker.bodies == [b"a"]


async def test_later_batch_sends_a_new_message_after_its_commit(driver: EngineDriver) -> None:
    worker = await consumer(driver, 1, b"a")
    await put(driver, EngineClient(driver), b"b")
    worker.acknowledge(worker.got[0])
    await driver.run_until_idle()
    assert driver.message(2).holder.connection is worker.session.connection
    assert worker.bodies == [b"a"]
    await driver.end_commit()
    assert driver.writer.batch is not None  # its dispatch
    assert worker.bodies == [b"a", b"b"]


async def test_only_stored_messages_of_an_open_batch_are_sent(driver: EngineDriver) -> None:
    worker = await consumer(driver, 2, b"a", b"b")
    publisher = EngineClient(driver)
    publisher.publish("orders", b"c")
    await driver.settle()
    await put(driver, publisher, b"d")
    worker.acknowledge(*worker.got)
    await driver.run_until_idle()
    assert worker.bodies == [b"a", b"b", b"c"]
    await driver.end_commit()
    assert worker.bodies == [b"a", b"b", b"c", b"d"]


# -- order


async def test_messages_are_sent_in_the_order_of_their_dispatches(driver: EngineDriver) -> None:
    """The first is dispatched while it is not stored, the second when it is."""
    worker = await consumer(driver, 2, b"a", b"b")
    await put(driver, EngineClient(driver), b"c", b"d")
    worker.acknowledge(worker.got[0])
    await driver.end_commit()
    assert driver.writer.batch is not None
    worker.acknowledge(worker.got[1])
    await driver.run_until_idle()
    await driver.settle()
    assert worker.bodies == [b"a", b"b", b"c", b"d"]


async def test_requeued_message_does_not_overtake_an_unstored_one(driver: EngineDriver) -> None:
    worker = await consumer(driver, 2, b"a")
    await put(driver, EngineClient(driver), b"b")
    worker.requeue(worker.got[0])
    await driver.run_until_idle()
    assert worker.bodies == [b"a"]
    await driver.settle()
    assert worker.bodies == [b"a", b"b", b"a"]


async def test_receipts_come_after_the_commit_and_in_order(driver: EngineDriver) -> None:
    publisher = EngineClient(driver)
    publisher.publish("orders", b"a", key=b"a")
    await driver.settle()
    await put(driver, publisher, b"b", key=b"b")
    publisher.publish("orders", b"a", key=b"a")  # a known key: its batch only loads a checksum
    await driver.run_until_idle()
    assert [r.key for r in publisher.receipts] == [b"a"]
    await driver.end_commit()
    assert [r.key for r in publisher.receipts] == [b"a", b"b"]
    await driver.settle()
    assert [r.key for r in publisher.receipts] == [b"a", b"b", b"a"]
    assert driver.rows("SELECT content FROM body") == [(b"a",), (b"b",)]


async def test_reply_comes_after_the_commit_of_its_batch(driver: EngineDriver) -> None:
    await put(driver, EngineClient(driver), b"a")
    called = asyncio.create_task(
        driver.engine.call(lambda core, answer: core.reply(answer, "done"))
    )
    await driver.run_until_idle()
    assert not called.done()
    await driver.end_commit()
    assert await called == "done"


async def test_refusal_does_not_wait_for_a_commit(driver: EngineDriver) -> None:
    await put(driver, EngineClient(driver), b"a")

    def refuse(_core: Broker, _answer: object) -> None:
        raise RefusedError("no", "not now")

    with pytest.raises(RefusedError, match="not now"):
        await driver.engine.call(refuse)
    assert driver.writer.batch is not None


# -- changes by a later batch


async def test_message_reassigned_by_a_later_batch_is_sent_once(driver: EngineDriver) -> None:
    first, second = await consumer(driver, 1), EngineClient(driver)
    await put(driver, EngineClient(driver), b"a")
    second.consume("orders", 1)  # first, so that the queue keeps a consumer
    first.consume("orders", 0)
    await driver.run_until_idle()
    assert driver.message(1).holder.connection is second.session.connection
    await driver.settle()
    assert (first.bodies, second.bodies) == ([], [b"a"])


async def test_message_redispatched_before_it_was_sent_is_sent_once(driver: EngineDriver) -> None:
    worker = await consumer(driver, 1)
    await put(driver, EngineClient(driver), b"a")
    worker.consume("orders", 3)
    await driver.settle()
    assert driver.message(1).deliveries == 1
    assert worker.bodies == [b"a"]
    assert driver.rows("SELECT state, deliveries FROM message") == [(1, 1)]


@pytest.mark.parametrize("how", ["disconnect", "half_close", "break_grammar"])
async def test_message_of_an_ended_connection_waits(driver: EngineDriver, how: str) -> None:
    """A message that was never written is not counted as a delivery."""
    worker = await consumer(driver, 1, b"a")
    worker.acknowledge(*worker.got)
    await driver.settle()
    await put(driver, EngineClient(driver), b"b")
    getattr(worker, how)()
    await driver.settle()
    assert worker.bodies == [b"a"]
    rows = driver.rows("SELECT state, position, deliveries, charged FROM message")
    assert rows == [(0, 2, 0, 0)]


@pytest.fixture
def ended() -> Iterator[EndDetector]:
    """Return a detector whose peer has disconnected, before the loop reads the end."""
    reader, writer = os.pipe()
    os.close(writer)
    yield EndDetector(reader)
    os.close(reader)


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("how", ["disconnect", "half_close", "break_grammar"])
async def test_only_a_message_that_was_sent_is_charged(
    driver: EngineDriver, ended: EndDetector, how: str, is_read: bool
) -> None:
    worker = await consumer(driver, 2, b"poison")
    await put(driver, EngineClient(driver), b"b")
    if not is_read:
        worker.session._end_detector = ended
        await driver.end_commit()
    getattr(worker, how)()
    await driver.settle()
    assert worker.bodies == [b"poison"]
    assert driver.rows("SELECT deliveries, charged FROM message") == [(1, 1), (0, 0)]


async def test_half_closed_consumer_gets_no_later_message(driver: EngineDriver) -> None:
    dead = [await consumer(driver, 1) for _ in range(25)]
    for each in dead:
        each.half_close()
    await put(driver, EngineClient(driver), b"a")
    assert driver.core.held == 0
    await driver.settle()
    assert [each.got for each in dead] == [[]] * 25
    worker = EngineClient(driver)
    worker.consume("orders", 1)
    await driver.settle()
    assert worker.bodies == [b"a"]
    assert driver.rows("SELECT deliveries, charged FROM message") == [(1, 0)]


async def test_half_closed_consumer_gets_nothing_of_a_full_batch(make_driver: MakeDriver) -> None:
    """Its disconnect waits for the next batch; this one must not send to it."""
    driver = make_driver(Limits(batch_commands=1))
    worker = await consumer(driver, 1, b"a")
    worker.acknowledge(*worker.got)
    await driver.settle()
    EngineClient(driver).publish("orders", b"b", b"c")
    worker.half_close()
    await driver.settle()
    assert worker.bodies == [b"a"]
    rows = driver.rows("SELECT deliveries, charged FROM message")
    assert rows == [(0, 0), (0, 0)]


async def test_half_closed_consumer_gets_ready_messages_uncharged(driver: EngineDriver) -> None:
    """``nc -N`` sends its 002 and the end at once; the message it prints has not failed."""
    publisher = EngineClient(driver)
    publisher.publish("orders", b"a", b"b")
    await driver.settle()
    listener = EngineClient(driver)
    listener.consume("orders", 1)
    listener.half_close()
    await driver.settle()
    assert listener.bodies == [b"a"]
    assert listener.transport.is_closed
    assert driver.rows("SELECT state, charged FROM message") == [(0, 0), (0, 0)]


async def test_message_that_is_late_after_its_commit_expires(driver: EngineDriver) -> None:
    worker = await consumer(driver, 1)
    await put(driver, EngineClient(driver), b"a", ttl_s=1)
    driver.advance(1)
    await driver.settle()
    assert worker.got == []
    assert driver.rows("SELECT outcome, deliveries FROM history") == [(3, 0)]
    assert driver.context.counters.late == 1


async def test_late_message_is_not_sent_by_the_next_batch_either(driver: EngineDriver) -> None:
    """A later batch has reassigned it before the first one found it late."""
    first, second = await consumer(driver, 1), EngineClient(driver)
    second.consume("orders", 1)
    first.consume("orders", 1)  # after the other
    await driver.settle()
    await put(driver, EngineClient(driver), b"a", b"b", ttl_s=1)
    first.consume("orders", 0)
    second.consume("orders", 2)
    await driver.run_until_idle()
    driver.advance(1)
    await driver.settle()
    assert (first.got, second.got) == ([], [])
    assert driver.rows("SELECT outcome FROM history") == [(3,), (3,)]
    assert driver.core.held == 0


# -- loading


async def test_no_command_runs_while_a_loading_batch_commits(driver: EngineDriver) -> None:
    publisher, worker = EngineClient(driver), EngineClient(driver)
    publisher.publish("orders", b"a")
    await driver.settle()
    worker.consume("orders", 1)
    await driver.run_until_idle()
    assert driver.writer.batch is not None
    assert driver.writer.batch.windows
    seen: list[bool] = []
    driver.engine.submit(lambda core: seen.append(1 in core.messages))
    await driver.run_until_idle()
    assert (seen, driver.engine.waiting) == ([], 1)
    await driver.end_commit()
    assert seen == [True]  # the loaded rows were added first
    assert worker.bodies == [b"a"]


async def test_open_batch_is_stored_before_its_rows_are_loaded(driver: EngineDriver) -> None:
    publisher, worker = EngineClient(driver), EngineClient(driver)
    await driver.settle()
    await put(driver, publisher, b"a")
    worker.consume("orders", 2)
    publisher.publish("orders", b"b")
    await driver.end_commit()
    assert driver.writer.batch is not None
    assert driver.writer.batch.windows
    assert worker.got == []
    await driver.end_commit()
    assert worker.bodies == [b"a", b"b"]


# -- failure and stop


async def test_failed_commit_ends_the_loop_without_replies(driver: EngineDriver) -> None:
    worker, publisher = await consumer(driver, 1), EngineClient(driver)
    await put(driver, publisher, b"a", key=b"a")
    publisher.publish("orders", b"b", key=b"b")
    called = asyncio.create_task(driver.engine.call(lambda core, answer: core.reply(answer, None)))
    await driver.run_until_idle()
    driver.writer.end(is_failing=True)
    with pytest.raises(OutcomeUnknownError):
        await driver.task
    assert (worker.got, publisher.receipts, called.done()) == ([], [], False)
    assert driver.rows("SELECT seq FROM message") == []
    called.cancel()


async def test_stop_stores_the_open_batch_and_sends_its_receipts(driver: EngineDriver) -> None:
    publisher = EngineClient(driver)
    await put(driver, publisher, b"a", key=b"a")
    publisher.publish("orders", b"b", key=b"b")
    await driver.run_until_idle()
    driver.engine.stop()
    await driver.end_commit()
    assert not driver.task.done()
    assert driver.writer.batch is not None
    await driver.end_commit()
    assert driver.task.done()
    assert [r.key for r in publisher.receipts] == [b"a", b"b"]
    assert driver.rows("SELECT seq FROM message") == [(1,), (2,)]


async def test_full_batch_takes_no_more_commands(make_driver: MakeDriver) -> None:
    small = make_driver(Limits(batch_commands=2))
    publisher = EngineClient(small)
    await put(small, publisher, b"a")
    publisher.publish("orders", b"b", b"c", b"d")
    await small.run_until_idle()
    assert small.core.batch.commands == 2
    await small.settle()
    assert [len(batch.created) for batch in small.writer.batches if batch.created] == [1, 2, 1]


# -- commands that are submitted again


async def test_command_submitted_first_runs_in_the_next_batch(driver: EngineDriver) -> None:
    await put(driver, EngineClient(driver), b"a")
    batches: list[int] = []

    def again(core: Broker) -> None:
        batches.append(core.batch_number)
        if len(batches) < 4:
            driver.engine.submit_first(again)

    driver.engine.submit(again)
    await driver.run_until_idle()
    number = driver.core.batch_number
    assert batches == [number]
    await driver.end_commit()
    assert batches == [number, number + 1, number + 2, number + 3]


async def test_commands_submitted_first_keep_their_order(driver: EngineDriver) -> None:
    order: list[str] = []
    await put(driver, EngineClient(driver), b"a")
    driver.engine.submit(lambda _: driver.engine.submit_first(lambda _: order.append("one")))
    driver.engine.submit(lambda _: driver.engine.submit_first(lambda _: order.append("two")))
    await driver.run_until_idle()
    driver.engine.submit(lambda _: order.append("of the open batch"))
    await driver.run_until_idle()
    await driver.end_commit()
    assert order == ["of the open batch", "one", "two"]


@NEEDS_SOURCES
@pytest.mark.parametrize("verb", ["publish", "publish_with"])
async def test_publisher_without_quota_waits_and_delays_nobody(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    room = {"orders": 1, "mails": 9}
    monkeypatch.setattr(driver.engine.flow_control, "available", lambda name, is_called: room[name])
    monkeypatch.setattr(driver.engine.flow_control, "_available", lambda queue: room[queue.name])
    publisher, other = EngineClient(driver), EngineClient(driver)
    await put(driver, publisher, b"a")
    room["orders"] = 0
    getattr(publisher, verb)("orders", b"b", b"c", b"d")
    other.publish("mails", b"e")
    await driver.run_until_idle()
    await driver.end_commit()
    assert driver.engine.waiting == 1
    room["orders"] = 2
    driver.engine.submit(lambda _: None)
    await driver.settle()
    assert driver.engine.waiting == 0
    born = [batch.bodies for batch in driver.writer.batches if batch.created]
    assert born == [[b"a"], [b"e"], [b"b", b"c", b"d"]]


async def test_command_that_resubmits_itself_delays_nobody(driver: EngineDriver) -> None:
    worker = await consumer(driver, 1, b"a")
    await put(driver, EngineClient(driver), b"b")
    await driver.settle()
    worker.acknowledge(worker.got[0])
    asked: list[int] = []

    def again(_: Broker) -> None:
        asked.append(len(worker.got))
        if len(worker.got) < 2 and len(asked) < 100:
            driver.engine.submit(again)

    driver.engine.submit(again)
    await driver.run_until_idle()
    assert asked == [1, 2]


async def test_late_publish_to_an_open_batch_has_its_own_time(driver: EngineDriver) -> None:
    publisher = EngineClient(driver)
    await put(driver, publisher, b"a")
    for body in (b"b", b"c"):
        driver.advance(5)
        publisher.publish("orders", body, ttl_s=60)
        await driver.run_until_idle()
    await driver.settle()
    assert [len(batch.created) for batch in driver.writer.batches if batch.created] == [1, 2]
    [(a, _), (b, dies_b), (c, dies_c)] = driver.rows(
        "SELECT published_at, deadline_ms FROM message"
    )
    assert (b - a, c - b, dies_c - dies_b) == (5_000, 5_000, 5_000)


# -- delayed acknowledgements


async def test_lone_acknowledgement_waits_for_more_work(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await consumer(driver, 2, b"a", b"b")
    disable_timers(monkeypatch, linger_s=1e9)
    batches = len(driver.writer.batches)
    worker.acknowledge(worker.got[0])
    await driver.run_until_idle()
    assert len(driver.writer.batches) == batches
    EngineClient(driver).publish("orders", b"c")
    await driver.run_until_idle()
    assert len(driver.writer.batches) == batches + 1
    assert [len(seqs) for seqs in driver.writer.batches[-1].settled.values()] == [1]
    assert len(driver.writer.batches[-1].created) == 1
    await driver.settle()
    batches = len(driver.writer.batches)
    worker.acknowledge(worker.got[1])
    await driver.run_until_idle()
    assert len(driver.writer.batches) == batches
    driver.end_lingering()
    await driver.run_until_idle()
    assert len(driver.writer.batches) == batches + 1


async def test_acknowledgements_do_not_wait_if_others_wait_for_them(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the loop spins: the batch is full, or the next one was requested."""
    small = make_driver(Limits(batch_commands=2))
    worker = await consumer(small, 5, b"a", b"b", b"c", b"d", b"e")
    disable_timers(monkeypatch, linger_s=1e9)
    worker.acknowledge(*worker.got[:3])
    await small.end_commit()
    assert small.rows("SELECT seq FROM history") == [(1,), (2,)]
    await small.settle()
    worker.acknowledge(worker.got[3])
    small.engine.submit(lambda _: small.engine.submit_first(lambda _: None))
    await small.end_commit()
    assert small.rows("SELECT seq FROM history") == [(1,), (2,), (3,), (4,)]


async def test_stop_does_not_wait_for_more_acknowledgements(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await consumer(driver, 1, b"a")
    disable_timers(monkeypatch, linger_s=1e9)
    worker.acknowledge(*worker.got)
    await driver.run_until_idle()
    assert driver.writer.batch is None
    driver.engine.stop()
    await driver.end_commit()
    assert driver.task.done()
    assert driver.rows("SELECT outcome FROM history") == [(2,)]


class Transport(asyncio.Transport):
    """Records its data; ``unsent`` bytes are buffered."""

    def __init__(self, unsent: int = 0) -> None:
        super().__init__()
        self.unsent = unsent
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def fileno(self) -> int:
        return 7


DIRECT = bytes(256 << 10)  # the largest data that is written directly


class Socket:
    """Records direct writes of at most ``room`` bytes; they fail if it is None."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int | None = 1 << 20) -> None:
        self.got: list[bytes] = []
        self.room = room
        monkeypatch.setattr("os.write", self._write)

    def _write(self, descriptor: int, data: bytes) -> int:
        assert descriptor == 7
        if self.room is None:
            raise BlockingIOError
        self.got.append(data[: self.room])
        return len(self.got[-1])


@pytest.mark.parametrize(
    ("data", "unsent", "room", "descriptor", "written", "left"),
    [
        pytest.param(DIRECT, 0, 1 << 20, 7, [DIRECT], [], id="direct"),
        pytest.param(DIRECT + b"x", 0, 1 << 20, 7, [], [DIRECT + b"x"], id="large"),
        pytest.param(b"abc", 1, 1 << 20, 7, [], [b"abc"], id="behind buffered data"),
        pytest.param(b"abc", 0, 2, 7, [b"ab"], [b"c"], id="partial write"),
        pytest.param(b"abc", 0, None, 7, [], [b"abc"], id="failed write"),
        pytest.param(b"abc", 0, 1 << 20, None, [], [b"abc"], id="no own socket"),
    ],
)
def test_large_write_is_left_to_the_transport(
    monkeypatch: pytest.MonkeyPatch,
    data: bytes,
    unsent: int,
    room: int | None,
    descriptor: int | None,
    written: list[bytes],
    left: list[bytes],
) -> None:
    socket, transport = Socket(monkeypatch, room), Transport(unsent)
    write_data(transport, descriptor, data)
    assert (socket.got, transport.written) == (written, left)


class TlsTransport(Transport):
    """Like ``Transport``, with TLS."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "ssl_object" else super().get_extra_info(name, default)


def test_tls_connection_has_no_direct_descriptor() -> None:
    assert descriptor_of(Transport()) == 7
    assert descriptor_of(TlsTransport()) is None


# -- frames with options


class CountingTransport(FakeTransport):
    """Counts writes."""

    def __init__(self, take: Any) -> None:
        super().__init__(take)
        self.writes = 0

    def write(self, data: Any) -> None:
        self.writes += 1
        super().write(data)


async def test_hello_is_answered_at_once_and_in_one_write(driver: EngineDriver) -> None:
    """Neither a commit nor a publish that waits for its queue delays it."""
    program = EngineClient(driver)
    program.session.transport = transport = CountingTransport(program._take)
    await put(driver, EngineClient(driver), b"a")
    program.session.data_received(CLIENT.hello(b"k", b'{"name":"test"}'))
    assert [welcome.key for welcome in program.welcomes] == [b"k"]
    assert transport.writes == 1
    assert program.session.client_facts == {"name": "test"}


async def test_welcome_comes_before_a_dispatch_of_the_same_read(driver: EngineDriver) -> None:
    EngineClient(driver).publish("orders", b"a")
    await driver.settle()
    program = EngineClient(driver)
    order: list[str] = []
    program.session.transport = FakeTransport(lambda frame: order.append(type(frame).__name__))
    consume = CLIENT.consume_with_options("orders", 1, b'{"info":true}')
    program.session.data_received(CLIENT.hello(b"k", b"{}") + consume)
    await driver.settle()
    assert order == ["Welcome", "DispatchWithInfo"]


async def test_contents_and_options_are_counted_until_they_are_processed(
    driver: EngineDriver,
) -> None:
    """Also those of a settlement that waits for its dead-letter record to be stored."""
    worker = await consumer(driver, 4, b"a", b"b", b"c", b"d")
    packet = b'{"action":"dead_letter"}'
    data = CLIENT.publish_with_options("orders", b"body", b'{"priority":3}')
    data += CLIENT.publish_with_options("orders", b"body", b"invalid")
    data += CLIENT.settle("orders", worker.got[0].message_id, b'{"action":"retry"}', b"new")
    data += CLIENT.settle("orders", worker.got[1].message_id, packet, None)
    data += CLIENT.settle("orders", worker.got[2].message_id, b"invalid", b"new")
    data += CLIENT.dead_letter("orders", worker.got[3].message_id)
    data += CLIENT.consume_with_options("orders", 9, b'{"keep":true}')
    worker.session.data_received(data)
    sizes = (4 + 14, 4 + 7, 3 + 18, 24, 3 + 7, 13)
    assert worker.session.frames.content_bytes == sum(sizes)
    await driver.settle()
    assert worker.session.frames.content_bytes == 0
    assert not worker.session.frames


async def test_reason_of_an_invalid_consume_is_stored_but_counted_without_its_detail(
    driver: EngineDriver,
) -> None:
    for options in (b'{"info":1}', b'{"keep":2}'):
        program = EngineClient(driver)
        program.session.data_received(CLIENT.consume_with_options("orders", 1, options))
        await driver.settle()
        assert program.transport.is_closed
    assert driver.context.counters.closed == {"invalid options of a 012": 2}
    assert driver.rows("SELECT reason FROM client WHERE closed_at IS NOT NULL") == [
        ("invalid options of a 012: info: must be true or false, not 1",),
        ("invalid options of a 012: keep: must be true or false, not 2",),
    ]
