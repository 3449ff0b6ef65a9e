"""Doctor checks of the database files and the backups."""

from pathlib import Path
from typing import Any

import pytest

from phpmq_lite import __version__
from phpmq_lite.cli.admin_client import AdminClient, BrokerUnavailableError
from phpmq_lite.cli.doctor import database
from phpmq_lite.cli.doctor.findings import BAD, OK, WARN
from phpmq_lite.cli.errors import REFUSED
from phpmq_lite.settings import Settings
from phpmq_lite.storage.sqlite.integrity.startup import StoppedDatabase

STATS: dict[str, Any] = {
    "version": __version__,
    "is_ready": True,
    "step": "ready",
    "publishing_stopped": None,
    "storing_stopped": None,
    "queues": 2,
    "ready": 1_200,
    "dispatched": 34,
    "wal_bytes": 128 << 20,
}


@pytest.mark.parametrize(
    ("changed", "state", "words"),
    [
        ({}, OK, "pid 7, 1,234 messages in 2 queues, ready"),
        ({"publishing_stopped": "the disk is full"}, BAD, "rejects messages: the disk is full"),
        ({"storing_stopped": "read-only"}, BAD, "rejects messages: read-only"),
        ({"is_ready": False, "step": "recovering"}, WARN, "not ready: recovering"),
        ({"version": "0.0.9"}, WARN, f"it is 0.0.9, but {__version__} is installed"),
        ({"wal_bytes": (128 << 20) + 1}, WARN, "more than twice storage.wal_bytes (64 MiB)"),
    ],
)
def test_running_broker_is_judged(changed: dict[str, Any], state: str, words: str) -> None:
    found = database.running_finding(STATS | changed, "7", Settings())
    assert (found.state, words in found.text) == (state, True), found
    assert bool(found.hint) == (state != OK)


@pytest.mark.parametrize(
    ("seen", "state", "words"),
    [
        (StoppedDatabase(is_new=True), OK, "none yet"),
        (
            StoppedDatabase(schema=4, used_bytes=1 << 20),
            OK,
            "schema 4, 1 MiB in use, closed cleanly",
        ),
        (StoppedDatabase(schema=4, waiting=["0005_more"]), OK, "; 1 migration is pending"),
        (StoppedDatabase(schema=4, was_clean=False), WARN, "did not stop cleanly"),
        (
            StoppedDatabase(was_clean=False, last_error="fsync failed"),
            WARN,
            "cleanly: fsync failed",
        ),
        (StoppedDatabase(schema=4, used_bytes=1 << 30), BAD, "storage.max_bytes (1 GiB)"),
        (StoppedDatabase(problems=["phpmq.db is missing"]), BAD, "phpmq.db is missing"),
        (StoppedDatabase(refusal="the database has schema version 9"), BAD, "schema version 9"),
    ],
)
def test_stopped_database_is_judged(seen: StoppedDatabase, state: str, words: str) -> None:
    found = database.stopped_database_finding(seen, 1 << 30)
    assert (found.state, words in found.text) == (state, True), found
    assert found.hint


def test_database_without_a_limit_may_be_of_any_size() -> None:
    assert database.stopped_database_finding(StoppedDatabase(used_bytes=1 << 50), 0).state == OK


def test_leftover_files_are_listed_and_damage_is_a_warning(tmp_path: Path) -> None:
    for name, size in (("damaged-1/a", 1 << 10), ("damaged-2", 2 << 10), ("replaced-1", 1 << 10)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    damaged, replaced = database.leftover_findings(tmp_path)
    assert damaged.state == WARN
    assert damaged.text == "copies of damaged files, 3 KiB: damaged-1, damaged-2"
    text = "files that a restore replaced, 1 KiB: replaced-1"
    assert (replaced.state, replaced.text) == (OK, text)


HOUR_MS = 3_600_000
FOLDER = Path("/backups")


@pytest.mark.parametrize(
    ("age_ms", "every_h", "state", "words"),
    [
        (None, 0, WARN, "none in /backups"),
        (HOUR_MS, 0, OK, "the newest is 1 h old, in /backups"),
        (8 * 24 * HOUR_MS, 0, WARN, "the newest is 8 d old"),
        (48 * HOUR_MS, 24, OK, "the newest is 2 d old"),
        (49 * HOUR_MS, 24, WARN, "the schedule is every 24 h"),
    ],
)
def test_last_backup_is_judged(age_ms: int | None, every_h: float, state: str, words: str) -> None:
    found = database.backup_finding(FOLDER, age_ms, every_h, is_same=False)
    assert (found.state, words in found.text) == (state, True), found
    assert bool(found.hint) == (state == WARN)


def test_backup_on_the_disk_of_the_data_has_a_hint() -> None:
    found = database.backup_finding(FOLDER, HOUR_MS, 0, is_same=True)
    assert (found.state, "on the database's disk" in found.hint) == (OK, True)


@pytest.mark.parametrize("store", ["", "postgresql://db1/phpmq"])
def test_only_a_broker_that_can_be_one_is_called_a_standby(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BrokerUnavailableError("The broker is starting.", REFUSED)

    monkeypatch.setattr(AdminClient, "call", refuse)
    settings = Settings(data=tmp_path, store={"url": store})  # type: ignore[arg-type]
    (found,) = database.check_database(settings, "7")
    assert (found.state, "The broker is starting." in found.text) == (WARN, True)
    assert ("standby" in found.hint) == bool(store)
