"""Checks of the writers on the driver, without a JVM."""

import pyarrow as pa
import pytest

from phpmq_lite.errors import PipelineError
from phpmq_lite.spark import writer
from phpmq_lite.spark.source_options import SourceConnection, WriteOptions
from phpmq_lite.spark.writer import BatchWriter, StagedRows, StreamWriter

OPTIONS = WriteOptions(connection=SourceConnection("http://127.0.0.1:1"))


@pytest.mark.parametrize("messages", [[None], [StagedRows((), 0, "query"), None]])
def test_batch_is_not_published_without_the_report_of_every_task(
    messages: list[StagedRows | None],
) -> None:
    for commit in (BatchWriter(OPTIONS).commit, lambda m: StreamWriter(OPTIONS).commit(m, 0)):
        with pytest.raises(PipelineError, match="a task did not report what it staged"):
            commit([*messages])


def test_stream_does_not_publish_rows_of_two_queries() -> None:
    messages = [StagedRows(("a",), 1, "first"), StagedRows(("b",), 1, "second")]
    with pytest.raises(PipelineError, match="the batch contains rows from several queries"):
        StreamWriter(OPTIONS).commit([*messages], 0)


def test_empty_batch_sends_no_request() -> None:
    StreamWriter(OPTIONS).commit([], 0)
    StreamWriter(OPTIONS).commit([StagedRows((), 0, "query")], 0)
    BatchWriter(OPTIONS).commit([StagedRows((), 0)])


def test_pieces_are_within_the_limit_of_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PIECE_ROWS", 30)
    options = WriteOptions(connection=SourceConnection("http://a"), queue="orders")
    batches = [pa.record_batch({"body": [b"%d" % n for n in range(count)]}) for count in (70, 5, 0)]
    pieces = list(writer._pieces(iter(batches), options))
    assert max(piece.num_rows for piece in pieces) <= 30
    found = [body for piece in pieces for body in piece.column("body").to_pylist()]
    assert found == [b"%d" % n for n in range(70)] + [b"%d" % n for n in range(5)]
