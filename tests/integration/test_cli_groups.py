"""The groups of the command line against a real broker."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from click.testing import Result

from phpmq_lite.cli import accounts, output, queues
from phpmq_lite.cli.admin_client import AdminClient
from phpmq_lite.queue_settings import DEFINITIONS
from tests.support.cli_runner import RunCommand, invoke
from tests.support.fork_server import BrokerProcess, ForkedProcess, broker_process

MAX_CONTENT = 256 << 10


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    flags = ("--admin", "127.0.0.1:0", "--set", f"limits.max_content={MAX_CONTENT}")
    with broker_process(tmp_path_factory.mktemp("cli") / "data", *flags) as it:
        yield it


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def fill(run: RunCommand, queue: str, count: int = 3) -> list[str]:
    """Publish {"n": 0}, {"n": 1}, …; return the ids in order."""
    for at in range(count):
        run("publish", queue, "--body", f'{{"n": {at}}}')
    return [row["id"] for row in rows(run("message", "list", queue))]


def test_queue_is_created_configured_shown_and_deleted(run: RunCommand, queue: str) -> None:
    assert f"created the queue {queue}\n" in run("queue", "create", queue).stderr
    assert f"the queue {queue} exists already" in run("queue", "create", queue).stderr
    run("queue", "set", queue, "max_messages=2", "note=of the tests")
    shown = json.loads(run("queue", "show", queue, "-o", "json").stdout)
    assert shown["settings"]["max_messages"] == 2
    assert shown["settings"]["note"] == "of the tests"
    wrong = run("queue", "set", queue, "max_messages=-1", code=4)
    assert "max_messages" in wrong.stderr
    run("queue", "delete", queue, "--yes")
    run("queue", "show", queue, code=3)


def test_messages_are_requeued_moved_deleted_and_restored(run: RunCommand, queue: str) -> None:
    first, second, third = fill(run, queue)
    run("message", "requeue", first)
    assert [row["id"] for row in rows(run("message", "list", queue))] == [second, third, first]
    run("message", "move", f"{queue}.other", second, "--create")
    assert [row["id"] for row in rows(run("message", "list", f"{queue}.other"))] == [second]
    run("message", "delete", third)
    assert json.loads(run("message", "show", third).stdout)["state"] == "deleted"
    answer = json.loads(run("message", "restore", third).stdout)
    assert [row["id"] for row in rows(run("message", "list", queue))] == [answer["new_id"], first]
    assert run("message", "show", answer["new_id"], "--body").stdout == '{"n": 2}'


def test_bulk_action_applies_to_the_previewed_messages(run: RunCommand, queue: str) -> None:
    fill(run, queue)
    preview = run("message", "delete", "--query", f"queue:{queue}", "--dry-run")
    token = preview.stdout.strip()
    assert "3 messages" in preview.stderr
    run("publish", queue, "--body", "later")
    job = json.loads(run("message", "delete", "--selection", token).stdout)
    assert (job["state"], job["done"]) == ("done", 3)
    assert len(rows(run("message", "list", queue))) == 1


def test_bulk_without_a_terminal_needs_yes(run: RunCommand, queue: str) -> None:
    fill(run, queue, 1)
    run("message", "delete", "--query", f"queue:{queue}", code=2)
    run("message", "delete", "--query", f"queue:{queue}", "--yes")
    assert rows(run("message", "list", queue)) == []


def test_search_finds_by_a_value_in_the_body(run: RunCommand, queue: str) -> None:
    ids = fill(run, queue)
    found = rows(run("message", "search", f"queue:{queue} data.n:1"))
    assert [row["id"] for row in found] == [ids[1]]
    assert "colour" in run("message", "search", "colour:red", code=4).stderr


def test_dead_letters_are_grouped_and_redriven(run: RunCommand, queue: str) -> None:
    run("publish", queue, "--body", "x")
    run("queue", "set", queue, "on_expire=dead_letter")
    run("publish", queue, "--body", "y", "--ttl", "1s")
    run("message", "wait", f"{queue}.dlq", "--timeout", "10s")
    group = next(
        row for row in rows(run("dead-letter", "list", "--by-cause")) if row["origin"] == queue
    )
    assert (group["reason"], group["count"]) == ("expired", 1)
    assert "1 message " in run("dead-letter", "redrive", queue, "--rate", "100/s").stderr


def test_dead_letters_of_a_queue_that_names_another_place_are_redriven(
    run: RunCommand, queue: str
) -> None:
    place = f"{queue}-graves"
    run("queue", "create", queue)
    run("queue", "set", queue, "on_expire=dead_letter", f"dead_letter_queue={place}")
    for name in (queue, place):
        run("publish", queue, "--body", "x", "--ttl", "1s")
        run("message", "wait", place, "--timeout", "10s")
        assert "1 message " in run("dead-letter", "redrive", name).stderr
    run("dead-letter", "redrive", "nothing", code=3)


def test_wait_finds_messages_published_after_a_cursor(run: RunCommand, queue: str) -> None:
    run("publish", queue, "--body", '{"n": 1}')
    after = run("message", "wait", queue, "--cursor").stdout.strip()
    run("publish", queue, "--body", '{"n": 2}')
    found = json.loads(run("message", "wait", queue, "data.n:>0", "--after", after).stdout)
    assert found["preview"] == '{"n": 2}'
    run("message", "wait", queue, "data.n:3", "--after", after, "--timeout", "1s", code=5)


def test_export_is_imported_as_it_was(run: RunCommand, queue: str, tmp_path: Path) -> None:
    fill(run, queue)
    exported = run("message", "export", f"queue:{queue}").stdout
    assert json.loads(exported.splitlines()[-1])["complete"] is True
    path = tmp_path / "messages.jsonl"
    path.write_text(exported)
    checked = run("message", "import", str(path), "--dry-run").stderr
    assert "3 messages checked: all valid" in checked
    assert "cut off" not in run("message", "import", str(path), "--queue", f"{queue}.again").stderr
    again = rows(run("message", "list", f"{queue}.again"))
    assert sorted(row["preview"] for row in again) == ['{"n": 0}', '{"n": 1}', '{"n": 2}']


def test_settled_messages_are_not_published_again(run: RunCommand, queue: str) -> None:
    fill(run, queue)
    run("consume", queue, "--limit", "1")
    run("queue", "purge", queue, "--yes")
    run("publish", queue, "--body", "live")
    exported = run("message", "export", f"queue:{queue}").stdout
    copy = ("--queue", f"{queue}.copy")
    why = "3 messages skipped: acked, expired, dead or deleted; add --settled to publish again\n"
    checked = run("message", "import", "-", *copy, "--dry-run", input=exported).stderr
    assert checked == f"{why}1 message checked: all valid\n"
    assert run("message", "import", "-", *copy, input=exported).stderr == f"{why}1 message stored\n"
    assert [row["preview"] for row in rows(run("message", "list", copy[1]))] == ["live"]
    result = run("message", "import", "-", *copy, "--settled", input=exported)
    assert result.stderr == "4 messages stored\n"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"content": "x", "encoding": "rot13"}, "line 502: encoding must be"),
        ({"content": "%", "encoding": "base64"}, "line 502: "),
        ({"content": "x", "ttl_s": -1}, "line 502: ttl_s must be at least 0"),
        ({"content": "x", "queue": "a\0b"}, "line 502: The queue name contains a control"),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_import_stores_nothing_if_a_late_line_is_invalid(
    run: RunCommand, queue: str, wrong: dict[str, Any], told: str, flags: tuple[str, ...]
) -> None:
    good = json.dumps({"content": "x", "queue": queue})
    lines = [*[good] * 501, json.dumps({"queue": queue} | wrong)]
    assert told in run("message", "import", "-", *flags, code=1, input="\n".join(lines)).stderr
    assert [row["name"] for row in rows(run("queue", "list", queue))] == []


def test_import_reports_an_incomplete_export(run: RunCommand, queue: str) -> None:
    fill(run, queue)
    lines = run("message", "export", f"queue:{queue}").stdout.splitlines()[:-1]
    result = run("message", "import", "-", "--dry-run", input="\n".join(lines))
    assert "is an incomplete export" in result.stderr
    assert "3 messages checked: all valid" in result.stderr


def test_interrupted_import_reports_what_is_stored(run: RunCommand, queue: str) -> None:
    run("queue", "create", queue)
    run("queue", "set", queue, "max_messages=500")
    good = json.dumps({"content": "x", "queue": queue})
    result = run("message", "import", "-", code=4, input="\n".join([good] * 501))
    assert "500 messages stored; continue with line 501" in result.stderr


def test_export_as_csv_has_a_head(run: RunCommand, queue: str) -> None:
    fill(run, queue, 1)
    lines = run("message", "export", f"queue:{queue}", "--format", "csv").stdout.splitlines()
    assert len(lines) == 2
    assert "queue" in lines[0].split(",")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ready"], 0, "OK: the broker accepts messages"),
        (["backlog", "-w", "2", "-c", "5"], 1, "WARNING: 3 ready in"),
        (["backlog", "-w", "1", "-c", "2"], 2, "CRITICAL: 3 ready in"),
        (["age", "-w", "1h", "-c", "2h"], 0, "OK: "),
        (["consumers"], 2, "CRITICAL: 0 consumers of"),
        (["dead-letters"], 0, "OK: 0 dead letters"),
    ],
)
def test_check_ends_with_the_code_of_its_level(
    run: RunCommand, arguments: list[str], code: int, words: str
) -> None:
    name = "g.checked"
    if not rows(run("queue", "list", name)):
        fill(run, name)
    named = [] if arguments[0] == "ready" else [name]
    result = run("check", arguments[0], *named, *arguments[1:], code=code)
    assert result.stdout.startswith(words)


def test_disk_check_shows_the_free_space(run: RunCommand) -> None:
    assert "% of the disk is free" in run("check", "disk", "-w", "0", "-c", "0").stdout


def test_flush_deletes_messages_and_queue_but_not_a_pinned_one(run: RunCommand, queue: str) -> None:
    fill(run, queue)
    run("queue", "set", queue, "pinned=true")
    assert (
        f"kept the queue {queue}: "
        in run("queue", "delete", "--with-messages", queue, "--yes").stderr
    )
    run("queue", "set", queue, "pinned=false")
    run("queue", "delete", "--with-messages", queue, "--yes")
    run("queue", "show", queue, code=3)


def test_all_queues_but_pinned_ones_are_deleted(run: RunCommand, queue: str) -> None:
    fill(run, queue)
    pinned = f"{queue}.pinned"
    run("queue", "create", pinned)
    run("queue", "set", pinned, "pinned=true")
    run("queue", "delete", queue, "--all", "--yes", code=2)
    assert f"kept the queue {queue}: " in run("queue", "delete", "--all", "--yes").stderr
    run("queue", "delete", "--all", "--with-messages", "--yes")
    names = {row["name"] for row in rows(run("queue", "list"))}
    assert (queue in names, pinned in names) == (False, True)


def test_top_prints_the_queues_once(run: RunCommand, queue: str) -> None:
    fill(run, queue, 1)
    assert "ready ·" in run("queue", "top", "--once").stdout


def test_tail_shows_events(broker: BrokerProcess, run: RunCommand, queue: str) -> None:
    run("queue", "create", queue)
    command = ["phpmq_lite", "queue", "tail", queue, "-n", "2", "--kind", "publish"]
    tail = ForkedProcess([*command, "--data", str(broker.data)], stdout=subprocess.PIPE, stderr=2)
    try:
        while tail.poll() is None:  # until it has started to poll
            run("publish", queue, "--body", "x")
        shown = tail.communicate()[0].splitlines()
    finally:
        tail.kill()
    assert [json.loads(line)["kind"] for line in shown] == ["publish", "publish"]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("star*x", "starYx"),
        ("ask?x", "askYx"),
        ("back\\slash", "backslash"),
        ("back\\\\slash", "back\\slash2"),
        ('we"ird', "weird"),
        ('"whole"', "whole"),
        ("with a blank", "with"),
        ("-minus", "minus"),
        ("[ab]c", "ac"),
    ],
)
def test_wait_reads_only_the_queue_of_this_name(run: RunCommand, name: str, other: str) -> None:
    after = run("message", "wait", "--cursor", "--", name).stdout.strip()
    run("publish", "--body", "other", "--", other)
    run("publish", "--body", "mine", "--", name)
    found = json.loads(
        run("message", "wait", "--after", after, "--timeout", "5s", "--", name).stdout
    )
    assert found["preview"] == "mine"


def test_settings_take_texts_that_look_like_numbers(run: RunCommand) -> None:
    run("queue", "create", "looks")
    run("queue", "set", "looks", "note=42", "owner=true", "dead_letter_queue=7", "pinned=true")
    settings = json.loads(run("queue", "show", "looks", "-o", "json").stdout)["settings"]
    shown = [settings[name] for name in ("note", "owner", "dead_letter_queue", "pinned")]
    assert shown == ["42", "true", "7", True]
    refused = run("queue", "set", "looks", "max_messages=many", code=4)
    assert "max_messages must be a whole number" in refused.stderr


def die(run: RunCommand, queue: str) -> str:
    """Create one record of an expired message and return its id."""
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
    assert all(f"{refused} is not a dead letter" in said for refused in ids[:2])
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


def test_counts_include_the_number_of_scanned_records(
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
        assert said.stderr == "counted 5 of 15,022 dead letters, the newest of each queue\n"


@pytest.mark.parametrize("mark", ["\0", '"', "ä", "\\", "x"])
def test_largest_body_is_returned_whatever_it_contains(run: RunCommand, mark: str) -> None:
    queue = f"large.{ord(mark)}"
    content = mark * (MAX_CONTENT // len(mark.encode()))
    run("message", "import", "-", input=json.dumps({"queue": queue, "content": content}))
    exported = run("message", "export", f"queue:{queue}").stdout
    assert json.loads(exported.splitlines()[0])["content"] == content
    assert (
        "1 message stored"
        in run("message", "import", "-", "--queue", "back", input=exported).stderr
    )


def test_many_bodies_in_other_letters_are_sent_in_small_requests(run: RunCommand) -> None:
    lines = [json.dumps({"queue": "letters", "content": "я" * 2_000})] * 600
    assert "600 messages stored" in run("message", "import", "-", input="\n".join(lines)).stderr


def test_interrupted_import_reports_the_line_to_continue_with(run: RunCommand) -> None:
    run("queue", "create", "full")
    run("queue", "set", "full", "max_messages=300")
    lines = [
        json.dumps({"queue": ("room", "full")[at % 2], "content": str(at)}) for at in range(1_000)
    ]
    result = run("message", "import", "-", code=4, input="\n\n".join(lines))
    assert "601 messages stored; continue with line 1203" in (result.stderr)
    rows = map(json.loads, run("queue", "list").stdout.splitlines())
    counts = {row["name"]: row["ready"] for row in rows}
    assert (counts["room"], counts["full"]) == (301, 300)
    rest = "\n\n".join(lines).split("\n")[1_202:]
    run("queue", "set", "full", "max_messages=")
    assert "399 messages stored" in run("message", "import", "-", input="\n".join(rest)).stderr


def test_line_whose_content_was_gone_is_left_out(run: RunCommand) -> None:
    lines = [
        json.dumps({"id": "0" * 32, "queue": "gone", "content": content})
        for content in (None, "x", None)
    ]
    result = run(
        "message", "import", "-", input="\n".join([*lines, '{"complete": true, "count": 3}'])
    )
    assert "2 messages skipped" in result.stderr
    assert "1 message stored" in result.stderr


def test_import_without_a_broker_reports_what_is_unknown() -> None:
    line = json.dumps({"queue": "a", "content": "x"})
    result = invoke(
        "message", "import", "-", "--url", "http://127.0.0.1:9", input=f"\n{line}", code=1
    )
    told = "0 messages stored; the next 1, from line 2 onwards, may or may not be stored"
    assert told in result.stderr


def test_message_is_found_by_the_number_that_pages_show(run: RunCommand, queue: str) -> None:
    first, second = fill(run, queue, 2)
    number = str(int(first[:16], 16))
    for typed in (number, f"#{number}"):
        assert json.loads(run("message", "show", typed).stdout)["id"] == first
    assert run("message", "show", number, "--body").stdout == '{"n": 0}'
    run("message", "requeue", number)
    assert [row["id"] for row in rows(run("message", "list", queue))] == [second, first]
    assert "never assigned this message id" in run("message", "show", "123456789", code=3).stderr
    assert "the number that pages show" in run("message", "show", "12x", code=3).stderr


def test_undo_token_is_accepted_by_a_command(run: RunCommand, queue: str) -> None:
    (first,) = fill(run, queue, 1)
    deleted = run("message", "delete", first)
    token = json.loads(deleted.stdout)["undo"]
    assert f"to undo it: phpmq-lite message undo {token}\n" in deleted.stderr
    assert json.loads(run("message", "undo", token).stdout)["state"] == "done"
    assert [row["preview"] for row in rows(run("message", "list", queue))] == ['{"n": 0}']
    run("message", "undo", token, code=3)
    job = run("message", "delete", "--query", f"queue:{queue}", "--yes")
    assert f"message undo {json.loads(job.stdout)['undo']}\n" in job.stderr
    run("message", "undo", json.loads(job.stdout)["undo"])
    assert len(rows(run("message", "list", queue))) == 1


def test_purge_asks_with_the_number_of_messages(
    run: RunCommand, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(run, queue)
    run("queue", "purge", queue, code=2)
    for module in (output, queues):
        monkeypatch.setattr(module, "is_terminal", lambda: True)
    asked = run("queue", "purge", queue, input="n\n", code=1)
    assert f"Delete 3 messages (ready and scheduled) in {queue}? [y/N]" in asked.stderr
    asked = run("queue", "purge", queue, "-n", "1", input="y\n")
    assert f"Delete 1 message (ready and scheduled) in {queue}?" in asked.stderr
    assert len(rows(run("message", "list", queue))) == 2
    assert "2 messages deleted" in run("queue", "purge", queue, "--yes").stderr


def test_tables_show_times_and_a_variable_keeps_them_in_a_pipe(
    run: RunCommand, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = fill(run, queue, 1)
    monkeypatch.setenv("PHPMQ_OUTPUT", "table")
    for line in (("message", "show", first), ("queue", "show", queue)):
        shown = run(*line).stdout
        assert re.search(r"_at +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC", shown)
        assert not re.search(r"_at +\d{13}", shown)
        assert re.search(r'_at": \d{13}', run(*line, "-o", "json").stdout)
    assert run("queue", "list", queue).stdout.startswith("QUEUE")
    assert "not a setting" not in run("config", "show").stderr
    monkeypatch.setenv("PHPMQ_OUTPUT", "tabel")
    assert "PHPMQ_OUTPUT is 'tabel'; use one of table," in run("queue", "list", code=2).stderr


def test_queue_set_lists_the_settings_and_suggests_a_name(run: RunCommand, queue: str) -> None:
    shown = invoke("queue", "set", "--help").stdout
    for name, one in DEFINITIONS.items():
        (line,) = [line for line in shown.splitlines() if line.strip().startswith(f"{name}: ")]
        assert " ".join(one.help.split()[:3]) in line
    assert "[default: 20]" in shown
    run("queue", "create", queue)
    wrong = run("queue", "set", queue, "max_mesages=2", code=2)
    assert "'max_mesages' is not a queue setting. Did you mean 'max_messages'?" in wrong.stderr
    assert "colour" in run("queue", "set", queue, "colour=2", code=4).stderr


def test_import_from_another_queue_says_what_to_do() -> None:
    for name, way in (
        ("rabbitmq", "its consumers to empty the queues (`phpmq-lite docs guides/migrate`)"),
        ("redis", "| tac | phpmq-lite publish QUEUE --lines`"),
    ):
        assert f"{way} instead." in invoke("import", name, code=2).stderr
    wrong = invoke("import", "beanstalkd", "127.0.0.1:9", code=1)
    assert "127.0.0.1:9: Connection refused. Start it, or name its HOST:PORT" in wrong.stderr


def test_consume_writes_only_the_bytes(run: RunCommand, queue: str) -> None:
    body = b"\x00\xff\r\n\x1b[1m"
    for _ in range(2):
        run("publish", queue, input=body)
    assert run("consume", queue, "-n", "2", "--format", "bytes").stdout_bytes == body * 2


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"content": 5}, "content"),
        ({}, "content"),
        ({"content": "x", "ttl_s": "soon"}, "ttl_s"),
        ({"content": "x" * (MAX_CONTENT + 1)}, "content"),
    ],
)
@pytest.mark.parametrize("is_list", [False, True])
def test_refused_message_is_named_by_its_place_only_in_a_list(
    broker: BrokerProcess, queue: str, value: dict[str, Any], field: str, is_list: bool
) -> None:
    body = json.dumps([{"content": "first"}, value] if is_list else value).encode()
    request = Request(
        f"{broker.admin[0]}api/v1/queues/{queue}/messages",
        body,
        {"Content-Type": "application/json"},
    )
    with pytest.raises(HTTPError) as refused:
        urlopen(request)
    problem = json.load(refused.value)
    assert problem["field"] == (f"1.{field}" if is_list else field)
    assert ("1." in problem["detail"]) <= is_list


def test_address_with_the_port_of_the_admin_is_said_to_be_that(
    broker: BrokerProcess, queue: str
) -> None:
    address = broker.admin[0].removeprefix("http://").removesuffix("/")
    said = f"{address} does not speak PHPMQ: it answers in HTTP, as the port of the admin does"
    for line in (("publish", queue, "--body", "x"), ("consume", queue)):
        assert said in invoke(*line, "--url", f"phpmq://{address}", code=1).stderr
    url = f"http://{broker.phpmq[0]}"
    assert "for PHPMQ, use phpmq://" in invoke("queue", "list", "--url", url, code=1).stderr


def test_length_of_a_password_is_told_before_it_is_typed(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "is_terminal", lambda: True)
    asked = run("user", "set-password", "nobody", input="long enough to be\n" * 2, code=3)
    assert "Password (at least 12 characters): " in asked.stderr
