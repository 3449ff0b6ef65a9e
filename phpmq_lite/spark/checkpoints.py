"""Reads what checkpoints of streaming queries say is done; the last acknowledgement."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phpmq_lite.spark.errors import DataLossError, PipelineError
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.results_folder import ResultsFolder, local_folder_of, open_results
from phpmq_lite.spark.source_options import SourceConnection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def final_ack(
    connection: SourceConnection,
    subscription: str,
    checkpoint: str,
    spark: "SparkSession | None" = None,
) -> int:
    """Acknowledge the last batch that a query has committed; return how many messages that were.

    Call it when the query has ended, and before it starts anew.  Harmless when repeated.

    Args:
        connection: the broker.
        subscription: whose claims.
        checkpoint: the query's folder, as Spark was given it; a path, ``file:`` or, with a
            session, what Hadoop reads.
        spark: whose Hadoop settings are used where the folder is not on this machine.

    Raises:
        DataLossError: the broker has another history than the one that was read.
        PipelineError: the checkpoint is not of this subscription, or there is none.
    """
    files = _opened(checkpoint, spark)
    if not files.exists("metadata"):
        raise PipelineError(f"{checkpoint} is no checkpoint of a query: it has no file metadata")
    end = last_committed_offsets(files)
    if end is None:
        return 0
    found = [each for each in _dicts(end) if "claim" in each and "subscription" in each]
    mine = [each for each in found if each["subscription"] == subscription]
    if not mine:
        names = ", ".join(repr(each["subscription"]) for each in found) or "none"
        raise PipelineError(
            f"checkpoint {checkpoint} is not of subscription {subscription!r}; it has {names}"
        )
    broker = PipelineClient(connection)
    history_id = broker.bounds().history_id
    if mine[0]["history"] != history_id:
        raise DataLossError(
            f"the broker's history is {history_id} now, the checkpoint is of {mine[0]['history']}:"
            " nothing is acknowledged"
        )
    return broker.acknowledge(subscription, int(mine[0]["claim"]))


def last_committed_offsets(files: ResultsFolder) -> list[Any] | None:
    """Give the offsets at which the last committed batch ended, one for each source.

    None: nothing is committed.  A batch that is planned only does not count.
    """
    done = _last_number(files.names("commits"))
    if done is None:
        return None
    planned = files.read(f"offsets/{done}")
    if planned is None:
        raise PipelineError(f"the checkpoint has commits/{done}, but not offsets/{done}")
    # A version, a line of settings, then a line for each source.
    return [_parsed(line) for line in planned.splitlines()[1:]]


def _opened(checkpoint: str, spark: "SparkSession | None") -> ResultsFolder:
    if local_folder_of(checkpoint) is None and spark is None:
        from pyspark.sql import SparkSession

        spark = SparkSession.getActiveSession()
        if spark is None:
            raise PipelineError(f"reading {checkpoint} needs a Spark session")
    return open_results(spark, checkpoint)


def _last_number(names: list[str]) -> int | None:
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=None)


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None  # a source that keeps another form


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in it, however deep: later forms of the log may nest."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _dicts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _dicts(each)


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A batch of a checkpoint, and the offset that it ends with."""

    batch: int
    history_id: str | None  # None: not the history's checkpoint
    offset: int | None


def last_committed_batch(files: ResultsFolder, checkpoint: str) -> CommittedBatch | None:
    """Read the last committed batch; None where none is."""
    numbers = [int(name) for name in files.names(f"{checkpoint}/commits") if name.isdigit()]
    if not numbers:
        return None
    return planned_batch(files, checkpoint, max(numbers))


def planned_batch(files: ResultsFolder, checkpoint: str, batch: int) -> CommittedBatch:
    """Read where a batch ends that is planned, committed or not."""
    text = files.read(f"{checkpoint}/offsets/{batch}")
    history_id, offset = offset_of(text.splitlines()[-1]) if text else (None, None)
    return CommittedBatch(batch, history_id, offset)


def query_id(files: ResultsFolder, checkpoint: str) -> str | None:
    """Give the number that a checkpoint keeps for its life; None before its first start."""
    text = files.read(f"{checkpoint}/metadata")
    return None if text is None else str(json.loads(text)["id"])


def offset_of(written: Any) -> tuple[str | None, int | None]:
    """Take history id and offset from the JSON of a stream's offset, as text or as objects."""
    while isinstance(written, str):
        try:
            written = json.loads(written)
        except ValueError:
            return None, None
    if not isinstance(written, dict):
        return None, None
    history_id, offset = written.get("history"), written.get("offset")
    return (
        history_id if isinstance(history_id, str) else None,
        offset if isinstance(offset, int) else None,
    )
