"""SIGTERM while a command waits, and commands as process 1 of a container."""

import fcntl
import os
import pty
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from phpmq_lite.envelopes.outbox import create_tables
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.socket_client import WAIT_S, AdminApi, SocketClient
from tests.support.waiting import until

pytestmark = pytest.mark.acceptance

NEEDS_NAMESPACES = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare"
)
APP = """
from phpmq_lite.envelopes import connect
app = connect("{url}", queue="orders")
@app.handler("urn:test:v1")
def handle(data, meta):
    import subprocess
    subprocess.Popen(["sh", "-c", "sleep 0.1 & exit"]).wait()
"""


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state_of(pid: int) -> tuple[str, int]:
    """Return a process's state and its processor time in ticks."""
    found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return found[0], int(found[11]) + int(found[12])


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    database = tmp_path / "service.db"
    with closing(sqlite3.connect(database)) as connection:
        create_tables(connection)
        connection.execute(
            "INSERT INTO phpmq_outbox (id, queue, body, written_ms)"
            " VALUES ('1', 'orders', 'body', 0)"
        )
        connection.commit()
    return database


@contextmanager
def running(
    folder: Path, *arguments: str, is_first: bool = False
) -> Iterator["subprocess.Popen[str]"]:
    """Run a command, as process 1 of a namespace or not; kill it at the end."""
    prefix = ["unshare", "--pid", "--fork", "--kill-child"] if is_first else []
    command = [*prefix, sys.executable, "-m", "phpmq_lite", *arguments]
    with (folder / "err").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def stop(process: "subprocess.Popen[str]", *, is_first: bool = False) -> int:
    target = children(process.pid)[0] if is_first else process.pid
    os.kill(target, signal.SIGTERM)
    return process.wait(WAIT_S)


def has_said(folder: Path, text: str) -> Callable[[], bool]:
    return lambda: text in (folder / "err").read_text()


@pytest.mark.parametrize("is_first", [False, pytest.param(True, marks=NEEDS_NAMESPACES)])
def test_a_relay_that_waits_for_its_broker_ends_at_sigterm(
    tmp_path: Path, outbox: Path, silent: str, *, is_first: bool
) -> None:
    relay = "outbox", "relay", "--database", str(outbox), "--url"
    for url, text in (
        ("http://127.0.0.1:1", "retrying"),  # the admin of the broker
        ("phpmq://127.0.0.1:1", "retrying"),
        (f"http://{silent}", ""),
        (f"phpmq://{silent}", ""),
    ):
        with running(tmp_path, *relay, url, is_first=is_first) as process:
            if text:
                until(has_said(tmp_path, text))
            else:
                until(lambda: "ESTABLISHED" in established(silent))
            assert stop(process, is_first=is_first) == 0


