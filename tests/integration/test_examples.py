"""The examples, and those of the documentation through ``nc``, used as by a person."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.envelopes import dead_letter_record
from tests.support.fork_server import BrokerProcess, broker_with_all_listeners
from tests.support.programs import run_program
from tests.support.socket_client import AdminApi, SocketClient
from tests.support.waiting import until

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parent.parent.parent
needs_nc = pytest.mark.skipif(shutil.which("nc") is None, reason="nc (netcat-openbsd) is missing")
needs_php = pytest.mark.skipif(shutil.which("php") is None, reason="php (php-cli) is missing")
_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_with_all_listeners(tmp_path_factory.mktemp("examples") / "data") as running:
        yield running


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminApi:
    return AdminApi(broker.admin[0])


@pytest.fixture
def queue() -> str:
    return f"Foo-{next(_numbers)}"


@dataclass(frozen=True)
class Style:
    name: str
    digits: int
    line: str

    def write(self, header: str, *packets: tuple[str, str]) -> bytes:
        """Return a message without a line break after its last content."""
        parts = [header]
        for kind, content in packets:
            parts += [f"P{kind}{len(content.encode()):0{self.digits}}", content]
        return self.line.join(parts).encode()


STYLES = [
    Style("line LF", 29, "\n"),
    Style("line CRLF", 29, "\r\n"),
    Style("line LF 36", 33, "\n"),
    Style("compact 32", 29, ""),
    Style("compact 36", 33, ""),
]
all_styles = pytest.mark.parametrize("style", STYLES, ids=lambda style: str(style.name))


class Netcat:
    """A running ``nc`` with the test at its keyboard."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            ["nc", "-N", "127.0.0.1", str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def __enter__(self) -> "Netcat":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def paste(self, data: bytes) -> None:
        self._stdin.write(data)
        self._stdin.flush()

    def shows(self, number: int) -> bytes:
        return self._stdout.read(number)

    def end(self) -> bytes:
        """End the input; return the remaining output until it ends by itself."""
        rest, _ = self._process.communicate(timeout=20)
        return bytes(rest)


def dispatch_of(style: Style, queue: str, content: str, message_id: str, ttl: int) -> bytes:
    """Return the dispatch in a style; in line framing, it ends with a line break."""
    return (
        style.write(
            "H0100304", ("01", queue), ("02", content), ("03", message_id), ("05", f"{ttl}")
        )
        + style.line.encode()
    )


def read_dispatch(nc: Netcat, style: Style, queue: str, content: str, *ttls: int) -> str:
    """Wait for a dispatch, compare every byte except the id, and return the id.

    ``ttls`` are the seconds that may be left: a second may end between two steps of a test.
    """
    length = len(dispatch_of(style, queue, content, "0" * 32, ttls[0]))
    shown = nc.shows(length)
    at = length - len(f"P05{style.line * 2}{ttls[0]}{style.line}") - style.digits - 32
    message_id = shown[at : at + 32].decode()
    assert re.fullmatch("[0-9a-f]{32}", message_id)
    assert shown in [dispatch_of(style, queue, content, message_id, ttl) for ttl in ttls]
    return message_id


def wrapper(queue: str, message_id: str, failed_at: int = 10**12) -> str:
    """Return the record of "Hello World", which is not an envelope."""
    block = {
        "reason": "failed", "error": None, "exception": None, "failed_at": failed_at,
        "original_queue": queue, "attempts": 0, "lang": "python", "detail": "client",
        "message_id": message_id,
    }  # fmt: skip
    record = {"raw": "Hello World", "dead_letter": block}
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def state_of(admin: AdminApi, message_id: str) -> dict[str, Any]:
    found: dict[str, Any] = admin.get(f"/api/v1/messages/{message_id}")
    return found


def hello(style: Style, queue: str, content: str = "Hello World", ttl: int = 3600) -> bytes:
    return style.write("H0100103", ("01", queue), ("02", content), ("05", f"{ttl}"))


def consume(style: Style, queue: str, credit: int = 1) -> bytes:
    return style.write("H0100202", ("01", queue), ("04", f"{credit}"))


# -- nc


@needs_nc
@all_styles
@pytest.mark.parametrize("ttl", [None, 3600])
def test_netcat_publishes(broker: BrokerProcess, style: Style, queue: str, ttl: int | None) -> None:
    """A publish of either revision, followed by the end of the input."""
    older = style.write("H0100102", ("01", queue), ("02", "Hello World"))
    with Netcat(broker.port) as nc:
        nc.paste(older if ttl is None else hello(style, queue, ttl=ttl))
        assert nc.end() == b""
    with SocketClient(broker.port) as peer:
        peer.consume(queue, 1)
        (dispatch,) = peer.dispatches(1)
    assert dispatch.content == b"Hello World"
    assert dispatch.ttl_s in ((0,) if ttl is None else (3600, 3599))


