"""The dbt project of examples/ builds on an archive, and its tables are those of plain Python."""

import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest

from tests.docs.pages import ROOT
from tests.spark.history_rows import Row, history_row, history_rows, to_parquet
from tests.support.programs import run_program

# dbt needs an older `pathspec` than mypy, so it has an environment of its own.
PACKAGES: Final = ("dbt-core>=1.10,<1.12", "dbt-duckdb>=1.9,<2")
OFFLINE: Final = {"DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def dbt(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the program; it is installed unless it is on the path."""
    if program := shutil.which("dbt"):
        return program
    folder = tmp_path_factory.mktemp("dbt") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *PACKAGES], check=True)
    return str(folder / "bin" / "dbt")


def build(dbt: str, project: Path, *arguments: str) -> tuple[int, str]:
    done = run_program([dbt, "build", *arguments], cwd=project, env=os.environ | OFFLINE)
    return done.returncode, done.stdout + done.stderr


def day_of(row: Row) -> date:
    return datetime.fromtimestamp(row["settled_at"] / 1000, UTC).date()


def archive(rows: list[Row], folder: Path) -> None:
    by_day: dict[date, list[Row]] = defaultdict(list)
    for row in rows:
        by_day[day_of(row)].append(row)
    for day, some in by_day.items():
        to_parquet(some, folder / f"date={day}" / "batch=x-00000000" / "part.parquet")


def table(project: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(project / "phpmq.duckdb"), read_only=True) as database:
        return database.execute(query).fetchall()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_project_builds_and_its_tables_equal_a_plain_count(dbt: str, tmp_path: Path) -> None:
    project = tmp_path / "dbt"
    shutil.copytree(ROOT / "examples" / "dbt", project)
    rows = history_rows(500)
    folder = project / "phpmq-data" / "pipeline" / "archive"
    archive(rows, folder)
    code, said = build(dbt, project)
    assert code == 0, said
    assert "PASS=12 WARN=0 ERROR=0 SKIP=0" in said
    hours = Counter((row["queue"], row["settled_at"] // 3_600_000) for row in rows)
    found = table(project, "SELECT queue, epoch(hour)::BIGINT // 3600, messages FROM queue_hours")
    assert {(queue, hour): count for queue, hour, count in found} == hours
    failures = Counter(
        (day_of(row), row["queue"], row["urn"], row["reason"] or row["outcome"])
        for row in rows
        if row["outcome"] in ("dead", "expired")
    )
    found = table(project, "SELECT day, queue, urn, reason, messages FROM failures")
    assert {tuple(row[:4]): row[4] for row in found} == failures

    # A list without one of the files, and a list with a row twice.
    files = sorted(str(path) for path in folder.rglob("*.parquet"))
    to_parquet([history_row(len(rows))], project / "double.parquet")
    for chosen in ([files[0], *files[2:]], [*files, str(project / "double.parquet")]):
        code, said = build(dbt, project, "--vars", f"archive: {chosen}")
        assert code == 1
        assert "ERROR=1 SKIP" in said or "unique_phpmq_history" in said, said
