"""Commands and code of the pages that need Spark, in the session of all tests."""

import runpy
import subprocess
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from phpmq_lite.cli.main import root_command
from phpmq_lite.spark import insights_summary
from tests.docs.deviations import SPARK
from tests.docs.extras import EXTRAS
from tests.docs.pages import COMMANDS, PAGES, blocks
from tests.docs.snippets import Walk, commands_of, skip_where_lacking, walk

PAGES_OF_SPARK = [page for page in PAGES if any(commands_of(b, SPARK) for b in blocks(page))]


def words(line: str, folder: Path) -> list[str]:
    """Return the words of a command, split by the shell."""
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], cwd=folder, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.split("\0")[:-1]


def run_here(line: str, walk: Walk) -> None:
    """Run a command in this process, or a program of Python."""
    program, *arguments = words(line, walk.folder)
    if program == "python" and arguments[0] == "-c":
        exec(arguments[1], {})
        return
    if program == "python":
        runpy.run_path(str(walk.folder / arguments[0]))
        return
    assert program == "phpmq-lite"
    done = CliRunner().invoke(root_command, arguments)
    assert done.exit_code == 0, f"{line}\n{done.output}"


@pytest.mark.sample("docs/start/tutorial.md")
@pytest.mark.parametrize("page", PAGES_OF_SPARK)
def test_page_works_with_spark(
    page: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary takes seconds, and other tests cover it."""
    skip_where_lacking(page)
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr(insights_summary, "write_summary", lambda *given, **options: ())
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    extra = EXTRAS.get(page)
    with walk(tmp_path) as it:
        monkeypatch.chdir(tmp_path)
        for name, value in it.environment.items():
            monkeypatch.setenv(name, value)
        for block in blocks(page):
            it.step(block, extra.before if extra else {})
            for part in commands_of(block, SPARK):
                ours = it.ours(page, part)
                if block.language == COMMANDS:
                    run_here(ours, it)
                elif block.language == "sql":
                    assert duckdb.execute(ours).fetchall()
                elif block.file is None:
                    exec(ours, {})
