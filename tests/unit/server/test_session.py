"""What leaves, and when, while one batch is with the writer and the next one is open."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from phpmq_lite.broker.broker import Broker
from phpmq_lite.errors import OutcomeUnknownError, RefusedError
from phpmq_lite.model import Limits
from phpmq_lite.server.session import EndDetector, descriptor_of, write_data
from tests.support.engine_driver import EngineClient, EngineDriver, disable_timers

MakeHouse = Callable[[Limits], EngineDriver]


@pytest.fixture
async def make(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeHouse]:
    disable_timers(monkeypatch)
    houses: list[EngineDriver] = []

    def make(limits: Limits) -> EngineDriver:
        houses.append(EngineDriver(tmp_path_factory.mktemp("house"), limits))
        houses[-1].start()
        return houses[-1]

    yield make
    for house in houses:
        assert house.running is not None
        if not house.running.done():
            await house.stop()
        house.close()


@pytest.fixture
async def house(make: MakeHouse) -> EngineDriver:
    return make(Limits())


async def consumer(house: EngineDriver, credit: int, *bodies: bytes) -> EngineClient:
    """Return a client that holds messages with these bodies, stored before."""
    publisher = EngineClient(house)
    publisher.publish("orders", *bodies)
    program = EngineClient(house)
    program.consume("orders", credit)
    await house.settle()
    assert program.bodies == list(bodies)
    return program


async def put(house: EngineDriver, program: EngineClient, *bodies: bytes, **options: Any) -> None:
    """Publish, and leave the batch with the writer."""
    assert house.writer.batch is None
    program.publish("orders", *bodies, **options)
    await house.run_until_idle()
    assert house.writer.batch is not None


# -- what is stored


async def test_stored_message_leaves_while_its_dispatch_is_with_the_writer(
    house: EngineDriver,
) -> None:
    worker = await consumer(house, 1, b"a")
    EngineClient(house).publish("orders", b"b")
    await house.settle()
    worker.acknowledge(worker.got[0])
    await house.run_until_idle()
    assert house.writer.batch is not None
    assert worker.bodies == [b"a", b"b"]
    assert house.rows("SELECT state FROM message WHERE seq = 2") == [(0,)]


async def test_stored_message_leaves_while_another_batch_is_with_the_writer(
    house: EngineDriver,
) -> None:
    worker = await consumer(house, 1, b"a")
    publisher = EngineClient(house)
    publisher.publish("orders", b"b")
    await house.settle()
    await put(house, publisher, b"c")
    number = house.core.batch_number
    worker.acknowledge(worker.got[0])
    await house.run_until_idle()
    assert house.core.batch_number == number + 1
    assert worker.bodies == [b"a", b"b"]


async def test_new_message_leaves_after_its_commit(house: EngineDriver) -> None:
    worker = await consumer(house, 10)
    await put(house, EngineClient(house), b"a")
    assert worker.got == []
    await house.end_commit()
    assert worker.bodies == [b"a"]


async def test_new_message_leaves_after_its_commit_although_a_later_batch_dispatches_it(
    house: EngineDriver,
) -> None:
    worker = await consumer(house, 1, b"a")
    await put(house, EngineClient(house), b"b")
    worker.acknowledge(worker.got[0])
    await house.run_until_idle()
    assert house.message(2).holder.connection is worker.session.connection
    assert worker.bodies == [b"a"]
    await house.end_commit()
    assert house.writer.batch is not None  # its dispatch
    assert worker.bodies == [b"a", b"b"]


async def test_of_an_open_batch_only_what_is_stored_leaves(house: EngineDriver) -> None:
    worker = await consumer(house, 2, b"a", b"b")
    publisher = EngineClient(house)
    publisher.publish("orders", b"c")
    await house.settle()
    await put(house, publisher, b"d")
    worker.acknowledge(*worker.got)
    await house.run_until_idle()
    assert worker.bodies == [b"a", b"b", b"c"]
    await house.end_commit()
    assert worker.bodies == [b"a", b"b", b"c", b"d"]


# -- order


async def test_messages_leave_in_the_order_of_their_dispatches(house: EngineDriver) -> None:
    """The first is dispatched while it is not stored, the second when it is."""
    worker = await consumer(house, 2, b"a", b"b")
    await put(house, EngineClient(house), b"c", b"d")
    worker.acknowledge(worker.got[0])
    await house.end_commit()
    assert house.writer.batch is not None
    worker.acknowledge(worker.got[1])
    await house.run_until_idle()
    await house.settle()
    assert worker.bodies == [b"a", b"b", b"c", b"d"]


async def test_requeued_message_does_not_overtake_one_that_is_not_stored(
    house: EngineDriver,
) -> None:
    worker = await consumer(house, 2, b"a")
    await put(house, EngineClient(house), b"b")
    worker.requeue(worker.got[0])
    await house.run_until_idle()
    assert worker.bodies == [b"a"]
    await house.settle()
    assert worker.bodies == [b"a", b"b", b"a"]


async def test_receipts_come_after_the_commit_and_in_order(house: EngineDriver) -> None:
    publisher = EngineClient(house)
    publisher.publish("orders", b"a", key=b"a")
    await house.settle()
    await put(house, publisher, b"b", key=b"b")
    publisher.publish("orders", b"a", key=b"a")  # known: a batch without anything to store
    await house.run_until_idle()
    assert [r.key for r in publisher.receipts] == [b"a"]
    await house.end_commit()
    assert [r.key for r in publisher.receipts] == [b"a", b"b", b"a"]
    assert house.rows("SELECT content FROM body") == [(b"a",), (b"b",)]


async def test_answer_comes_after_the_commit_of_its_batch(house: EngineDriver) -> None:
    await put(house, EngineClient(house), b"a")
    called = asyncio.create_task(
        house.engine.call(lambda core, answer: core.state.batch.replies.append((answer, "done")))
    )
    await house.run_until_idle()
    assert not called.done()
    await house.end_commit()
    assert await called == "done"


async def test_refusal_waits_for_no_commit(house: EngineDriver) -> None:
    await put(house, EngineClient(house), b"a")

    def refuse(_core: Broker, _answer: object) -> None:
        raise RefusedError("no", "not now")

    with pytest.raises(RefusedError, match="not now"):
        await house.engine.call(refuse)
    assert house.writer.batch is not None


# -- what a later batch takes away


async def test_message_that_a_later_batch_gave_to_another_leaves_once(house: EngineDriver) -> None:
    first, second = await consumer(house, 1), EngineClient(house)
    await put(house, EngineClient(house), b"a")
    second.consume("orders", 1)  # first, else the queue is left by its last one
    first.consume("orders", 0)
    await house.run_until_idle()
    assert house.message(1).holder.connection is second.session.connection
    await house.settle()
    assert (first.bodies, second.bodies) == ([], [b"a"])


async def test_message_that_its_consumer_got_again_before_it_left_leaves_once(
    house: EngineDriver,
) -> None:
    worker = await consumer(house, 1)
    await put(house, EngineClient(house), b"a")
    worker.consume("orders", 3)
    await house.settle()
    assert house.message(1).deliveries == 1
    assert worker.bodies == [b"a"]
    assert house.rows("SELECT state, deliveries FROM message") == [(1, 1)]


@pytest.mark.parametrize("how", ["disconnect", "half_close", "break_grammar"])
async def test_message_of_a_connection_that_ended_meanwhile_waits(
    house: EngineDriver, how: str
) -> None:
    """What was not written to an open connection was no delivery, and is not charged."""
    worker = await consumer(house, 1, b"a")
    worker.acknowledge(*worker.got)
    await house.settle()
    await put(house, EngineClient(house), b"b")
    getattr(worker, how)()
    await house.settle()
    assert worker.bodies == [b"a"]
    rows = house.rows("SELECT state, position, deliveries, charged FROM message")
    assert rows == [(0, 2, 0, 0)]


class Ended(EndDetector):
    """The system knows of an end that the loop has not read yet."""

    def __init__(self) -> None:
        """There is no socket."""

    def has_ended(self) -> bool:
        return True


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("how", ["disconnect", "half_close", "break_grammar"])
async def test_message_that_ended_its_consumer_is_charged_beside_one_that_was_not_sent(
    house: EngineDriver, how: str, is_read: bool
) -> None:
    worker = await consumer(house, 2, b"poison")
    await put(house, EngineClient(house), b"b")
    if not is_read:
        worker.session._end_detector = Ended()
        await house.end_commit()
    getattr(worker, how)()
    await house.settle()
    assert worker.bodies == [b"poison"]
    assert house.rows("SELECT deliveries, charged FROM message") == [(1, 1), (0, 0)]


async def test_consumer_that_closed_its_side_gets_nothing_that_arrives_later(
    house: EngineDriver,
) -> None:
    dead = [await consumer(house, 1) for _ in range(25)]
    for each in dead:
        each.half_close()
    await put(house, EngineClient(house), b"a")
    assert house.core.state.held == 0
    await house.settle()
    assert [each.got for each in dead] == [[]] * 25
    worker = EngineClient(house)
    worker.consume("orders", 1)
    await house.settle()
    assert worker.bodies == [b"a"]
    assert house.rows("SELECT deliveries, charged FROM message") == [(1, 0)]


async def test_consumer_that_closed_its_side_gets_nothing_of_a_batch_without_room(
    make: MakeHouse,
) -> None:
    """Its end waits for the next batch; the dispatches of this one do not go to it."""
    house = make(Limits(batch_commands=1))
    worker = await consumer(house, 1, b"a")
    worker.acknowledge(*worker.got)
    await house.settle()
    EngineClient(house).publish("orders", b"b", b"c")
    worker.half_close()
    await house.settle()
    assert worker.bodies == [b"a"]
    rows = house.rows("SELECT deliveries, charged FROM message")
    assert rows == [(0, 0), (0, 0)]


async def test_consumer_that_only_listens_gets_what_is_ready_and_is_not_charged(
    house: EngineDriver,
) -> None:
    """``nc -N`` sends its 002 and the end in one go; what it printed is no failure."""
    publisher = EngineClient(house)
    publisher.publish("orders", b"a", b"b")
    await house.settle()
    listener = EngineClient(house)
    listener.consume("orders", 1)
    listener.half_close()
    await house.settle()
    assert listener.bodies == [b"a"]
    assert listener.transport.is_closed
    assert house.rows("SELECT state, charged FROM message") == [(0, 0), (0, 0)]


async def test_message_that_is_too_late_after_its_commit_expires(house: EngineDriver) -> None:
    worker = await consumer(house, 1)
    await put(house, EngineClient(house), b"a", ttl_s=1)
    house.advance(1)
    await house.settle()
    assert worker.got == []
    assert house.rows("SELECT outcome, deliveries FROM history") == [(3, 0)]
    assert house.context.figures.late == 1


async def test_late_message_does_not_leave_by_way_of_the_next_batch_either(
    house: EngineDriver,
) -> None:
    """It is late for one, and while that is stored another one has it."""
    first, second = await consumer(house, 1), EngineClient(house)
    second.consume("orders", 1)
    first.consume("orders", 1)  # behind the other
    await house.settle()
    await put(house, EngineClient(house), b"a", b"b", ttl_s=1)
    first.consume("orders", 0)
    second.consume("orders", 2)
    await house.run_until_idle()
    house.advance(1)
    await house.settle()
    assert (first.got, second.got) == ([], [])
    assert house.rows("SELECT outcome FROM history") == [(3,), (3,)]
    assert house.core.state.held == 0


# -- loading


async def test_nothing_is_decided_while_a_batch_that_loads_is_with_the_writer(
    house: EngineDriver,
) -> None:
    publisher, worker = EngineClient(house), EngineClient(house)
    publisher.publish("orders", b"a")
    await house.settle()
    worker.consume("orders", 1)
    await house.run_until_idle()
    assert house.writer.batch is not None
    assert house.writer.batch.windows
    seen: list[bool] = []
    house.engine.submit(lambda core: seen.append(1 in core.state.messages))
    await house.run_until_idle()
    assert (seen, house.engine.waiting) == ([], 1)
    await house.end_commit()
    assert seen == [True]  # what was loaded came in first
    assert worker.bodies == [b"a"]


async def test_an_open_batch_that_asks_for_something_is_stored_before_it_is_loaded(
    house: EngineDriver,
) -> None:
    publisher, worker = EngineClient(house), EngineClient(house)
    await house.settle()
    await put(house, publisher, b"a")
    worker.consume("orders", 2)
    publisher.publish("orders", b"b")
    await house.end_commit()
    assert house.writer.batch is not None
    assert house.writer.batch.windows
    assert worker.got == []
    await house.end_commit()
    assert worker.bodies == [b"a", b"b"]


# -- the ends


async def test_failed_commit_ends_the_loop_and_nobody_is_told(house: EngineDriver) -> None:
    worker, publisher = await consumer(house, 1), EngineClient(house)
    await put(house, publisher, b"a", key=b"a")
    publisher.publish("orders", b"b", key=b"b")
    called = asyncio.create_task(
        house.engine.call(lambda core, answer: core.state.batch.replies.append((answer, None)))
    )
    await house.run_until_idle()
    house.writer.end(is_failing=True)
    assert house.running is not None
    with pytest.raises(OutcomeUnknownError):
        await house.running
    assert (worker.got, publisher.receipts, called.done()) == ([], [], False)
    assert house.rows("SELECT seq FROM message") == []
    called.cancel()


async def test_stop_stores_and_answers_the_open_batch_too(house: EngineDriver) -> None:
    publisher = EngineClient(house)
    await put(house, publisher, b"a", key=b"a")
    publisher.publish("orders", b"b", key=b"b")
    await house.run_until_idle()
    house.engine.stop()
    await house.end_commit()
    assert house.running is not None
    assert not house.running.done()
    assert house.writer.batch is not None
    await house.end_commit()
    assert house.running.done()
    assert [r.key for r in publisher.receipts] == [b"a", b"b"]
    assert house.rows("SELECT seq FROM message") == [(1,), (2,)]


async def test_full_batch_takes_nothing_more(make: MakeHouse) -> None:
    small = make(Limits(batch_commands=2))
    publisher = EngineClient(small)
    await put(small, publisher, b"a")
    publisher.publish("orders", b"b", b"c", b"d")
    await small.run_until_idle()
    assert small.core.state.batch.commands == 2
    await small.settle()
    assert [len(batch.created) for batch in small.writer.batches if batch.created] == [1, 2, 1]


# -- commands that give themselves again


async def test_command_given_first_comes_in_the_next_batch(house: EngineDriver) -> None:
    await put(house, EngineClient(house), b"a")
    batches: list[int] = []

    def again(core: Broker) -> None:
        batches.append(core.batch_number)
        if len(batches) < 4:
            house.engine.submit_first(again)

    house.engine.submit(again)
    await house.run_until_idle()
    number = house.core.batch_number
    assert batches == [number]
    await house.end_commit()
    assert batches == [number, number + 1, number + 2, number + 3]


async def test_commands_given_first_come_in_their_order_and_before_all_others(
    house: EngineDriver,
) -> None:
    order: list[str] = []
    await put(house, EngineClient(house), b"a")
    house.engine.submit(lambda _: house.engine.submit_first(lambda _: order.append("one")))
    house.engine.submit(lambda _: house.engine.submit_first(lambda _: order.append("two")))
    await house.run_until_idle()
    house.engine.submit(lambda _: order.append("of the open batch"))
    await house.run_until_idle()
    await house.end_commit()
    assert order == ["of the open batch", "one", "two"]


async def test_publisher_without_room_waits_and_keeps_up_nobody(
    house: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = {"orders": 1, "mails": 9}
    monkeypatch.setattr(house.engine.flow_control, "available", lambda name, is_called: room[name])
    monkeypatch.setattr(house.engine.flow_control, "_available", lambda queue: room[queue.name])
    publisher, other = EngineClient(house), EngineClient(house)
    await put(house, publisher, b"a")
    room["orders"] = 0
    publisher.publish("orders", b"b", b"c", b"d")
    other.publish("mails", b"e")
    await house.run_until_idle()
    await house.end_commit()
    assert house.engine.waiting == 1
    room["orders"] = 2
    house.engine.submit(lambda _: None)
    await house.settle()
    assert house.engine.waiting == 0
    born = [batch.bodies[1::2] for batch in house.writer.batches if batch.created]
    assert born == [[b"a"], [b"e"], [b"b", b"c", b"d"]]


async def test_command_that_gives_itself_again_keeps_nobody_waiting(house: EngineDriver) -> None:
    worker = await consumer(house, 1, b"a")
    await put(house, EngineClient(house), b"b")
    await house.settle()
    worker.acknowledge(worker.got[0])
    asked: list[int] = []

    def again(_: Broker) -> None:
        asked.append(len(worker.got))
        if len(worker.got) < 2 and len(asked) < 100:
            house.engine.submit(again)

    house.engine.submit(again)
    await house.run_until_idle()
    assert asked == [1, 2]


async def test_what_comes_late_to_an_open_batch_has_its_own_time(house: EngineDriver) -> None:
    publisher = EngineClient(house)
    await put(house, publisher, b"a")
    for body in (b"b", b"c"):
        house.advance(5)
        publisher.publish("orders", body, ttl_s=60)
        await house.run_until_idle()
    await house.settle()
    assert [len(batch.created) for batch in house.writer.batches if batch.created] == [1, 2]
    [(a, _), (b, dies_b), (c, dies_c)] = house.rows("SELECT published_at, deadline_ms FROM message")
    assert (b - a, c - b, dies_c - dies_b) == (5_000, 5_000, 5_000)


# -- acknowledgements that wait for company


async def test_acknowledgement_alone_waits_a_moment_for_what_follows(
    house: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await consumer(house, 2, b"a", b"b")
    disable_timers(monkeypatch, linger_s=1e9)
    batches = len(house.writer.batches)
    worker.acknowledge(worker.got[0])
    await house.run_until_idle()
    assert len(house.writer.batches) == batches
    EngineClient(house).publish("orders", b"c")
    await house.run_until_idle()
    assert len(house.writer.batches) == batches + 1
    assert [len(seqs) for seqs in house.writer.batches[-1].settled.values()] == [1]
    assert len(house.writer.batches[-1].created) == 1
    await house.settle()
    batches = len(house.writer.batches)
    worker.acknowledge(worker.got[1])
    await house.run_until_idle()
    assert len(house.writer.batches) == batches
    house.end_lingering()
    await house.run_until_idle()
    assert len(house.writer.batches) == batches + 1


async def test_acknowledgements_do_not_wait_where_others_wait_for_them(
    make: MakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the loop turns without a pause: the batch is full, or the next one is asked for."""
    small = make(Limits(batch_commands=2))
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


