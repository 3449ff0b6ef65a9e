"""Measure typed tables: rows per second with a registered schema and with inferred columns.

    python benchmarks/typed_tables.py [--rows 400000] [--master local[2]]

An archive with bodies of 340 bytes is written without a broker; half of the messages have a URN
with a schema. The job runs three times, each time with half as many rows; the first run infers
columns, and the last one is warm. DuckDB checks the sums of the tables. Processor time is that of
all processes, including Java; divided by the cores, it gives the time on an idle machine.
"""

import argparse
import json
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from phpmq_lite.spark.jobs import tables
from phpmq_lite.spark.jobs.options import TablesOptions
from phpmq_lite.spark.ledger import ArchiveFile, DateManifest, commit, create_ledger, read_ledger
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.spark.session import session
from phpmq_lite.spark.source_options import SourceConnection
from phpmq_lite.storage import arrow
from phpmq_lite.storage.arrow import arrow_schema

DAY_MS: Final = 86_400_000
COLUMNS: Final = arrow_schema((*arrow.COLUMNS, arrow.BODY))
URNS: Final = ("urn:babel:orders:created", "urn:babel:orders:paid")
SCHEMA: Final = {
    "type": "object",
    "required": ["order_id", "lines"],
    "properties": {
        "order_id": {"type": "integer", "minimum": 1},
        "customer": {
            "type": "object",
            "properties": {"id": {"type": "integer"}, "name": {"type": "string", "minLength": 1}},
        },
        "total": {"type": "number"},
        "paid": {"type": "boolean"},
        "currency": {"enum": ["EUR", "USD"]},
        "note": {"type": ["string", "null"]},
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"sku": {"type": "string"}, "qty": {"type": "integer"}},
            },
        },
    },
}


def body(n: int, urn: str) -> bytes:
    """Return an envelope of 340 bytes."""
    data = {
        "order_id": n,
        "customer": {"id": n % 1_000, "name": "Ann"},
        "total": n * 1.5,
        "paid": n % 2 == 0,
        "currency": "EUR",
        "note": None,
        "lines": [{"sku": f"a{n}", "qty": 2}, {"sku": "b", "qty": 1}],
    }
    meta = {"id": f"m{n}", "queue": "orders", "lang": "php", "schema_version": 1, "created_at": 1}
    envelope = {"job": urn, "trace_id": f"t{n}", "data": data, "meta": meta, "attempts": 0}
    return json.dumps(envelope).encode()


def add_date(out: Path, lo: int, hi: int, day: int) -> None:
    """Archive offsets ``(lo, hi]`` as the files of one date."""
    files = LocalResultsFolder(out)
    date = datetime.fromtimestamp(day * DAY_MS / 1_000, UTC).date().isoformat()
    path = f"archive/date={date}/batch=bench-{day}/part-0.parquet"
    rows = []
    for n in range(lo + 1, hi + 1):
        urn, at = URNS[n % 2], day * DAY_MS + n
        content = body(n, urn)
        row: dict[str, Any] = dict.fromkeys(COLUMNS.names)
        rows.append(row | {
            "offset": n, "seq": n, "message_id": f"{n:032x}", "queue": "orders", "position": n,
            "outcome": "acked", "published_at": at, "settled_at": at, "deliveries": 1,
            "size": len(content), "urn": urn, "trace_id": f"t{n}", "meta_id": f"m{n}",
            "attempts": 0, "priority": 128, "retries": 0, "body": content,
        })  # fmt: skip
    (out / path).parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, COLUMNS), out / path, row_group_size=20_000)
    file = ArchiveFile(
        path=path, rows=hi - lo, size_bytes=(out / path).stat().st_size, lo=lo + 1, hi=hi,
        first_day=day, last_day=day, batch=f"bench-{day}", has_bodies=True,
    )  # fmt: skip
    ledger = read_ledger(files) or create_ledger()
    commit(files, ledger, now_ms=0, manifests=[DateManifest(date=date, files=(file,))], offset=hi)


def processor_s() -> float:
    """Return the processor time of this process and its descendants, from Linux's /proc."""
    ticks: dict[int, tuple[int, int]] = {}  # process id -> parent, ticks with ended children
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        ticks[int(file.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    own, total = {os.getpid()}, 0
    while own:
        total += sum(ticks[process][1] for process in own if process in ticks)
        own = {process for process, (parent, _) in ticks.items() if parent in own}
    return total / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--master", default="local[2]")
    arguments = parser.parse_args()
    half = arguments.rows // 2
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        spark = session("typed tables", master=arguments.master, log=out / "spark.log")
        options = TablesOptions(connection=SourceConnection("http://127.0.0.1:1"), out=str(out))
        registered = {URNS[0]: json.dumps(SCHEMA)}
        with mock.patch.object(PipelineClient, "schema", lambda _, urn: registered.get(urn)):
            for number in range(3):  # the last one is warm
                add_date(out, number * half, (number + 1) * half, 20_000 + number)
                began_s, processor_began_s = time.monotonic(), processor_s()
                result = tables.run(spark, options)
                took_s, used_s = time.monotonic() - began_s, processor_s() - processor_began_s
                print(
                    f"{result.rows:,} rows in {took_s:.1f} s, {used_s:.1f} s of processor:"
                    f" {result.rows / used_s:,.0f} rows for each"
                )
        total = 0
        for folder in sorted((out / "tables").glob("urn*")):
            count, orders = duckdb.execute(
                f"SELECT count(*), sum(order_id) FROM '{folder}/*.parquet'"
            ).fetchone() or (0, 0)
            print(f"{folder.name}: {count:,} rows")
            total += orders
        assert total == sum(range(1, 3 * half + 1)), total
        spark.stop()


if __name__ == "__main__":
    main()
