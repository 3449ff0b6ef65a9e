"""Scheduled backups and scrubs of a running broker."""

import asyncio
import errno
import io
import json
import sqlite3
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite import logs, testing
from phpmq_lite.cli.admin_client import AdminClient
from phpmq_lite.errors import DataDamagedError, RefusedError, StorageError
from phpmq_lite.server import maintenance
from phpmq_lite.server.maintenance import Maintenance
from phpmq_lite.storage.sqlite.backups import BackupMaker, BackupSchedule
from phpmq_lite.storage.sqlite.integrity.scrub import (
    Scrub,
    ScrubRound,
    ScrubSlice,
    ScrubState,
    read_state,
    write_state,
)
from tests.support.core_and_store import Driver
from tests.support.http_users import HttpUser, broker_fixture, wait_until
from tests.support.waiting import until

WAIT_S = 60


@pytest.fixture(autouse=True)
def _plain_log(log_stream: io.StringIO) -> None:
    """Log as the broker does: by default structlog spends 0.2 s on rendering a traceback."""
    logs.configure(stream=log_stream)


def until_failed(data: Path) -> dict[str, Any]:
    """Wait until a backup has failed; return the status of the backups."""
    client = AdminClient(data / "control.sock")
    until(lambda: client.get("/backups")["error"])
    return dict(client.get("/backups"))


async def allow() -> None:
    """Write no row to the audit log."""


def maintenance_of(running: testing.RunningBroker) -> Maintenance:
    assert running.service.active.maintenance is not None
    return running.service.active.maintenance


def page(running: testing.RunningBroker, path: str) -> str:
    with urllib.request.urlopen(running.admin_url + path) as answer:
        return str(answer.read().decode())


# -- schedule


