"""What writers refuse on the driver, without a JVM."""

import pytest

from phpmq_lite.spark.errors import PipelineError
from phpmq_lite.spark.options import Connection, WriteOptions
from phpmq_lite.spark.writer import BatchWriter, Staged, StreamWriter

OPTIONS = WriteOptions(connection=Connection("http://127.0.0.1:1"))


@pytest.mark.parametrize("messages", [[None], [Staged((), 0, "query"), None]])
def test_batch_is_not_published_when_a_task_does_not_say_what_it_staged(
    messages: list[Staged | None],
) -> None:
    for commit in (BatchWriter(OPTIONS).commit, lambda m: StreamWriter(OPTIONS).commit(m, 0)):
        with pytest.raises(PipelineError, match="a task ended without saying what it staged"):
            commit([*messages])


def test_stream_publishes_no_rows_of_two_queries_under_one_key() -> None:
    messages = [Staged(("a",), 1, "first"), Staged(("b",), 1, "second")]
    with pytest.raises(PipelineError, match="rows of several queries in one batch"):
        StreamWriter(OPTIONS).commit([*messages], 0)


def test_batch_without_rows_asks_nobody() -> None:
    StreamWriter(OPTIONS).commit([], 0)
    StreamWriter(OPTIONS).commit([Staged((), 0, "query")], 0)
    BatchWriter(OPTIONS).commit([Staged((), 0)])
