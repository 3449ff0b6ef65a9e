"""Writes rows to one Parquet file a day with pyarrow, and counts rows for the ledger.

Spark's tasks do so for the archive on a file system of theirs, the driver for events: pyarrow takes
a quarter of the processor time of Spark's own writer.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import product
from typing import IO, TYPE_CHECKING, Any, Final, Self

from phpmq_lite.spark.columns import EVENT_COLUMNS, FILE_SCHEMA, TIME_COLUMNS, arrow_schema
from phpmq_lite.spark.history import BODY
from phpmq_lite.spark.ledger import ArchiveFile
from phpmq_lite.spark.results_folder import ARCHIVE, EVENTS, ResultsFolder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter
    from pyspark.sql.types import StructType

GROUP_BYTES: Final = 64 << 20  # in memory, of the rows that are written at a time
BODY_GROUP_BYTES: Final = 16 << 20  # row group of a file with bodies; readers hold a whole one
# Numbers that mostly grow by one, and times, are a fifth as long when their differences are stored.
COUNTERS: Final = frozenset({"offset", "history_offset", "seq", "position", "event_id"})
_DISTINCT: Final = frozenset({"message_id", "trace_id", "meta_id", "unique_key", BODY})


@dataclass(frozen=True, slots=True)
class _Table:
    columns: "StructType"
    offset: str
    times: tuple[str, ...]
    keys: tuple[str, ...]  # by which the ledger counts rows


_TABLES: Final = {
    ARCHIVE: _Table(FILE_SCHEMA, "offset", TIME_COLUMNS, ("queue", "outcome")),
    EVENTS: _Table(EVENT_COLUMNS, "history_offset", ("settled_at", "event_at", "last_at"), ()),
}


@dataclass(frozen=True, slots=True)
class FileCounts:
    """A file, its rows by queue and outcome, and the sum of their offsets."""

    file: ArchiveFile
    counts: dict[str, dict[str, int]]
    offsets: int

    @classmethod
    def of_groups(cls, groups: Sequence[Mapping[str, Any]], path: str, size_bytes: int) -> Self:
        """Add up the groups of one file, each of a queue and outcome or, for events, of all."""
        counts: dict[str, dict[str, int]] = {}
        for row in groups:
            if "queue" in row:
                outcomes = counts.setdefault(row["queue"], {})
                outcomes[row["outcome"]] = outcomes.get(row["outcome"], 0) + row["rows"]
        file = ArchiveFile(
            path=path,
            rows=sum(row["rows"] for row in groups),
            size_bytes=size_bytes,
            lo=min(row["lo"] for row in groups),
            hi=max(row["hi"] for row in groups),
            first_day=min(row["first_day"] for row in groups),
            last_day=max(row["last_day"] for row in groups),
            batch=path.split("/")[-2].removeprefix("batch="),
            has_bodies=any(row["has_bodies"] for row in groups),
        )
        return cls(file, counts, sum(row["offsets"] for row in groups))

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        """Return what ``asdict`` made a document of."""
        return cls(**{**document, "file": ArchiveFile(**document["file"])})

    @property
    def name(self) -> str:
        """The name without folders."""
        return self.file.path.rpartition("/")[2]

    @property
    def table(self) -> str:
        """The table in the path of a staged file of a date."""
        return self.file.path.split("/")[-3]

    @property
    def date(self) -> str:
        """The date in the path, such as ``2026-03-01``."""
        return self.file.path.partition("/date=")[2].partition("/")[0]


@dataclass(frozen=True, slots=True)
class _OpenFile:
    path: str
    stream: IO[bytes]
    writer: "ParquetWriter"
    groups: list[dict[str, Any]]


class DayFiles:
    """Files of a table, ``archive`` or ``events``, below ``folder``, one for each date.

    Args:
        files: the results folder.
        folder: where the files are created, in ``<table>/date=…``.
        table: ``archive`` or ``events``.
        has_bodies: whether the rows have bodies.
    """

    def __init__(
        self, files: ResultsFolder, folder: str, table: str, *, has_bodies: bool = False
    ) -> None:
        self._files, self._folder, self._table = files, f"{folder}/{table}", table
        self._has_bodies = has_bodies
        columns = _TABLES[table].columns
        texts = {"org.apache.spark.sql.parquet.row.metadata": columns.json()}
        self._schema = arrow_schema(columns).with_metadata(texts)
        self._held: list[pa.RecordBatch] = []
        self._open: dict[date, _OpenFile] = {}

    def add(self, batch: "pa.RecordBatch") -> None:
        """Write rows, now or with those of later calls."""
        limit = BODY_GROUP_BYTES if self._has_bodies else GROUP_BYTES
        if batch.nbytes > limit and (half := batch.num_rows // 2):
            self.add(batch.slice(0, half))
            self.add(batch.slice(half))
            return
        if sum(held.nbytes for held in self._held) + batch.nbytes > limit:
            self._write()
        self._held.append(batch)

    def close(self) -> list[FileCounts]:
        """Write and sync the files, and return them with their counts."""
        self._write()
        written = []
        for file in self._open.values():
            file.writer.close()
            size = file.stream.tell()
            file.stream.close()
            written.append(FileCounts.of_groups(file.groups, file.path, size))
        return written

    def _write(self) -> None:
        import pyarrow as pa
        from pyarrow import compute

        if not self._held:
            return
        table, self._held = pa.Table.from_batches(self._held).cast(self._schema), []
        days = table["settled_at"].cast(pa.date32())
        for day in compute.unique(days):
            rows = table.filter(compute.equal(days, day))
            file = self._open.get(day.as_py()) or self._create(day.as_py())
            file.writer.write_table(rows)
            file.groups.extend(count_groups(rows, self._has_bodies, self._table))

    def _create(self, day: date) -> _OpenFile:
        from pyarrow import types
        from pyarrow.parquet import ParquetWriter

        path = f"{self._folder}/date={day}/part-{secrets.token_hex(8)}.parquet"
        stream = self._files.create(path)
        fields = {field.name: field.type for field in self._schema}
        grown = [n for n, kind in fields.items() if n in COUNTERS or types.is_timestamp(kind)]
        writer = ParquetWriter(
            stream,
            self._schema,
            compression="zstd",
            use_dictionary=[name for name in fields if name not in {*grown, *_DISTINCT}],
            column_encoding=dict.fromkeys(grown, "DELTA_BINARY_PACKED"),
            write_statistics=[name for name in fields if name != BODY],
        )
        self._open[day] = file = _OpenFile(path, stream, writer, [])
        return file


def count_groups(rows: "pa.Table", has_bodies: bool, table: str = ARCHIVE) -> list[dict[str, Any]]:
    """Count rows by queue and outcome, or those of ``events`` together."""
    import pyarrow as pa

    kind = _TABLES[table]
    functions = {"rows": "count", "lo": "min", "hi": "max", "offsets": "sum"}
    ends = [*product(kind.times, ("min", "max"))]
    sums = rows.group_by([*kind.keys]).aggregate(
        [*((kind.offset, function) for function in functions.values()), *ends]
    )
    times = [sums[f"{name}_{end}"].cast(pa.date32()).cast(pa.int32()) for name, end in ends]
    days = [day for time in times for day in time.drop_null().to_pylist()]
    span = {"first_day": min(days), "last_day": max(days), "has_bodies": has_bodies}
    names = {f"{kind.offset}_{function}": name for name, function in functions.items()}
    chosen = sums.select([*kind.keys, *names])
    return [
        {names.get(name, name): value for name, value in row.items()} | span
        for row in chosen.to_pylist()
    ]
