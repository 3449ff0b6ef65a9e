"""The writer on three servers: what is confirmed is replicated, and nothing is stored twice."""

import asyncio
import gc
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.errors import EpochEndedError, OutcomeUnknownError, StartRefusedError
from phpmq_lite.model import Batch
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.postgres import leadership, pipeline, writer
from phpmq_lite.storage.postgres.leadership import Standby, StandbyState
from phpmq_lite.storage.postgres.store import PostgresStore, Quorum, connection_info
from phpmq_lite.storage.postgres.writer import PostgresWriter
from tests.support.core_rig import message
from tests.support.postgres_nodes import DATABASE, ReplicatedPostgres, needs_postgres

pytestmark = needs_postgres
WAIT_S = 60.0
NUMBERS = count(1)


class SharedNodes:
    """The servers of this file; new ones after a test that left some of them dead."""

    def __init__(self) -> None:
        self._nodes = ReplicatedPostgres()

    def well(self) -> ReplicatedPostgres:
        """Return three running servers."""
        if not self._nodes.all_run():
            self._nodes.close()
            self._nodes = ReplicatedPostgres()
        return self._nodes

    def close(self) -> None:
        self._nodes.close()


@pytest.fixture(scope="module")
def shared_nodes() -> Iterator[SharedNodes]:
    shared = SharedNodes()
    yield shared
    shared.close()


@pytest.fixture
def nodes(shared_nodes: SharedNodes) -> ReplicatedPostgres:
    return shared_nodes.well()


