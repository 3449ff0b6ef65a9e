"""Reads the archive through its ledger's list of files."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark.columns import ARCHIVE_SCHEMA, EVENT_COLUMNS, FILE_SCHEMA, utc_day
from phpmq_lite.spark.ledger import ArchiveFile, archive_files, read_ledger
from phpmq_lite.spark.results_folder import ARCHIVE, EVENTS, ResultsFolder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def read_archive(
    spark: "SparkSession",
    files: ResultsFolder,
    chosen: Sequence[ArchiveFile] | None = None,
    *,
    table: str = ARCHIVE,
) -> "DataFrame":
    """Read the archive, or only the ``chosen`` files; refuse (``no_archive``) if there is none.

    The table ``events`` has the exceptional steps of its messages, which an archive of an earlier
    version lacks.

    Columns that older files lack are null, except ``history_offset``, as is ``body`` if it was not
    archived.
    """
    columns = EVENT_COLUMNS if table == EVENTS else FILE_SCHEMA
    if chosen is None and (ledger := read_ledger(files)):
        chosen = archive_files(files, ledger, table=table)
    if chosen is None:  # an archive of version 0.1.0
        paths = list(files.data_files(table))
    else:
        paths = [file.path for file in chosen]
        if not paths:  # there were no messages yet
            return spark.createDataFrame([], StructType([*columns, *ARCHIVE_SCHEMA.fields[-2:]]))
    if not paths:
        raise RefusedError(
            "no_archive", f"there is no archive in {files.url('')}: run the archive job first"
        )
    rows = spark.read.schema(columns).parquet(*map(files.url, paths))
    batch = sf.regexp_extract("_metadata.file_path", "/batch=([^/]+)/", 1)
    about = {field.name: field.metadata for field in ARCHIVE_SCHEMA}
    names: list[str | Column] = [*rows.columns]
    if table == ARCHIVE:
        offset = sf.coalesce("history_offset", "offset")
        offset = offset.alias("history_offset", metadata=about["history_offset"])
        names[names.index("history_offset")] = offset
    day = utc_day("settled_at").alias("date", metadata=about["date"])
    return rows.select(*names, day, batch.alias("batch", metadata=about["batch"]))
