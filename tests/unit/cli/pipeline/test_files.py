"""``pipeline files`` for tables without a ledger; ``tests/spark`` has the archive."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from phpmq_lite.cli.main import root_command
from phpmq_lite.spark.results_folder import LocalResultsFolder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    files = LocalResultsFolder(tmp_path)
    for day in (1, 2):
        files.write(f"metrics/minutes/date=2026-03-0{day}/part.parquet", "12345")
        files.write(f"metrics/minutes/date=2026-03-0{day}/.part.parquet.crc", "1")
    files.write("metrics/minutes/_SUCCESS", "")
    files.write("x.db", "")
    return tmp_path


def run(out: Path, *arguments: str) -> Result:
    common = ["pipeline", "files", "--path", str(out / "x.db"), "--out", str(out)]
    return CliRunner().invoke(root_command, [*common, *arguments])


def test_files_of_a_table_are_printed_one_a_line(out: Path) -> None:
    folder = out / "metrics/minutes"
    both = [f"{folder}/date=2026-03-0{day}/part.parquet" for day in (1, 2)]
    assert run(out, "metrics/minutes").stdout.splitlines() == both
    assert run(out, "metrics/minutes", "--date", "2026-03-02").stdout.splitlines() == both[1:]
    rows = json.loads(run(out, "metrics/minutes", "-o", "json").stdout)
    assert rows == [{"path": path, "bytes": 5} for path in both]


def test_missing_table_is_an_error(out: Path) -> None:
    result = run(out)
    assert result.exit_code == 3
    assert f"{out} has no files of archive" in result.stderr