@needs_nc
@all_styles
def test_netcat_consumes_and_acknowledges(
    broker: BrokerProcess, admin: AdminApi, style: Style, queue: str
) -> None:
    with Netcat(broker.port) as nc:
        nc.paste(hello(style, queue) + style.line.encode())
        nc.paste(consume(style, queue) + style.line.encode())
        message_id = read_dispatch(nc, style, queue, "Hello World", 3600, 3599)
        # a dispatch leaves ahead of its record
        until(lambda: state_of(admin, message_id)["state"] == "dispatched")
        nc.paste(style.write("H0100402", ("01", queue), ("03", message_id)))
        assert nc.end() == b""
    assert state_of(admin, message_id)["state"] == "acked"


@needs_nc
@all_styles
def test_netcat_requeues(broker: BrokerProcess, admin: AdminApi, style: Style, queue: str) -> None:
    """005: to the end of the queue, with a new TTL."""
    line = style.line.encode()
    with Netcat(broker.port) as nc:
        nc.paste(hello(style, queue, "first") + line + hello(style, queue, "second") + line)
        nc.paste(consume(style, queue) + line)
        first = read_dispatch(nc, style, queue, "first", 3600, 3599)
        nc.paste(style.write("H0100503", ("01", queue), ("03", first), ("05", "7200")) + line)
        second = read_dispatch(nc, style, queue, "second", 3600, 3599)
        nc.paste(style.write("H0100402", ("01", queue), ("03", second)) + line)
        assert read_dispatch(nc, style, queue, "first", 7200, 7199) == first
        nc.paste(style.write("H0100402", ("01", queue), ("03", first)))
        assert nc.end() == b""
    assert state_of(admin, first)["state"] == "acked"


@needs_nc
@all_styles
def test_netcat_dead_letters(
    broker: BrokerProcess, admin: AdminApi, style: Style, queue: str
) -> None:
    """006: its record waits in ``<queue>.dlq``."""
    line = style.line.encode()
    with Netcat(broker.port) as nc:
        nc.paste(hello(style, queue) + line + consume(style, queue) + line)
        message_id = read_dispatch(nc, style, queue, "Hello World", 3600, 3599)
        nc.paste(style.write("H0100602", ("01", queue), ("03", message_id)) + line)
        nc.paste(consume(style, f"{queue}.dlq"))
        nc.paste(line)
        length = len(dispatch_of(style, f"{queue}.dlq", wrapper(queue, message_id), "0" * 32, 0))
        shown = nc.shows(length).decode()
        found = re.search(r'"failed_at":(\d{13}),', shown)
        assert found is not None
        content = wrapper(queue, message_id, int(found[1]))
        ids = re.findall("(?=([0-9a-f]{32}))", shown.replace(content, ""))
        assert shown.encode() in [
            dispatch_of(style, f"{queue}.dlq", content, record, 0) for record in ids
        ]
        assert message_id not in ids
        nc.end()
    assert state_of(admin, message_id)["state"] == "dead"


@needs_nc
def test_netcat_shows_nothing_after_garbage(broker: BrokerProcess) -> None:
    with Netcat(broker.port) as nc:
        nc.paste(b"hello?\n")
        assert nc.end() == b""


# -- PHP


def php(script: str | Path, *arguments: str) -> str:
    path = ROOT / "examples" / "php" / script
    done = run_program(["php", str(path), *arguments])
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@needs_php
@pytest.mark.parametrize(
    ("listener", "ttl", "shown"), [(0, ["60"], "  (60 s left)"), (1, [], ""), (0, [], "")]
)
def test_php_consumer_receives_from_a_php_publisher(
    broker: BrokerProcess, admin: AdminApi, queue: str, listener: int, ttl: list[str], shown: str
) -> None:
    """The older revision on its port, the newer on the other."""
    address = broker.phpmq[listener]
    contents = ['{"order_id": 1042}', "Grüße, 世界", "two\nlines", "x" * 100_000]
    for content in contents:
        assert php("publish.php", address, queue, content, *ttl) == ""
    got = php("consume.php", address, queue, str(len(contents)))
    assert got.replace("(59 s", "(60 s") == "".join(f"{content}{shown}\n" for content in contents)
    assert admin.queue(queue)["ready"] == 0


@needs_php
def test_php_consumer_of_the_older_revision_receives_from_others(
    broker: BrokerProcess, queue: str
) -> None:
    """Both ports lead to the same queues; the older revision receives no TTL."""
    with SocketClient(broker.port) as peer:
        assert peer.confirm(queue, b"from elsewhere", ttl_s=60) is None
    assert php("consume.php", broker.phpmq[1], queue) == "from elsewhere\n"


