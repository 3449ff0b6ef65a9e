"""Spark data source ``phpmq``, which chooses a reader or writer for each use."""

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from phpmq_lite.errors import OptionError
from phpmq_lite.spark import columns
from phpmq_lite.spark.reader import (
    FilteringHistoryReader,
    HistoryReader,
    HistoryStreamReader,
    QueueStreamReader,
    has_pushed_filters,
)
from phpmq_lite.spark.source_options import (
    SourceMode,
    history_options,
    queue_options,
    read_mode,
    write_options,
)
from phpmq_lite.spark.workers import check_workers
from phpmq_lite.spark.writer import BatchWriter, StreamWriter, check_write_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "phpmq"
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: "SparkSession") -> None:
    """Register ``format("phpmq")`` in a session; not needed if ``pyspark_phpmq`` is installed.

    Filters are applied by the broker: Spark's push-down for Python sources is turned on, unless you
    set ``spark.sql.python.filterPushdown.enabled`` yourself. The class is pickled by name, so
    executors need this package on their path; raises PipelineError if local workers lack it.
    """
    check_workers(spark)
    if spark.conf.get(PUSHDOWN, None) is None:
        spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(PhpmqSource)


class PhpmqSource(ds.DataSource):
    """Data source for a broker's history or one of its queues; see ``source_options.py``."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns; Spark calls this before it decides between batch and stream."""
        options = columns.table_options(self.options)
        if options is None:
            return self._columns(self.options)
        return columns.add_table_options(self._columns(options), options)

    def _columns(self, options: Mapping[str, str]) -> StructType:
        mode = read_mode(options)
        if mode == "queue":
            return columns.QUEUE_COLUMNS
        if mode == "events":
            return columns.EVENT_COLUMNS
        if mode == "write":
            write_options({}, SourceMode.BATCH_WRITE, options)
            return columns.WRITE_COLUMNS
        common = {name: v for name, v in options.items() if name.lower() not in _OF_ONE_USE}
        history = history_options(common, SourceMode.BATCH_READ)
        return columns.history_columns(history.columns, body=history.has_body)

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """Return the reader for a batch; raise OptionError for a wrong option or the mode queue."""
        values = columns.read_table_options(schema) | dict(self.options)
        _check_readable(values)
        if read_mode(values) == "queue":
            raise OptionError(
                "a batch read cannot consume a queue; use mode=queue with readStream. To view"
                " messages without consuming them, use the admin UI or the HTTP API"
            )
        options = history_options(values, SourceMode.BATCH_READ)
        offered = columns.history_columns(body=True)
        columns.check_read_schema(schema, columns.EVENT_COLUMNS if options.has_events else offered)
        is_filtering = options.pushes_filters and has_pushed_filters() and not options.has_events
        kind = FilteringHistoryReader if is_filtering else HistoryReader
        return kind(options, columns.remove_table_options(schema))

    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader for a stream."""
        values = columns.read_table_options(schema) | dict(self.options)
        _check_readable(values)
        if read_mode(values) == "events":
            raise OptionError("a stream cannot read events; use mode=events with read")
        if read_mode(values) == "queue":
            columns.check_read_schema(schema, columns.QUEUE_COLUMNS)
            return QueueStreamReader(queue_options(values), columns.remove_table_options(schema))
        columns.check_read_schema(schema, columns.history_columns(body=True))
        return HistoryStreamReader(
            history_options(values, SourceMode.HISTORY_STREAM), columns.remove_table_options(schema)
        )

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:
        """Return the writer for a batch."""
        table = columns.read_table_options(schema)
        options = write_options(self.options, SourceMode.BATCH_WRITE, table)
        if overwrite:
            raise OptionError("a queue cannot be overwritten; use append mode")
        check_write_schema(schema, options)
        return BatchWriter(options)

    def streamWriter(  # noqa: N802 - Spark's
        self, schema: StructType, overwrite: bool
    ) -> ds.DataSourceStreamWriter:
        """Return the writer for a stream."""
        options = write_options(self.options, SourceMode.STREAM_WRITE)
        if overwrite:
            raise OptionError("a queue cannot be overwritten; use output mode 'append' or 'update'")
        check_write_schema(schema, options)
        return StreamWriter(options)


def _check_readable(options: Mapping[str, str]) -> None:
    if read_mode(options) == "write":
        raise OptionError("a table with mode 'write' is only for INSERT; read one without it")


# Options that ``schema`` ignores because they apply only to batches or only to streams.
_OF_ONE_USE = (
    "startingoffsets",
    "endingoffsets",
    "startingtimestamp",
    "endingtimestamp",
    "maxoffsetspertrigger",
    "reader",
)
