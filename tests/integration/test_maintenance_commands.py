"""Commands for backups and the scrub."""

import json
import shutil
import sqlite3
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from phpmq_lite.cli.admin_client import AdminClient
from phpmq_lite.cli.main import root_command
from tests.support.cli_runner import RunCommand, cli_runner
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.socket_client import SocketClient


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("care") / "data", "--admin", "127.0.0.1:0") as it:
        with SocketClient(it.port) as peer:
            for number in range(5):
                peer.publish("orders", b"order %d" % number, key=b"%d" % number)
                peer.receipt()
        yield it


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def metrics(broker: BrokerProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"{broker.admin[0]}metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def test_backup_of_a_running_broker_is_created_listed_verified_and_tested(
    run: RunCommand, broker: BrokerProcess, tmp_path: Path
) -> None:
    [made] = rows(run("backup", "create"))
    assert (made["messages"], made["settled"]) == (5, 0)
    assert rows(run("backup", "list")) == [made]
    assert {row["result"] for row in rows(run("database", "verify", made["path"]))} == {"ok"}
    assert "the test passed" in run("backup", "test", made["id"]).stderr
    [copy] = rows(run("backup", "create", "--copy-to", str(tmp_path / "elsewhere")))
    assert Path(copy["path"]) == tmp_path / "elsewhere" / copy["id"]
    assert {row["result"] for row in rows(run("database", "verify", copy["path"]))} == {"ok"}
    assert metrics(broker)["phpmq_backup_last_success_timestamp_seconds"] == pytest.approx(
        copy["made_at"] / 1_000
    )
    assert run("check", "backup").stdout.startswith("OK")
    audit = AdminClient(broker.data / "control.sock").get("/audit", limit=20)["items"]
    assert [row["result"] for row in audit if row["action"] == "backup.make"] == ["done", "done"]


def test_backup_dated_in_the_future_is_not_taken_for_the_new_one(
    run: RunCommand, tmp_path: Path
) -> None:
    [made] = rows(run("backup", "create"))
    ahead = Path(made["path"]).with_name("20990101T000000Z")
    shutil.copytree(made["path"], ahead)
    manifest = json.loads((ahead / "manifest.json").read_bytes())
    manifest |= {"id": ahead.name, "made_at": 4_070_908_800_000}
    (ahead / "manifest.json").write_text(json.dumps(manifest))
    try:
        [copy] = rows(run("backup", "create", "--copy-to", str(tmp_path / "elsewhere")))
        [new] = rows(run("backup", "create"))
        listed = [row["id"] for row in rows(run("backup", "list"))]
        shown = run("check", "backup", code=1).stdout
    finally:
        shutil.rmtree(ahead)
    assert ahead.name not in (copy["id"], new["id"])
    assert {ahead.name, copy["id"], new["id"]} <= set(listed)
    assert shown.startswith(f"WARNING: {new['id']} is ")
    assert "dated in the future: 20990101T000000Z" in shown


def test_backup_rows_have_the_same_fields_from_broker_and_command(
    run: RunCommand, tmp_path: Path
) -> None:
    [by_broker] = rows(run("backup", "create"))
    [copied] = rows(run("backup", "create", "--copy-to", str(tmp_path / "elsewhere")))
    assert list(by_broker) == list(copied)
    assert by_broker["schema_version"] == copied["schema_version"]


def test_commands_for_a_stopped_broker_refuse_a_running_one(run: RunCommand) -> None:
    assert "is in use" in run("database", "verify", code=1).stderr
    [made] = rows(run("backup", "create"))
    assert "is in use" in run("backup", "restore", made["id"], "--yes", code=1).stderr


def test_scrub_dead_letters_a_damaged_body(run: RunCommand, broker: BrokerProcess) -> None:
    assert rows(run("database", "scrub"))[0]["bodies"] == 5
    with closing(sqlite3.connect(broker.data / "phpmq.db")) as stranger, stranger:
        stranger.execute("UPDATE body SET content = x'00' WHERE seq = 2")
    [found] = rows(run("database", "scrub", code=65))
    assert (found["bad_alive"], found["seqs"]) == (1, [2])
    assert metrics(broker)["phpmq_damage_found"] == 1
    [dead] = AdminClient(broker.data / "control.sock").get("/messages", q="reason:crc")["items"]
    assert (dead["state"], dead["queue"]) == ("dead", "orders")
    assert (
        rows(run("database", "scrub"))[0]["bad_alive"] == 0
    )  # settled damage is not reported again
    assert metrics(broker)["phpmq_damage_found"] == 0
    with SocketClient(broker.port) as peer:
        peer.consume("orders", 10)
        assert peer.bodies(4) == [b"order 0", b"order 2", b"order 3", b"order 4"]