@needs_php
def test_php_publisher_of_the_older_revision_reaches_other_consumers(
    broker: BrokerProcess, queue: str
) -> None:
    php("publish.php", broker.phpmq[1], queue, "from PHP")
    with SocketClient(broker.port) as peer:
        peer.consume(queue, 1)
        assert peer.bodies(1) == [b"from PHP"]


@needs_php
def test_php_publisher_waits_for_its_receipt(
    broker: BrokerProcess, admin: AdminApi, queue: str
) -> None:
    """The same key twice is stored once."""
    for _ in range(2):
        assert php("publish.php", broker.phpmq[0], queue, "{}", "0", "my-key") == "stored\n"
    assert admin.queue(queue)["ready"] == 1


@needs_php
def test_php_consumer_waits_for_a_message_that_comes_later(
    broker: BrokerProcess, queue: str
) -> None:
    consumer = subprocess.Popen(
        ["php", str(ROOT / "examples/php/consume.php"), broker.phpmq[1], queue, "2"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert consumer.stdout is not None
    php("publish.php", broker.phpmq[1], queue, "first")
    assert consumer.stdout.readline() == "first\n"
    php("publish.php", broker.phpmq[0], queue, "second", "60")
    assert consumer.communicate(timeout=30)[0] == "second\n"
    assert consumer.returncode == 0


@needs_php
def test_programs_with_the_published_client_use_the_older_listener(
    broker: BrokerProcess, admin: AdminApi, queue: str, tmp_path: Path
) -> None:
    """A double has the names and the bytes of the client; the rest is from the example."""
    shutil.copytree(ROOT / "examples/php/published", tmp_path, dirs_exist_ok=True)
    (tmp_path / "vendor").mkdir()
    shutil.copy(ROOT / "tests/docs/published_client.php", tmp_path / "vendor/autoload.php")
    address = ["127.0.0.1", broker.phpmq[1].rpartition(":")[2]]
    for content in ("first", "Grüße, 世界", "third"):
        assert php(tmp_path / "send.php", *address, queue, content) == ""
    assert php(tmp_path / "receive.php", *address, queue, "2") == "first\nGrüße, 世界\n"
    until(lambda: admin.queue(queue)["ready"] == 1)


# -- Python


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_plain_python_worker_acknowledges_tries_again_and_puts_aside(
    broker: BrokerProcess, admin: AdminApi, queue: str, tmp_path: Path, number: signal.Signals
) -> None:
    script = str(ROOT / "examples/python/plain_worker.py")
    with SocketClient(broker.port) as peer:
        for content in (
            b'{"order_id": 1, "total": 9}',
            b"no JSON",
            b'{"order_id": 2, "total": -1}',
        ):
            assert peer.confirm(queue, content) is None
    worker = subprocess.Popen(
        [sys.executable, script, queue, broker.phpmq[0]],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    until(lambda: admin.queue(f"{queue}.dlq").get("ready") == 2)
    assert admin.queue(queue)["ready"] == 0
    worker.send_signal(number)
    shown = worker.communicate(timeout=30)[0].splitlines()
    assert worker.returncode == 0
    assert shown[0] == "order 1"
    assert shown[1].endswith("was dead-lettered: not JSON")
    tries = [line for line in shown[2:] if line.endswith("ValueError('order 2 costs -1')")]
    assert len(tries) == len(shown[2:]) == 3


def test_babelqueue_worker_mails_and_puts_aside(broker: BrokerProcess) -> None:
    folder = ROOT / "examples" / "python"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    address = f"127.0.0.1:{broker.port}"
    for arguments in (["42", "9.9"], ["43", "-1"]):
        subprocess.run(
            [sys.executable, "produce.py", *arguments, address],
            cwd=folder, env=environment, check=True, timeout=60,
        )  # fmt: skip
    jobs = "6"  # the order, its mail, and four attempts at the other order
    done = run_program(
        [
            sys.executable,
            "-m",
            "phpmq_lite",
            "worker",
            "--app",
            "handlers:app",
            "--url",
            f"phpmq://{address}",
            "--backoff",
            "0",
            "--max-jobs",
            jobs,
        ],
        cwd=folder,
        env=environment,
        check=True,
    )
    assert "mail to anna@example.org, trace " in done.stdout
    with SocketClient(broker.port) as peer:
        peer.consume("orders.dlq", 1)
        block = dead_letter_record.read_block(peer.dispatches(1)[0].content)
    assert block is not None
    assert block.error == "order 43 costs -1.0"
