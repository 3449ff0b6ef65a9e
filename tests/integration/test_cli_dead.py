"""``dead`` against a real broker: what it deletes, what it counts."""

from typing import Any

import pytest

from phpmq_lite.cli.admin_client import AdminClient
from tests.integration.test_cli_groups import broker, fill, queue, rows, run
from tests.support.cli_runner import RunCommand

__all__ = ["broker", "queue", "run"]  # fixtures


def die(run: RunCommand, queue: str) -> str:
    """Make the one record of a message that expired; gives its id."""
    run("queue", "create", queue)
    run("queue", "set", queue, "on_expire=dead_letter")
    run("publish", queue, "--body", "{}", "--ttl", "1s")
    run("message", "wait", f"{queue}.dlq", "--timeout", "10s")
    [record] = alive(run, f"{queue}.dlq")
    return record


def alive(run: RunCommand, queue: str) -> list[str]:
    return [str(row["id"]) for row in rows(run("message", "list", queue))]


def test_only_records_are_deleted_by_a_search(run: RunCommand, queue: str) -> None:
    die(run, queue)
    ids = fill(run, queue)
    mine = f"queue:{queue}*"
    for q in (f"queue:{queue}", f"{mine} -origin:{queue}", f"{mine} origin:other"):
        run("dead-letter", "delete", "--query", q, "--yes")
    assert (alive(run, queue), len(alive(run, f"{queue}.dlq"))) == (ids, 1)
    run("dead-letter", "delete", "--query", mine, "--yes")
    assert (alive(run, queue), alive(run, f"{queue}.dlq")) == (ids, [])
    assert "colour" in run("dead-letter", "delete", "--query", "colour:red", "--yes", code=4).stderr


def test_only_records_are_deleted_by_their_ids(run: RunCommand, queue: str) -> None:
    record = die(run, queue)
    ids = fill(run, queue)
    said = run("dead-letter", "delete", ids[1], record, ids[0], code=4).stderr
    assert all(f"{refused} is no dead letter" in said for refused in ids[:2])
    assert (alive(run, queue), alive(run, f"{queue}.dlq")) == (ids, [])
    run("dead-letter", "delete", ids[0], code=4)
    run("dead-letter", "delete", "f" * 32, code=3)
    assert alive(run, queue) == ids


def test_only_a_selection_of_records_is_deleted(run: RunCommand, queue: str) -> None:
    die(run, queue)
    ids = fill(run, queue)
    mine = ("--query", f"queue:{queue}*", "--dry-run")
    token = run("message", "delete", *mine).stdout.strip()
    run("dead-letter", "delete", "--selection", token, "--yes", code=4)
    assert (alive(run, queue), len(alive(run, f"{queue}.dlq"))) == (ids, 1)
    token = run("dead-letter", "delete", *mine).stdout.strip()
    run("dead-letter", "delete", "--selection", token, "--yes")
    assert (alive(run, queue), alive(run, f"{queue}.dlq")) == (ids, [])


def test_counts_say_how_many_records_were_looked_at(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = {"queue": "a.dlq", "origin": "a", "urn": None, "reason": "failed", "cause": "x"}
    items = [group | {"count": 2}, group | {"cause": "y", "count": 3}]
    asked: list[dict[str, Any]] = []

    def get(_node: AdminClient, _path: str, **query: Any) -> Any:
        asked.append(query)
        return {"items": items, "looked": 5, "total": 15_022}

    monkeypatch.setattr(AdminClient, "get", get)
    shown, groups = run("dead-letter", "list"), run("dead-letter", "list", "--by-cause")
    assert rows(shown) == [{"queue": "a.dlq", "origin": "a", "reason": "failed", "count": 5}]
    assert rows(groups) == items
    assert asked == [{"deep": "true"}] * 2
    for said in (shown, groups):
        assert said.stderr == "counted the newest 5 of 15,022 dead letters\n"
