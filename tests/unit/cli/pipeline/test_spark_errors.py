"""The cause of a Spark error, in one line."""

from pathlib import Path

import pytest

from phpmq_lite.cli.pipeline.spark_errors import explain_spark_errors, find_cause, in_command_words
from phpmq_lite.cli.pipeline.target import PipelineTarget
from phpmq_lite.errors import BrokerError, DataLossError
from phpmq_lite.spark.pipeline_client import HistoryBounds
from phpmq_lite.spark.reader import _check_gap
from phpmq_lite.spark.source_options import HistoryOptions, Remedy, SourceConnection

WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/app/source.py", line 12, in read
    raise RefusedError("gap", "history starts at 500, asked for 3")
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
phpmq_lite.errors.RefusedError: history starts at 500, asked for 3"""

SCHEMA = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: \
Traceback (most recent call last):
  File "/app/source.py", line 20, in schema
    raise SettingsError("queu is no option; did you mean queue?")
phpmq_lite.errors.SettingsError: queu is no option; did you mean queue?
 SQLSTATE: 38000"""

BATCH = """[STREAM_FAILED] Query [id = 8baab128, runId = 4df950ab] terminated with exception: \
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach \
batch sink. Reason: An exception was raised by the Python Proxy. Return Message: \
Traceback (most recent call last):
  File "/app/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: in the batch
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 8baab128, runId = 4df950ab]

\tat jdk.proxy3/jdk.proxy3.$Proxy66.call(Unknown Source)
\t... 34 more"""

READ_IN_BATCH = """[STREAM_FAILED] Query [id = 8baab128] terminated with exception: Reason: \
Return Message: Traceback (most recent call last):
  File "/app/jobs/archive.py", line 37, in write
    frame.write.parquet(folder)
pyspark.errors.exceptions.captured.PythonException:
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/app/reader.py", line 12, in read
    raise ShortError(text)
phpmq_lite.errors.ShortError: 90 of 100 rows came
 SQLSTATE: 39000"""

STAGE = """An error occurred while calling o97.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 2.0 failed \
1 times, most recent failure: Lost task 1.0 in stage 2.0 (TID 5) (192.0.2.2 executor driver): \
java.io.IOException: Mkdirs failed to create file:/proc/no
\tat org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:774)
\tat org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:759)"""

CAUSED = """An error occurred while calling o97.parquet.
: org.apache.spark.SparkException: Writing job aborted
\tat org.apache.spark.sql.Writer.write(Writer.scala:1)
Caused by: org.apache.spark.SparkException: Task failed
\t... 3 more
Caused by: java.net.ConnectException: Connection refused
\t... 9 more"""

SQL = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name \
`idd` cannot be resolved. Did you mean one of the following? [`id`]. SQLSTATE: 42703; line 1 pos 0;
'Filter ('idd > 2)
+- Range (0, 3, step=1, splits=Some(2))"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(WORKER, "history starts at 500, asked for 3", id="worker"),
        pytest.param(SCHEMA, "queu is no option; did you mean queue?", id="schema"),
        pytest.param(BATCH, "ValueError: in the batch", id="batch"),
        pytest.param(READ_IN_BATCH, "90 of 100 rows came", id="worker in a batch"),
        pytest.param(STAGE, "IOException: Mkdirs failed to create file:/proc/no", id="stage"),
        pytest.param(CAUSED, "ConnectException: Connection refused", id="caused by"),
        pytest.param(
            SQL,
            "A column, variable, or function parameter with name `idd` cannot be resolved. "
            "Did you mean one of the following? [`id`]. line 1 pos 0",
            id="SQL",
        ),
        pytest.param("\n\nsomething else\nmore", "something else", id="other"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_cause_is_one_line_without_the_trace(text: str, expected: str) -> None:
    assert find_cause(text) == expected


def test_long_cause_is_cut() -> None:
    assert len(find_cause("x" * 5_000)) == 600


@pytest.mark.parametrize("remedy", Remedy)
def test_remedy_of_the_data_source_has_words_of_the_commands(remedy: Remedy) -> None:
    assert remedy not in in_command_words(f"before {remedy} after")


def test_gap_of_a_purge_names_the_options_of_commands() -> None:
    bounds = HistoryBounds("h", 0, 500, 400)
    options = HistoryOptions(connection=SourceConnection("http://127.0.0.1:1"))
    with pytest.raises(DataLossError) as gap:
        _check_gap(100, bounds, options)
    assert "set failOnDataLoss to false" in str(gap.value)
    assert "outcomes to acked,expired,dead" in str(gap.value)
    text = in_command_words(str(gap.value))
    assert "set --accept-gap to continue without them" in text
    assert "--outcome acked --outcome expired --outcome dead" in text
    assert "failOnDataLoss" not in text


def test_direct_error_of_a_command_names_its_options(tmp_path: Path) -> None:
    target = PipelineTarget("u", None, None, "out", "local", {}, tmp_path / "log")
    said = r"401; set a valid token \(--token-file\)"
    with pytest.raises(BrokerError, match=said) as caught, explain_spark_errors(target):
        raise BrokerError("401; set a valid token (option token)", 401, "unauthorized")
    assert caught.value.status == 401
