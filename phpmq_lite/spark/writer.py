"""Batch and stream writers: each task stages its rows, then ``commit`` publishes them all.

A key ensures that rows are published exactly once: (query id, batch id) for a stream,
(``txnAppId``, ``txnVersion``) for a batch. ``abort`` only drops staged rows, because Spark also
calls it after a failed ``commit``, when the broker may already have published them.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType

from phpmq_lite.errors import OptionError, PipelineError, ShortReadError
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.source_options import WriteOptions, suggestion

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_BYTES: Final = 16 << 20  # maximum size of a request in bytes; the broker's limit is 64 MiB
PIECE_ROWS: Final = 50_000  # maximum number of rows per request; a transaction holds twice as many
WRITTEN: Final[dict[str, tuple[type[DataType], ...]]] = {
    "body": (BinaryType, StringType),
    "queue": (StringType,),
    "ttl_s": (LongType, IntegerType),
}


GUARD: Final = "message_id"  # column of tables for INSERT that must be null
_INSERT_HINT: Final = " (INSERT needs a table that was created with mode 'write')"


@dataclass
class StagedRows(WriterCommitMessage):
    """The rows that one task has staged: their tokens, their number and the query id."""

    tokens: tuple[str, ...]
    rows: int
    query_id: str | None = None


def check_write_schema(schema: StructType, options: WriteOptions) -> None:
    """Raise OptionError if rows with this schema cannot be published as messages."""
    for field in schema:
        if options.is_table and field.name == GUARD:
            continue
        if field.name not in WRITTEN:
            raise OptionError(
                f"column {field.name!r} cannot be written{suggestion(field.name, WRITTEN)}"
                f"{'' if options.is_table else _INSERT_HINT}"
            )
        if not isinstance(field.dataType, WRITTEN[field.name]):
            kinds = " or ".join(kind().simpleString() for kind in WRITTEN[field.name])
            raise OptionError(
                f"column {field.name!r} is {field.dataType.simpleString()}, but it must be {kinds}"
            )
    if "body" not in schema.names:
        raise OptionError("column 'body' is missing")
    if "queue" not in schema.names and options.queue is None:
        raise OptionError("no queue is set: use the queue option or add a column named queue")


def stage_rows(
    batches: Iterator["pa.RecordBatch"], options: WriteOptions, query_id: str | None
) -> StagedRows:
    """Stage the rows of one task at the broker in pieces, each under a random token.

    After an error, such as a row without a body, the pieces already sent are dropped. If the broker
    does not reply, it drops them itself after a day.
    """
    broker = PipelineClient(options.connection)
    tokens: list[str] = []
    rows = 0
    try:
        for piece in _pieces(batches, options):
            rows += piece.num_rows
            tokens.append(uuid.uuid4().hex)
            accepted = broker.stage(tokens[-1], _encode_stream(piece), piece.num_rows)
            _check_count(piece.num_rows, accepted, "the broker read")
    except BaseException:
        _drop(broker, tokens)
        raise
    return StagedRows(tuple(tokens), rows, query_id)


def publish_staged(
    messages: list[WriterCommitMessage | None],
    options: WriteOptions,
    app_id: str,
    version: int,
    *,
    is_single: bool = False,
) -> None:
    """Publish the staged rows of all tasks; a repeated key publishes nothing.

    Rows that do not fit into one broker transaction are published in several. The broker keeps the
    remaining rows, so that a repeated call after an interruption continues with them and drops the
    rows that were staged again, in any order.

    Raises:
        PipelineError: a task did not report what it staged.
    """
    staged = _all_staged(messages)
    rows = sum(message.rows for message in staged)
    tokens = [token for message in staged for token in message.tokens]
    if not tokens:
        return  # an empty batch needs no key, because repeating it publishes nothing
    broker = PipelineClient(options.connection)
    result = broker.publish(app_id, version, tokens, is_single=is_single)
    if not result.is_repeated and not result.is_resumed:
        _check_count(rows, result.rows + result.remaining, "the broker accepted")
    while result.remaining:
        result = broker.publish(app_id, version, (), is_single=is_single)


def _all_staged(messages: list[WriterCommitMessage | None]) -> list[StagedRows]:
    staged = [message for message in messages if isinstance(message, StagedRows)]
    if len(staged) != len(messages):
        raise PipelineError("a task did not report what it staged; nothing was published")
    return staged


def drop_staged(messages: list[WriterCommitMessage | None], options: WriteOptions) -> None:
    """Drop staged rows; never raise, because Spark calls this while handling another error."""
    tokens = [t for message in messages if isinstance(message, StagedRows) for t in message.tokens]
    _drop(PipelineClient(options.connection), tokens)


class BatchWriter(DataSourceArrowWriter):
    """Publishes a batch exactly once if the caller sets a key, otherwise at least once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> StagedRows:
        """Stage the rows of one task."""
        return stage_rows(iterator, self._options, None)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows of all tasks."""
        app_id, version = self._options.app_id, self._options.version
        if app_id is None or version is None:
            app_id = f"batch-{uuid.uuid4().hex}"  # unique, so that no two writes share a key
            publish_staged(messages, self._options, app_id, 0, is_single=True)
        else:
            publish_staged(messages, self._options, app_id, version)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the staged rows."""
        drop_staged(messages, self._options)


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes a stream exactly once per checkpoint, whose query id is part of the key."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> StagedRows:
        """Stage the rows of one task; the query id is available only here."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query_id = context.getLocalProperty("sql.streaming.queryId") if context else None
        if not query_id:
            raise PipelineError("Spark did not provide the query id; nothing was staged")
        return stage_rows(iterator, self._options, query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the batch; a batch that is planned again after a crash is published only once."""
        ids = {message.query_id for message in _all_staged(messages)}
        if not ids:
            return
        if len(ids) > 1 or None in ids:
            raise PipelineError(f"the batch contains rows from several queries: {ids}")
        publish_staged(messages, self._options, str(ids.pop()), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Drop the staged rows."""
        drop_staged(messages, self._options)


def _check_count(sent: int, accepted: int, verb: str) -> None:
    if sent != accepted:
        raise ShortReadError(f"{sent} rows were sent, but {verb} {accepted}")


def _pieces(
    batches: Iterator["pa.RecordBatch"], options: WriteOptions
) -> Iterator["pa.RecordBatch"]:
    """Yield the staged columns in pieces of ``PIECE_ROWS`` and ``PIECE_BYTES``, or one row."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    size_bytes = rows = 0
    for batch in batches:
        for row_range in _cut(_staged_columns(batch, options)):
            is_over = size_bytes + row_range.nbytes > PIECE_BYTES
            if waiting and (is_over or rows + row_range.num_rows > PIECE_ROWS):
                yield pa.concat_batches(waiting)
                waiting, size_bytes, rows = [], 0, 0
            waiting.append(row_range)
            size_bytes += row_range.nbytes
            rows += row_range.num_rows
    if waiting:
        yield pa.concat_batches(waiting)


def _cut(batch: "pa.RecordBatch") -> Iterator["pa.RecordBatch"]:
    """Halve a batch until each part fits or has a single row; yield the non-empty parts."""
    if batch.num_rows == 0:
        return
    if batch.num_rows == 1 or (batch.nbytes <= PIECE_BYTES and batch.num_rows <= PIECE_ROWS):
        yield batch
        return
    half = batch.num_rows // 2
    yield from _cut(batch.slice(0, half))
    yield from _cut(batch.slice(half))


def _staged_columns(batch: "pa.RecordBatch", options: WriteOptions) -> "pa.RecordBatch":
    """Return body, queue and ttl_s (if present); the option ``queue`` overrides the column.

    In a table, it does not.
    """
    import pyarrow as pa

    body = batch.column("body").cast(pa.binary())
    if body.null_count:
        raise PipelineError(f"{body.null_count} rows have no body (null); nothing was published")
    if options.is_table:
        queue = _queues_of_table(batch, options)
    elif options.queue is not None:
        queue = pa.array([options.queue] * batch.num_rows, pa.string())
    else:
        queue = batch.column("queue").cast(pa.string())
    if queue.null_count:
        raise PipelineError(f"{queue.null_count} rows have no queue (null); nothing was published")
    arrays, names = [body, queue], ["body", "queue"]
    if "ttl_s" in batch.schema.names:
        arrays.append(batch.column("ttl_s").cast(pa.int64()))
        names.append("ttl_s")
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _queues_of_table(batch: "pa.RecordBatch", options: WriteOptions) -> "pa.Array":
    """Return the queue that a row names, or else that of the table."""
    import pyarrow as pa

    if batch.column(GUARD).null_count < batch.num_rows:
        raise PipelineError(
            f"the broker assigns {GUARD}, but rows have one; nothing was published. Without names,"
            " INSERT takes columns by position: list them, or use INSERT INTO ... BY NAME"
        )
    queue = batch.column("queue").cast(pa.string())
    return queue if options.queue is None else queue.fill_null(options.queue)


def _encode_stream(batch: "pa.RecordBatch") -> bytes:
    """Return a complete Arrow stream, whose length lets the broker reject a partial one."""
    import pyarrow as pa
    from pyarrow import ipc

    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _drop(broker: PipelineClient, tokens: list[str]) -> None:
    if not tokens:
        return
    try:
        broker.unstage(tokens)
    except PipelineError:
        return  # the broker drops the rows after a day
