"""Writes the exceptional steps of archived messages: the files of the table ``events``.

There are few of them, so the driver writes them, without a job of Spark.
"""

import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from phpmq_lite.spark.columns import EVENT_COLUMNS, arrow_schema
from phpmq_lite.spark.jobs.archive_files import FileCounts
from phpmq_lite.spark.ledger import ArchiveFile
from phpmq_lite.spark.results_folder import EVENTS, ResultsFolder

if TYPE_CHECKING:
    import pyarrow as pa

FILE_ROWS: Final = 1 << 18  # about, so that files of any number of events fit into memory
_REPORTS: Final = ("retry", "failure")  # kinds whose details are texts of workers
_TIMES: Final = ("settled_at", "event_at", "last_at")


def write_events(
    files: ResultsFolder,
    batches: "Iterable[pa.RecordBatch]",
    folder: str,
    *,
    has_reports: bool = True,
) -> list[FileCounts]:
    """Write events, sorted by offset, below ``folder``, and return the files without their counts.

    Without ``has_reports``, what workers reported about failures becomes null.
    """
    import pyarrow as pa
    from pyarrow import compute, parquet

    written = []
    for table in _tables(batches):
        if not has_reports:
            is_report = compute.is_in(table["kind"], value_set=pa.array(_REPORTS))
            details = compute.if_else(is_report, None, table["detail"])
            table = table.set_column(table.schema.names.index("detail"), "detail", details)
        days = table["settled_at"].cast(pa.date32())
        for day in compute.unique(days):
            rows = table.filter(compute.equal(days, day))
            sink = pa.BufferOutputStream()
            parquet.write_table(rows, sink, compression="zstd")
            content = sink.getvalue().to_pybytes()
            path = f"{folder}/{EVENTS}/date={day}/part-{secrets.token_hex(8)}.parquet"
            files.write(path, content)
            times = pa.chunked_array([chunk for name in _TIMES for chunk in rows[name].chunks])
            span = compute.min_max(times.cast(pa.date32()).cast(pa.int32())).as_py()
            file = ArchiveFile(
                path=path,
                rows=rows.num_rows,
                size_bytes=len(content),
                lo=rows["history_offset"][0].as_py(),
                hi=rows["history_offset"][-1].as_py(),
                first_day=span["min"],
                last_day=span["max"],
                batch="",
                has_bodies=False,
            )
            written.append(FileCounts(file, {}, 0))
    return written


def _tables(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.Table]":
    """Combine batches to tables of about ``FILE_ROWS``, whose schema has the columns' texts."""
    import pyarrow as pa

    texts = {"org.apache.spark.sql.parquet.row.metadata": EVENT_COLUMNS.json()}
    schema = arrow_schema(EVENT_COLUMNS).with_metadata(texts)
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(part.num_rows for part in held) >= FILE_ROWS:
            yield pa.Table.from_batches(held).cast(schema)
            held = []
    if held:
        yield pa.Table.from_batches(held).cast(schema)