async def test_scheduled_backups_replace_the_oldest(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    results: list[object] = []
    backups = BackupSchedule(
        driver.path, tmp_path / "backups", keep=lambda: 2, every_h=1e-6, tell=results.append
    )
    await run_until(backups, lambda: len(results) >= 3)
    assert len(await backups.all()) == 2
    assert backups.last_manifest is not None
    driver.close()


async def run_until(backups: BackupSchedule, is_done: Callable[[], bool]) -> None:
    running = asyncio.create_task(backups.run())
    await asyncio.wait_for(wait_until(is_done), WAIT_S)
    running.cancel()
    await asyncio.wait({running})


async def test_backups_continue_when_one_has_a_time_in_the_future(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    ahead = BackupMaker(driver.path, tmp_path / "backups", "").run().folder / "manifest.json"
    manifest = json.loads(ahead.read_bytes())
    ahead.write_text(json.dumps(manifest | {"made_at": 4_070_908_800_000}))
    results: list[object] = []
    backups = BackupSchedule(
        driver.path, tmp_path / "backups", keep=lambda: 9, every_h=24, tell=results.append
    )
    await run_until(backups, lambda: bool(results))
    assert backups.last_manifest is not None
    assert backups.last_id == backups.last_manifest.id
    assert backups.last_manifest.made_at < 4_070_908_800_000
    driver.close()


async def test_one_backup_runs_at_a_time_and_a_failure_is_reported(tmp_path: Path) -> None:
    backups = BackupSchedule(tmp_path / "nothing.db", tmp_path / "backups", keep=lambda: 2)
    task = backups.start()
    with pytest.raises(RefusedError, match="in progress"):
        backups.start()
    await asyncio.wait({task})
    assert backups.error is not None
    assert backups.last_manifest is None


async def test_backup_is_valid_although_old_ones_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next one would be due at once, until the disk is full."""

    def fail(*_given: object) -> None:
        raise PermissionError(errno.EACCES, "not yours")

    driver = Driver(tmp_path)
    monkeypatch.setattr("phpmq_lite.storage.sqlite.backups.remove_old", fail)
    backups = BackupSchedule(driver.path, tmp_path / "backups", keep=lambda: 1)
    await asyncio.wait({backups.start()})
    assert "not yours" in str(backups.error)
    assert [one.manifest for one in await backups.all()] == [backups.last_manifest]
    driver.close()


async def test_broker_continues_when_the_backup_folder_cannot_be_used(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.write_text("a file")
    async with testing.running_service(
        tmp_path / "data", backups={"folder": folder, "every_h": 1e-4}
    ) as running:
        status = await asyncio.to_thread(until_failed, running.data)
        pages = [await asyncio.to_thread(page, running, path) for path in ("system/backups", "")]
    assert str(folder) in status["error"]
    assert all("cannot make a backup" in text for text in pages)


async def test_running_backup_does_not_delay_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = threading.Event()

    def copy(making: BackupMaker, _copy: Path) -> None:
        with making._open(making.database) as connection:
            started.set()
            endless = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
            connection.execute(endless + "SELECT count(*) FROM n")

    monkeypatch.setattr(BackupMaker, "_copy", copy)
    async with asyncio.timeout(WAIT_S):
        async with testing.running_service(tmp_path / "data", backups={"every_h": 1e-6}):
            await asyncio.to_thread(started.wait, WAIT_S)
    assert list((tmp_path / "data" / "backups").iterdir()) == []


async def test_scrub_resumes_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "START_S", 0.0)
    data = tmp_path / "data"
    async with testing.running_service(data, scrub={"every_h": 0}):
        pass
    write_state(data, ScrubState(ScrubRound(began_at=5, part=1, upto=0, bodies=7, bytes=70)))
    async with testing.running_service(data):
        last = await asyncio.to_thread(until, lambda: read_state(data).last)
    assert (last.began_at, last.bodies) == (5, 7)


async def test_scrub_reports_no_damage_when_it_cannot_open_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker may have run out of descriptors; the next scrub may succeed."""

    def fail(_scrub: Scrub) -> list[str]:
        raise StorageError("unable to open database file")

    monkeypatch.setattr(Scrub, "structure", fail)
    async with testing.running_service(tmp_path / "data", scrub={"every_h": 0}) as running:
        scrub = maintenance_of(running).scrub
        await scrub.start(allow)
        await wait_until(lambda: not scrub.is_working)
        assert scrub.state.problem_count == 0


async def test_structure_check_ends_when_the_log_grows_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write-ahead log cannot be truncated during the check; bodies are checked anyway."""
    endless = (
        "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
    )
    started = threading.Event()

    def check_without_end(connection: sqlite3.Connection) -> list[str]:
        started.set()
        connection.execute(endless)
        return []

    monkeypatch.setattr(
        "phpmq_lite.storage.sqlite.integrity.scrub.integrity_problems", check_without_end
    )
    monkeypatch.setattr(maintenance, "LOG_BYTES", 0)
    monkeypatch.setattr(maintenance, "_LOG_CHECK_S", 0.01)
    async with testing.running_service(tmp_path / "data", scrub={"every_h": 0}) as running:
        scrub = maintenance_of(running).scrub
        await scrub.start(allow)
        assert await asyncio.to_thread(started.wait, WAIT_S)
        with (running.data / "phpmq.db-wal").open("ab") as log:
            log.write(bytes(1))  # an incomplete frame after the last one
        await wait_until(lambda: not scrub.is_working)
        assert scrub.state.structure_at == 0  # still due
        assert scrub.state.problem_count == 0
        assert scrub.state.last is not None


def test_scrub_reports_a_damaged_page(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.publish(b"one")
    driver.close()
    with driver.path.open("r+b") as file:
        file.seek(4_096)
        file.write(b"\xff" * (driver.path.stat().st_size - 4_096))
    with pytest.raises(DataDamagedError):
        Scrub(driver.path).check("alive", 0, 1)


# -- reading


def test_scrub_reads_in_slices_and_finds_damaged_bodies(tmp_path: Path) -> None:
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
            seen = scrub.check(part, upto, 600)
            found += seen.bad
            upto, is_end, slices = seen.upto, seen.is_end, slices + 1
        assert found == expected
        assert slices > 1
    assert scrub.structure() == []
    driver.close()


def test_unreadable_state_is_ignored(tmp_path: Path) -> None:
    assert read_state(tmp_path) == ScrubState()
    state = ScrubState(ScrubRound(1, 2, 1, 3), ScrubRound(named=[4]), 5, ["page 7"])
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
    (tmp_path / "scrub.json").write_text("[]")
    assert read_state(tmp_path) == ScrubState()


@pytest.mark.parametrize(
    "changes",
    [
        {"now": []}, {"now": {"began_at": "soon"}}, {"last": {"ended_at": None}},
        {"last": {"named": 7}}, {"structure_at": 1e400}, {"structure": "all"},
        {"tried_at": None}, {"last": {"ended_at": -1}}, {"structure_at": 1 << 70},
    ],
    ids=str,
)  # fmt: skip
def test_state_of_wrong_types_is_ignored(tmp_path: Path, changes: dict[str, object]) -> None:
    state = asdict(ScrubState(ScrubRound(1), ScrubRound(2, 3), 4))
    (tmp_path / "scrub.json").write_text(json.dumps(state | changes))
    assert read_state(tmp_path) == ScrubState()


# -- retries


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "START_S", 0.0)
    monkeypatch.setattr(maintenance, "_TICK_S", 0.0)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("error", [DataDamagedError("page 7"), TypeError("odd")], ids=repr)
async def test_scheduled_scrub_waits_for_its_next_time_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Otherwise a damaged page would be read every minute; the broker continues."""
    checks = []

    def check(_scrub: Scrub, *_given: object) -> None:
        checks.append(1)
        raise error

    monkeypatch.setattr(Scrub, "check", check)
    async with testing.running_service(tmp_path / "data", scrub={"every_h": 24}) as running:
        scrub = maintenance_of(running).scrub
        await wait_until(lambda: bool(checks) and not scrub.is_working)
        await asyncio.sleep(0.1)  # long enough for many attempts
        assert len(checks) == 1
        assert read_state(running.data).tried_at > 0
        await scrub.start(allow)
        await wait_until(lambda: len(checks) == 2)


@pytest.mark.usefixtures("soon")
async def test_scheduled_scrub_waits_for_its_next_time_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = []

    def check(_scrub: Scrub, *_given: object) -> ScrubSlice:
        checks.append(1)
        return ScrubSlice(0, is_end=False)

    monkeypatch.setattr(Scrub, "check", check)
    async with testing.running_service(tmp_path / "data", scrub={"every_h": 24}) as running:
        scrub = maintenance_of(running).scrub
        for is_requested in (False, True):
            seen, tried_at = len(checks), scrub.state.tried_at
            if is_requested:
                await scrub.start(allow)
            await wait_until(lambda seen=seen: len(checks) > seen)  # type: ignore[misc]
            await scrub.stop(allow)
            await wait_until(lambda: not scrub.is_working)
            seen = len(checks)
            await asyncio.sleep(0.1)
            assert len(checks) == seen
            assert (scrub.state.tried_at == tried_at) == is_requested


async def test_broker_continues_when_maintenance_raises_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail(*_given: object) -> None:
        calls.append(1)
        raise TypeError("odd")

    monkeypatch.setattr(maintenance, "RETRY_S", 0.05)
    monkeypatch.setattr("phpmq_lite.server.maintenance.read_state", fail)
    monkeypatch.setattr("phpmq_lite.storage.sqlite.backups.list_backups", fail)
    async with testing.running_service(tmp_path / "data") as running:
        await wait_until(lambda: len(calls) > 5)
        assert await asyncio.to_thread(page, running, "livez")


async def test_unexpected_error_of_a_backup_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_making: BackupMaker) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(BackupMaker, "run", fail)
    async with testing.running_service(tmp_path / "data", backups={"every_h": 1e-4}) as running:
        status = await asyncio.to_thread(until_failed, running.data)
    assert status["error"] == "the backup failed: ZeroDivisionError()"


# -- audit and access


async def test_backup_does_not_start_when_its_audit_row_is_refused(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    backups = BackupSchedule(driver.path, tmp_path / "backups", keep=lambda: 2)
    held = asyncio.Event()

    async def refuse() -> None:
        await held.wait()
        raise RefusedError("not_stored", "nothing can be stored now")

    first = asyncio.create_task(backups.start_after(refuse))
    await asyncio.sleep(0)
    with pytest.raises(RefusedError, match="in progress"):
        await backups.start_after(refuse)
    held.set()
    with pytest.raises(RefusedError, match="nothing can be stored"):
        await first
    assert not backups.is_running
    assert await backups.all() == []
    driver.close()


async def test_scrub_neither_starts_nor_stops_when_its_audit_row_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scrub, "check", lambda *_given: ScrubSlice(0, is_end=False))

    async def refuse() -> None:
        raise RefusedError("not_stored", "nothing can be stored now")

    async with testing.running_service(tmp_path / "data", scrub={"every_h": 0}) as running:
        scrub = maintenance_of(running).scrub
        with pytest.raises(RefusedError, match="nothing can be stored"):
            await scrub.start(refuse)
        assert not scrub.is_working
        await scrub.start(allow)
        await wait_until(lambda: scrub.state.is_under_way)
        with pytest.raises(RefusedError, match="nothing can be stored"):
            await scrub.stop(refuse)
        began_at = scrub.state.now.began_at
        with pytest.raises(RefusedError, match="scrub is already running"):
            await scrub.start(refuse)
        assert scrub.state.now.began_at == began_at
        await scrub.stop(allow)
        await wait_until(lambda: not scrub.is_working)


async def test_viewer_of_some_queues_does_not_see_which_messages_are_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ScrubState(last=ScrubRound(1, 2, bad_alive=1, named=[7]))
    monkeypatch.setattr(maintenance, "read_state", lambda _folder: state)
    async with broker_fixture(tmp_path / "data", scrub={"every_h": 0}) as home:
        scrub = maintenance_of(home.broker).scrub
        await wait_until(lambda: scrub.state is state)  # the broker reads it after its start
        for name, queues, seqs in (("some", ["mine.*"], []), ("all", [], [7])):
            secret = await home.token(name, "viewer", *queues)
            async with HttpUser(home.url, secret) as viewer:
                scrub_shown = json.loads((await viewer.get("/api/v1/scrub")).text)
            assert (scrub_shown["last"]["bad_alive"], scrub_shown["last"]["seqs"]) == (1, seqs)
