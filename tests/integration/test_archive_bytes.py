"""How much of an archive is read for one day of sixty: the bytes that the kernel returned."""

import os
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from phpmq_lite.spark.ledger import (
    ArchiveFile,
    ArchiveLedger,
    DateManifest,
    archive_files,
    commit,
    create_ledger,
)
from phpmq_lite.spark.results_folder import LocalResultsFolder
from tests.spark.history_rows import DAY_MS, START_MS, history_row, to_arrow

DAYS = 60
ROWS = 200
FIRST = date(2026, 3, 1)
DAY = FIRST + timedelta(days=41)
SUMS = "SELECT count(*), sum(size), sum(octet_length(body)) FROM"


def bytes_read() -> int:
    """Return how many bytes this process has read from files so far."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def count_bytes(query: str) -> tuple[int, int]:
    """Run a query, and return its number of rows and the bytes that it read."""
    with duckdb.connect() as database:  # which has cached nothing
        before = bytes_read()
        [row] = database.execute(query).fetchall()
        read = bytes_read() - before
    return row[0], read


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalResultsFolder, ArchiveLedger]:
    """Return an archive of 60 days, with 200 messages of 1,000 random bytes on each."""
    root = tmp_path_factory.mktemp("archive")
    files = LocalResultsFolder(root)
    manifests = []
    for number in range(DAYS):
        day = FIRST + timedelta(days=number)
        path = f"archive/date={day}/batch=a/p.parquet"
        first = number * ROWS + 1
        rows = [
            history_row(
                offset,
                published_at=START_MS + number * DAY_MS + offset,
                body=os.urandom(1_000),
                size=1_000,
            )
            for offset in range(first, first + ROWS)
        ]
        (root / path).parent.mkdir(parents=True)
        pq.write_table(to_arrow(rows), root / path, coerce_timestamps="us")
        file = ArchiveFile(
            path=path,
            rows=ROWS,
            size_bytes=(root / path).stat().st_size,
            lo=first,
            hi=first + ROWS - 1,
            first_day=(day - date(1970, 1, 1)).days,
            last_day=(day - date(1970, 1, 1)).days,
            batch="a",
            has_bodies=True,
        )
        manifests.append(DateManifest(date=str(day), files=(file,)))
    return files, commit(files, create_ledger(), now_ms=0, manifests=manifests)


def by_list(files: LocalResultsFolder, ledger: ArchiveLedger) -> str:
    paths = [files.url(file.path) for file in archive_files(files, ledger, dates=[str(DAY)])]
    return f"{SUMS} read_parquet({[path.removeprefix('file://') for path in paths]})"


def by_partition(files: LocalResultsFolder, _: ArchiveLedger) -> str:
    folder = files.url("archive").removeprefix("file://")
    return f"{SUMS} read_parquet('{folder}/**/*.parquet') WHERE date = DATE '{DAY}'"


@pytest.mark.parametrize("query_of", [by_list, by_partition])
def test_one_day_of_sixty_is_a_fortieth_of_the_bytes(
    archive: tuple[LocalResultsFolder, ArchiveLedger],
    query_of: Callable[[LocalResultsFolder, ArchiveLedger], str],
) -> None:
    files, ledger = archive
    folder = files.url("archive").removeprefix("file://")
    every, all_bytes = count_bytes(f"{SUMS} read_parquet('{folder}/**/*.parquet')")
    assert (every, all_bytes > ledger.size_bytes // 2) == (DAYS * ROWS, True)
    rows, read = count_bytes(query_of(files, ledger))
    assert rows == ROWS
    assert 0 < read * 40 <= all_bytes, (read, all_bytes)
