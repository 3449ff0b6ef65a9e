"""Masks: members of JSON bodies that an archive replaces by null."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from phpmq_lite.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_REPORTS: Final = ("retry", "failure")  # kinds of events whose details are texts of workers
ANY: Final = "*"  # in a path: each element or member
Path = tuple[str, ...]


def parse_path(text: str) -> Path:
    """Parse a JSON pointer (``/data/email``) or names with dots (``data.email``)."""
    if text.startswith("/"):
        path = tuple(n.replace("~1", "/").replace("~0", "~") for n in text[1:].split("/"))
    else:
        path = tuple(text.split("."))
    if "" in path:
        raise OptionError(f"mask {text!r}: a name is empty; use data.email or /data/email")
    return path


def mask_body(body: bytes | None, paths: Sequence[Path]) -> tuple[bytes | None, int | None]:
    """Return a body with null at the paths, and the number of members that were replaced.

    The number is None if nothing was. A body that is not a JSON object is removed as a whole,
    because nothing can be found in it; the number is then 0. Other bodies keep their bytes.
    """
    if body is None:
        return None, None
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None, 0
    if not isinstance(document, dict):
        return None, 0
    count = sum(_replace(document, path) for path in paths)
    if not count:
        return body, None
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    ), count


def _replace(node: Any, path: Path) -> int:
    name, *names = path
    keys: list[Any] = []
    if isinstance(node, dict):
        keys = list(node) if name == ANY else [name] if name in node else []
    elif isinstance(node, list):
        is_index = name.isascii() and name.isdigit() and int(name) < len(node)
        keys = [*range(len(node))] if name == ANY else [int(name)] if is_index else []
    count = 0
    for key in keys:
        if names:
            count += _replace(node[key], tuple(names))
        elif node[key] is not None:
            node[key] = None
            count += 1
    return count


def mask_bodies(bodies: "pa.Array", paths: Sequence[Path]) -> "pa.StructArray":
    """Return the masked bodies, and as ``masked`` the number of replaced members."""
    import pyarrow as pa

    pairs = [mask_body(body, paths) for body in bodies.to_pylist()]
    columns = [pa.array([body for body, _ in pairs], pa.binary())]
    columns.append(pa.array([count for _, count in pairs], pa.int32()))
    return pa.StructArray.from_arrays(columns, ["body", "masked"])


def mask_batch(batch: "pa.RecordBatch", paths: Sequence[Path]) -> "pa.RecordBatch":
    """Mask the column ``body``, and add ``masked``; without paths, return the batch as it is."""
    if not paths:
        return batch
    masked = mask_bodies(batch["body"], paths)
    at = batch.schema.names.index("body")
    batch = batch.set_column(at, "body", masked.field("body"))
    return batch.append_column("masked", masked.field("masked"))


def mask_rows(rows: "DataFrame", masks: Sequence[str]) -> "DataFrame":
    """Mask the column ``body``, and add ``masked``."""
    from pyspark.sql import functions as sf
    from pyspark.sql.pandas.functions import arrow_udf

    if not masks:
        return rows.withColumn("masked", sf.lit(None).cast("int"))
    import pyarrow as pa

    paths = [parse_path(mask) for mask in masks]

    def mask(bodies: pa.Array) -> pa.Array:
        return mask_bodies(bodies, paths)

    udf = arrow_udf(mask, "body binary, masked int")  # type: ignore[call-overload]
    masked = rows.withColumn("_masked", udf("body"))
    fields = {"body": sf.col("_masked.body"), "masked": sf.col("_masked.masked")}
    return masked.withColumns(fields).drop("_masked")


def hide_reports(events: "pa.RecordBatch") -> "pa.RecordBatch":
    """Replace what workers reported about failures by null, because it may quote a body."""
    import pyarrow as pa
    from pyarrow import compute

    is_report = compute.is_in(events["kind"], value_set=pa.array(_REPORTS))
    details = compute.if_else(is_report, None, events["detail"])
    return events.set_column(events.schema.names.index("detail"), "detail", details)
