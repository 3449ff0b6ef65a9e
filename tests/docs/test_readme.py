"""What the README tells to paste works when pasted, against a real broker on other ports."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from phpmq_lite.cli.main import COMMANDS
from phpmq_lite.client.blocking import connect_blocking
from tests.preloaded import BrokerProcess, broker_process

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "data", "--admin", "127.0.0.1:0") as it:
        yield it


def section(title: str) -> str:
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", README, re.M | re.S)
    assert found is not None, title
    return found[1]


def pasted(title: str) -> str:
    """Give the indented lines of a section, as somebody would paste them."""
    lines = [line[4:] for line in section(title).splitlines() if line.startswith("    ")]
    return "\n".join(lines)


def fenced(title: str, language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", section(title), re.M | re.S)
    assert found is not None, title
    return found[1]


def need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def moved(text: str, broker: BrokerProcess) -> str:
    """Put the ports of this broker for the ones of the README."""
    admin = broker.admin[0].rstrip("/").rpartition(":")[2]
    return text.replace("9100", str(broker.port)).replace("9101", admin)


def run(*command: str, broker: BrokerProcess, text: str | None = None) -> str:
    """Run a command that finds the broker; give its output, fail if it does."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PHPMQ_DATA": str(broker.data),
        "PHPMQ_TCP__LISTEN": broker.phpmq[0],
    }
    done = subprocess.run(
        command, input=text, env=environment, capture_output=True, text=True, check=False,
        timeout=60, cwd=broker.data.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dead_letter(broker: BrokerProcess, queue: str) -> None:
    """Leave a dead letter and a message in a queue."""
    with connect_blocking(broker.phpmq[0]) as client:
        client.publish_confirmed(queue, b"dead")
        with client.consume(queue, 1, 10) as deliveries:
            next(deliveries).dead_letter()


@pytest.mark.acceptance
def test_lines_for_nc_publish_and_consume(broker: BrokerProcess) -> None:
    need("nc")
    out = run("bash", "-euc", moved(pasted("By hand, with nc"), broker), broker=broker)
    assert "Foo" in out
    assert "Hello World" in out


@pytest.mark.acceptance
def test_php_publishes(broker: BrokerProcess) -> None:
    need("php")
    run("php", broker=broker, text=moved(fenced("From PHP", "php"), broker))
    with connect_blocking(broker.phpmq[0]) as client, client.consume("orders", 1, 10) as got:
        assert next(got).body == b'{"order_id": 1042}'


@pytest.mark.acceptance
def test_python_publishes_and_consumes(broker: BrokerProcess) -> None:
    text = moved(fenced("From Python", "python"), broker)
    assert run(sys.executable, "-W", "error", "-", broker=broker, text=text) == (
        "b'{\"order_id\": 1042}'\n"
    )


@pytest.mark.acceptance
def test_commands_work_in_their_order(broker: BrokerProcess) -> None:
    dead_letter(broker, "orders")
    for line in pasted("From the command line").splitlines():
        name, *arguments = line.split(maxsplit=1)
        assert name == "phpmq-lite"
        if arguments != ["bench"]:
            command = f"{sys.executable} -m phpmq_lite {arguments[0]}"
            run("bash", "-euc", command, broker=broker)


@pytest.mark.acceptance
def test_envelope_goes_through_a_worker_to_the_next_queue(broker: BrokerProcess) -> None:
    title = "With BabelQueue envelopes"
    handlers = broker.data.parent / "handlers.py"
    handlers.write_text(moved(fenced(title, "python"), broker), encoding="utf-8")
    lines = [line for line in pasted(title).splitlines() if line.startswith("phpmq-lite ")]
    out = run("bash", "-euc", "\n".join(lines), broker=broker)
    assert "urn:babel:orders:created" in out
    with connect_blocking(broker.phpmq[0]) as client, client.consume("orders", 1, 1) as left:
        assert next(left, None) is None
    with connect_blocking(broker.phpmq[0]) as client, client.consume("mails", 1, 10) as got:
        assert b"urn:babel:mails:wanted" in next(got).body


@pytest.mark.acceptance
def test_curl_reads_and_publishes(broker: BrokerProcess) -> None:
    need("curl")
    script = moved(pasted("With curl"), broker).replace("curl -s", "curl -sS --fail-with-body")
    assert '"ids"' in run("bash", "-euc", script, broker=broker)


def test_every_command_named_exists() -> None:
    named = set(re.findall(r"phpmq-lite ([a-z]+)", README))
    assert named <= COMMANDS.keys()


def test_links_to_files_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_ci_runs_the_command_for_tests() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    told = pasted("Change it")
    for step in ("-e '.[test]'", "python -m pytest"):
        assert step in told
        assert step in script.replace('"', "")
