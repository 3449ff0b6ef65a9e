"""The commands against a real broker in another process."""

import csv
import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from phpmq_lite.cli import admin_client
from phpmq_lite.cli.errors import TIMED_OUT
from phpmq_lite.cli.main import root_command
from tests.support.certificates import CertificateAuthority
from tests.support.cli_runner import RunCommand as Run
from tests.support.cli_runner import invoke
from tests.support.fork_server import BrokerProcess, ForkedProcess, broker_process


def listed(run: Run, queue: str) -> dict[str, object]:
    rows = [json.loads(line) for line in run("queue", "list", "-o", "jsonl").stdout.splitlines()]
    return next(row for row in rows if row["name"] == queue)


def counts(run: Run, queue: str) -> tuple[object, object, object]:
    row = listed(run, queue)
    return row["ready"], row["dispatched"], row["dead"]


def test_published_messages_are_consumed(run: Run, queue: str, broker: BrokerProcess) -> None:
    published = run("publish", queue, "--body", "hellö")
    assert published.stdout == ""
    assert published.stderr == f"1 message stored in {queue} by the broker on {broker.phpmq[0]}\n"
    consumed = run("consume", queue, "-n", "1")
    assert consumed.stdout == "hellö\n"
    assert counts(run, queue) == (0, 0, 0)


def test_publish_reads_a_file_byte_by_byte(run: Run, queue: str, tmp_path: Path) -> None:
    content = bytes(range(256)) * 5_000
    path = tmp_path / "body"
    path.write_bytes(content)
    run("publish", queue, str(path))
    assert run("consume", queue, "-n", "1").stdout_bytes == content + b"\n"


@pytest.mark.parametrize("source", [[], ["-"]])
def test_publish_reads_standard_input(run: Run, queue: str, source: list[str]) -> None:
    run("publish", queue, *source, input=b"a\nb\n")
    assert run("consume", queue, "-n", "1").stdout_bytes == b"a\nb\n\n"


@pytest.mark.parametrize("source", [[], ["-"]])
def test_publish_refuses_an_empty_standard_input(run: Run, queue: str, source: list[str]) -> None:
    """As in cron, where a program that failed may have written nothing."""
    refused = run("publish", queue, *source, code=2)
    assert "standard input is empty, so nothing was published" in refused.stderr
    assert run("publish", queue, "--body", "").stderr.startswith("1 message stored")


def test_publish_makes_a_message_of_each_line(run: Run, queue: str, broker: BrokerProcess) -> None:
    published = run("publish", queue, "--lines", input=b"a\n\nb\r\nlast")
    assert published.stderr == f"4 messages stored in {queue} by the broker on {broker.phpmq[0]}\n"
    assert run("consume", queue, "-n", "4").stdout_bytes == b"a\n\nb\r\nlast\n"


def test_publish_repeats(run: Run, queue: str) -> None:
    run("publish", queue, "--body", "x", "--count", "2500")
    assert counts(run, queue) == (2500, 0, 0)


def test_publish_sets_a_time_to_live(run: Run, queue: str) -> None:
    run("publish", queue, "--body", "x", "--ttl", "1h")
    row = json.loads(run("consume", queue, "-n", "1", "--format", "json").stdout)
    assert 3_590 <= row["ttl_s"] <= 3_600


def test_publish_delays(run: Run, queue: str) -> None:
    published = run("publish", queue, "--body", "x", "--delay", "1s", "--ttl", "1m")
    assert published.stderr.startswith(f"1 message stored in {queue} by the broker on ")
    assert run("consume", queue, "-n", "1").stdout == "x\n"


def test_publish_takes_delivery_options(run: Run, queue: str) -> None:
    for body, *options in (
        ("late", "--priority", "200"),
        ("first", "--priority", "0", "--group", "g"),
        ("at", "--at", "2099-01-01T08:00+01:00", "--unique", "k"),
        ("again", "--unique", "k"),  # is not stored
        ("other", "--unique", "k", "--replace", "--delay", "1d"),
    ):
        run("publish", queue, "--body", body, *options)
    rows = run("message", "list", queue, "-o", "jsonl").stdout.splitlines()
    assert [
        (row["preview"], row["state"], row["priority"], row["group"], row["unique_key"])
        for row in map(json.loads, rows)
    ] == [
        ("first", "ready", 0, "g", None),
        ("other", "scheduled", 128, None, "k"),
        ("late", "ready", 200, None, None),
    ]
    due = datetime.fromtimestamp(json.loads(rows[1])["deliver_at"] / 1_000, UTC)
    table = run("message", "list", queue, "--state", "scheduled", "-o", "table").stdout
    assert re.search(rf"READY \(UTC\).*\n.* {due:%Y-%m-%d %H:%M:%S} ", table)
    nothing = run("message", "list", queue, "--state", "blocked", "-o", "table").stderr
    assert nothing == f"{queue} has no blocked messages\n"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--delay", "5s", "--at", "2099-01-01T08:00Z"), "--delay and --at cannot be combined"),
        (("--at", "2099-01-01T08:00"), "must be a date"),
        (("--priority", "256"), "256 is not in the range"),
        (("--replace",), "--replace needs --unique"),
    ],
)
def test_publish_refuses_options_that_cannot_be(
    run: Run, queue: str, options: tuple[str, ...], problem: str
) -> None:
    assert problem in run("publish", queue, "--body", "x", *options, code=2).stderr


