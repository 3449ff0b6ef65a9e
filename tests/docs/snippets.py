"""Run the blocks of a page in order, in one folder, with one broker.

Commands have a terminal of 80 columns, but no input.  The ports of the pages are replaced by those
of the broker, in blocks and in outputs.
"""

import configparser
import json
import os
import pty
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
import yaml  # type: ignore[import-untyped]

from tests.docs.deviations import INSTEAD, NOT_RUN
from tests.docs.pages import COMMANDS, ROOT, Block, blocks
from tests.docs.quick_command import quick_command
from tests.support.fork_server import BrokerProcess, broker_with_all_listeners

TIMEOUT_S: Final = 90.0
BIN: Final = ".bin"
# Programs that a machine may lack.
PROGRAMS: Final = ("composer", "curl", "go", "jq", "nc", "node", "php", "phpunit")
STRICT: Final = {
    "php": ("php", "-d", "error_reporting=-1", "-d", "display_errors=stderr"),
    "python": (sys.executable, "-W", "error"),
}
_CODES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r")
_ERASED: Final = re.compile(r"[^\r\n]*\r\x1b\[K")  # a line that shows how long a command is silent
_DATA: Final[dict[str, Callable[[str], object]]] = {  # data must parse
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
    "ini": lambda text: configparser.RawConfigParser(strict=False).read_string(text),
}


Before = Mapping[str, Callable[["Walk"], object]]


class Said(dict[Block, str]):
    def of(self, part: str) -> str:
        """Return the output of the first block with this part."""
        return next(said for block, said in self.items() if part in block.text)


def commands_of(block: Block, reason: str | None = None) -> list[str]:
    """Return the lines of a block of commands, or else the whole text, that are run.

    With a ``reason``, return those that are skipped for it.
    """
    text = block.text
    if block.language in _DATA:
        return [text] if reason is None else []
    lines = re.findall(r"(?:.*\\\n)*.*\n?", text) if block.language == COMMANDS else [text]
    return [line for line in lines if line and _reason(block.page, line) == reason]


def _reason(page: str, line: str) -> str | None:
    reasons = NOT_RUN.get(page, {})
    return next((reason for part, reason in reasons.items() if part in line), None)


def needed(page: str) -> set[str]:
    """Return the programs that the page needs and this machine lacks."""
    found = {block.language for block in blocks(page) if commands_of(block)}
    for block in blocks(page):
        if block.language == COMMANDS:
            found |= set(re.findall(r"[\w-]+", "".join(commands_of(block))))
    return {name for name in PROGRAMS if name in found and shutil.which(name) is None}


