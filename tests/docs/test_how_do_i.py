"""The blocks of *How do I …* that need more than one broker: alerts, cron, systemd, ports."""

import json
import os
import re
import shutil
import socket
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

from phpmq_lite.settings import SETTINGS
from tests.docs.command_lines import assert_accepted
from tests.docs.pages import Block, blocks
from tests.support.cli_runner import invoke
from tests.support.programs import run_program

PAGE: Final = "docs/guides/how-do-i.md"
ALERT: Final = "phpmq_alert.py"
CHECKED: Final = """\
#!/bin/sh
cat "$(dirname "$0")/said"
exit $(cat "$(dirname "$0")/code")
"""


def block(part: str) -> Block:
    return next(each for each in blocks(PAGE) if part in each.text or part == each.file)


class Webhook(BaseHTTPRequestHandler):
    """Collects what is posted to it; answers 500 while ``is_broken``."""

    posted: list[dict[str, str]]
    is_broken = False

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.is_broken:
            self.posted.append(json.loads(content))
        self.send_response(500 if self.is_broken else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def webhook() -> Iterator[tuple[str, type[Webhook]]]:
    handler = type("Handler", (Webhook,), {"posted": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/T000/B000", handler
        server.shutdown()


@contextmanager
def mail_server() -> Iterator[tuple[str, list[str]]]:
    """Accept one mail by SMTP."""
    mails: list[str] = []

    def serve(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer, peer.makefile("rb") as sent:
            peer.sendall(b"220 test\r\n")
            while line := sent.readline().strip():
                replies = {b"DATA": b"354 go on", b"QUIT": b"221 bye"}
                peer.sendall(replies.get(line.upper(), b"250 ok") + b"\r\n")
                if line.upper() == b"DATA":
                    mails.append(b"".join(iter(sent.readline, b".\r\n")).decode())
                    peer.sendall(b"250 ok\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", mails
        thread.join(60)


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    """Return a folder with the program of the page, and a ``phpmq-lite`` that says what we want."""
    (tmp_path / ALERT).write_text(block(ALERT).text)
    (tmp_path / "phpmq-lite").write_text(CHECKED)
    (tmp_path / "phpmq-lite").chmod(0o755)
    return tmp_path


def alert(folder: Path, code: int, said: str, **environment: str) -> tuple[int, str]:
    (folder / "code").write_text(str(code))
    (folder / "said").write_text(f"{said}\n")
    done = run_program(
        [sys.executable, ALERT],
        cwd=folder,
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"} | environment,
    )
    return done.returncode, done.stdout


def test_alert_is_posted_once_for_each_change_and_again_after_a_failure(checked: Path) -> None:
    with webhook() as (url, handler):
        assert alert(checked, 0, "OK: fine", ALERT_WEBHOOK=url) == (0, "")
        handler.is_broken = True
        assert alert(checked, 2, 'CRITICAL: "a"', ALERT_WEBHOOK=url)[0] != 0
        handler.is_broken = False
        for _ in range(2):
            assert alert(checked, 2, 'CRITICAL: "a"', ALERT_WEBHOOK=url)[0] == 0
        assert alert(checked, 0, "OK: fine", ALERT_WEBHOOK=url)[0] == 0
    assert [list(text) for text in handler.posted] == [["text"], ["text"]]
    first, second = (str(each["text"]) for each in handler.posted)
    assert 'ready: CRITICAL: "a"\ndead-letters: CRITICAL: "a"\n' in first
    assert "age: OK: fine" in second


def test_alert_is_mailed(checked: Path) -> None:
    with mail_server() as (address, mails):
        mail = {"ALERT_MAIL": "ops@example.org", "ALERT_SMTP": address}
        assert alert(checked, 1, "WARNING: 7 dead letters", **mail)[0] == 0
    assert "To: ops@example.org\r\n" in mails[0]
    assert "dead-letters: WARNING: 7 dead letters\r\n" in mails[0]


def test_checks_of_the_alert_exist() -> None:
    (listed,) = re.findall(r"CHECKS = (\(.*\))", block(ALERT).text)
    for check in eval(listed):
        assert_accepted(["check", *check.split()])


def as_cron_runs_it(line: str) -> str:
    """Return the command of a line of a crontab; ``%`` is a line feed unless it is escaped."""
    fields = 1 if line.startswith("@") else 5
    command = line.split(maxsplit=fields)[fields]
    assert re.search(r"(?<!\\)%", command) is None
    return command.replace("\\%", "%")


def run(folder: Path, command: str, **environment: str) -> None:
    """Run a command as cron does, which mails what it prints."""
    done = run_program(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)} | environment,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_cron_runs_the_alert(checked: Path) -> None:
    (checked / "code").write_text("0")
    (checked / "said").write_text("OK\n")
    command = as_cron_runs_it(block("ALERT_MAIL=ops").text)
    assert "cd /var/lib/phpmq-alert " in command
    for theirs, ours in (
        ("/var/lib/phpmq-alert", str(checked)), ("/usr/local/lib", str(checked)),
        ("/usr/local/bin", f"{checked}:{Path(sys.executable).parent}"),
    ):  # fmt: skip
        command = command.replace(theirs, ours)
    run(checked, command)
    assert set(json.loads((checked / "phpmq_alert.json").read_text()).values()) == {0}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="missing: systemd-analyze")
def test_systemd_finds_nothing_wrong_in_the_timer(tmp_path: Path) -> None:
    for name in ("phpmq-alert.service", "phpmq-alert.timer"):
        text = re.sub(r"(?m)^(ExecStart)=.*", r"\1=/bin/true", block(name).text)
        (tmp_path / name).write_text(text)
        done = run_program(["systemd-analyze", "verify", str(tmp_path / name)])
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert f"ExecStart=/usr/bin/python3 /usr/local/lib/{ALERT}" in block("phpmq-alert.service").text


def flags(words: Sequence[str]) -> dict[str, str]:
    return dict(zip(words[::2], words[1::2], strict=True))


def test_flags_and_file_change_the_same_ports(tmp_path: Path) -> None:
    words = block("--listen 127").text.split()
    assert words[:2] == ["phpmq-lite", "serve"]
    assert_accepted(words[1:])
    path = tmp_path / "config.toml"
    path.write_text(block("legacy_listen = ").text)
    written = tomllib.loads(path.read_text())
    assert flags(words[2:]) == {
        "--listen": written["tcp"]["listen"][0],
        "--admin": written["admin"]["listen"][0],
        "--legacy-listen": written["tcp"]["legacy_listen"][0],
    }
    shown = invoke("config", "show", "--config", path, "-o", "json").stdout
    used = {row["setting"]: row["value"] for row in json.loads(shown)}
    for section, values in written.items():
        for name, value in values.items():
            assert f"{section}.{name}" in SETTINGS
            assert used[f"{section}.{name}"] in (value, [])  # none: no listener


@pytest.mark.acceptance
def test_broker_runs_in_the_background_until_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "phpmq-lite").write_text(f'#!/bin/sh\nexec {sys.executable} -m phpmq_lite "$@"\n')
    (tmp_path / "phpmq-lite").chmod(0o755)
    listen = {"PHPMQ_TCP__LISTEN": "127.0.0.1:0", "PHPMQ_ADMIN__LISTEN": "127.0.0.1:0"}
    wait = "while kill -0 $(cat phpmq-lite.pid) 2>/dev/null; do sleep .1; done"
    script = f"{block('nohup').text}\n{block('kill $(cat').text}\n{wait}"
    done = run_program(
        ["bash", "-euc", script],
        cwd=tmp_path,
        env=os.environ
        | listen
        | {
            "PHPMQ_TCP__LEGACY_LISTEN": "none",
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
        },
    )
    assert done.returncode == 0, done.stderr
    assert "OK: the broker accepts messages" in done.stdout
    log = (tmp_path / "phpmq-lite.log").read_text()
    assert "listening phpmq 127.0.0.1:" in log
    assert "stopped" in log


@pytest.mark.acceptance
def test_broker_starts_with_the_machine(tmp_path: Path) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    program = tmp_path / ".venv" / "bin" / "phpmq-lite"
    program.write_text('#!/bin/sh\necho "$@" "in $PWD"\n')
    program.chmod(0o755)
    command = as_cron_runs_it(block("@reboot").text).replace("/srv/mq", str(tmp_path))
    run(tmp_path.parent, command)
    assert (tmp_path / "phpmq-lite.log").read_text() == f"serve in {tmp_path}\n"
