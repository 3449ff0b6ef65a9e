"""A store is copied from SQLite to PostgreSQL and back: everything, or it can be continued."""

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from phpmq_lite.client import connect
from phpmq_lite.errors import (
    DataDamagedError,
    NotWritableError,
    OutcomeUnknownError,
    StartRefusedError,
)
from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.copy_state import CopyState
from phpmq_lite.storage.copying import AnySide, Table, copy_store, release, tables_of
from phpmq_lite.storage.data_folder import DATABASE, DataFolder, read_meta
from phpmq_lite.storage.postgres.copy_side import PostgresSide, open_database
from phpmq_lite.storage.read.read_pool import Row
from phpmq_lite.storage.sqlite.copy_side import open_folder
from phpmq_lite.storage.sqlite.integrity.startup import read_stopped
from phpmq_lite.storage.sqlite.litestream import CheckpointRight, write_config
from phpmq_lite.storage.sqlite.migrate import migrate
from phpmq_lite.storage.statements import load
from phpmq_lite.storage.store import NUMBER_GAP
from tests.support.cli_runner import invoke
from tests.support.filled_store import (
    add_rows_of_all_kinds,
    filled_folder,
    postgres_fingerprint,
    sqlite_fingerprint,
)
from tests.support.fork_server import broker_process, start_error
from tests.support.postgres_server import PostgresServer
from tests.support.stopped_folder import flip_bit, problems

ASYNC = "--set", "store.allow_asynchronous=true"
INDEX = {"placed_upto", "traced_upto", "history_rows", "history_bytes"}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phpmq_lite.storage.copying.BLOCK_BYTES", 2_000)


@pytest.fixture
def name(postgres: PostgresServer) -> Iterator[str]:
    """Create an empty database, without a schema."""
    with postgres.database("template0") as name:
        yield name


@pytest.fixture
def url(postgres: PostgresServer, name: str) -> str:
    return postgres.url(name)