def test_scheduled_message_is_put_off_delivered_and_cancelled(run: Run, queue: str) -> None:
    run("publish", queue, "--body", "x", "--delay", "1h", "--unique", "k")
    run("queue", "reschedule", queue, "k", "--delay", "2h")
    assert json.loads(run("queue", "show", queue, "-o", "json").stdout)["scheduled"] == 1
    row = json.loads(run("message", "list", queue, "-o", "jsonl").stdout)
    run("message", "reschedule", row["id"], "--at", "2099-01-01T08:00Z")
    run("message", "deliver", row["id"])
    assert counts(run, queue) == (1, 0, 0)
    undo = run("queue", "cancel", queue, "k").stderr
    assert counts(run, queue) == (0, 0, 0)
    run("message", "undo", undo.split()[-1])
    assert counts(run, queue) == (1, 0, 0)


def test_publish_reports_why_it_was_refused(run: Run, queue: str) -> None:
    run("publish", queue, "--body", "x")
    run("queue", "pause", queue, "--side", "publishing")
    refused = run("publish", queue, "--body", "y", code=4)
    assert refused.stderr.startswith("Error: publish refused: ")
    run("queue", "resume", queue, "--side", "publishing")
    run("publish", queue, "--body", "y")


def test_publish_refuses_content_above_the_limit(run: Run, queue: str, tmp_path: Path) -> None:
    config = tmp_path / "limits.toml"
    config.write_text("[limits]\nmax_content = 3\n")
    refused = run("publish", queue, "--config", str(config), "--body", "four", code=1)
    assert refused.stderr == "Error: content is 4 bytes; the limit is 3 (limits.max_content)\n"


def test_publish_names_the_limit_of_the_broker(tmp_path: Path) -> None:
    """The address of a listener does not tell the limit, but the welcome does."""
    with broker_process(tmp_path / "data", "--set", "limits.max_content=100000") as broker:
        where = ["publish", "orders", "-", "--url", f"phpmq://{broker.phpmq[0]}"]
        done = CliRunner().invoke(root_command, where, input=b"x" * 200_000)
    assert done.exit_code == 1
    assert "content is 200000 bytes; the limit is 100000 (limits.max_content)" in done.stderr


def test_publish_reports_a_broker_that_does_not_answer(tmp_path: Path) -> None:
    where = f"unix:{tmp_path}/no.sock"
    result = invoke("publish", "q", "--body", "x", "--url", where, code=1)
    assert result.stderr.startswith(f"Error: cannot connect to {where}: ")


def test_consume_refuses_a_queue_that_does_not_exist(
    run: Run, queue: str, broker: BrokerProcess
) -> None:
    run("publish", queue, "--body", "x")
    here = ["--data", str(broker.data)]
    typo = queue.replace("consume", "comsume")
    refused = invoke("consume", typo, "-n", "1", *here, code=3)
    assert f"there is no queue {typo!r}; did you mean {queue!r}" in refused.stderr
    assert typo not in run("queue", "list", "-o", "jsonl").stdout
    taken = CliRunner().invoke(root_command, ["consume", queue, "-n", "1", *here])
    assert taken.stdout == "x\n"
    wait = ["consume", typo, "-n", "1", "--create", "--timeout", "0", *here]
    assert CliRunner().invoke(root_command, wait).exit_code == 5
    assert typo in run("queue", "list", "-o", "jsonl").stdout


def test_consume_stops_at_its_limit(run: Run, queue: str) -> None:
    run("publish", queue, "--lines", input="".join(f"{i}\n" for i in range(250)))
    taken = run("consume", queue, "-n", "150", "--format", "json").stdout.splitlines()
    assert [json.loads(line)["content"] for line in taken] == [str(i) for i in range(150)]
    assert counts(run, queue) == (100, 0, 0)
    page = run("consume", queue, "-n", "1", "--format", "json")
    assert json.loads(page.stdout)["content"] == "150"


def test_consume_without_ack_returns_the_messages(run: Run, queue: str) -> None:
    run("publish", queue, "--lines", input="a\nb\n")
    for _ in range(2):
        assert run("consume", queue, "-n", "2", "--no-ack").stdout == "a\nb\n"
    assert counts(run, queue) == (2, 0, 0)


