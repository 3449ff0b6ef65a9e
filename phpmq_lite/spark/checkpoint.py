"""What a checkpoint of Spark says is done, and the acknowledgement that Spark leaves out.

``commit`` of a batch comes while the next one is planned, so the last batch of a run is never
acknowledged by the query itself, nor by a restart that finds nothing new.
"""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from phpmq_lite.spark.errors import DataLossError, PipelineError
from phpmq_lite.spark.jobs.files import Files, folder_of, open_files
from phpmq_lite.spark.options import Connection
from phpmq_lite.spark.transport import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def final_ack(
    connection: Connection,
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
    end = last_committed(files)
    if end is None:
        return 0
    found = [each for each in _dicts(end) if "claim" in each and "subscription" in each]
    mine = [each for each in found if each["subscription"] == subscription]
    if not mine:
        names = ", ".join(repr(each["subscription"]) for each in found) or "none"
        raise PipelineError(
            f"checkpoint {checkpoint} is not of subscription {subscription!r}; it has {names}"
        )
    broker = Broker(connection)
    history_id = broker.bounds().history_id
    if mine[0]["history"] != history_id:
        raise DataLossError(
            f"the broker's history is {history_id} now, the checkpoint is of {mine[0]['history']}:"
            " nothing is acknowledged"
        )
    return broker.acknowledge(subscription, int(mine[0]["claim"]))


def last_committed(files: Files) -> list[Any] | None:
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


def _opened(checkpoint: str, spark: "SparkSession | None") -> Files:
    if folder_of(checkpoint) is None and spark is None:
        from pyspark.sql import SparkSession

        spark = SparkSession.getActiveSession()
        if spark is None:
            raise PipelineError(f"reading {checkpoint} needs a Spark session")
    return open_files(spark, checkpoint)


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
