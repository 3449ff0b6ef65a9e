"""``doctor`` checks real folders, ports and certificates without changing them."""

import json
import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from phpmq_lite.broker_process import BrokerProcess
from phpmq_lite.cli.main import root_command
from phpmq_lite.errors import StartRefusedError
from phpmq_lite.storage.data_folder import DATABASE, DataFolder, locking_pid, read_meta
from phpmq_lite.storage.sqlite.integrity.startup import read_stopped
from tests.support.certificates import CertificateAuthority
from tests.support.fork_server import broker_process

NOWHERE = ("--set", "tcp.listen=none", "--set", "tcp.legacy_listen=none",
           "--set", "admin.listen=none")  # fmt: skip


class Visit(NamedTuple):
    """The result of ``doctor``: its exit code, and the findings of each check."""

    code: int
    rows: dict[str, list[dict[str, str]]]

    def the(self, check: str) -> tuple[str, str]:
        """Return state and text of the only finding of a check."""
        (row,) = self.rows[check]
        return row["state"], row["found"]

    @property
    def bad(self) -> list[str]:
        return [name for name, rows in self.rows.items() for row in rows if row["state"] == "bad"]


def visit(*arguments: str, data: Path | None = None) -> Visit:
    where = () if data is None else ("--data", str(data))
    done = CliRunner().invoke(
        root_command, ["doctor", "-o", "jsonl", *where, *arguments], catch_exceptions=False
    )
    rows: dict[str, list[dict[str, str]]] = {}
    for line in done.stdout.splitlines():
        row = json.loads(line)
        rows.setdefault(row["check"], []).append(row)
    return Visit(done.exit_code, rows)


def contents(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return the contents of a folder, with modes and times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.stat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_mode, status.st_mtime_ns, content)
    return found


@pytest.fixture(autouse=True)
def _nothing_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PHPMQ_"):
            monkeypatch.delenv(name)


@pytest.fixture
def broker(data: Path) -> Iterator[BrokerProcess]:
    with broker_process(data) as it:
        yield it


def test_new_machine_is_healthy_and_nothing_is_created(data: Path) -> None:
    found = visit(*NOWHERE, data=data)
    assert (found.code, found.bad) == (0, [])
    assert found.the("data folder") == ("ok", f"{data} does not exist yet")
    assert not data.exists()


def test_running_broker_is_queried(broker: BrokerProcess, data: Path) -> None:
    found = visit("--set", f"tcp.listen={broker.phpmq[0]}", *NOWHERE[2:], data=data)
    assert (found.code, found.bad) == (0, [])
    assert found.the("data folder") == ("ok", f"{data}, in use by pid {broker.pid}")
    assert found.the("broker") == ("ok", f"pid {broker.pid}, 0 messages in 0 queues, ready")
    assert found.the("listeners") == ("ok", f"{broker.phpmq[0]}: used by the broker")
    assert "database" not in found.rows


