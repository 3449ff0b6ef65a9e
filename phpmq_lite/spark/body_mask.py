"""Masks: members of JSON bodies that an archive replaces by null."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from phpmq_lite.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

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


def mask_batch(batch: "pa.RecordBatch", paths: Sequence[Path]) -> "pa.RecordBatch":
    """Mask the column ``body``, and add ``masked``, if there are paths."""
    if not paths:
        return batch
    import pyarrow as pa

    pairs = [mask_body(body, paths) for body in batch["body"].to_pylist()]
    bodies, counts = pa.array([p[0] for p in pairs], pa.binary()), [p[1] for p in pairs]
    batch = batch.set_column(batch.schema.names.index("body"), "body", bodies)
    return batch.append_column("masked", pa.array(counts, pa.int32()))


def hide_reports(events: "pa.RecordBatch") -> "pa.RecordBatch":
    """Replace what workers reported about failures by null, because it may quote a body."""
    import pyarrow as pa
    from pyarrow import compute

    is_report = compute.is_in(events["kind"], value_set=pa.array(_REPORTS))
    details = compute.if_else(is_report, None, events["detail"])
    return events.set_column(events.schema.names.index("detail"), "detail", details)