@pytest.fixture(autouse=True)
def _patient_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limit for a failover, which takes longer on a loaded machine."""
    monkeypatch.setattr(writer, "UNREACHABLE_S", WAIT_S)


@pytest.fixture
def url(nodes: ReplicatedPostgres) -> str:
    """Return the URL of an empty database of servers that are all well."""
    name = f"test_{next(NUMBERS)}"
    nodes.create_database(name)
    return nodes.url().replace("/phpmq?", f"/{name}?")


@dataclass
class Seat:
    writer: PostgresWriter
    space: DiskSpace
    fatal: list[BaseException] = field(default_factory=list)
    states: list[StandbyState] = field(default_factory=list)
    next_number: int = 1

    def publish(self, messages: int = 3) -> "asyncio.Future[Any]":
        batch = Batch(1_000, first_number=self.next_number, commands=messages)
        for seq in range(self.next_number, self.next_number + messages):
            body = b"body %d" % seq
            batch.bodies.append(body)
            batch.created.append(message(seq, body=body))
        self.next_number += messages
        return self.writer.commit(batch)

    async def stored(self) -> list[int]:
        return await self.writer.run(
            lambda store: [row[0] for row in store.execute("SELECT seq FROM message ORDER BY 1")]
        )

    async def problem(self, text: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while text not in (self.space.write_problem or ""):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def standby_of(url: str, seat: Seat) -> Standby:
    return Standby(connection_info(url), seat.writer.check, seat.states.append)


def new_seat(url: str, tmp_path: Path, **more: bool) -> Seat:
    space, fatal = DiskSpace(tmp_path), list[BaseException]()
    return Seat(PostgresWriter(connection_info(url), space, fatal.append, **more), space, fatal)


@asynccontextmanager
async def active(url: str, tmp_path: Path, **more: bool) -> AsyncIterator[Seat]:
    seat = new_seat(url, tmp_path, **more)
    async with asyncio.timeout(WAIT_S):
        seat.writer.open(await standby_of(url, seat).wait_until_active())
    try:
        yield seat
    finally:
        await seat.writer.close()


async def test_batch_is_not_confirmed_while_the_setting_names_no_quorum(
    nodes: ReplicatedPostgres, url: str, tmp_path: Path
) -> None:
    async with active(url, tmp_path) as seat:
        await seat.publish()
        before = nodes.query("SHOW synchronous_standby_names")[0][0]
        nodes.set_synchronous_standby_names("")
        done = seat.publish()
        await seat.problem("names no quorum")
        assert not done.done()
        nodes.set_synchronous_standby_names(before)
        await asyncio.wait_for(done, WAIT_S)
        assert seat.space.write_problem is None
        assert await seat.stored() == [1, 2, 3, 4, 5, 6]
        assert not seat.fatal


@pytest.mark.parametrize("function", ["pg_cancel_backend", "pg_terminate_backend"])
async def test_commit_whose_wait_is_ended_is_confirmed_once_it_is_replicated(
    nodes: ReplicatedPostgres, url: str, tmp_path: Path, function: str
) -> None:
    async with active(url, tmp_path) as seat:
        await seat.publish()
        for node in nodes.standbys:
            nodes.pause(node)
        try:
            done = seat.publish()
            await asyncio.sleep(0.3)
            nodes.query(
                f"SELECT {function}(pid) FROM pg_stat_activity"
                " WHERE application_name = 'phpmq-lite-writer' AND wait_event = 'SyncRep'"
            )
            await asyncio.sleep(1)
            assert not done.done()
        finally:
            for node in nodes.standbys:
                nodes.resume(node)
        await asyncio.wait_for(done, WAIT_S)
        assert await seat.stored() == [1, 2, 3, 4, 5, 6]
        assert not seat.fatal


@pytest.mark.parametrize("is_replicated", [True, False])
async def test_batch_is_stored_once_when_the_primary_is_lost(
    nodes: ReplicatedPostgres, url: str, tmp_path: Path, is_replicated: bool
) -> None:
    async with active(url, tmp_path) as seat:
        await seat.publish()
        if not is_replicated:
            for node in nodes.standbys:
                nodes.pause(node)
        done = seat.publish()
        await (done if is_replicated else asyncio.sleep(0.3))
        lost = nodes.primary
        await asyncio.to_thread(nodes.kill, lost)
        if not is_replicated:
            for node in nodes.standbys:
                nodes.resume(node)
        more = seat.publish()
        await asyncio.to_thread(nodes.fail_over)
        await asyncio.wait_for(asyncio.gather(done, more), WAIT_S)
        await asyncio.to_thread(nodes.rejoin, lost)
        assert await seat.stored() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
        assert not seat.fatal


async def test_broker_that_another_has_replaced_stores_nothing(url: str, tmp_path: Path) -> None:
    async with active(url, tmp_path) as old:
        await old.publish()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writer, "BEAT_S", 60)
            await asyncio.sleep(0.5)  # the last heartbeat is on its way
            async with active(url, tmp_path) as new:
                with pytest.raises(EpochEndedError, match="another broker has taken over"):
                    await old.publish()
                assert isinstance(old.fatal[0], EpochEndedError)
                assert await new.stored() == [1, 2, 3]


async def test_broker_that_was_stopped_tells_nobody_what_it_stored_before(
    url: str, tmp_path: Path
) -> None:
    """Another broker has taken over meanwhile: its consumers have received the same messages."""
    taken: list[PostgresStore] = []
    async with active(url, tmp_path) as old:
        await old.publish()
        assert old.writer.is_exclusive
        waiting = standby_of(url, new_seat(url, tmp_path))
        other = threading.Thread(
            target=lambda: taken.append(asyncio.run(waiting.wait_until_active()))
        )
        done = old.publish()
        other.start()
        other.join(WAIT_S)  # in this thread, as if the process were stopped
        assert not old.writer.is_exclusive
        with pytest.raises(EpochEndedError):  # type: ignore[unreachable]
            await done
        taken[0].connection.close()


async def test_read_without_a_transaction_is_repeated_when_its_connection_broke(
    nodes: ReplicatedPostgres, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BEAT_S", 60)  # a heartbeat would notice it, too
    async with active(url, tmp_path) as seat:
        await seat.publish()
        await asyncio.sleep(0.5)  # the last heartbeat is on its way
        nodes.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'phpmq-lite-writer'"
        )
        assert await seat.stored() == [1, 2, 3]
        assert seat.writer.reconnects == 1
        assert not seat.fatal


async def test_rolled_back_batch_is_sent_again(
    nodes: ReplicatedPostgres, url: str, tmp_path: Path
) -> None:
    async with active(url, tmp_path) as seat:
        await seat.publish()
        database = url.partition("?")[0].rpartition("/")[2]
        with nodes.connect(dbname=database, autocommit=False) as other:
            other.execute("LOCK TABLE message")
            done = seat.publish()
            await seat.problem("lock timeout")
        await asyncio.wait_for(done, WAIT_S)
        assert await seat.stored() == [1, 2, 3, 4, 5, 6]


async def test_batch_whose_answer_cannot_be_read_is_stored_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failures = pipeline._quorum, [ValueError("no number")]

    def read_or_fail(row: list[bytes]) -> Quorum:
        if failures:
            raise failures.pop()
        return read(row)

    async with active(url, tmp_path) as seat:
        await seat.publish()
        monkeypatch.setattr(pipeline, "_quorum", read_or_fail)
        await asyncio.wait_for(seat.publish(), WAIT_S)
        assert await seat.stored() == [1, 2, 3, 4, 5, 6]
        assert seat.writer.reconnects == 1
        assert not seat.fatal


async def test_writer_gives_up_a_server_that_does_not_answer(
    nodes: ReplicatedPostgres, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "UNREACHABLE_S", 1.0)
    async with active(url, tmp_path) as seat:
        await seat.publish()
        primary = nodes.primary
        await asyncio.to_thread(nodes.kill, primary)
        try:
            with pytest.raises(OutcomeUnknownError, match="has not answered for 1 s"):
                await asyncio.wait_for(seat.publish(), WAIT_S)
            assert len(seat.fatal) == 1
        finally:
            await asyncio.to_thread(nodes.start, primary)
            await asyncio.to_thread(nodes.wait_for_quorum)


async def test_batches_are_confirmed_without_a_quorum_only_if_allowed(
    nodes: ReplicatedPostgres, url: str, tmp_path: Path
) -> None:
    before = nodes.query("SHOW synchronous_standby_names")[0][0]
    nodes.set_synchronous_standby_names("")
    try:
        async with active(url, tmp_path, allow_asynchronous=True) as seat:
            await asyncio.wait_for(seat.publish(), WAIT_S)
            assert seat.writer.quorum is not None
            assert seat.writer.quorum.replicas == 0
    finally:
        nodes.set_synchronous_standby_names(before)


# -- standbys


async def test_standby_waits_for_a_living_broker_and_takes_over_at_its_end(
    url: str, tmp_path: Path
) -> None:
    seat = new_seat(url, tmp_path)
    async with active(url, tmp_path):
        waiting = asyncio.create_task(standby_of(url, seat).wait_until_active())
        await asyncio.sleep(2 * leadership.SILENCE_S)
        assert not waiting.done()
    store = await asyncio.wait_for(waiting, WAIT_S)
    assert store.epoch == 2
    store.connection.close()


async def test_standby_does_not_count_time_without_the_database(
    nodes: ReplicatedPostgres, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each failover of the database would make all standbys take over, one after another."""
    seat = new_seat(url, tmp_path)
    async with active(url, tmp_path) as broker:
        waiting = asyncio.create_task(standby_of(url, seat).wait_until_active())
        await asyncio.sleep(0.5)
        lost = nodes.primary
        await asyncio.to_thread(nodes.kill, lost)
        await asyncio.sleep(2 * leadership.SILENCE_S)
        await asyncio.to_thread(nodes.fail_over)
        await asyncio.wait_for(broker.publish(), WAIT_S)
        await asyncio.to_thread(nodes.rejoin, lost)
        assert seat.states[-1].row is not None or seat.states[-1].problem is not None
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_standby_with_an_older_schema_does_not_take_over(url: str, tmp_path: Path) -> None:
    async with active(url, tmp_path) as broker:
        await broker.writer.run(
            lambda store: store.connection.execute("INSERT INTO migration VALUES (99, 'b', '', 0)")
        )
    seat = new_seat(url, tmp_path)
    waiting = asyncio.create_task(standby_of(url, seat).wait_until_active())
    async with asyncio.timeout(WAIT_S):
        while not (  # noqa: ASYNC110
            seat.states and "schema version 99" in (seat.states[-1].problem or "")
        ):
            await asyncio.sleep(0.02)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_database_of_another_program_is_refused(
    nodes: ReplicatedPostgres, url: str, tmp_path: Path
) -> None:
    with nodes.connect(dbname=url.partition("?")[0].rpartition("/")[2]) as other:
        other.execute("CREATE TABLE public.theirs (number int)")
    with pytest.raises(StartRefusedError, match="not created by phpmq-lite"):
        await standby_of(url, new_seat(url, tmp_path)).wait_until_active()