@pytest.fixture
def conninfo(postgres: PostgresServer, name: str) -> str:
    return postgres.conninfo(name)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Create a stopped broker's folder with rows of every kind."""
    with closing(DataFolder.open(tmp_path / "data")) as folder:
        with closing(sqlite3.connect(folder.database, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            migrate(connection, migrations_folder())
        add_rows_of_all_kinds(folder.database)
        folder.record(has_messages=True)
    return tmp_path / "data"


@contextmanager
def opened(place: str | Path, *, is_target: bool) -> Iterator[AnySide]:
    if isinstance(place, str):
        made: Any = open_database(place, is_target=is_target, allow_asynchronous=True)
    else:
        made = open_folder(place, print, is_target=is_target)
    with made as side:
        yield side


def no_progress(phase: str, done: int, total: int | None) -> None:
    pass


def copy(
    source: str | Path,
    target: str | Path,
    before: Callable[[AnySide], None] = lambda side: None,
    *,
    replace: bool = False,
) -> CopyState:
    with opened(source, is_target=False) as ours, opened(target, is_target=True) as theirs:
        before(theirs)
        return copy_store(ours, theirs, no_progress, replace=replace)


def sqlite_content(data: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows that are copied, by table, with the columns in the order of their names."""
    with closing(sqlite3.connect(data / DATABASE)) as connection:
        tables = tables_of(connection.execute(load("copy", "sqlite")["tables"]).fetchall())
        return {
            one.name: sorted(connection.execute(query(one)).fetchall(), key=repr)
            for one in tables.values()
        }


def postgres_content(conninfo: str) -> dict[str, list[tuple[Any, ...]]]:
    with psycopg.connect(conninfo) as connection:
        found = connection.execute(load("copy", "postgres")["tables"].encode()).fetchall()
        return {
            one.name: sorted(connection.execute(query(one).encode()).fetchall(), key=repr)
            for one in tables_of(found).values()
        }


def query(table: Table) -> str:
    names = ", ".join(f'"{name}"' for name in sorted(table.columns))
    return f'SELECT {names} FROM "{table.name}"'


def without_index(content: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
    return content | {"counter": [row for row in content["counter"] if row[0] not in INDEX]}


class InterruptedError(Exception):
    pass


def interrupt_after(blocks: int) -> Callable[[AnySide], None]:
    """Return a function that lets a target fail after some blocks."""

    def change(side: AnySide) -> None:
        left, insert, set_target, finish = blocks, side.insert, side.set_target, side.finish

        def count() -> None:
            nonlocal left
            if left == 0:
                raise InterruptedError
            left -= 1

        def insert_some(table: str, columns: str, rows: list[Row]) -> None:
            insert(table, columns, rows)
            count()

        def set_some(state: CopyState) -> None:
            set_target(state)
            if state.is_verified:
                count()

        def finish_some(progress: Any) -> None:
            count()
            finish(progress)

        side.insert, side.set_target, side.finish = insert_some, set_some, finish_some  # type: ignore[method-assign]

    return change


def test_every_row_is_copied_and_back(data: Path, url: str, conninfo: str, tmp_path: Path) -> None:
    done = copy(data, url)
    expected = sqlite_content(data)
    assert postgres_content(conninfo) == expected
    assert {name: one["rows"] for name, one in done.tables.items()} == {
        name: len(rows) for name, rows in expected.items()
    }
    copy(url, tmp_path / "back")
    assert without_index(sqlite_content(tmp_path / "back")) == without_index(expected)


def test_identities_continue_after_a_copy(data: Path, url: str, conninfo: str) -> None:
    copy(data, url)
    with psycopg.connect(conninfo) as connection:
        for table, column in (
            ("event", "event_id"),
            ("start", "start_id"),
            ("clock_step", "number"),
        ):
            last = connection.execute(f"SELECT max({column}) FROM {table}".encode()).fetchone()
            sequence = connection.execute(
                "SELECT nextval(pg_get_serial_sequence(%s, %s))", (table, column)
            ).fetchone()
            assert last is not None
            assert sequence is not None
            assert sequence[0] == last[0] + 1


def test_copy_is_continued_after_each_interruption(
    data: Path, url: str, conninfo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phpmq_lite.storage.postgres.copy_side.SILENCE_S", 0.0)
    expected = sqlite_content(data)
    for source, target in ((data, url), (url, tmp_path / "back")):
        attempts = 0
        while True:
            attempts += 1
            try:
                copy(source, target, interrupt_after(1 + attempts % 5))
            except InterruptedError:
                pass
            else:
                break
            assert attempts < 300
        assert attempts > 25
    assert postgres_content(conninfo) == expected
    assert without_index(sqlite_content(tmp_path / "back")) == without_index(expected)


def test_history_is_indexed_in_a_copy(tmp_path: Path, url: str, conninfo: str) -> None:
    data = filled_folder(tmp_path / "data", live=300, settled=700)
    expected = sqlite_fingerprint(data)
    copy(data, url)
    assert postgres_fingerprint(conninfo) == expected
    copy(url, tmp_path / "back")
    assert sqlite_fingerprint(tmp_path / "back") == expected
    assert problems(tmp_path / "back") == []
    with closing(sqlite3.connect(tmp_path / "back" / DATABASE)) as connection:
        [(rows,)] = connection.execute("SELECT sum(length) FROM history_run")
        assert rows == 700
        counters = dict(connection.execute("SELECT name, value FROM counter"))
        assert counters["placed_upto"] == counters["history_rows"] + counters.get("deleted_rows", 0)


def test_texts_that_postgresql_cannot_store_are_replaced_and_counted(
    data: Path, url: str, conninfo: str
) -> None:
    with closing(sqlite3.connect(data / DATABASE, isolation_level=None)) as connection:
        connection.execute(
            "UPDATE event SET detail = 'a' || char(0) || char(9) || 'b' WHERE event_id = 101"
        )
        connection.execute(
            "UPDATE event SET detail = CAST(x'61eda08062' AS TEXT) WHERE event_id = 102"
        )
    result = invoke("store", "copy", data, url, *ASYNC)
    assert "event: U+FFFD replaces 4 characters" in result.stderr
    with psycopg.connect(conninfo) as connection:
        found = connection.execute(
            "SELECT detail FROM event WHERE event_id IN (101, 102) ORDER BY event_id"
        ).fetchall()
    assert found == [("a\ufffd\tb",), ("a\ufffd\ufffd\ufffdb",)]


def test_texts_that_the_target_cannot_hold_are_shortened_and_counted(
    data: Path, url: str, conninfo: str
) -> None:
    """As a version without bounds has stored them."""
    chance = random.Random(1)
    text = "".join(chr(chance.randint(0x4E00, 0x9FFF)) for _ in range(2_000))
    with closing(sqlite3.connect(data / DATABASE, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = 1")
        connection.execute("UPDATE audit SET target = ? WHERE audit_id < 103", (text,))
        connection.execute('UPDATE history SET trace_id = ?  WHERE "offset" = 101', (text,))
    state = copy(data, url)
    assert state.is_verified
    shortened = {name: one["shortened"] for name, one in state.tables.items() if one["shortened"]}
    assert shortened == {"audit": 2, "history": 1}
    with psycopg.connect(conninfo) as connection:
        rows = connection.execute("SELECT target FROM audit WHERE audit_id < 103").fetchall()
    for (target,) in rows:
        assert text.startswith(target.removesuffix("…"))
        assert 1_000 < len(target.encode()) <= 1_024


def test_copy_that_differs_is_refused(data: Path, url: str, conninfo: str) -> None:
    def lose_a_row(side: AnySide) -> None:
        insert = side.insert

        def insert_changed(table: str, columns: str, rows: list[Row]) -> None:
            insert(table, columns, rows[table == "saved" :])

        side.insert = insert_changed  # type: ignore[method-assign]

    with pytest.raises(DataDamagedError, match=r"the table saved in .* differs from"):
        copy(data, url, lose_a_row)
    with pytest.raises(StartRefusedError, match="cannot be continued"):
        copy(data, url)
    copy(data, url, replace=True)
    assert postgres_content(conninfo) == sqlite_content(data)


def test_no_broker_starts_on_an_incomplete_copy_or_its_source(
    data: Path, url: str, tmp_path: Path
) -> None:
    with pytest.raises(InterruptedError):
        copy(data, url, interrupt_after(5))
    assert "is being copied to postgresql://" in start_error(data)
    assert "is being copied to" in read_stopped(data).refusal
    other = tmp_path / "other"
    assert "incomplete copy of" in start_error(other, "--store", url, *ASYNC)
    copy(data, url)
    assert "this data was copied to postgresql://" in start_error(data)
    back = tmp_path / "back"
    with pytest.raises(InterruptedError):
        copy(url, back, interrupt_after(5))
    assert "contains an incomplete copy" in start_error(back)
    assert "this data is being copied to" in start_error(other, "--store", url, *ASYNC)
    with pytest.raises(StartRefusedError, match="incomplete copy"):
        copy(back, url, replace=True)


def test_source_is_copied_once_until_it_is_released(
    data: Path, url: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    with postgres.database("template0") as other:
        copy(data, url)
        with pytest.raises(StartRefusedError, match="was copied"):
            copy(data, postgres.url(other))
        copy(url, tmp_path / "one")
        with pytest.raises(StartRefusedError, match="was copied"):
            copy(url, tmp_path / "two")


def test_released_source_has_new_numbers_and_a_new_history_id(data: Path, url: str) -> None:
    def numbers(data: Path) -> tuple[Any, ...]:
        with closing(sqlite3.connect(data / DATABASE)) as connection:
            rows = connection.execute(
                "SELECT (SELECT next_number FROM line), (SELECT max(position) FROM message),"
                " (SELECT value FROM meta WHERE name = 'history_id')"
            )
            return tuple(rows.fetchone())

    before = numbers(data)
    assert "nothing to release" in invoke("store", "release", data, code=1).stderr
    with pytest.raises(InterruptedError):
        copy(data, url, interrupt_after(5))
    invoke("store", "release", data)
    assert numbers(data) == before  # no broker can have used the copy
    with pytest.raises(StartRefusedError, match="cannot be continued"):
        copy(data, url)
    copy(data, url, replace=True)
    invoke("store", "release", data)
    after = numbers(data)
    assert after[2] != before[2]
    assert len(after[2]) == 32
    with opened(url, is_target=False) as side:
        assert isinstance(side, PostgresSide)
        with pytest.raises(StartRefusedError, match="nothing to release"):
            release(side)
    assert read_stopped(data).refusal == ""


def test_released_database_has_new_numbers_and_a_new_history_id(
    tmp_path: Path, url: str, conninfo: str
) -> None:
    data = filled_folder(tmp_path / "data", live=20, settled=20)
    copy(data, url)
    copy(url, tmp_path / "back")
    invoke("store", "release", url, *ASYNC)
    with psycopg.connect(conninfo) as connection:
        found = connection.execute(
            "SELECT (SELECT next_number FROM line), (SELECT length(value) FROM meta)"
        ).fetchone()
    assert found == (100_000_041 + NUMBER_GAP, 32)


def test_target_with_data_is_replaced_only_if_told(
    data: Path, url: str, conninfo: str, tmp_path: Path
) -> None:
    other = filled_folder(tmp_path / "other", live=10, settled=10)
    copy(data, url)
    error = invoke("store", "copy", other, url, *ASYNC, code=1).stderr
    assert "contains data" in error
    copy(url, tmp_path / "third")
    error = invoke("store", "copy", url, other, *ASYNC, code=1).stderr
    assert "was copied" in error
    invoke("store", "release", url, *ASYNC)
    expected = without_index(postgres_content(conninfo))
    error = invoke("store", "copy", url, data, *ASYNC, code=1).stderr
    assert "contains data" in error
    result = invoke("store", "copy", url, data, "--replace", *ASYNC)
    assert "the previous files are in" in result.stderr
    assert without_index(sqlite_content(data)) == expected
    assert read_stopped(data).refusal == ""
    [replaced] = data.glob("replaced-*")
    assert (replaced / DATABASE).stat().st_size > 0


def test_folder_with_a_standby_is_not_sealed_and_not_replaced_beside_litestream(
    data: Path, url: str
) -> None:
    write_config(data, "/target", 1 << 26)
    copy(data, url)
    assert read_meta(data).seal is None
    with (
        CheckpointRight(data).hold(),  # as Litestream does
        pytest.raises(StartRefusedError, match="Litestream is running"),
    ):
        copy(url, data, replace=True)
    copy(url, data, replace=True)
    assert read_meta(data).seal is None


@pytest.mark.parametrize("step", ["checksum_of", "move_aside"])
def test_last_steps_can_be_interrupted(
    data: Path, url: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    copy(data, url)

    def fail(*_: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(f"phpmq_lite.storage.sqlite.copy_side.{step}", fail)
        with pytest.raises(InterruptedError):
            copy(url, data, replace=True)
    with pytest.raises(StartRefusedError, match="incomplete copy"):
        DataFolder.open(data)
    copy(url, data)
    with closing(DataFolder.open(data)):
        pass
    assert list(data.glob(".copied*")) == []


def test_damaged_folder_is_not_copied(tmp_path: Path, url: str) -> None:
    data = filled_folder(tmp_path / "data", live=200, settled=200)
    flip_bit(data / DATABASE, (data / DATABASE).stat().st_size // 2)
    with pytest.raises(DataDamagedError, match="differs from what the broker wrote"):
        copy(data, url)
    with pytest.raises(StartRefusedError, match="there is no database"):
        copy(tmp_path / "none", url)
    with pytest.raises(StartRefusedError, match="there is no data of a broker"):
        copy(url, tmp_path / "back")


def test_commits_without_a_quorum_are_refused(data: Path, url: str) -> None:
    error = invoke("store", "copy", data, url, code=74).stderr
    assert "synchronous_standby_names names no quorum" in error
    with pytest.raises(NotWritableError), open_database(url, is_target=True):
        pass


def test_sides_must_be_of_two_engines(data: Path, tmp_path: Path) -> None:
    error = invoke("store", "copy", data, tmp_path / "other", code=2).stderr
    assert "the other a postgresql:// URL" in error


def test_active_broker_or_another_copy_prevents_a_copy(
    data: Path, url: str, tmp_path: Path
) -> None:
    with (
        broker_process(tmp_path / "files", "--store", url, *ASYNC),
        pytest.raises(StartRefusedError, match="a broker is active on"),
    ):
        copy(data, url, replace=True)
    with opened(data, is_target=False), pytest.raises(StartRefusedError, match="in use"):
        copy(data, url)


def test_copy_that_seems_to_have_ended_is_fenced(url: str) -> None:
    refusal = pytest.raises(OutcomeUnknownError, match="another broker has taken over")
    with refusal, opened(url, is_target=True) as first:
        with opened(url, is_target=True):
            pass
        with first.store.transaction():
            first.set_target(CopyState("", "", "", 0))


async def publish(address: tuple[str, int], *bodies: bytes) -> None:
    async with connect(*address) as client:
        for body in bodies:
            await client.publish_confirmed("orders", body, key=body)


async def consume(address: tuple[str, int], count: int) -> list[bytes]:
    found = []
    async with connect(*address) as client, client.consume("orders", credit=1) as deliveries:
        for _ in range(count):
            delivery = await anext(deliveries)
            found.append(delivery.body)
            delivery.ack()
    return found


async def test_broker_serves_from_the_copy_and_back(tmp_path: Path, url: str) -> None:
    """A killed broker's messages are consumed in order, and keys are known, on each engine."""
    data, files = tmp_path / "data", tmp_path / "files"
    with broker_process(data) as broker:
        await publish(broker.address, *(b"%d" % n for n in range(10)))
        assert await consume(broker.address, 2) == [b"0", b"1"]
        broker.kill()
    invoke("store", "copy", data, url, *ASYNC)
    with broker_process(files, "--store", url, *ASYNC) as broker:
        await publish(broker.address, b"9", b"10", b"11")
        assert await consume(broker.address, 4) == [b"2", b"3", b"4", b"5"]
        broker.terminate()
    assert "was copied to" in start_error(data)
    invoke("store", "copy", url, data, "--replace", *ASYNC)
    assert "was copied to" in start_error(files, "--store", url, *ASYNC)
    with broker_process(data) as broker:
        await publish(broker.address, b"11", b"12")
        assert await consume(broker.address, 7) == [b"%d" % n for n in range(6, 13)]
        broker.terminate()
    assert problems(data) == []
    with closing(sqlite3.connect(data / DATABASE)) as connection:
        rows = connection.execute(
            'SELECT content, outcome, "offset" FROM history JOIN body USING (seq) ORDER BY "offset"'
        ).fetchall()
    assert rows == [(b"%d" % n, 2, n + 1) for n in range(13)]