class Walk:
    """Runs the blocks of a page in a folder, one after another."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.helpers = ExitStack()  # closed after the last block

    def run(self, page: str, before: Before | None = None) -> Said:
        """Run all blocks; return their outputs.

        ``before``: part of a block -> its setup.
        """
        return Said((block, self.step(block, before)) for block in blocks(page))

    def step(self, block: Block, before: Before | None = None) -> str:
        for part, prepare in (before or {}).items():
            if part in block.text:
                prepare(self)
        here = self.folder / Path(block.page).parent
        folder = here if block.page.startswith("examples/") else self.folder
        text = self.ours(block.page, "".join(commands_of(block)))
        if not text:
            return ""
        if block.file is not None:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return ""
        if block.language in _DATA:
            _DATA[block.language](text)
            return ""
        said = self._run(block, text, folder)
        if block.output is not None:
            assert is_like(said, self._moved(block.output)), f"{block} shows other words:\n{said}"
        return said

    def _run(self, block: Block, text: str, folder: Path) -> str:
        if block.language == "sql":
            return query_database(text, self.broker.data / "phpmq.db")
        if block.language == COMMANDS:
            code, said = in_terminal(
                ["bash", "-euo", "pipefail", "-c", text], folder, os.environ | self.environment
            )
        else:
            program = STRICT.get(block.language)
            assert program is not None, f"{block}: nobody knows how to run {block.language!r}"
            with tempfile.NamedTemporaryFile("w", dir=folder, suffix=f".{block.language}") as file:
                file.write(text)
                file.flush()
                code, said = in_terminal(
                    [*program, file.name], folder, os.environ | self.environment
                )
        assert code == 0, f"{block} ended with {code}:\n{text}\n{said}"
        return said

    def ours(self, page: str, text: str) -> str:
        for written, ours in INSTEAD.get(page, {}).items():
            text = text.replace(written, ours)
        return self._moved(text)

    def _moved(self, text: str) -> str:
        """Replace the ports of the pages by those of the broker."""
        admin = self.broker.admin[0].rstrip("/")
        ours = dict(zip(("9100", "9102", "9101"), (*self.broker.phpmq, admin), strict=True))
        return re.sub(r"\b910[012]\b", lambda found: ours[found[0]].rpartition(":")[2], text)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a reader with the command on the path."""
        return {
            "PATH": f"{self.folder / BIN}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "CURL_HOME": str(self.folder / BIN),
            "XDG_CONFIG_HOME": str(self.folder / ".config"),  # of the contexts
            "PHPMQ_DATA": str(self.broker.data),
            "PHPMQ_TCP__LISTEN": self.broker.phpmq[0],
            "PHPMQ_TCP__LEGACY_LISTEN": self.broker.phpmq[1],
            "PHPMQ_ADMIN__LISTEN": self.broker.admin[0].removeprefix("http://").rstrip("/"),
            "TERM": "xterm",
            "COLUMNS": "80",
            "NO_COLOR": "1",
        }


@contextmanager
def walk(tmp_path: Path) -> Iterator[Walk]:
    """Return a new folder with the examples, and a broker with its data there."""
    for folder in ("clients", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    with (
        quick_command(tmp_path / BIN),
        broker_with_all_listeners(tmp_path / "phpmq-data") as broker,
    ):
        (tmp_path / BIN / ".curlrc").write_text("fail-with-body\n")  # a 404 is a failure
        it = Walk(broker, tmp_path)
        with it.helpers:
            yield it


def skip_where_lacking(page: str) -> None:
    if lacking := needed(page):
        pytest.skip(f"missing: {', '.join(sorted(lacking))}")


def is_like(said: str, shown: str) -> bool:
    """Return whether an output matches the page: ``…`` is anything, spaces any spaces."""
    words = [re.escape(word) for word in " ".join(shown.split()).split("…")]
    pattern = ".*?".join(words).replace(r"\ ", r"\s+")
    return re.fullmatch(rf"\s*{pattern}\s*", said, re.DOTALL) is not None


def query_database(statement: str, database: Path) -> str:
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        rows = connection.execute(statement).fetchall()
    finally:
        connection.close()
    return "".join("|".join(map(str, row)) + "\n" for row in rows)


def in_terminal(
    command: list[str], folder: Path, environment: Mapping[str, str]
) -> tuple[int, str]:
    """Run a command in a terminal; return exit code and output without colours."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=theirs,
        stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    deadline = time.monotonic() + TIMEOUT_S
    pieces = []
    try:
        while (piece := _piece(ours, process)) is not None:
            pieces.append(piece)
            if time.monotonic() > deadline:
                pieces.append(b"\n(still running; killed by the test)\n")
                break
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        os.close(ours)
    text = _ERASED.sub("", b"".join(pieces).decode(errors="replace"))
    return code, _CODES.sub("", text)


def _piece(terminal: int, process: "subprocess.Popen[bytes]") -> bytes | None:
    """Return new output, possibly empty, or None at the end."""
    is_over = process.poll() is not None  # before the read, so that its last output is not lost
    if select.select([terminal], [], [], 0 if is_over else 0.05)[0]:
        with suppress(OSError):  # the other end is closed
            return os.read(terminal, 65_536)
        process.wait(TIMEOUT_S)
        return None
    return None if is_over else b""