def established(address: str) -> str:
    """Return ESTABLISHED if a client is connected to a port of this machine."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return "ESTABLISHED" * any(row[2].endswith(port) and row[3] == "01" for row in rows)


def test_a_relay_whose_broker_does_not_answer_ends_and_loses_nothing(
    tmp_path: Path, outbox: Path
) -> None:
    with broker_process(tmp_path / "data") as broker:
        os.kill(broker.pid, signal.SIGSTOP)
        relay = "outbox", "relay", "--database", str(outbox)
        url = f"phpmq://127.0.0.1:{broker.port}"
        with running(tmp_path, *relay, "--url", url) as process:
            until(lambda: "ESTABLISHED" in established(url))
            assert stop(process) == 0
        os.kill(broker.pid, signal.SIGCONT)
        subprocess.run(
            [sys.executable, "-m", "phpmq_lite", *relay, "--url", url, "--once"], check=True
        )
        with SocketClient(broker.port) as peer:
            peer.consume("orders", 5)
            assert peer.bodies(1) == [b"body"]
            peer.barrier()
            assert not peer.got


@pytest.mark.parametrize("number", ["1", "2"])
@pytest.mark.parametrize("is_first", [False, pytest.param(True, marks=NEEDS_NAMESPACES)])
def test_a_worker_that_waits_for_its_broker_ends_at_sigterm(
    tmp_path: Path, silent: str, number: str, *, is_first: bool
) -> None:
    (tmp_path / "app.py").write_text(
        "from babelqueue import BabelQueue\n"
        "app = BabelQueue('memory://', queue='orders', dead_letter=True)\n"
    )
    worker = "worker", "--app", "app:app", "--processes", number, "--url"
    for url in "http://127.0.0.1:1", "phpmq://127.0.0.1:1", f"phpmq://{silent}":
        with running(tmp_path, *worker, url, is_first=is_first) as process:
            if silent in url:
                until(lambda: "ESTABLISHED" in established(silent))
            else:
                until(lambda: (tmp_path / "err").read_text().count("refused") >= int(number))
            assert stop(process, is_first=is_first) == 0


@pytest.mark.parametrize("command", ["consume orders", "worker --app app:app"])
def test_a_client_of_a_broker_that_stands_still_ends_at_sigterm(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / "app.py").write_text(
        "from babelqueue import BabelQueue\n"
        "app = BabelQueue('memory://', queue='orders', dead_letter=True)\n"
    )
    with broker_process(tmp_path / "data", "--admin", "127.0.0.1:0") as broker:
        url = f"phpmq://127.0.0.1:{broker.port}"
        with running(tmp_path, *command.split(), "--url", url) as process:
            until(lambda: AdminApi(broker.admin[0]).queue("orders").get("consumers"))
            until(lambda: handles_sigterm(process.pid))
            os.kill(broker.pid, signal.SIGSTOP)
            assert stop(process) == 0
        os.kill(broker.pid, signal.SIGCONT)


@NEEDS_NAMESPACES
def test_process_1_reaps_the_orphans_of_each_command_and_sleeps(
    tmp_path: Path, broker: BrokerProcess, outbox: Path
) -> None:
    url = f"phpmq://127.0.0.1:{broker.port}"
    (tmp_path / "app.py").write_text(APP.format(url=url))
    (tmp_path / "program").write_text("#!/bin/sh\nsleep 0.1 &\n")
    (tmp_path / "program").chmod(0o755)
    with SocketClient(broker.port) as peer:
        peer.store("exec", b"body")
        peer.store("orders", b'{"job":"urn:test:v1","trace_id":"t","data":{},"meta":{}}')
    for arguments in (
        ("consume", "exec", "--exec", "./program", "--url", url),
        ("worker", "--app", "app:app"),
        ("worker", "--app", "app:app", "--processes", "2"),
        ("outbox", "relay", "--database", str(outbox), "--url", url),
        ("serve", "--data", "own", "--legacy-listen", "none", "--listen", "none", "--admin=none"),
    ):  # fmt: skip
        with running(tmp_path, *arguments, is_first=True) as process:
            first = until(partial(children, process.pid))[0]
            until(partial(has_one_child, first))
            # An orphan of another program in the namespace, which process 1 has not started.
            subprocess.run(
                ["nsenter", "--pid", "--target", str(first), "sh", "-c", "sleep 0.2 & exit"],
                check=True,
            )
            until(partial(has_one_child, first))
            [command] = children(first)
            until(partial(sleeps, command))
            state, ticks = state_of(first)
            assert state == "S"
            assert state_of(first)[1] == ticks
            until(partial(handles_sigterm, command))
            assert stop(process, is_first=True) == 0


def has_one_child(pid: int) -> bool:
    return len(children(pid)) == 1


def sleeps(pid: int) -> bool:
    return state_of(pid)[0] == "S"


def handles_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


@NEEDS_NAMESPACES
def test_process_1_has_the_exit_code_of_its_command(tmp_path: Path, broker: BrokerProcess) -> None:
    url = AdminApi(broker.admin[0]).url
    for arguments, code in (("queue", "show", "none", "--url", url), 3), (("publish",), 2):
        with running(tmp_path, *arguments, is_first=True) as process:
            assert process.wait(WAIT_S) == code
    with running(tmp_path, "queue", "top", "--url", "http://127.0.0.1:1", is_first=True) as process:
        process.wait(WAIT_S)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "0.0.0.0:0"])
def test_a_broker_says_repeatedly_that_it_does_not_reach_its_database(
    tmp_path: Path, silent: str, listen: str
) -> None:
    pytest.importorskip("psycopg")
    serve = (
        "serve", "--data", "data", "--admin", "none", "--legacy-listen", "none", "--listen", listen,
        "--set", "tcp.allow=127.0.0.0/8", "--store",
    )  # fmt: skip
    for address in silent, "127.0.0.1:1":
        with running(tmp_path, *serve, f"postgresql://{address}/phpmq") as process:
            until(lambda: (tmp_path / "err").read_text().count("database_not_reached") > 1)
            assert f'"database": "{address}/phpmq"' in (tmp_path / "err").read_text()
            assert stop(process) == 0


# -- the terminal of a broker in the foreground


@pytest.mark.parametrize("is_kept", [False, True], ids=["plain", "nohup"])
def test_broker_stops_when_its_terminal_is_closed(tmp_path: Path, *, is_kept: bool) -> None:
    """A hangup that was sent by hand reloads the settings, with and without a terminal."""
    terminal, inside = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(inside, termios.TIOCSCTTY, 0)
        # Nohup ignores it; the tests themselves may run under nohup.
        signal.signal(signal.SIGHUP, signal.SIG_IGN if is_kept else signal.SIG_DFL)

    command = [
        sys.executable, "-m", "phpmq_lite", "serve", "--data", str(tmp_path / "data"),
        "--listen", "127.0.0.1:0", "--admin", "none", "--set", "tcp.legacy_listen=none",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, preexec_fn=take_terminal
    )
    os.close(inside)
    seen = b""
    try:
        for sign, word in ((0, b"listening"), (signal.SIGHUP, b"reload")):
            os.kill(process.pid, sign)
            while word not in seen:
                seen += os.read(terminal, 65_536)
        os.close(terminal)
        if is_kept:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1.5)
            process.terminate()
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