def test_scrub_that_is_not_running_cannot_be_stopped(run: RunCommand) -> None:
    assert "No scrub is running" in run("database", "scrub", "--stop", code=4).stderr


def test_stopped_broker_is_verified_backed_up_and_restored(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker_process(data) as it:
        with SocketClient(it.port) as peer:
            peer.publish("orders", b"mine", key=b"1")
            peer.receipt()
        it.terminate()
    run = cli_runner(it)
    assert {row["result"] for row in rows(run("database", "verify"))} == {"ok"}
    [made] = rows(run("backup", "create"))
    assert "schema_version" in made
    assert rows(run("backup", "list")) == [made]
    (data / "phpmq.db").write_bytes(b"")
    assert "empty" in run("database", "migrate", code=65).stderr
    run("database", "verify", code=65)
    run("backup", "restore", made["id"], "--yes")
    with broker_process(data) as it, SocketClient(it.port) as peer:
        peer.consume("orders", 1)
        assert peer.bodies(1) == [b"mine"]


def test_copy_of_an_upgrade_is_found_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the page on operations says: with its bare name, from any folder."""
    data = tmp_path / "data"
    with broker_process(data) as it, SocketClient(it.port) as peer:
        peer.store("orders", b"mine")
        it.terminate()
    copy = "before-migration-0005.db"
    (data / copy).write_bytes((data / "phpmq.db").read_bytes())
    (data / "phpmq.db").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    run = cli_runner(it)
    run("backup", "test", copy)
    run("backup", "restore", copy, "--yes")
    with broker_process(data) as it, SocketClient(it.port) as peer:
        peer.consume("orders", 1)
        assert peer.bodies(1) == [b"mine"]
        it.terminate()
    missing = run("backup", "test", "before-migration-0004.db", code=2).stderr
    assert f"before-migration-0004.db does not exist, nor in {data}/backups, {data}" in missing


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    for arguments, code in (
        (["backup", "restore", "20260101T000000Z"], 2),
        (["backup", "create"], 3),
        (["database", "verify"], 3),
    ):
        line = [*arguments, "--data", str(tmp_path / "nothing")]
        assert CliRunner().invoke(root_command, line).exit_code == code


def verify(path: Path) -> Result:
    line = ["database", "verify", str(path)]
    return CliRunner().invoke(root_command, line, catch_exceptions=False)


def test_verify_distinguishes_a_wrong_folder_from_a_lost_database(tmp_path: Path) -> None:
    result = verify(tmp_path)
    assert (result.exit_code, result.stderr) == (
        3, f"Error: there is no database in {tmp_path}\n"
    )  # fmt: skip
    (tmp_path / "meta.json").write_text('{"has_messages": true}')
    assert verify(tmp_path).exit_code == 65


def test_verify_of_another_file_reports_an_error_in_each_row(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("no database, whatever it is called\n" * 500)
    result = verify(path)
    assert result.exit_code == 65
    assert all(row["found"] for row in rows(result))


def test_new_backup_is_named_even_if_a_later_one_is_listed_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its clock was wrong."""
    items = [{"id": "b"}, {"id": "a"}]
    status = {"is_running": False, "error": None, "items": items, "made": "a"}
    monkeypatch.setattr(AdminClient, "post", lambda *_: status)
    result = CliRunner().invoke(root_command, ["backup", "create", "--url", "http://127.0.0.1:9"])
    assert rows(result) == [{"id": "a"}]


def test_download_of_a_backup_is_audited(run: RunCommand, broker: BrokerProcess) -> None:
    [made] = rows(run("backup", "create"))
    address = f"{broker.admin[0]}system/backups/{made['id']}"
    with urllib.request.urlopen(address) as answer:
        assert answer.read(15) == b"SQLite format 3"
    node = AdminClient(broker.data / "control.sock")
    found = [row for row in node.get("/audit")["items"] if row["action"] == "backup.download"]
    assert [(row["target"], row["actor"], row["result"]) for row in found] == [
        (made["id"], "local", "done")
    ]
