"""The commands of schedules against a real broker in another process."""

import json
from pathlib import Path

from tests.support.cli_runner import RunCommand as Run
from tests.support.fork_server import BrokerProcess

NEVER = "0 0 1 1 *"


def shown(run: Run, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(run("schedule", "show", name, "-o", "json").stdout)
    return found


def test_schedule_is_created_changed_paused_run_and_deleted(
    run: Run, queue: str, tmp_path: Path
) -> None:
    name = f"of-{queue}"
    made = run(
        "schedule", "create", name, "30 8 * * *", "--queue", queue, "--timezone", "Europe/Berlin",
        "--body", "{{schedule}}", "--ttl", "15m", "--missed", "all", "--missed-max", "3",
    )  # fmt: skip
    assert "it runs next at" in made.stderr
    assert "T08:30:00+0" in made.stderr
    run("schedule", "set", name, "--cron", NEVER, "--priority", "7", "--group", "g")
    row = shown(run, name)
    assert (row["cron"], row["ttl_s"], row["missed_max"], row["group"]) == (NEVER, 900, 3, "g")
    assert (row["content"], row["timezone"]) == ("{{schedule}}", "Europe/Berlin")
    run("schedule", "pause", name)
    assert "; it is paused" in run("schedule", "set", name, "--ttl", "0").stderr
    assert "paused" in run("schedule", "list", "-o", "table").stdout
    assert "published the message" in run("schedule", "run", name).stderr
    assert run("consume", queue, "-n", "1").stdout == f"{name}\n"
    assert "T00:00:00" in run("schedule", "resume", name).stderr
    assert '"local"' not in run("schedule", "show", name, "-o", "table").stdout
    path = tmp_path / "body"
    path.write_bytes(b"\xff\x00")
    run("schedule", "set", name, "--file", str(path))
    assert (shown(run, name)["content"], shown(run, name)["encoding"]) == ("/wA=", "base64")
    rows = [json.loads(line) for line in run("schedule", "list", "-o", "jsonl").stdout.splitlines()]
    assert [row["last_outcome"] for row in rows if row["name"] == name] == ["published"]
    run("schedule", "delete", name, "--yes")
    assert "no schedule" in run("schedule", "show", name, code=3).stderr


def test_refusals_name_the_reason(run: Run, broker: BrokerProcess, queue: str) -> None:
    refused = run("schedule", "create", "x", "61 * * * *", "--queue", queue, code=4)
    assert "bad minute" in refused.stderr
    assert "--queue is required" in run("schedule", "create", "x", NEVER, code=2).stderr
    assert "at least one option" in run("schedule", "set", "x", code=2).stderr
    both = ("--body", "x", "--file", str(broker.data / "control.sock"))
    run("schedule", "create", "x", NEVER, "--queue", queue, *both, code=2)
