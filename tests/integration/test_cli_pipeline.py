"""The pipeline commands that do not start Spark, against a real broker."""

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from phpmq_lite.cli import contexts
from phpmq_lite.cli.admin_client import AdminClient
from phpmq_lite.cli.main import root_command
from phpmq_lite.spark.erased_ids import store_hashes
from phpmq_lite.spark.results_folder import LocalResultsFolder
from tests.support.cli_runner import invoke
from tests.support.fork_server import BrokerProcess, broker_process

Run = Callable[..., Result]
Doctor = Callable[..., tuple[int, dict[str, dict[str, str]]]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a broker that requires a token, because it has a user."""
    data = tmp_path_factory.mktemp("pipeline") / "data"
    with broker_process(data, "--admin", "127.0.0.1:0") as running:
        create = ["user", "create", "anna", "--password-file", "-", "--data", data]
        invoke(*create, input="a long password for anna\n")
        yield running


def token_file(broker: BrokerProcess, folder: Path, role: str) -> Path:
    arguments = ["token", "create", f"{role}-{folder.name}", "--role", role, "--data"]
    made = invoke(*arguments, str(broker.data))
    path = folder / role
    path.touch(mode=0o600)
    path.write_text(made.stdout.split()[-1])
    return path


@pytest.fixture
def doctor(broker: BrokerProcess, tmp_path: Path) -> Doctor:
    """Run the doctor; return the exit code and the findings by name."""

    def call(*arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
        where = ["--url", broker.admin[0], "--out", str(tmp_path / "out"), "-o", "jsonl"]
        done = CliRunner().invoke(
            root_command, ["pipeline", "doctor", *where, *arguments], catch_exceptions=False
        )
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return done.exit_code, {row["check"]: row for row in rows}

    return call


def test_doctor_asks_for_a_token_where_the_broker_does(doctor: Doctor) -> None:
    code, found = doctor()
    assert code == 1
    assert found["broker"]["state"] == "bad"
    assert "--token-file" in found["broker"]["hint"]
    assert "role" not in found
    assert found["results"]["state"] == "ok"


def test_doctor_shows_the_role(doctor: Doctor, broker: BrokerProcess, tmp_path: Path) -> None:
    _, found = doctor("--token-file", str(token_file(broker, tmp_path, "viewer")))
    assert (found["broker"]["state"], found["role"]["found"]) == ("ok", "viewer")
    assert found["export"]["state"] == "ok"
    _, found = doctor("--token-file", str(token_file(broker, tmp_path, "operator")))
    assert (found["broker"]["state"], found["role"]["found"]) == ("ok", "operator")


@pytest.mark.parametrize(
    ("flag", "value", "check", "hint"),
    [
        ("--url", "http://127.0.0.1:1", "broker", "phpmq-lite serve"),
        ("--out", "/dev/null/below", "results", ""),
        ("--master", "spark://127.0.0.1:1", "master", ""),
    ],
)
def test_doctor_finds_unreachable_and_unwritable_places(
    doctor: Doctor, flag: str, value: str, check: str, hint: str
) -> None:
    code, found = doctor(flag, value)
    assert (code, found[check]["state"]) == (1, "bad")
    assert hint in found[check]["hint"]


def test_doctor_rejects_a_file_that_is_not_a_database(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database")
    arguments = ["pipeline", "doctor", "-o", "jsonl", "--out", str(tmp_path / "out"), "--path"]
    done = invoke(*arguments, str(tmp_path / "notes.txt"), code=1)
    assert "not an SQLite database" in done.stdout


def test_doctor_without_broker_and_folder_checks_what_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(contexts, "current_context", lambda: None)
    monkeypatch.setenv("PHPMQ_ADMIN__LISTEN", "127.0.0.1:1")
    done = invoke("pipeline", "doctor", "-o", "jsonl", code=1)
    found = {row["check"]: row for row in map(json.loads, done.stdout.splitlines())}
    names = ("Python", "pyspark", "Java", "broker", "results")
    assert [found[name]["state"] for name in names] == ["ok", "ok", "ok", "bad", "warn"]
    assert "--out" in found["results"]["hint"]
    assert list(tmp_path.iterdir()) == []


def test_status_queries_the_broker_without_a_local_summary(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    token = token_file(broker, tmp_path, "viewer")
    done = CliRunner().invoke(
        root_command,
        ["pipeline", "status", "--url", broker.admin[0], "--token-file", str(token),
         "--out", str(tmp_path / "none")],
    )  # fmt: skip
    assert done.exit_code == 3, done.output
    assert "phpmq-lite pipeline run" in done.stderr


def test_status_shows_the_lag_of_readers(broker: BrokerProcess, tmp_path: Path) -> None:
    admin = AdminClient(broker.data / "control.sock", "")
    admin.post("/queues/orders/messages", {"content": "x" * 700})
    admin.post("/queues/orders/purge", {})
    admin.post("/pipeline/history/bounds", {"reader": "archive-1", "position": 0})
    token = token_file(broker, tmp_path, "viewer")
    where = ["--url", broker.admin[0], "--token-file", str(token)]
    out = tmp_path / "out"
    done = invoke("pipeline", "status", "--readers", *where, "--out", out, "-o", "jsonl")
    row = json.loads(done.stdout)
    assert (row["reader"], row["behind"], row["behind_bytes"]) == ("archive-1", 1, 700)
    assert row["reached"] > row["seen"]
    out.mkdir()
    (out / "summary.json").write_text('{"version": 1, "finished_at": 1, "jobs": []}')
    done = invoke("pipeline", "status", *where, "--out", out, "-o", "table")
    line = "archive-1 is 1 row (700 B) behind; retention reaches it in "
    assert done.stdout.splitlines()[-1].startswith(line)
    invoke("check", "pipeline", "archive-1", "--data", broker.data)
    invoke("check", "pipeline", "-w", "8d", "--data", broker.data, code=1)


def test_package_names_the_zip_that_it_built(tmp_path: Path) -> None:
    done = invoke("pipeline", "package", "--to", str(tmp_path))
    path = Path(done.stdout.strip())
    assert path.parent == tmp_path
    assert "phpmq_lite/spark/source.py" in zipfile.ZipFile(path).namelist()


def test_app_ids_are_listed_and_transferred(broker: BrokerProcess) -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(
            root_command, ["pipeline", *arguments, "--data", str(broker.data)]
        )

    made = run("transfer", "nightly", "--to", "anna")
    assert (made.exit_code, "o version was published under 'nightly'" in made.stderr) == (3, True)
    asked = {"app_id": "nightly", "version": 7, "tokens": []}
    AdminClient(broker.data / "control.sock").post("/pipeline/publish", asked)
    [row] = [json.loads(line) for line in run("app-ids", "-o", "jsonl").stdout.splitlines()]
    assert (row["app_id"], row["owner"], row["version"]) == ("nightly", "control", 7)
    assert "belongs to anna" in run("transfer", "nightly", "--to", "anna").stderr
    assert "belongs to the next user who" in run("transfer", "nightly").stderr


def test_erase_needs_one_selection(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path), "--url", "http://127.0.0.1:9"]
    for selection in ([], ["--trace", "t", "--where", "size > 1"]):
        result = CliRunner().invoke(root_command, ["pipeline", "erase", *selection, *out])
        assert (result.exit_code, "either --trace or --where" in result.output) == (2, True)


def test_erase_shows_when_an_id_was_erased(tmp_path: Path) -> None:
    files = LocalResultsFolder(tmp_path)
    store_hashes(files, ["t1", "m1"], 1_000)(2_000)
    store_hashes(files, ["t2"], 3_000)
    check = ["pipeline", "erase", "--out", str(tmp_path), "-o", "jsonl", "--check"]
    runs = {
        id_: [
            (row["began"], row["finished"], row["hashes"])
            for row in map(
                json.loads, CliRunner().invoke(root_command, [*check, id_]).stdout.split("\n")[:-1]
            )
        ]
        for id_ in ("t1", "m1", "t2", "t3")
    }
    erased = ("1970-01-01 00:00:01", "1970-01-01 00:00:02", 2)
    assert runs == {
        "t1": [erased],
        "m1": [erased],
        "t2": [("1970-01-01 00:00:03", None, 1)],
        "t3": [],
    }
    texts = [path.read_text() for path in (tmp_path / "erased").iterdir()]
    assert not any('"t1"' in text or "m1" in text for text in texts)
