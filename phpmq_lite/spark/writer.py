"""Writers, batch and stream: each task stages its rows, ``commit`` publishes all of them at once.

A key makes it once: (query id, batch id) of a stream, (``txnAppId``, ``txnVersion``) of a batch.
``abort`` drops staged rows only: Spark calls it after a failed ``commit``, too, though the broker
may have published.
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

from phpmq_lite.spark.errors import OptionError, PipelineError, ShortReadError
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.source_options import WriteOptions, nearest_name

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_BYTES: Final = 16 << 20  # of one request; the broker takes 64 MiB
PIECE_ROWS: Final = 50_000  # of one request; two fill a transaction of the broker
WRITTEN: Final[dict[str, tuple[type[DataType], ...]]] = {
    "body": (BinaryType, StringType),
    "queue": (StringType,),
    "ttl_s": (LongType, IntegerType),
}


@dataclass
class StagedRows(WriterCommitMessage):
    """What one task staged: tokens, how many rows; and of which query's batch it is."""

    tokens: tuple[str, ...]
    rows: int
    query_id: str | None = None


def check_write_schema(schema: StructType, options: WriteOptions) -> None:
    """Refuse rows that cannot become messages.

    Raises:
        OptionError: a column is missing, unknown or of another type.
    """
    for field in schema:
        if field.name not in WRITTEN:
            near = nearest_name(field.name, tuple(WRITTEN))
            raise OptionError(
                f"column {field.name!r} cannot be written"
                + (f": did you mean {near!r}?" if near else "; there are body, queue and ttl_s")
            )
        if not isinstance(field.dataType, WRITTEN[field.name]):
            kinds = " or ".join(kind().simpleString() for kind in WRITTEN[field.name])
            raise OptionError(
                f"column {field.name!r} is {field.dataType.simpleString()}, it must be {kinds}"
            )
    if "body" not in schema.names:
        raise OptionError("column 'body' is missing")
    if "queue" not in schema.names and options.queue is None:
        raise OptionError("give the option queue, or a column queue")


def stage_rows(
    batches: Iterator["pa.RecordBatch"], options: WriteOptions, query_id: str | None
) -> StagedRows:
    """Send the rows of one task, in pieces, each under a random token; publishes nothing.

    On an error what was sent is dropped again, as far as the broker answers; it forgets the rest
    after a day.

    Raises:
        PipelineError: a row has no body or no queue.
    """
    broker = PipelineClient(options.connection)
    tokens: list[str] = []
    rows = 0
    try:
        for piece in _pieces(batches, options):
            rows += piece.num_rows
            tokens.append(uuid.uuid4().hex)
            taken = broker.stage(tokens[-1], _encoded(piece), piece.num_rows)
            _check_count(piece.num_rows, taken, "the broker read")
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
    """Publish what all tasks staged; a repeated key publishes nothing.

    More rows than a transaction of the broker takes go out in several.  The broker keeps the rest
    from the first on: where this is cut off, a repetition goes on with that rest and drops the rows
    that were staged for it again, in any order.

    Raises:
        PipelineError: a task sent no message.
    """
    staged = _all_staged(messages)
    rows = sum(message.rows for message in staged)
    tokens = [token for message in staged for token in message.tokens]
    if not tokens:
        return  # an empty batch needs no key: repeated, it is empty again
    broker = PipelineClient(options.connection)
    done = broker.publish(app_id, version, tokens, is_single=is_single)
    if not done.is_repeated and not done.is_resumed:
        _check_count(rows, done.rows + done.remaining, "the broker took")
    while done.remaining:
        done = broker.publish(app_id, version, (), is_single=is_single)


def _all_staged(messages: list[WriterCommitMessage | None]) -> list[StagedRows]:
    staged = [message for message in messages if isinstance(message, StagedRows)]
    if len(staged) != len(messages):
        raise PipelineError("a task ended without saying what it staged; nothing is published")
    return staged


def drop_staged(messages: list[WriterCommitMessage | None], options: WriteOptions) -> None:
    """Drop what tasks staged; never raises, as Spark calls it on the way to another error."""
    tokens = [t for message in messages if isinstance(message, StagedRows) for t in message.tokens]
    _drop(PipelineClient(options.connection), tokens)


class BatchWriter(DataSourceArrowWriter):
    """A batch write; exactly once with a key of the caller's, else at least once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> StagedRows:
        """Stage the rows of one task."""
        return stage_rows(iterator, self._options, None)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish them all."""
        app_id, version = self._options.app_id, self._options.version
        if app_id is None or version is None:
            app_id = f"batch-{uuid.uuid4().hex}"  # nobody else's: never a repeat
            publish_staged(messages, self._options, app_id, 0, is_single=True)
            return
        publish_staged(messages, self._options, app_id, version)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what is staged."""
        drop_staged(messages, self._options)


class StreamWriter(DataSourceStreamArrowWriter):
    """A stream write; exactly once per checkpoint, whose query id is half of the key."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> StagedRows:
        """Stage the rows of one task; only here the query's id can be asked for."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query_id = context.getLocalProperty("sql.streaming.queryId") if context else None
        if not query_id:
            raise PipelineError("Spark does not say which query this is; nothing is staged")
        return stage_rows(iterator, self._options, query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the batch; planned again after a crash, it is published once all the same."""
        ids = {message.query_id for message in _all_staged(messages)}
        if not ids:
            return
        if len(ids) > 1 or None in ids:
            raise PipelineError(f"rows of several queries in one batch: {ids}")
        publish_staged(messages, self._options, str(ids.pop()), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Drop what is staged."""
        drop_staged(messages, self._options)


def _check_count(sent: int, taken: int, verb: str) -> None:
    if sent != taken:
        raise ShortReadError(f"{sent} rows were sent, {verb} {taken}")


def _pieces(
    batches: Iterator["pa.RecordBatch"], options: WriteOptions
) -> Iterator["pa.RecordBatch"]:
    """Bring rows to the columns that are staged, cut to ``PIECE_ROWS`` and ``PIECE_BYTES``.

    A single row may be longer.
    """
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
    """Halve a batch until each part is small enough or a single row; nothing of an empty one."""
    if batch.num_rows == 0:
        return
    if batch.num_rows == 1 or (batch.nbytes <= PIECE_BYTES and batch.num_rows <= PIECE_ROWS):
        yield batch
        return
    half = batch.num_rows // 2
    yield from _cut(batch.slice(0, half))
    yield from _cut(batch.slice(half))


def _staged_columns(batch: "pa.RecordBatch", options: WriteOptions) -> "pa.RecordBatch":
    """Give body, queue and, if there, ttl_s; the option ``queue`` goes before the column."""
    import pyarrow as pa

    body = batch.column("body").cast(pa.binary())
    if body.null_count:
        raise PipelineError(f"{body.null_count} rows have no body (null); nothing is published")
    if options.queue is not None:
        queue = pa.array([options.queue] * batch.num_rows, pa.string())
    else:
        queue = batch.column("queue").cast(pa.string())
    if queue.null_count:
        raise PipelineError(f"{queue.null_count} rows have no queue (null); nothing is published")
    arrays, names = [body, queue], ["body", "queue"]
    if "ttl_s" in batch.schema.names:
        arrays.append(batch.column("ttl_s").cast(pa.int64()))
        names.append("ttl_s")
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _encoded(batch: "pa.RecordBatch") -> bytes:
    """Give a whole Arrow stream, so that it goes with its length: cut short, it is refused."""
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
        return  # the broker drops them by itself after a day