async def test_stop_waits_for_no_company(
    house: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await consumer(house, 1, b"a")
    disable_timers(monkeypatch, linger_s=1e9)
    worker.acknowledge(*worker.got)
    await house.run_until_idle()
    assert house.writer.batch is None
    house.engine.stop()
    await house.end_commit()
    assert house.running is not None
    assert house.running.done()
    assert house.rows("SELECT outcome FROM history") == [(2,)]


class Transport(asyncio.Transport):
    """Keeps what it is given; ``unsent`` bytes wait in it."""

    def __init__(self, unsent: int = 0) -> None:
        super().__init__()
        self.unsent = unsent
        self.given: list[bytes] = []

    def write(self, data: Any) -> None:
        self.given.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def fileno(self) -> int:
        return 7


class Socket:
    """What was written past the transport, at most ``room`` bytes each time; None: it fails."""

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


def test_small_answer_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    socket, transport = Socket(monkeypatch), Transport()
    write_data(transport, 7, b"x" * 4_096)
    assert (socket.got, transport.given) == ([b"x" * 4_096], [])


def test_large_one_is_left_to_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    socket, transport = Socket(monkeypatch), Transport()
    write_data(transport, 7, b"x" * 4_097)
    assert (socket.got, transport.given) == ([], [b"x" * 4_097])


def test_nothing_overtakes_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    socket, transport = Socket(monkeypatch), Transport(unsent=1)
    write_data(transport, 7, b"abc")
    assert (socket.got, transport.given) == ([], [b"abc"])


def test_what_the_socket_does_not_take_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    socket, transport = Socket(monkeypatch, room=2), Transport()
    write_data(transport, 7, b"abc")
    assert (socket.got, transport.given) == ([b"ab"], [b"c"])


def test_failure_is_left_to_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    socket, transport = Socket(monkeypatch, room=None), Transport()
    write_data(transport, 7, b"abc")
    assert (socket.got, transport.given) == ([], [b"abc"])


def test_without_a_socket_of_its_own_the_transport_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    socket, transport = Socket(monkeypatch), Transport()
    write_data(transport, None, b"abc")
    assert (socket.got, transport.given) == ([], [b"abc"])


@pytest.mark.parametrize(("kind", "descriptor"), [("tcp", 7), ("unix", 7), ("tls", None)])
def test_encrypted_bytes_are_not_those_written(kind: str, descriptor: int | None) -> None:
    assert descriptor_of(Transport(), kind) == descriptor
