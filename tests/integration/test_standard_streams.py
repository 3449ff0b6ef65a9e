"""Standard streams that are closed, full, not read, or have lost their reader."""

import json
import os
import pty
import shlex
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.standard_streams import MAX_BYTES, GuardedOutput
from tests.support.socket_client import WAIT_S, AdminApi
from tests.support.waiting import until

pytestmark = pytest.mark.acceptance


@contextmanager
def serving(data: Path, redirection: str, *flags: str, **streams: Any) -> Iterator[Any]:
    """Run a broker with redirected standard streams; yield its process and its admin."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    command = [
        sys.executable, "-m", "phpmq_lite", "serve", "--data", str(data), "--listen",
        f"unix:{data.parent / 'phpmq.sock'}", "--legacy-listen", "none",
        "--admin", f"127.0.0.1:{port}", "--set", "storage.ballast_bytes=0", *flags,
    ]  # fmt: skip
    process = subprocess.Popen(["sh", "-c", f"exec {shlex.join(command)} {redirection}"], **streams)
    try:
        admin = AdminApi(f"http://127.0.0.1:{port}/")

        def is_ready() -> bool:
            assert process.poll() is None, f"the broker ended with {process.returncode}"
            with suppress(OSError), urllib.request.urlopen(f"{admin.url}/readyz") as answer:
                return bool(answer.status == 200)
            return False

        until(is_ready)
        yield process, admin
    finally:
        process.kill()
        process.wait()


def publish(admin: AdminApi, queue: str = "orders") -> Any:
    return admin.post(f"/api/v1/queues/{queue}/messages", {"content": "x"})


def descriptors(pid: int) -> list[str]:
    return [os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)]


@pytest.mark.parametrize(
    "redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full", ">/dev/full 2>/dev/full"]
)
def test_a_broker_serves_and_stops_whatever_its_streams_are(
    tmp_path: Path, redirection: str
) -> None:
    with serving(tmp_path / "data", redirection, "--set", "log.access=true") as (process, admin):
        assert not any("socket" in name or "data" in name for name in descriptors(process.pid))
        for _ in range(3):
            publish(admin)
        assert admin.queue("orders")["ready"] == 3
        process.terminate()
        assert process.wait(WAIT_S) == 0


def test_a_broker_answers_and_stops_publishing_when_the_reader_of_its_log_is_gone(
    tmp_path: Path,
) -> None:
    reader, writer = os.pipe()
    flags = "--set", "log.access=true", "--log-level", "debug"
    with serving(tmp_path / "data", "", *flags, stdout=writer, stderr=writer) as (process, admin):
        os.close(writer)
        os.close(reader)
        for _ in range(10):
            publish(admin)
        assert admin.queue("orders")["ready"] == 10
        assert admin.metrics()["phpmq_log_lines_dropped_total"] > 0
        process.terminate()
        assert process.wait(WAIT_S) == 0
    limit = "--set", "storage.free_bytes=1000TiB"
    reader, writer = os.pipe()
    with serving(tmp_path / "data", "", *limit, stderr=writer) as (process, admin):
        os.close(writer)
        os.close(reader)
        assert until(lambda: admin.get("/api/v1/stats")["publishing_stopped"])
        with pytest.raises(Exception, match="507"):
            publish(admin)
        process.terminate()
        assert process.wait(WAIT_S) == 0


def test_a_broker_counts_lines_that_nobody_reads_and_says_so_when_they_are_read(
    tmp_path: Path,
) -> None:
    reader, writer = os.pipe()
    flags = "--set", "log.access=true", "--log-format", "json"
    with serving(tmp_path / "data", "", *flags, stderr=writer) as (process, admin):
        os.close(writer)

        def is_dropping() -> bool:
            for _ in range(50):
                admin.queue("x" * 3_000)
            return bool(admin.metrics()["phpmq_log_lines_dropped_total"] > 0)

        until(is_dropping)
        with os.fdopen(reader, encoding="utf-8") as lines:
            events = (json.loads(line) for line in lines)
            line = next(one for one in events if one["event"] == "lines_not_written")
            assert line["count"] > 0
            process.terminate()
            assert next(one for one in events if one["event"] == "stopped")
        assert process.wait(WAIT_S) == 0


def test_every_command_opens_closed_streams_for_its_children(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys; from phpmq_lite import standard_streams as s; s.prepare();"
        "print('out'); print('err', file=sys.stderr); sys.stdin.read();"
        "subprocess.run([sys.executable, '-c', 'import os; [os.fstat(n) for n in range(3)]'],"
        " check=True)"
    )
    command = shlex.join([sys.executable, "-c", program])
    for closed in ("<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"):
        assert subprocess.run(["sh", "-c", f"exec {command} {closed}"], check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [("config show", 0), ("publish", 2), ("check ready --data nowhere", 2), ("queue list", 1)],
)
@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", "2>/dev/full"])
def test_a_command_keeps_its_exit_code_whatever_its_streams_are(
    tmp_path: Path, arguments: str, code: int, streams: str
) -> None:
    command = f"exec {sys.executable} -m phpmq_lite {arguments} {streams}"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == code


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("style", ["table", "csv"])
def test_a_command_escapes_what_the_terminal_cannot_show(
    tmp_path: Path, encoding: str, style: str
) -> None:
    environment = os.environ | {"PYTHONIOENCODING": encoding, "XDG_CONFIG_HOME": str(tmp_path)}

    def run(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
        command = [sys.executable, "-m", "phpmq_lite", "context", *arguments]
        return subprocess.run(command, env=environment, check=False, capture_output=True)

    done = run("create", "日本", "--url", "http://localhost:1")
    assert (done.returncode, "saved" in done.stderr.decode(encoding)) == (0, True)
    done = run("list", "-o", style)
    shown = "日本" if encoding == "utf-8" else r"\u65e5\u672c"
    assert (done.returncode, shown in done.stdout.decode(encoding)) == (0, True)
    done = run("use", "тест")
    assert (done.returncode, done.stderr.decode(encoding)[:7]) == (3, "Error: ")


def test_a_command_shows_its_silence_on_a_terminal_and_removes_it(tmp_path: Path) -> None:
    program = (
        "import time; from phpmq_lite import standard_streams as s; from phpmq_lite.cli import"
        " progress; s.prepare()\nwith progress.shown_silence(['backup', 'create', '--data']):"
        " input(); print('made', end='', flush=True); input(); print('.')"
    )
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    seen = b""
    assert process.stdin is not None
    while b"backup create: 1 s" not in seen or b"backup create: 2 s" not in seen:
        seen += os.read(main, 1_000)
    process.stdin.write(b"\n")
    process.stdin.flush()
    while b"made" not in seen:
        seen += os.read(main, 1_000)
    assert seen.endswith(b" s\r\x1b[Kmade")
    assert seen.count(b"\n") == 0
    process.communicate(b"\n")
    assert os.read(main, 1_000) == b".\r\n"
    os.close(main)
    assert process.returncode == 0


def test_an_output_keeps_the_order_and_bounds_what_waits() -> None:
    reader, writer = os.pipe()
    output = GuardedOutput(writer)
    resumed: list[int] = []  # usually one number, but the thread may write while lines are dropped
    output.on_resumed = resumed.append
    for number in range(MAX_BYTES // 1_000 * 3):
        output.write(b"%0999d\n" % number)
    output.flush()
    dropped = output.dropped
    assert dropped > 0
    with os.fdopen(reader, "rb") as lines:
        stored = [int(lines.readline()) for _ in range(MAX_BYTES // 1_000 * 3 - dropped)]
        until(lambda: sum(resumed) == dropped)
        output.write(b"last\n")
        assert lines.readline() == b"last\n"
    assert stored == sorted(stored)
    os.close(writer)


def test_an_output_adds_a_line_break_only_where_a_line_is_lost() -> None:
    reader, writer = os.pipe()
    output = GuardedOutput(writer)
    for piece in b"prompt: ", b"\rbar", b"", b"\rbar 2\n":
        output.write(piece)
        output.flush()
    assert os.read(reader, 100) == b"prompt: \rbar\rbar 2\n"
    output.write(b"torn")
    output.flush()
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), writer)
        output.write(b" line\n")
        output.flush()
    assert (os.read(reader, 100), output.dropped) == (b"torn", 1)
    os.close(reader)
    reader, other = os.pipe()
    os.dup2(other, writer)
    output.write(b"next\n")
    output.flush()
    assert os.read(reader, 100) == b"\nnext\n"


def test_an_output_of_a_forked_process_writes_its_own_lines_only() -> None:
    reader, writer = os.pipe()
    output = GuardedOutput(writer)
    output.write(b"parent\n")
    output.flush()
    child = os.fork()
    if child == 0:
        output.write(b"child\n")
        output.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    os.close(writer)
    with os.fdopen(reader, "rb") as lines:
        assert lines.read() == b"parent\nchild\n"
