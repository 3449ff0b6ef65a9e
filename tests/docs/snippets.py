"""Runs what a page tells to paste: in its order, in one folder, against one broker.

What runs sees a terminal of 80 columns, as a reader does, but nobody types an answer.  The ports of
the pages are replaced by those of the broker, there and in what the page shows as output.
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
PROGRAMS: Final = (
    "composer",
    "curl",
    "go",
    "jq",
    "nc",
    "node",
    "php",
    "phpunit",
)  # that a machine may not have
STRICT: Final = {
    "php": ("php", "-d", "error_reporting=-1", "-d", "display_errors=stderr"),
    "python": (sys.executable, "-W", "error"),
}
_CODES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r")
_DATA: Final[dict[str, Callable[[str], object]]] = {  # what is there to be looked at has to parse
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
    "ini": lambda text: configparser.RawConfigParser(strict=False).read_string(text),
}


Before = Mapping[str, Callable[["Walk"], object]]


class Said(dict[Block, str]):
    """What each block of a page wrote."""

    def of(self, part: str) -> str:
        """Give what the first block with this part wrote."""
        return next(said for block, said in self.items() if part in block.text)


def commands_of(block: Block, reason: str | None = None) -> list[str]:
    """Give what is to run of a block: its lines where it has commands, else the whole.

    With a ``reason`` it is what is left out for it.
    """
    text = block.text
    if block.language in _DATA:
        return [text] if reason is None else []
    lines = re.findall(r"(?:.*\\\n)*.*\n?", text) if block.language == COMMANDS else [text]
    return [line for line in lines if line and _reason(block.page, line) == reason]


def _reason(page: str, line: str) -> str | None:
    """Give why a line is left out; None where it is run."""
    reasons = NOT_RUN.get(page, {})
    return next((reason for part, reason in reasons.items() if part in line), None)


def needed(page: str) -> set[str]:
    """Give the programs that the page needs and this machine lacks."""
    found = {block.language for block in blocks(page) if commands_of(block)}
    for block in blocks(page):
        if block.language == COMMANDS:
            found |= set(re.findall(r"[\w-]+", "".join(commands_of(block))))
    return {name for name in PROGRAMS if name in found and shutil.which(name) is None}


class Walk:
    """A walk through a page in a folder of its own: its blocks, one after another."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.helpers = ExitStack()  # what else runs, until the walk is over

    def run(self, page: str, before: Before | None = None) -> Said:
        """Run all blocks; give what each wrote.

        ``before`` prepares for blocks: a part of the text -> what is called first.

        Raises:
            AssertionError: one failed, or wrote something else than the page shows.
        """
        return Said((block, self.step(block, before)) for block in blocks(page))

    def step(self, block: Block, before: Before | None = None) -> str:
        """Run one block; give what it wrote.

        Raises:
            AssertionError: as ``run``.
        """
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
            return asked(text, self.broker.data / "phpmq.db")
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
        """Put what is run here for what the page has written."""
        for written, ours in INSTEAD.get(page, {}).items():
            text = text.replace(written, ours)
        return self._moved(text)

    def _moved(self, text: str) -> str:
        """Put the ports of this broker for those of the pages."""
        admin = self.broker.admin[0].rstrip("/")
        ours = dict(zip(("9100", "9102", "9101"), (*self.broker.phpmq, admin), strict=True))
        return re.sub(r"\b910[012]\b", lambda found: ours[found[0]].rpartition(":")[2], text)

    @property
    def environment(self) -> dict[str, str]:
        """What is in the environment of somebody who has the command on the path."""
        return {
            "PATH": f"{self.folder / BIN}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "CURL_HOME": str(self.folder / BIN),
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
    """Give a fresh folder with the examples in it, and a broker with its data there."""
    for folder in ("clients", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    with (
        quick_command(tmp_path / BIN),
        broker_with_all_listeners(tmp_path / "phpmq-data") as broker,
    ):
        (tmp_path / BIN / ".curlrc").write_text("fail-with-body\n")  # a 404 is no success
        it = Walk(broker, tmp_path)
        with it.helpers:
            yield it


def skip_where_lacking(page: str) -> None:
    """Skip the test where a program is missing."""
    if lacking := needed(page):
        pytest.skip(f"missing: {', '.join(sorted(lacking))}")


def is_like(said: str, shown: str) -> bool:
    """Compare an output with what the page shows: ``…`` is anything, spaces are any spaces."""
    words = [re.escape(word) for word in " ".join(shown.split()).split("…")]
    pattern = ".*?".join(words).replace(r"\ ", r"\s+")
    return re.fullmatch(rf"\s*{pattern}\s*", said, re.DOTALL) is not None


def asked(statement: str, database: Path) -> str:
    """Give the rows that an SQL statement finds, a line each."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        rows = connection.execute(statement).fetchall()
    finally:
        connection.close()
    return "".join("|".join(map(str, row)) + "\n" for row in rows)


def in_terminal(
    command: list[str], folder: Path, environment: Mapping[str, str]
) -> tuple[int, str]:
    """Run a command in a terminal; give its exit code, and what it wrote without colours."""
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
                pieces.append(b"\n(it goes on; ended by the test)\n")
                break
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        os.close(ours)
    return code, _CODES.sub("", b"".join(pieces).decode(errors="replace"))


def _piece(terminal: int, process: "subprocess.Popen[bytes]") -> bytes | None:
    """Give what was written, perhaps nothing yet; None behind the end."""
    is_over = process.poll() is not None  # looked at first: what it wrote is there then
    if select.select([terminal], [], [], 0 if is_over else 0.05)[0]:
        with suppress(OSError):  # nobody has the other end any more
            return os.read(terminal, 65_536)
        process.wait(TIMEOUT_S)
        return None
    return None if is_over else b""
