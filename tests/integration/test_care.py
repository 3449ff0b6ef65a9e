"""Backups and the scrub of a running broker: by command, by HTTP, by the clock."""

import asyncio
import errno
import json
import sqlite3
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from phpmq_lite import testing
from phpmq_lite.cli.main import commands
from phpmq_lite.cli.node import Node
from phpmq_lite.errors import DataDamagedError, RefusedError, StorageError
from phpmq_lite.server import care, scrubbing
from phpmq_lite.server.care import Care
from phpmq_lite.storage.backup import Making
from phpmq_lite.storage.backups import Backups
from phpmq_lite.storage.scrub import Round, Scrub, Slice, State, read_state, write_state
from tests.acceptance.peers import Peer
from tests.driving import Driver
from tests.integration.visitors import Visitor, house, until
from tests.preloaded import BrokerProcess, broker_process

WAIT_S = 30

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("care") / "data", "--admin", "127.0.0.1:0") as it:
        with Peer(it.port) as peer:
            for number in range(5):
                peer.publish("orders", b"order %d" % number, key=b"%d" % number)
                peer.receipt()
        yield it


@pytest.fixture
def run(broker: BrokerProcess) -> Run:
    def call(*arguments: str, code: int = 0) -> Result:
        line = [*arguments, "--data", str(broker.data)]
        result = CliRunner().invoke(commands, line, catch_exceptions=False)
        assert result.exit_code == code, result.output + result.stderr
        return result

    return call


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def metrics(broker: BrokerProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"{broker.admin[0]}metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def last_round(data: Path) -> Round:
    """Wait for the end of a round."""
    ends = time.monotonic() + WAIT_S
    while (last := read_state(data).last) is None:
        assert time.monotonic() < ends
        time.sleep(0.02)
    return last


def until_failed(data: Path) -> dict[str, Any]:
    """Wait until a backup has failed."""
    ends = time.monotonic() + WAIT_S
    while not (told := Node(data / "control.sock").get("/backups"))["error"]:
        assert time.monotonic() < ends
        time.sleep(0.02)
    return dict(told)


def care_of(running: testing.Running) -> Care:
    context = running.service._context
    assert context is not None
    assert context.care is not None
    return context.care


def page(running: testing.Running, path: str) -> str:
    with urllib.request.urlopen(running.admin_url + path) as answer:
        return str(answer.read().decode())


# -- by command


def test_backup_of_a_running_broker_is_made_listed_checked_and_drilled(
    run: Run, broker: BrokerProcess, tmp_path: Path
) -> None:
    [made] = rows(run("backup"))
    assert (made["messages"], made["settled"]) == (5, 0)
    assert rows(run("backup", "--list")) == [made]
    assert {row["result"] for row in rows(run("verify", made["path"]))} == {"ok"}
    assert "the drill passed" in run("restore", made["id"], "--drill").stderr
    [copy] = rows(run("backup", "--to", str(tmp_path / "elsewhere")))
    assert Path(copy["path"]) == tmp_path / "elsewhere" / copy["id"]
    assert {row["result"] for row in rows(run("verify", copy["path"]))} == {"ok"}
    assert metrics(broker)["phpmq_backup_last_success_timestamp_seconds"] == pytest.approx(
        copy["made_at"] / 1_000
    )
    assert run("check", "backup").stdout.startswith("OK")
    audit = Node(broker.data / "control.sock").get("/audit", limit=20)["items"]
    assert [row["result"] for row in audit if row["action"] == "backup.make"] == ["done", "done"]


def test_commands_for_a_stopped_broker_refuse_a_running_one(run: Run) -> None:
    assert "is in use" in run("verify", code=1).stderr
    [made] = rows(run("backup"))
    assert "is in use" in run("restore", made["id"], "--yes", code=1).stderr


def test_scrub_finds_a_damaged_body_and_settles_it(run: Run, broker: BrokerProcess) -> None:
    assert rows(run("scrub"))[0]["bodies"] == 5
    with closing(sqlite3.connect(broker.data / "phpmq.db")) as stranger, stranger:
        stranger.execute("UPDATE body SET content = x'00' WHERE seq = 2")
    [found] = rows(run("scrub", code=65))
    assert (found["bad_alive"], found["seqs"]) == (1, [2])
    assert metrics(broker)["phpmq_damage_found"] == 1
    [dead] = Node(broker.data / "control.sock").get("/messages", q="reason:crc")["items"]
    assert (dead["state"], dead["queue"]) == ("dead", "orders")
    assert rows(run("scrub"))[0]["bad_alive"] == 0  # once it is settled it is known
    assert metrics(broker)["phpmq_damage_found"] == 0
    with Peer(broker.port) as peer:
        peer.consume("orders", 10)
        assert peer.bodies(4) == [b"order 0", b"order 2", b"order 3", b"order 4"]


def test_scrub_that_is_not_under_way_cannot_be_stopped(run: Run) -> None:
    assert "No scrub is under way" in run("scrub", "--stop", code=4).stderr


def test_stopped_broker_is_verified_backed_up_and_restored(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker_process(data) as it:
        with Peer(it.port) as peer:
            peer.publish("orders", b"mine", key=b"1")
            peer.receipt()
        it.terminate()

    def call(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(
            commands, [*arguments, "--data", str(data)], catch_exceptions=False
        )
        assert result.exit_code == code, result.output + result.stderr
        return result

    assert {row["result"] for row in rows(call("verify"))} == {"ok"}
    [made] = rows(call("backup"))
    assert rows(call("backup", "--list")) == [made]
    (data / "phpmq.db").write_bytes(b"")
    assert "empty" in call("migrate", code=65).stderr
    call("verify", code=65)
    call("restore", made["id"], "--yes")
    with broker_process(data) as it, Peer(it.port) as peer:
        peer.consume("orders", 1)
        assert peer.bodies(1) == [b"mine"]


def test_command_names_what_is_not_there(tmp_path: Path) -> None:
    for arguments, code in (
        (["restore", "20260101T000000Z"], 2),
        (["backup"], 3),
        (["verify"], 65),
    ):
        line = [*arguments, "--data", str(tmp_path / "nothing")]
        assert CliRunner().invoke(commands, line).exit_code == code


# -- by the clock


async def test_backups_are_made_by_the_clock_and_the_oldest_go(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    told: list[object] = []
    made = asyncio.Event()

    def tell(result: object) -> None:
        told.append(result)
        if len(told) == 3:
            made.set()

    backups = Backups(driver.path, tmp_path / "backups", keep=lambda: 2, every_h=1e-6, tell=tell)
    running = asyncio.create_task(backups.run())
    await asyncio.wait_for(made.wait(), WAIT_S)
    running.cancel()
    await asyncio.wait({running})
    assert len(await backups.all()) == 2
    assert backups.newest is not None
    driver.close()


async def test_there_is_one_backup_at_a_time_and_a_failed_one_is_told(tmp_path: Path) -> None:
    backups = Backups(tmp_path / "nothing.db", tmp_path / "backups", keep=lambda: 2)
    task = backups.start()
    with pytest.raises(RefusedError, match="under way"):
        backups.start()
    await asyncio.wait({task})
    assert backups.error is not None
    assert backups.newest is None


async def test_backup_counts_although_old_ones_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next one would be due at once, again and again, until the disk is full."""

    def fail(*_given: object) -> None:
        raise PermissionError(errno.EACCES, "not yours")

    driver = Driver(tmp_path)
    monkeypatch.setattr("phpmq_lite.storage.backups.remove_old", fail)
    backups = Backups(driver.path, tmp_path / "backups", keep=lambda: 1)
    await asyncio.wait({backups.start()})
    assert "not yours" in str(backups.error)
    assert [one.manifest for one in await backups.all()] == [backups.newest]
    driver.close()


async def test_folder_that_cannot_be_used_ends_no_broker(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.write_text("a file")
    async with testing.running_service(
        tmp_path / "data", backups={"folder": folder, "every_h": 1e-6}
    ) as running:
        told = await asyncio.to_thread(until_failed, running.data)
        pages = [await asyncio.to_thread(page, running, path) for path in ("system/backups", "")]
    assert str(folder) in told["error"]
    assert all("cannot make a backup" in text for text in pages)


async def test_backup_under_way_does_not_hold_up_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = threading.Event()

    def copy(making: Making, _copy: Path) -> None:
        with making._opened("file::memory:") as connection:
            began.set()
            endless = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
            connection.execute(endless + "SELECT count(*) FROM n")

    monkeypatch.setattr(Making, "_copy", copy)
    async with asyncio.timeout(WAIT_S):
        async with testing.running_service(tmp_path / "data", backups={"every_h": 1e-6}):
            await asyncio.to_thread(began.wait, WAIT_S)
    assert list((tmp_path / "data" / "backups").iterdir()) == []


async def test_scrub_goes_on_where_a_stop_cut_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "START_S", 0.0)
    data = tmp_path / "data"
    async with testing.running_service(data, scrub={"every_h": 0}):
        pass
    write_state(data, State(Round(began_at=5, part=1, upto=0, bodies=7, bytes=70)))
    async with testing.running_service(data):
        last = await asyncio.to_thread(last_round, data)
    assert (last.began_at, last.bodies) == (5, 7)


async def test_scrub_that_cannot_open_the_database_has_found_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where there are no descriptors left; the next round may."""

    def fail(_scrub: Scrub) -> list[str]:
        raise StorageError("unable to open database file")

    monkeypatch.setattr(Scrub, "structure", fail)
    async with testing.running_service(tmp_path / "data", scrub={"every_h": 0}) as running:
        scrub = care_of(running).scrub
        scrub.start()
        await until(lambda: not scrub.is_working)
        assert scrub.state.faults == 0


def test_scrub_that_meets_a_damaged_page_says_so(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.publish(b"one")
    driver.close()
    with driver.path.open("r+b") as file:
        file.seek(4_096)
        file.write(b"\xff" * (driver.path.stat().st_size - 4_096))
    with pytest.raises(DataDamagedError):
        Scrub(driver.path).look("alive", 0, 1)


# -- what it reads


def test_scrub_reads_in_slices_and_finds_what_is_damaged(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.publish(*(b"%d" % n for n in range(9)))
    worker = driver.consume(4)
    for delivery in worker.take():
        worker.acknowledge("orders", delivery.message_id)
    driver.step()
    driver.store.execute("UPDATE body SET content = x'00' WHERE seq IN (2, 6)")
    driver.store.execute("DELETE FROM body WHERE seq = 8")
    scrub = Scrub(driver.path)
    for part, expected in (("alive", [6, 8]), ("settled", [2])):
        found, upto, slices, is_end = [], 0, 0, False
        while not is_end:
            seen = scrub.look(part, upto, 600)
            found += seen.bad
            upto, is_end, slices = seen.upto, seen.is_end, slices + 1
        assert found == expected
        assert slices > 1
    assert scrub.structure() == []
    driver.close()


def test_state_that_cannot_be_read_counts_for_nothing(tmp_path: Path) -> None:
    assert read_state(tmp_path) == State()
    state = State(Round(1, 2, 1, 3), Round(named=[4]), 5, ["page 7"])
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
    (tmp_path / "scrub.json").write_text("[]")
    assert read_state(tmp_path) == State()


@pytest.mark.parametrize(
    "told",
    [
        {"now": []}, {"now": {"began_at": "soon"}}, {"last": {"ended_at": None}},
        {"last": {"named": 7}}, {"structure_at": 1e400}, {"structure": "all"},
        {"tried_at": None}, {"last": {"ended_at": -1}}, {"structure_at": 1 << 70},
    ],
    ids=str,
)  # fmt: skip
def test_state_of_odd_types_counts_for_nothing(tmp_path: Path, told: dict[str, object]) -> None:
    whole = asdict(State(Round(1), Round(2, 3), 4))
    (tmp_path / "scrub.json").write_text(json.dumps(whole | told))
    assert read_state(tmp_path) == State()


# -- when it works again


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "START_S", 0.0)
    monkeypatch.setattr(scrubbing, "_TICK_S", 0.0)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("error", [DataDamagedError("page 7"), TypeError("odd")], ids=repr)
async def test_round_that_cannot_go_on_waits_for_its_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Else a damaged page would be met every minute for ever; nor does it end the broker."""
    looks = []

    def look(_scrub: Scrub, *_given: object) -> None:
        looks.append(1)
        raise error

    monkeypatch.setattr(Scrub, "look", look)
    async with testing.running_service(tmp_path / "data", scrub={"every_h": 24}) as running:
        scrub = care_of(running).scrub
        await until(lambda: bool(looks) and not scrub.is_working)
        await asyncio.sleep(0.1)  # in which it would have begun many times
        assert len(looks) == 1
        assert read_state(running.data).tried_at > 0
        scrub.start()
        await until(lambda: len(looks) == 2)


@pytest.mark.usefixtures("soon")
async def test_round_of_the_clock_that_is_stopped_waits_for_its_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def look(_scrub: Scrub, *_given: object) -> Slice:
        looks.append(1)
        return Slice(0, is_end=False)

    monkeypatch.setattr(Scrub, "look", look)
    async with testing.running_service(tmp_path / "data", scrub={"every_h": 24}) as running:
        scrub = care_of(running).scrub
        for is_asked in (False, True):
            seen, tried_at = len(looks), scrub.state.tried_at
            if is_asked:
                scrub.start()
            await until(lambda seen=seen: len(looks) > seen)  # type: ignore[misc]
            scrub.stop()
            await until(lambda: not scrub.is_working)
            seen = len(looks)
            await asyncio.sleep(0.1)
            assert len(looks) == seen
            assert (scrub.state.tried_at == tried_at) == is_asked


async def test_what_nobody_thought_of_ends_no_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail(*_given: object) -> None:
        calls.append(1)
        raise TypeError("odd")

    monkeypatch.setattr(care, "AGAIN_S", 0.01)
    monkeypatch.setattr("phpmq_lite.server.scrubbing.read_state", fail)
    monkeypatch.setattr("phpmq_lite.storage.backups.listed", fail)
    async with testing.running_service(tmp_path / "data") as running:
        await until(lambda: len(calls) > 5)
        assert await asyncio.to_thread(page, running, "livez")


async def test_backup_that_fails_for_a_reason_nobody_thought_of_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_making: Making) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Making, "run", fail)
    async with testing.running_service(tmp_path / "data", backups={"every_h": 1e-6}) as running:
        told = await asyncio.to_thread(until_failed, running.data)
    assert told["error"] == "the backup failed: ZeroDivisionError()"


# -- what is noted, and who sees what


async def test_backup_is_not_begun_where_its_row_of_the_audit_is_refused(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    backups = Backups(driver.path, tmp_path / "backups", keep=lambda: 2)
    held = asyncio.Event()

    async def refuse() -> None:
        await held.wait()
        raise RefusedError("not_stored", "nothing can be stored now")

    first = asyncio.create_task(backups.start_after(refuse))
    await asyncio.sleep(0)
    with pytest.raises(RefusedError, match="under way"):
        await backups.start_after(refuse)
    held.set()
    with pytest.raises(RefusedError, match="nothing can be stored"):
        await first
    assert not backups.is_making
    assert await backups.all() == []
    driver.close()


def test_download_of_a_backup_is_noted(run: Run, broker: BrokerProcess) -> None:
    [made] = rows(run("backup"))
    address = f"{broker.admin[0]}system/backups/{made['id']}"
    with urllib.request.urlopen(address) as answer:
        assert answer.read(15) == b"SQLite format 3"
    node = Node(broker.data / "control.sock")
    found = [row for row in node.get("/audit")["items"] if row["action"] == "backup.download"]
    assert [(row["target"], row["actor"], row["result"]) for row in found] == [
        (made["id"], "local", "done")
    ]


async def test_who_may_see_some_queues_is_not_told_which_messages_are_damaged(
    tmp_path: Path,
) -> None:
    async with house(tmp_path / "data") as home:
        care_of(home.broker).scrub.state.last = Round(1, 2, bad_alive=1, named=[7])
        for name, queues, seqs in (("some", ["mine.*"], []), ("all", [], [7])):
            secret = await home.token(name, "viewer", *queues)
            async with Visitor(home.url, secret) as visitor:
                told = json.loads((await visitor.get("/api/v1/scrub")).text)
            assert (told["last"]["bad_alive"], told["last"]["seqs"]) == (1, seqs)
