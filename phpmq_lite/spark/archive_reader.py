"""Reads the archive through its ledger's list of files."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark.columns import ARCHIVE_SCHEMA, FILE_SCHEMA, utc_day
from phpmq_lite.spark.ledger import ArchiveFile, archive_files, read_ledger
from phpmq_lite.spark.results_folder import ARCHIVE, ResultsFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_archive(
    spark: "SparkSession", files: ResultsFolder, chosen: Sequence[ArchiveFile] | None = None
) -> "DataFrame":
    """Read the archive, or only the ``chosen`` files; refuse (``no_archive``) if there is none.

    Columns that older files lack are null, except ``history_offset``, as is ``body`` if it was not
    archived.
    """
    if chosen is not None:
        paths = [file.path for file in chosen]
        if not paths:
            return spark.createDataFrame([], ARCHIVE_SCHEMA)
    elif ledger := read_ledger(files):
        paths = [file.path for file in archive_files(files, ledger)]
        if not paths:  # there were no messages yet
            return spark.createDataFrame([], ARCHIVE_SCHEMA)
    else:  # an archive of version 0.1.0
        paths = list(files.data_files(ARCHIVE))
    if not paths:
        raise RefusedError(
            "no_archive", f"there is no archive in {files.url('')}: run the archive job first"
        )
    rows = spark.read.schema(FILE_SCHEMA).parquet(*map(files.url, paths))
    batch = sf.regexp_extract("_metadata.file_path", "/batch=([^/]+)/", 1)
    about = {field.name: field.metadata for field in ARCHIVE_SCHEMA}
    offset = sf.coalesce("history_offset", "offset")
    offset = offset.alias("history_offset", metadata=about["history_offset"])
    names = [offset if name == "history_offset" else name for name in rows.columns]
    day = utc_day("settled_at").alias("date", metadata=about["date"])
    return rows.select(*names, day, batch.alias("batch", metadata=about["batch"]))