def test_consume_exits_with_5_when_too_little_came(run: Run, queue: str) -> None:
    run("publish", queue, "--body", "x")
    result = run("consume", queue, "-n", "2", "--timeout", "0.1", code=5)
    assert result.stdout == "x\n"
    assert counts(run, queue) == (0, 0, 0)


def test_consume_without_a_limit_succeeds_after_the_timeout(run: Run, queue: str) -> None:
    run("publish", queue, "--body", "x")
    result = run("consume", queue, "--timeout", "0.1")
    assert result.stdout == "x\n"


def test_consume_shows_bytes_as_base64_in_json(run: Run, queue: str) -> None:
    run("publish", queue, input=b"\xff\x00")
    row = json.loads(run("consume", queue, "-n", "1", "--format", "json").stdout)
    assert (row["content"], row["encoding"], row["queue"]) == ("/wA=", "base64", queue)
    assert len(row["id"]) == 32


def test_exec_gets_the_content_and_acknowledges(run: Run, queue: str, tmp_path: Path) -> None:
    script = tmp_path / "keep.py"
    script.write_text(
        "import os, sys\n"
        "name = os.environ['MESSAGE_ID']\n"
        f"open({str(tmp_path)!r} + '/' + name, 'w').write(\n"
        "    sys.stdin.read() + os.environ['MESSAGE_QUEUE'] + os.environ['MESSAGE_TTL_S'])\n"
    )
    run("publish", queue, "--lines", input="a\nb\n")
    run("consume", queue, "-n", "2", "--exec", f"{sys.executable} {script}")
    kept = sorted(path.read_text() for path in tmp_path.iterdir() if path != script)
    assert kept == [f"a{queue}0", f"b{queue}0"]
    assert counts(run, queue) == (0, 0, 0)


def test_exec_requeues_failed_messages(run: Run, queue: str) -> None:
    run("publish", queue, "--lines", input="a\nb\n")
    result = run("consume", queue, "-n", "1", "--exec", "false", code=1)
    assert result.stderr.endswith("Error: --exec failed: 1 message requeued\n")
    assert run("consume", queue, "-n", "2").stdout == "b\na\n"


def test_exec_that_cannot_run_returns_the_message(run: Run, queue: str) -> None:
    run("publish", queue, "--body", "a")
    result = run("consume", queue, "-n", "1", "--exec", "/no/such/program", code=1)
    assert result.stderr == "Error: /no/such/program: No such file or directory\n"
    assert run("consume", queue, "-n", "1").stdout == "a\n"


def test_queues_are_listed_in_every_format(run: Run, queue: str) -> None:
    run("publish", queue, "--body", "x")
    as_json = {row["name"]: row for row in json.loads(run("queue", "list", "-o", "json").stdout)}
    as_csv = csv.DictReader(io.StringIO(run("queue", "list", "-o", "csv").stdout))
    assert {row["name"] for row in as_csv} == as_json.keys()
    assert as_json[queue]["ready"] == 1
    table = run("queue", "list", "-o", "table").stdout
    assert table.startswith("QUEUE ")
    assert queue in table