async def test_standby_with_an_older_schema_says_so_while_another_broker_is_active(
    url: str, tmp_path: Path
) -> None:
    seat = new_seat(url, tmp_path)
    async with active(url, tmp_path) as broker, waiting_standbys(url, seat):
        await broker.writer.run(
            lambda store: store.connection.execute("INSERT INTO migration VALUES (99, '', '', 0)")
        )
        async with asyncio.timeout(WAIT_S):
            while "schema version 99" not in (seat.states[-1].problem or ""):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_standby_does_not_interrupt_long_work_of_the_active_broker(
    url: str, tmp_path: Path
) -> None:
    """A migration of a large database, for example: its heartbeats wait."""
    calls = []

    def work(store: PostgresStore) -> None:
        calls.append("transaction")
        with store.transaction():
            store.execute("SELECT pg_sleep(2.5)")
        calls.append("query")
        store.execute("SELECT pg_sleep(2.5)")

    async with active(url, tmp_path) as broker:
        async with waiting_standbys(url, new_seat(url, tmp_path)) as [waiting]:
            await broker.writer.run(work)
            assert not waiting.done()
        assert calls == ["transaction", "query"]
        assert not broker.fatal


async def test_standbys_without_a_quorum_do_not_take_over_from_each_other(
    nodes: ReplicatedPostgres, url: str, tmp_path: Path
) -> None:
    seat = new_seat(url, tmp_path)
    seat.writer.open(await standby_of(url, seat).wait_until_active())
    async with waiting_standbys(url, new_seat(url, tmp_path), new_seat(url, tmp_path)) as waiting:
        await asyncio.sleep(1)
        for node in nodes.standbys:
            nodes.pause(node)
        try:
            seat.writer._is_open = False  # as if the process had been killed
            seat.writer._store.connection.close()
            await asyncio.sleep(5)
        finally:
            for node in nodes.standbys:
                nodes.resume(node)
        await asyncio.wait(waiting, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        [winner] = [one for one in waiting if one.done()]
        assert winner.result().epoch == 2
        winner.result().connection.close()


async def test_broker_and_standby_leave_a_primary_that_stands_still(
    nodes: ReplicatedPostgres, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (writer, leadership):
        monkeypatch.setattr(module, "STUCK_S", 1.0)
    seat = new_seat(url, tmp_path)
    async with active(url, tmp_path) as broker, waiting_standbys(url, seat):
        await broker.publish()
        frozen = nodes.primary
        nodes.pause(frozen)
        try:
            done = broker.publish()
            await asyncio.sleep(1)
            await asyncio.to_thread(nodes.fail_over)
            await asyncio.wait_for(done, WAIT_S)
            assert await broker.stored() == [1, 2, 3, 4, 5, 6]
            async with asyncio.timeout(WAIT_S):
                while not (seat.states and seat.states[-1].row):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            nodes.resume(frozen)
            await asyncio.to_thread(nodes.rejoin, frozen)


async def test_broker_that_waits_for_replicas_keeps_its_connection(
    nodes: ReplicatedPostgres, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "STUCK_S", 0.5)
    async with active(url, tmp_path) as seat:
        await seat.publish()
        before = seat.writer._store
        for node in nodes.standbys:
            nodes.pause(node)
        try:
            done = seat.publish()
            await asyncio.sleep(3)
            assert not done.done()
        finally:
            for node in nodes.standbys:
                nodes.resume(node)
        await asyncio.wait_for(done, WAIT_S)
        assert seat.writer._store is before


async def test_writer_stops_if_the_database_has_lost_batches(
    nodes: ReplicatedPostgres, url: str, tmp_path: Path
) -> None:
    """Its memory has what the database lacks: with asynchronous replicas, for example."""
    before = nodes.query("SHOW synchronous_standby_names")[0][0]
    nodes.set_synchronous_standby_names("")
    lost = nodes.primary
    try:
        async with active(url, tmp_path, allow_asynchronous=True) as seat:
            await seat.publish()
            for node in nodes.standbys:
                await asyncio.to_thread(nodes.kill, node)
            await seat.publish()
            await seat.publish()
            await asyncio.to_thread(nodes.kill, lost)
            for node in nodes.standbys:
                await asyncio.to_thread(nodes.start, node)
            await asyncio.to_thread(nodes.fail_over)
            with pytest.raises(OutcomeUnknownError, match="has lost batches"):
                await asyncio.wait_for(seat.publish(), WAIT_S)
            assert len(seat.fatal) == 1
    finally:
        await asyncio.to_thread(nodes.rejoin, lost)
        nodes.set_synchronous_standby_names(before, lost)
        await asyncio.to_thread(nodes.wait_for_quorum)


async def test_batch_is_not_confirmed_before_a_new_setting_is_in_force(
    nodes: ReplicatedPostgres, url: str, tmp_path: Path
) -> None:
    """Sessions read the setting before the checkpointer lets commits wait for replicas."""
    before = nodes.query("SHOW synchronous_standby_names")[0][0]
    [(checkpointer,)] = nodes.query(
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
    )
    async with active(url, tmp_path) as seat:
        await seat.publish()
        nodes.set_synchronous_standby_names("")
        done = seat.publish()
        await seat.problem("names no quorum")
        os.kill(checkpointer, signal.SIGSTOP)
        try:
            nodes.set_synchronous_standby_names(before)
            for node in nodes.standbys:
                nodes.pause(node)
            await asyncio.sleep(1)
            assert not done.done()
        finally:
            os.kill(checkpointer, signal.SIGCONT)
            await asyncio.sleep(0.1)
            for node in nodes.standbys:
                nodes.resume(node)
        await asyncio.wait_for(done, WAIT_S)
        assert await seat.stored() == [1, 2, 3, 4, 5, 6]


async def test_rows_that_change_often_are_found_at_once_while_a_snapshot_is_held(
    nodes: ReplicatedPostgres, url: str, tmp_path: Path
) -> None:
    """No version of a row can be removed then, and an index leads through all of them."""
    written = (
        f"SELECT * FROM update_queues({', '.join(f'ARRAY[{n}]::bigint[]' for n in (1, 2, 3, 0))})",
        "SELECT * FROM change_counter('history_lo', 1, true)",
    )
    read = (
        "SELECT * FROM read_epoch(0)",
        "SELECT counter_value('history_lo')",
        "SELECT oldest_receipt()",
    )
    explain = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
    database = url.partition("?")[0].rpartition("/")[2]
    async with active(url, tmp_path):
        with nodes.connect(dbname=database, autocommit=False) as holder:
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT count(*) FROM queue")
            with nodes.connect(dbname=database) as session:
                session.execute("SET synchronous_commit = off")
                session.execute("INSERT INTO queue (queue_id, name, created_at) VALUES (1, 'a', 0)")
                for number in range(2_000):
                    for statement in written:
                        session.execute(statement.encode())
                    session.execute("UPDATE epoch SET seen_at = now()")
                    session.execute("INSERT INTO receipt VALUES (%s, 1, 1, 0, 1, '')", [number])
                    session.execute("DELETE FROM receipt WHERE n < %s", [number])
                for statement in read:  # to find the place
                    session.execute(statement.encode())
                for statement in written + read:
                    [(plan,)] = session.execute((explain + statement).encode()).fetchall()
                    assert plan[0]["Plan"]["Shared Hit Blocks"] < 20, statement


async def test_writer_closes_the_connections_of_failed_attempts(
    nodes: ReplicatedPostgres, url: str, tmp_path: Path
) -> None:
    before = nodes.query("SHOW synchronous_standby_names")[0][0]
    async with active(url, tmp_path) as seat:
        nodes.set_synchronous_standby_names("")
        gc.disable()
        try:
            done = seat.publish()
            await seat.problem("names no quorum")
            await asyncio.sleep(2)
            [(sessions,)] = nodes.query(
                f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{DATABASE}'"
            )
        finally:
            gc.enable()
            nodes.set_synchronous_standby_names(before)
        await asyncio.wait_for(done, WAIT_S)
        assert sessions <= 3


def test_late_answer_is_no_jump_of_the_server_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seat, now = new_seat("postgresql://localhost/x", tmp_path), 1_000

    def answer(server_ms: int, arrived_ms: int) -> int:
        nonlocal now
        now = arrived_ms
        quorum = Quorum("ANY 1 (a,b)", "", server_ms, "", is_fresh=False)
        seat.writer.check(quorum, quorum, [])
        return seat.writer.read_clocks()[0]

    monkeypatch.setattr(writer, "read_clocks", lambda: (0, now))
    assert answer(50_000, 1_000) == 50_000
    assert answer(50_300, 1_300) == 50_300
    assert answer(50_600, 6_600) == 55_600  # this process was stopped for 5 s
    assert answer(55_900, 6_900) == 55_900
    assert answer(85_900, 7_900) == 85_900  # another server, whose clock is 29 s ahead
    assert answer(56_900, 8_900) == 57_900  # and back


# -- helpers


@asynccontextmanager
async def waiting_standbys(
    url: str, *seats: Seat
) -> AsyncIterator[list["asyncio.Task[PostgresStore]"]]:
    waiting = [asyncio.create_task(standby_of(url, one).wait_until_active()) for one in seats]
    try:
        async with asyncio.timeout(WAIT_S):
            while not all(one.states for one in seats):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        yield waiting
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
