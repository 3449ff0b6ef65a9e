"""Typed tables over an archive: columns, rejects, misfits, changes, and each row once."""

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from phpmq_lite.spark import SourceConnection
from phpmq_lite.spark.jobs import tables
from phpmq_lite.spark.jobs.options import JobControl, JobResult, TablesOptions
from tests.spark.archived_rows import archive_rows, envelope_row
from tests.spark.fake_broker import FakeBroker
from tests.spark.history_rows import DAY_MS, START_MS, history_row

ORDER: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer", "description": "number of the order"},
        "total": {"type": "number"},
        "paid": {"type": ["boolean", "null"]},
        "customer": {
            "type": "object",
            "properties": {"name": {"type": "string", "description": "in full"}},
        },
        "lines": {
            "type": "array",
            "items": {"properties": {"sku": {"type": "string"}, "n": {"type": "integer"}}},
        },
        "ref": {"type": ["integer", "string"]},
        "tags": {"type": "object", "additionalProperties": {"type": "integer"}},
        "queue": {"type": "string"},
    },
}


class Site:
    """An archive, a broker with schemas, and the tables."""

    def __init__(self, spark: SparkSession, broker: FakeBroker, out: Path) -> None:
        self.spark, self.broker, self.out = spark, broker, out
        self.offset = 0

    def archive(self, urn: str | None, *payloads: Any, **given: Any) -> None:
        """Archive envelopes, or bodies if the URN is None, as one batch."""
        rows = []
        for data in payloads:
            self.offset += 1
            settled = {"settled_at": START_MS + self.offset * DAY_MS // 4}
            if urn is None:
                rows.append(history_row(self.offset, body=data, **settled, **given))
            else:
                rows.append(envelope_row(self.offset, urn, data, **settled, **given))
        archive_rows(self.out, rows)

    def tables(self, **given: Any) -> JobResult:
        control = given.pop("control", JobControl())
        options = TablesOptions(
            connection=SourceConnection(self.broker.url), out=str(self.out), **given
        )
        return tables.run(self.spark, options, control)

    def query(self, sql: str, folder: str) -> Any:
        """Ask DuckDB about the files of a table, which stand for ``it``."""
        files = f" '{self.out / folder}/*.parquet' AS it"
        return duckdb.execute(sql.replace(" it", files)).fetchall()

    def shown(self, folder: str) -> list[int]:
        return [row[0] for row in self.query("SELECT history_offset FROM it ORDER BY 1", folder)]


@pytest.fixture
def site(spark: SparkSession, broker: FakeBroker, tmp_path: Path) -> Site:
    return Site(spark, broker, tmp_path / "out")


URN = "urn:babel:orders:created"
FOLDER = "urn%3Ababel%3Aorders%3Acreated"
COLUMNS = {
    "history_offset": "BIGINT",
    "queue": "VARCHAR",
    "message_id": "VARCHAR",
    "meta_id": "VARCHAR",
    "trace_id": "VARCHAR",
    "published_at": "TIMESTAMP WITH TIME ZONE",
    "settled_at": "TIMESTAMP WITH TIME ZONE",
    "outcome": "VARCHAR",
    "attempts": "BIGINT",
    "date": "DATE",
    "schema_version": "BIGINT",
    "_misfit": "VARCHAR[]",
    "id": "BIGINT",
    "total": "DOUBLE",
    "paid": "BOOLEAN",
    "customer": 'STRUCT("name" VARCHAR)',
    "lines": "STRUCT(sku VARCHAR, n BIGINT)[]",
    "ref": 'STRUCT("integer" BIGINT, string VARCHAR)',
    "tags": "MAP(VARCHAR, BIGINT)",
    "data_queue": "VARCHAR",
}


def test_table_of_a_registered_urn_has_its_types_and_rejects_what_the_schema_rejects(
    site: Site,
) -> None:
    site.broker.schemas[URN] = ORDER
    site.archive(
        URN,
        {"id": 1, "total": 2, "paid": True, "customer": {"name": "Änne"}, "ref": "x", "queue": "q"},
        {"id": 2, "lines": [{"sku": "a", "n": 1}, {"sku": "b"}], "ref": 7, "tags": {"k": 5}},
        {"id": "3"},
        b'{"id":4,"total":1e999}',
        {"total": 1.5},
        b'{"id":99999999999999999999}',
    )
    site.archive(None, b"text", b"\xff")
    result = site.tables()
    assert (result.rows, result.offset, result.batches) == (3, 8, 1)
    assert result.details == {
        "tables": 1, "rejects": 3, "misfits": 1, "without_body": 0, "without_urn": 2,
    }  # fmt: skip
    folder = f"tables/{FOLDER}"
    described = site.query("DESCRIBE SELECT * FROM it", folder)
    assert {row[0]: row[1] for row in described} == COLUMNS
    columns = "history_offset, queue, meta_id, id, total, paid, customer, data_queue, _misfit"
    assert site.query(f"SELECT {columns} FROM it ORDER BY 1", folder) == [
        (1, "orders", "m1", 1, 2.0, True, {"name": "Änne"}, "q", None),
        (2, "orders", "m2", 2, None, None, None, None, None),
        (6, "orders", "m6", None, None, None, None, None, ["/data/id"]),
    ]
    assert site.query("SELECT lines, ref, tags FROM it ORDER BY history_offset", folder) == [
        (None, {"integer": None, "string": "x"}, None),
        ([{"sku": "a", "n": 1}, {"sku": "b", "n": None}], {"integer": 7, "string": None}, {"k": 5}),
        (None, None, None),
    ]
    columns = "history_offset, urn, schema_version, reason, pointer, detail"
    assert site.query(f"SELECT {columns} FROM it ORDER BY 1", f"rejects/{FOLDER}") == [
        (3, URN, 1, "schema_mismatch", "/data/id", "/data/id is a string, not an integer"),
        (4, URN, 1, "poison", "/data", "data contains a number that is not a finite double"),
        (5, URN, 1, "schema_mismatch", "/data/id", "/data/id is missing"),
    ]
    assert site.tables().rows == 0
    read = json.loads(site.spark.read.parquet(str(site.out / folder)).schema.json())
    comments = {field["name"]: field["metadata"]["comment"] for field in read["fields"]}
    assert comments["id"] == "number of the order"
    assert comments["queue"].startswith("its queue")
    [name] = next(f for f in read["fields"] if f["name"] == "customer")["type"]["fields"]
    assert name["metadata"]["comment"] == "in full"


def test_payloads_without_a_schema_are_typed_once_and_only_widen(site: Site) -> None:
    site.archive("urn:a", {"n": 1, "s": "x", "o": {"k": None}}, {"n": 2, "s": "y", "l": []})
    site.archive("urn:b", {"z": True})
    first = site.tables()
    assert first.notes == (
        "urn:a has no registered schema; its columns are those of 2 bodies",
        "urn:b has no registered schema; its columns are those of 1 bodies",
    )
    a = "tables/urn%3Aa"
    assert site.query(
        "SELECT n, s, schema_version, _misfit FROM it ORDER BY history_offset", a
    ) == [
        (1, "x", 1, None),
        (2, "y", 1, None),
    ]
    site.archive(
        "urn:a", {"n": 2.5, "s": 5, "o": {"k": 1}, "l": ["p"], "new": {"x": 1}}, {"n": "3"}, [1]
    )
    second = site.tables()
    assert second.details["misfits"] == 3
    assert second.notes == (
        "urn:a: the columns have changed; they have version 2 now",
        "urn:a: 3 bodies have values without a column; see _misfit",
    )
    columns = "n, s, o.k, l, new.x, schema_version, _misfit, typeof(n)"
    assert site.query(f"SELECT {columns} FROM it ORDER BY history_offset", a) == [
        (1.0, "x", None, None, None, 1, None, "DOUBLE"),
        (2.0, "y", None, None, None, 1, None, "DOUBLE"),
        (2.5, None, 1, ["p"], 1, 2, ["/data/s"], "DOUBLE"),
        (None, None, None, None, None, 2, ["/data/n"], "DOUBLE"),
        (None, None, None, None, None, 2, ["/data"], "DOUBLE"),
    ]
    assert site.query("SELECT z FROM it", "tables/urn%3Ab") == [(True,)]
    site.archive("urn:a", {"n": 7})
    assert site.tables().notes == ()
    assert site.shown(a) == [1, 2, 4, 5, 6, 7]