def test_list_continues_over_pages(run: Run, queue: str) -> None:
    for i in range(3):
        run("publish", f"{queue}.{i}", "--body", "x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("phpmq_lite.cli.admin_client._PAGE", 1)
        names = [json.loads(line)["name"] for line in run("queue", "list").stdout.splitlines()]
    assert [n for n in names if n.startswith(queue)] == [f"{queue}.{i}" for i in range(3)]
    assert len(names) == len(set(names))


def test_purge_deletes_and_counts_messages(run: Run, queue: str) -> None:
    run("publish", queue, "--body", "x", "--count", "3")
    result = run("queue", "purge", queue, "--yes")
    assert (result.stdout, result.stderr) == ("", "3 messages deleted\n")
    assert counts(run, queue) == (0, 0, 0)


def test_purge_of_an_unknown_queue_exits_with_3(run: Run, queue: str) -> None:
    run("queue", "purge", queue, "--yes", code=3)


def test_purge_asks_first(run: Run, queue: str) -> None:
    run("publish", queue, "--body", "x")
    run("queue", "purge", queue, code=2)
    assert counts(run, queue) == (1, 0, 0)


def test_dead_letters_are_listed_and_redriven(run: Run, broker: BrokerProcess, queue: str) -> None:
    from phpmq_lite import connect_blocking

    run("publish", queue, "--lines", input="a\nb\n")
    with connect_blocking(broker.phpmq[0]) as client, client.consume(queue, 2, 10) as deliveries:
        for _ in range(2):
            next(deliveries).dead_letter()
    rows = [json.loads(line) for line in run("dead-letter", "list").stdout.splitlines()]
    row = next(row for row in rows if row["origin"] == queue)
    assert (row["queue"], row["count"]) == (f"{queue}.dlq", 2)
    result = run("dead-letter", "redrive", queue, "-n", "1")
    assert result.stderr == "1 message redriven\n"
    assert counts(run, queue) == (1, 0, 1)
    run("dead-letter", "redrive", f"{queue}.dlq")
    assert run("consume", queue, "-n", "2").stdout == "a\nb\n"


def test_node_may_be_an_address(broker: BrokerProcess, run: Run, queue: str) -> None:
    run("publish", queue, "--body", "x")
    result = CliRunner().invoke(root_command, ["queue", "list", "--url", broker.admin[0]])
    assert queue in [json.loads(line)["name"] for line in result.stdout.splitlines()]


def test_commands_report_that_no_broker_runs(tmp_path: Path) -> None:
    result = invoke("queue", "list", "--data", str(tmp_path), code=1)
    assert result.stderr.startswith(f"Error: no broker answers on {tmp_path}/control.sock: No such")


def test_socket_is_private(broker: BrokerProcess) -> None:
    assert stat.S_IMODE((broker.data / "control.sock").stat().st_mode) == 0o600


def test_migrate_is_refused_while_the_broker_runs(run: Run) -> None:
    assert "in use" in run("database", "migrate", code=1).stderr


def test_migrate_of_no_database_exits_with_3(tmp_path: Path) -> None:
    invoke("database", "migrate", "--data", str(tmp_path / "no"), code=3)
    assert not (tmp_path / "no").exists()


def test_serve_rejects_invalid_settings_with_78(tmp_path: Path) -> None:
    arguments = ["serve", "--data", str(tmp_path / "d"), "--listen", "0.0.0.0:0"]
    result = invoke(*arguments, code=78)
    assert result.stderr.startswith("Error: tcp.listen 0.0.0.0:0 ")
    assert not (tmp_path / "d").exists()


def test_serve_ends_with_0_on_sigterm_and_leaves_nothing_to_migrate(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker_process(data, "--admin", "none") as broker:
        assert broker.admin == []
        assert broker.terminate() == 0
    result = invoke("database", "migrate", "--data", data)
    assert result.stdout == ""
    assert result.stderr == "no migrations are pending\n"
    with broker_process(data, "--admin", "none") as broker:
        assert broker.terminate() == 0


def test_consume_without_end_stops_well_when_interrupted(
    run: Run, broker: BrokerProcess, queue: str, tmp_path: Path
) -> None:
    run("publish", queue, "--body", "x")
    where = ["--url", f"phpmq://{broker.phpmq[0]}"]
    path = tmp_path / "stderr"
    with path.open("w") as stderr:
        process = ForkedProcess(
            ["phpmq_lite", "consume", queue, *where], stdout=subprocess.PIPE, stderr=stderr
        )
    assert process.stdout is not None
    with process.stdout:
        try:
            assert process.stdout.readline() == "x\n"
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()  # otherwise it would wait forever, and so would the next tests
    assert path.read_text() == f"1 message consumed from {queue}\n"
    assert counts(run, queue) == (0, 0, 0)


def test_tls_files_are_the_authority_and_the_certificate_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = CertificateAuthority(tmp_path)
    usage = ("-addext", "keyUsage=critical,keyCertSign")  # Python 3.13 requires it for authorities
    root, _ = authority.make("root", "-addext", "basicConstraints=critical,CA:TRUE", *usage)
    leaf = ("-addext", "basicConstraints=CA:FALSE")
    server, client = (authority.make(name, *leaf, issuer="root") for name in ("server", "client"))
    settings = {"tls_cert": server[0], "tls_key": server[1], "tls_client_ca": root}
    flags = [text for name, path in settings.items() for text in ("--set", f"tcp.{name}={path}")]
    with broker_process(tmp_path / "data", "--admin", "none", *flags) as broker:
        url = ["--url", f"phpmqs://localhost:{broker.port}"]
        trust = ["--tls-ca", str(root)]
        known = [*trust, "--tls-cert", str(client[0]), "--tls-key", str(client[1])]

        def call(*arguments: str) -> Result:
            return CliRunner().invoke(root_command, [*arguments, *url])

        assert call("publish", "q", "--body", "x", *known).exit_code == 0
        assert call("consume", "q", "-n", "1", *known).stdout == "x\n"
        # asyncio closes without an alert, so the client keeps trying until its timeout.
        monkeypatch.setattr(admin_client, "_REPLY_S", 1.0)
        for missing in ([], trust):
            refused = call("publish", "q", "--body", "x", *missing)
            # The timeout may also end a publish that waits for its receipt.
            assert refused.exit_code in (1, TIMED_OUT)
            assert "Error: " in refused.stderr
