"""Reads committed batches from streaming-query checkpoints, and acknowledges the last one."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phpmq_lite.errors import DataLossError, PipelineError
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
    """Acknowledge a query's last committed batch; return the number of messages acknowledged.

    Call this after the query has stopped and before it restarts. The call is safe to repeat.

    Args:
        connection: the broker to send the acknowledgement to.
        subscription: the query's subscription.
        checkpoint: the query's ``checkpointLocation``: a path, a ``file:`` URI or, with a
            session, a URI that Hadoop can read.
        spark: session with the Hadoop settings for a folder that is not on this machine.

    Raises:
        DataLossError: the checkpoint belongs to a history other than the broker's.
        PipelineError: the folder is not a checkpoint, or belongs to another subscription.
    """
    if local_folder_of(checkpoint) is None and spark is None:
        from pyspark.sql import SparkSession

        spark = SparkSession.getActiveSession()
        if spark is None:
            raise PipelineError(f"reading {checkpoint} requires a Spark session; pass spark")
    files = open_results(spark, checkpoint)
    if not files.exists("metadata"):
        raise PipelineError(f"{checkpoint} is not a query checkpoint: it has no metadata file")
    end = last_committed_offsets(files)
    if end is None:
        return 0
    claims = [claim for claim in _objects_of(end) if "claim" in claim and "subscription" in claim]
    matching = [claim for claim in claims if claim["subscription"] == subscription]
    if not matching:
        names = ", ".join(repr(claim["subscription"]) for claim in claims) or "none"
        raise PipelineError(f"checkpoint {checkpoint} belongs to {names}, not to {subscription!r}")
    broker = PipelineClient(connection)
    history_id = broker.bounds().history_id
    expected = matching[0]["history"]
    if expected != history_id:
        raise DataLossError(
            f"the broker's history is {history_id}, but the checkpoint's is {expected};"
            " nothing was acknowledged"
        )
    return broker.acknowledge(subscription, int(matching[0]["claim"]))


def _objects_of(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects at any depth, because future log formats may nest them."""
    if isinstance(value, dict):
        yield value
        for member in value.values():
            yield from _objects_of(member)
    elif isinstance(value, list):
        for member in value:
            yield from _objects_of(member)


def last_committed_offsets(files: ResultsFolder) -> list[Any] | None:
    """Return the settings and end offsets of the last committed batch, or None if there is none."""
    batch = _last_commit(files, "")
    if batch is None:
        return None
    sources = _read_sources(files, "", batch)
    if sources is None:
        raise PipelineError(f"the checkpoint contains commits/{batch} but lacks offsets/{batch}")
    return sources


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A batch recorded in a checkpoint, and the offset at which it ends."""

    batch: int
    history_id: str | None  # None if the stream does not read the history
    offset: int | None


def last_committed_batch(files: ResultsFolder, checkpoint: str) -> CommittedBatch | None:
    """Return the last committed batch, or None if no batch has been committed."""
    batch = _last_commit(files, f"{checkpoint}/")
    return None if batch is None else planned_batch(files, checkpoint, batch)


def planned_batch(files: ResultsFolder, checkpoint: str, batch: int) -> CommittedBatch:
    """Return a planned batch, whether or not it has been committed."""
    sources = _read_sources(files, f"{checkpoint}/", batch)
    return CommittedBatch(batch, *(offset_of(sources[-1]) if sources else (None, None)))


def has_planned_batch(files: ResultsFolder, checkpoint: str) -> bool:
    """Return whether a batch was planned, but not committed."""
    planned = _last_number(files, f"{checkpoint}/offsets")
    return planned != _last_commit(files, f"{checkpoint}/")


def _last_commit(files: ResultsFolder, prefix: str) -> int | None:
    return _last_number(files, f"{prefix}commits")


def _last_number(files: ResultsFolder, folder: str) -> int | None:
    names = files.names(folder)
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=None)


def _read_sources(files: ResultsFolder, prefix: str, batch: int) -> list[Any] | None:
    """Return the settings and each source's offset, parsed from the lines below the version."""
    text = files.read(f"{prefix}offsets/{batch}")
    return None if text is None else [_parse_json(line) for line in text.splitlines()[1:]]


def _parse_json(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None  # another source, whose offset is not JSON


def query_id(files: ResultsFolder, checkpoint: str) -> str | None:
    """Return the id of a checkpoint's query, or None if the query was never started."""
    text = files.read(f"{checkpoint}/metadata")
    return None if text is None else str(json.loads(text)["id"])


def offset_of(value: Any) -> tuple[str | None, int | None]:
    """Extract the history id and row offset from a streaming offset (JSON text or parsed)."""
    if isinstance(value, str):
        return offset_of(_parse_json(value))
    if not isinstance(value, dict):
        return None, None
    history_id, offset = value.get("history"), value.get("offset")
    return (
        history_id if isinstance(history_id, str) else None,
        offset if isinstance(offset, int) else None,
    )