def test_broker_with_other_settings_is_noticed(broker: BrokerProcess, data: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    found = visit("--set", f"tcp.listen=127.0.0.1:{free}", *NOWHERE[2:], data=data)
    state, text = found.the("listeners")
    assert (state, str(free) in text) == ("warn", True)


def test_stopped_broker_leaves_a_healthy_folder(broker: BrokerProcess, data: Path) -> None:
    broker.terminate()
    before = contents(data)
    found = visit(*NOWHERE, data=data)
    assert (found.code, found.bad) == (0, [])
    state, text = found.the("database")
    assert (state, text.endswith("in use, closed cleanly")) == ("ok", True)
    assert found.the("backups")[0] == "warn"
    assert contents(data) == before


def test_killed_broker_is_reported_and_its_files_stay(broker: BrokerProcess, data: Path) -> None:
    broker.kill()
    before = contents(data)
    assert str(data / f"{DATABASE}-shm") in before
    found = visit(*NOWHERE, data=data)
    assert (found.code, found.bad) == (0, [])
    state, text = found.the("database")
    assert (state, "did not stop cleanly" in text) == ("warn", True)
    assert contents(data) == before


def test_flipped_bit_is_found(broker: BrokerProcess, data: Path) -> None:
    broker.terminate()
    database = data / DATABASE
    content = bytearray(database.read_bytes())
    content[-100] ^= 1
    database.write_bytes(content)
    found = visit(*NOWHERE, data=data)
    assert (found.code, found.bad) == (1, ["database"])
    assert "differs from what the last clean stop left" in found.the("database")[1]


def test_lost_log_is_found(broker: BrokerProcess, data: Path) -> None:
    broker.kill()
    (data / f"{DATABASE}-wal").unlink()
    found = visit(*NOWHERE, data=data)
    assert found.bad == ["database"]
    assert "the log is missing, but the broker did not stop cleanly" in found.the("database")[1]


def test_lost_database_is_found(broker: BrokerProcess, data: Path) -> None:
    broker.terminate()
    (data / DATABASE).unlink()
    found = visit(*NOWHERE, data=data)
    assert found.bad == ["database"]
    assert "meta.json says that messages were stored" in found.the("database")[1]
    assert not (data / DATABASE).exists()


def test_database_of_a_newer_version_is_found(broker: BrokerProcess, data: Path) -> None:
    broker.kill()
    with closing(sqlite3.connect(data / DATABASE)) as connection:
        connection.execute("PRAGMA user_version = 999")
    (data / f"{DATABASE}-wal").touch()
    found = visit(*NOWHERE, data=data)
    assert found.bad == ["database"]
    assert found.the("database")[1].startswith("the database has schema version 999")


def test_copies_of_damaged_files_are_listed(broker: BrokerProcess, data: Path) -> None:
    broker.terminate()
    (data / "damaged-20260101T000000Z").mkdir()
    assert visit(*NOWHERE, data=data).the("left over") == (
        "warn",
        "copies of damaged files, 0 B: damaged-20260101T000000Z",
    )


def test_used_port_is_named_with_its_process(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = visit(*NOWHERE[2:], "--set", f"tcp.listen=127.0.0.1:{port}", data=data)
    assert (found.code, found.bad) == (1, ["listeners"])
    text = found.the("listeners")[1]
    assert text.startswith(f"tcp.listen 127.0.0.1:{port} is in use by pid {os.getpid()}, ")


def test_unix_socket_of_another_program_is_found(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "mq.sock"
    flags = (*NOWHERE[2:], "--set", f"tcp.listen=unix:{path}")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert visit(*flags, data=data).bad == ["listeners"]
    assert path.exists()  # stale now, so a start replaces it
    assert visit(*flags, data=data).bad == []


def test_unix_socket_of_a_slow_program_is_found(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "taken.sock"
    with (
        closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as other,
        closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as first,
    ):
        other.bind(str(path))
        other.listen(0)
        first.connect(str(path))  # a second connection would wait
        found = visit(*NOWHERE, "--set", f"tcp.listen=unix:{path}", data=data)
    assert "is in use by another program" in found.the("listeners")[1]


def test_invalid_settings_are_reported_and_the_rest_is_checked(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[limits]\ncredits = 5\n")
    found = visit("--config", str(path), data=data)
    assert found.code == 1
    assert found.the("settings") == (
        "bad",
        f"limits.credits in {path} is not a setting. Did you mean limits.credit?",
    )
    assert found.the("data folder")[0] == "ok"


def test_unknown_variable_is_reported(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHPMQ_PORT", "tcp://10.0.0.1:9100")
    _, stranger = visit(*NOWHERE, data=data).rows["settings"]
    assert (stranger["state"], stranger["found"].split()[0]) == ("warn", "PHPMQ_PORT")


def test_wide_listener_without_a_decision_is_bad(data: Path) -> None:
    found = visit(*NOWHERE[2:], "--set", "tcp.listen=0.0.0.0:0", data=data)
    assert found.bad == ["access"]
    assert "reaches beyond this machine" in found.the("access")[1]


def test_data_folder_that_is_a_file_is_bad(data: Path) -> None:
    data.touch()
    found = visit(*NOWHERE, "--set", f"data={data}")
    assert found.bad == ["data folder"]
    assert found.the("data folder")[1] == f"data folder {data} is a file, not a folder"


def test_data_folder_too_deep_for_a_socket_is_bad(tmp_path: Path) -> None:
    found = visit(*NOWHERE, data=tmp_path / ("x" * 120))
    assert "the limit for a socket path is 107" in found.the("data folder")[1]


def test_killed_broker_of_an_empty_log_starts_after_a_visit(
    broker: BrokerProcess, data: Path
) -> None:
    """The broker was killed after truncating its log; without a log, a start reports a loss."""
    broker.terminate()
    with closing(DataFolder.open(data)) as at:
        at.seal(None)
        at.record(is_running=True)
    data.joinpath("phpmq.db-wal").touch(0o600)
    before = contents(data)
    assert visit(*NOWHERE, data=data).the("database")[0] == "warn"
    assert contents(data) == before


def test_certificates_are_checked(data: Path, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    cert, key = authority.make("server")
    old, old_key = authority.make_dated("past", "20200101000000Z", "20210101000000Z")
    flags = [f"tcp.tls_cert={cert}", f"tcp.tls_key={key}",
             f"admin.tls_cert={old}", f"admin.tls_key={old_key}"]  # fmt: skip
    found = visit(*NOWHERE, *(part for flag in flags for part in ("--set", flag)), data=data)
    assert found.code == 1
    expired, soon = found.rows["TLS"]
    assert (expired["state"], expired["found"]) == ("bad", f"admin.tls_cert {old} has expired")
    assert (soon["state"], soon["found"]) == ("warn", "tcp: localhost, 127.0.0.1, 1 day left")


def test_key_of_another_certificate_is_bad(data: Path, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    cert, _ = authority.make("server")
    _, other = authority.make("other")
    flags = ("--set", f"tcp.tls_cert={cert}", "--set", f"tcp.tls_key={other}")
    found = visit(*NOWHERE, *flags, data=data)
    assert found.bad == ["TLS"]
    assert "cannot be used" in found.the("TLS")[1]


def test_lock_holder_is_found_without_taking_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "held"
    assert locking_pid(path) is None
    folder = DataFolder.open(path)
    assert locking_pid(path) == str(os.getpid())
    with pytest.raises(StartRefusedError, match="is in use"):
        read_stopped(path)
    folder.close()
    assert locking_pid(path) is None
    assert read_stopped(path).is_new


@pytest.mark.parametrize("created_at", ["null", '"today"', "[]"])
def test_invalid_metadata_is_tolerated(data: Path, created_at: str) -> None:
    DataFolder.open(data).close()
    data.joinpath("meta.json").write_text(f'{{"created_at": {created_at}}}')
    assert read_meta(data).created_at == 0
    assert visit(*NOWHERE, data=data).the("data folder")[0] == "ok"


def test_database_whose_first_write_was_cut_off_is_new(data: Path) -> None:
    """SQLite rolls the write back at the next start; ``doctor`` must not."""
    DataFolder.open(data).close()
    with closing(sqlite3.connect(data / DATABASE, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size=1")
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE t (x)")
        connection.execute("INSERT INTO t SELECT zeroblob(1000000)")
        left = {
            name: data.joinpath(name).read_bytes() for name in (DATABASE, f"{DATABASE}-journal")
        }
    for name, content in left.items():
        data.joinpath(name).write_bytes(content)
    assert visit(*NOWHERE, data=data).the("database") == ("ok", "none yet")


def test_check_that_fails_is_a_finding(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, a broker of another version has figures with other names."""

    def fail(*_: object) -> None:
        raise KeyError("storing_stopped")

    monkeypatch.setattr("phpmq_lite.cli.doctor.database.check_backups", fail)
    found = visit(*NOWHERE, data=data)
    assert found.bad == ["backups"]
    assert found.the("backups")[1] == "cannot be checked: KeyError('storing_stopped')"
