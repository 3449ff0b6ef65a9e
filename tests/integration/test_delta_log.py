"""Delta log of the archive, read back by the package, by Polars and by DuckDB."""

from datetime import date
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow.dataset import field

from phpmq_lite.errors import PipelineError
from phpmq_lite.spark import delta_log, ledger
from phpmq_lite.spark.delta_log import check_delta, update_delta_log
from phpmq_lite.spark.ledger import ArchiveFile, ArchiveLedger, DateManifest, ReplacedFile
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.storage.arrow import READER_COLUMNS
from tests.spark.history_rows import history_row, to_arrow

DAY = 20_513  # 2026-03-01


@pytest.fixture
def files(tmp_path: Path) -> LocalResultsFolder:
    return LocalResultsFolder(tmp_path)


def write_file(root: Path, path: str, lo: int, hi: int) -> ArchiveFile:
    """Write the rows of offsets ``lo`` to ``hi``; Spark stores times in microseconds, too."""
    table = to_arrow([history_row(offset) for offset in range(lo, hi + 1)])
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, root / path, coerce_timestamps="us")
    return ArchiveFile(
        path=path,
        rows=hi - lo + 1,
        size_bytes=(root / path).stat().st_size,
        lo=lo,
        hi=hi,
        first_day=DAY,
        last_day=DAY,
        batch=path.split("batch=")[1].split("/")[0],
        has_bodies=True,
    )


def offsets(root: Path) -> list[int]:
    """Return the offsets in the table, which all readers must agree on."""
    table = DeltaTable(root)
    found = sorted(table.to_pyarrow_table(columns=["offset"])["offset"].to_pylist())
    assert sorted(pl.read_delta(str(root))["offset"].to_list()) == found
    dataset = table.to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by name
    rows = duckdb.execute('SELECT "offset" FROM dataset ORDER BY 1').fetchall()
    assert [offset for (offset,) in rows] == found
    return found


def commit(
    files: LocalResultsFolder,
    current: ArchiveLedger,
    dates: dict[str, list[ArchiveFile]],
    replaced: list[ArchiveFile] | None = None,
) -> ArchiveLedger:
    return ledger.commit(
        files,
        current,
        now_ms=1_000,
        manifests=[DateManifest(date=date, files=tuple(parts)) for date, parts in dates.items()],
        replaced=[
            ReplacedFile(path=file.path, at_ms=1_000, reason="compact") for file in replaced or ()
        ],
    )


def test_log_lists_what_the_ledger_lists(files: LocalResultsFolder, tmp_path: Path) -> None:
    first = write_file(tmp_path, "archive/date=2026-03-01/batch=a-1/p.parquet", 1, 10)
    later = write_file(tmp_path, "archive/date=2026-03-02/batch=a-1/p.parquet", 11, 15)
    current = commit(files, ledger.create_ledger(), {"2026-03-01": [first], "2026-03-02": [later]})
    update_delta_log(files, current)
    assert offsets(tmp_path) == [*range(1, 16)]

    second = write_file(tmp_path, "archive/date=2026-03-01/batch=a-2/p.parquet", 16, 20)
    current = commit(files, current, {"2026-03-01": [first, second]})
    merged = write_file(tmp_path, "generations/3/archive/date=2026-03-01/batch=m/p.parquet", 1, 10)
    rest = write_file(tmp_path, "generations/3/archive/date=2026-03-01/batch=m/q.parquet", 16, 20)
    # The job that committed the second batch was killed before it updated the log.
    current = commit(files, current, {"2026-03-01": [merged, rest]}, [first, second])
    update_delta_log(files, current)
    assert offsets(tmp_path) == [*range(1, 21)]
    version = DeltaTable(tmp_path).version()
    update_delta_log(files, current)
    assert DeltaTable(tmp_path).version() == version  # nothing to commit

    tidied = ledger.tidy(files, current, now_ms=5_000, keep_ms=1_000)
    assert offsets(tmp_path) == [*range(1, 21)]  # the former list stays readable
    update_delta_log(files, tidied)
    assert offsets(tmp_path) == [*range(1, 21)]
    assert all("/archive/" in uri for uri in DeltaTable(tmp_path).file_uris())

    pruned = commit(files, tidied, {"2026-03-01": []})
    update_delta_log(files, pruned)
    assert offsets(tmp_path) == [*range(11, 16)]


def test_log_skips_files_by_date_and_offset(files: LocalResultsFolder, tmp_path: Path) -> None:
    dates = {
        f"2026-03-{day:02}": [
            write_file(tmp_path, f"archive/date=2026-03-{day:02}/batch=a/p.parquet", day, day)
        ]
        for day in range(1, 11)
    }
    update_delta_log(files, commit(files, ledger.create_ledger(), dates))
    table = DeltaTable(tmp_path)
    dataset = table.to_pyarrow_dataset()
    for condition in (field("date") == date(2026, 3, 7), field("offset") == 7):
        assert [fragment.path for fragment in dataset.get_fragments(condition)] == [
            "archive/date=2026-03-07/batch=a/p.parquet"
        ]


def test_table_of_fewer_columns_gets_the_others(
    files: LocalResultsFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_file(tmp_path, "archive/date=2026-03-01/batch=a/p.parquet", 1, 3)
    current = commit(files, ledger.create_ledger(), {"2026-03-01": [file]})
    with monkeypatch.context() as earlier:
        earlier.setattr(delta_log, "READER_COLUMNS", READER_COLUMNS[:5])
        update_delta_log(files, current)
    assert "unique_key" not in DeltaTable(tmp_path).schema().to_arrow().names
    update_delta_log(files, current)
    assert "unique_key" in DeltaTable(tmp_path).schema().to_arrow().names
    assert offsets(tmp_path) == [1, 2, 3]


def test_missing_package_is_named(
    files: LocalResultsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "find_spec", lambda name: None)
    with pytest.raises(PipelineError, match=r"requires the package deltalake: .*pip install"):
        check_delta(files)
