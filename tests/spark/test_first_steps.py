"""The first steps of somebody who has only the README, one after another; and their transcript.

PHP sends, Python reads, the browser shows it, a search finds it in the history, Spark charts it.
What is run is taken from the README as it stands there.  ``docs/start/first-steps.md`` is
what this test wrote last; where it says something else now, the test leaves the new one beside
its other files and names it.
"""

import asyncio
import re
import runpy
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from phpmq_lite.cli.main import root_command
from tests.browser.tabs import CHROMIUM, launched, open_tab
from tests.docs.pages import COMMANDS, Block, blocks, text_of
from tests.docs.snippets import Walk, skip_where_lacking, walk

PAGE: Final = "docs/start/first-steps.md"
HEAD: Final = """# First steps, as a test took them

This page shows the commands of the `README.md` in order, with their output. It is written by
`tests/spark/test_first_steps.py`, which runs the commands and compares their output with this page;
`…` stands for text that differs each time.
"""
VARIES: Final = re.compile(
    r"\b0000[0-9a-f]{4,28}…?"  # ids, cut short where a table has no room for them
    r"|\b\d\d:\d\d\b"  # times
    r"|\b\d{4}-\d\d-\d\d\b|\b[A-Z][a-z]{2} \d{1,2}, (?=\d\d:|…)"  # dates
    r"| +\d+\.\d(?=  |$)",  # seconds, at the right of their column
    re.MULTILINE,
)
COLUMNS: Final = {
    "/queues": ("Queue", "Ready", "Dispatched", "Dead"),
    "/history": ("Message", "Outcome", "Queue", "URN or body", "Size", "Deliveries"),
}
READ_TABLE: Final = """(table, names) => {
  const heads = [...table.tHead.rows[0].cells].map(cell => cell.innerText);
  const places = names.map(name => heads.findIndex(head => head.startsWith(name)));
  return [...table.tBodies[0].rows].map(row => places.map(at => row.cells[at].innerText.trim()));
}"""


def masked(text: str) -> str:
    """Replace text that differs in each run with ``…``, and strip spaces at line ends."""

    def mask(found: re.Match[str]) -> str:
        width = len(found[0])
        if found[0][0].isalpha():
            return "… "  # a day has one digit or two
        return "…".rjust(width) if found[0].startswith(" ") else "…".ljust(width)

    same = VARIES.sub(mask, text)
    return "\n".join(line.rstrip() for line in same.strip().splitlines())


class Transcript:
    """What was done and what was seen, as a page."""

    def __init__(self) -> None:
        self._pieces = [HEAD]

    def step(self, title: str) -> None:
        """Begin the next step."""
        self._pieces.append(f"## {title}\n")

    def ran(self, command: str, said: str) -> None:
        """Note a command and what it wrote."""
        self._pieces.append(f"```text\n$ {command.strip()}\n{masked(said)}".rstrip() + "\n```\n")

    def saw(self, path: str, lines: Iterable[str]) -> None:
        """Record a page of the browser and its text."""
        seen = masked("\n".join(lines))
        self._pieces.append(f"```text\nhttp://127.0.0.1:9101{path}\n\n{seen}\n```\n")

    @property
    def text(self) -> str:
        """The whole page."""
        return "\n".join(self._pieces)


def section(title: str) -> list[Block]:
    """Return the blocks of a section of the README."""
    return [block for block in blocks("README.md") if block.section == title]


def take(walk: Walk, title: str, transcript: Transcript) -> None:
    """Do what a section of the README says, in a terminal."""
    for block in section(title):
        said = walk.step(block)
        if block.language == COMMANDS:
            transcript.ran(block.text, said)


def take_with_spark(walk: Walk, transcript: Transcript, capsys: pytest.CaptureFixture[str]) -> None:
    """Do the same here, where a session of Spark is; it was installed before."""
    for block in section("With Spark"):
        walk.step(block)  # writes the program
        lines = block.text.splitlines() if block.language == COMMANDS else ()
        for line in lines:
            if line.startswith("python "):
                runpy.run_path(str(walk.folder / line.split()[1]))
                transcript.ran(line, capsys.readouterr().out)
            elif line.startswith("phpmq-lite "):
                as_in_a_terminal = [*shlex.split(line)[1:], "-o", "table"]
                done = CliRunner().invoke(root_command, as_in_a_terminal)
                assert done.exit_code == 0, done.stderr
                transcript.ran(line, done.stdout)


async def look(url: str, transcript: Transcript, *paths: str) -> None:
    """Open pages in a browser; note what their table shows, or the words of their first chart."""
    async with launched() as chromium:
        page, troubles = await open_tab(chromium)
        for path in paths:
            await page.goto(url + path)
            if path in COLUMNS:
                rows = await page.locator("main table.cards").evaluate(READ_TABLE, COLUMNS[path])
                seen = [" | ".join(row) for row in [COLUMNS[path], *rows]]
            else:
                words = await page.locator("main figure figcaption").first.inner_text()
                seen = [" ".join(words.split())]
            transcript.saw(path, seen)
        assert troubles == []


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_first_steps_of_the_readme_are_those_of_the_transcript(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    skip_where_lacking("README.md")
    transcript = Transcript()
    monkeypatch.setattr(spark, "stop", lambda: None)  # it is that of all tests
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    with walk(tmp_path) as it:
        url = it.broker.admin[0].rstrip("/")
        transcript.step("PHP sends a message")
        take(it, "From PHP", transcript)
        transcript.step("Python reads it")
        take(it, "From Python", transcript)
        transcript.step("The browser shows it, the search finds it in the history")
        asyncio.run(look(url, transcript, *COLUMNS))
        take(it, "In the browser", transcript)
        transcript.step("Spark charts it")
        monkeypatch.setenv("PHPMQ_DATA", str(it.broker.data))
        monkeypatch.setenv("PHPMQ_ADMIN__LISTEN", url.removeprefix("http://"))
        take_with_spark(it, transcript, capsys)
        asyncio.run(look(url, transcript, "/insights?span=30d"))
    made = tmp_path / Path(PAGE).name
    made.write_text(transcript.text, encoding="utf-8")
    assert transcript.text == text_of(PAGE), f"look at it, then cp {made} {PAGE}"
