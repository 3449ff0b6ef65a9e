"""Rows of the archive, written with its ledger as the archive job does, but without a stream."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from phpmq_lite.spark.ledger import (
    ArchiveFile,
    DateManifest,
    commit,
    create_ledger,
    read_ledger,
    read_manifest,
)
from phpmq_lite.spark.results_folder import LocalResultsFolder
from tests.spark.history_rows import DAY_MS, Row, history_row, to_arrow


def archive_rows(out: Path, rows: Sequence[Row], *, has_bodies: bool = True) -> None:
    """Add rows as one batch."""
    files = LocalResultsFolder(out)
    ledger = read_ledger(files) or create_ledger()
    batch = f"test-{ledger.number:08d}"
    manifests = []
    by_date: dict[str, list[Row]] = {}
    for row in rows:
        date = datetime.fromtimestamp(row["settled_at"] / 1_000, UTC).date().isoformat()
        by_date.setdefault(date, []).append(row if has_bodies else row | {"body": None})
    for date, chosen in by_date.items():
        path = f"archive/date={date}/batch={batch}/part-0.parquet"
        target = out / path
        target.parent.mkdir(parents=True)
        pq.write_table(to_arrow(chosen), target)
        offsets = [row["offset"] for row in chosen]
        day = int(chosen[0]["settled_at"]) // DAY_MS
        file = ArchiveFile(
            path=path,
            rows=len(chosen),
            size_bytes=target.stat().st_size,
            lo=min(offsets),
            hi=max(offsets),
            first_day=day,
            last_day=day,
            batch=batch,
            has_bodies=has_bodies,
        )
        entry = ledger.dates.get(date)
        before = read_manifest(files, entry.manifest).files if entry else ()
        manifests.append(DateManifest(date=date, files=(*before, file)))
    last = max(row["offset"] for row in rows)
    commit(files, ledger, now_ms=0, manifests=manifests, offset=last, batch=batch)


def envelope_row(offset: int, urn: str | None, data: Any, **given: Any) -> Row:
    """Return a settled envelope; ``data`` is a value, or JSON as bytes."""
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    head = {
        "job": urn,
        "trace_id": f"t{offset}",
        "meta": {"id": f"m{offset}", "schema_version": 1},
        "attempts": 0,
    }
    body = json.dumps(head).encode()[:-1] + b',"data":' + text + b"}"
    row = {"urn": urn, "trace_id": f"t{offset}", "meta_id": f"m{offset}", "attempts": 0}
    return history_row(offset, **{**row, "body": body, "size": len(body), **given})
