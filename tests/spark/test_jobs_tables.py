"""Typed tables over an archive: columns, rejects, misfits, changes, and each row once."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructField, StructType

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark import SourceConnection, schema_of
from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.jobs import compact, prune, tables
from phpmq_lite.spark.jobs.options import (
    CompactOptions,
    JobControl,
    JobResult,
    PruneOptions,
    TablesOptions,
)
from phpmq_lite.spark.ledger import archive_files, commit, read_ledger, read_manifest
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.spark.selection import ArchiveSelection
from tests.spark.archived_rows import archive_rows, envelope_row
from tests.spark.fake_broker import FakeBroker
from tests.spark.history_rows import DAY_MS, START_MS, Row, history_row

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
        "tables": 1, "rejects": 3, "misfits": 1, "erased": 0, "without_body": 0, "without_urn": 2,
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
        "urn:a is a new table, tables/urn%3Aa, with the columns of 2 bodies",
        "urn:b is a new table, tables/urn%3Ab, with the columns of 1 bodies",
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


def test_newest_compatible_schema_decides_and_a_rebuild_takes_any(site: Site) -> None:
    def schema(**properties: Any) -> dict[str, Any]:
        return {"type": "object", "properties": {"a": {"type": "integer"}, **properties}}

    def notes() -> list[str]:
        return [note.partition(": ")[2] for note in site.tables().notes]

    wider = {"o": {"type": "object", "properties": {"k": {"type": "number"}}}}
    wider |= {name: {"type": "string"} for name in ("urn", "reason", "pointer")}
    folder = f"tables/{FOLDER}"
    site.broker.schemas[URN] = schema()
    site.archive(URN, {"a": 1, "b": "unnamed"})
    [note] = site.tables().notes
    assert note == f"{URN} is a new table, {folder}, with the columns of the registered schema"
    site.broker.schemas[URN] = schema(b={"type": "string"}, **wider)
    site.archive(URN, {"a": 2, "b": "x", "o": {"k": 1}}, {"b": 5})
    assert notes() == [
        "the columns have changed; they have version 2 now",
        f"the schema rejects 1 bodies; see rejects/{FOLDER}",
    ]
    site.broker.schemas[URN] = schema(b={"type": "integer"}, **wider)
    site.archive(URN, {"a": 4, "b": "x"}, {"b": 6})
    [kept, rejected] = notes()
    assert kept.startswith("the registered schema changes /data/b, so the table keeps the columns")
    assert rejected.startswith("the schema rejects 1 bodies")
    columns = "history_offset, schema_version, a, b, o.k"
    assert site.query(f"SELECT {columns} FROM it ORDER BY 1", folder) == [
        (1, 1, 1, None, None),
        (2, 2, 2, "x", 1.0),
        (4, 2, 4, "x", None),
    ]
    rejects = "SELECT history_offset, schema_version, pointer FROM it ORDER BY 1"
    assert site.query(rejects, f"rejects/{FOLDER}") == [(3, 2, "/data/b"), (5, 2, "/data/b")]

    with pytest.raises(RefusedError, match="no table of the urn 'urn:x'"):
        site.tables(rebuild=("urn:x",))
    assert site.tables(rebuild=(URN,)).details["rejects"] == 3
    columns = "history_offset, schema_version, a, b, o.k"
    assert site.query(f"SELECT {columns} FROM it ORDER BY 1", folder) == [
        (3, 1, None, 5, None),
        (5, 1, None, 6, None),
    ]
    assert [row[0] for row in site.query(rejects, f"rejects/{FOLDER}")] == [1, 2, 4]


def test_schema_that_is_registered_later_decides_if_the_columns_keep_their_types(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.archive("urn:a", {"n": 1, "s": "x"})
    site.archive("urn:b", {"n": 1, "s": "x"})
    site.tables()
    document = {"properties": {"s": {"type": "string", "minLength": 2}, "n": {"type": "number"}}}
    site.broker.schemas["urn:a"] = document
    site.broker.schemas["urn:b"] = {"properties": {"s": {"type": "boolean"}}}
    site.archive("urn:a", {"n": 2.5, "s": "xy"}, {"s": "x"})
    site.archive("urn:b", {"n": 2, "s": "y"})
    monkeypatch.setattr(tables, "SMALL_FILES", 2)
    assert site.tables().notes == (
        "urn:a: the columns have changed; they have version 2 now",
        "urn:a: the schema rejects 1 bodies; see rejects/urn%3Aa",
        "urn:b: the registered schema changes /data/s, so the table keeps the columns of version 1;"
        " give the new schema another URN, or create the table again with --rebuild urn:b",
    )
    columns = "history_offset, schema_version, n, s"
    assert site.query(f"SELECT {columns} FROM it ORDER BY 1", "tables/urn%3Aa") == [
        (1, 1, 1.0, "x"),
        (3, 2, 2.5, "xy"),
    ]
    site.archive("urn:a", {"n": 7})
    assert site.tables().rows == 1
    assert len(list((site.out / "tables/urn%3Aa").iterdir())) == 2  # two were merged
    assert site.shown("tables/urn%3Aa") == [1, 3, 6]
    assert site.shown("tables/urn%3Ab") == [2, 5]


def test_tables_by_queue_have_all_bodies(site: Site) -> None:
    site.broker.schemas["urn:a"] = {"properties": {"n": {"type": "string"}}}
    site.archive("urn:a", {"n": 1}, queue="work")
    site.archive(None, b'{"n":2.5}', b'{"n":"x"}', b"[]", queue="work")
    site.archive(None, b"\xff\x00", queue="bytes")
    result = site.tables(by="queue")
    assert (result.rows, result.details["misfits"], result.details["rejects"]) == (5, 3, 0)
    work = "queue_tables/work"
    assert site.query("SELECT urn, n, _misfit FROM it ORDER BY history_offset", work) == [
        ("urn:a", 1.0, None),
        (None, 2.5, None),
        (None, None, ["/n"]),
        (None, None, [""]),
    ]
    assert site.query("SELECT _misfit FROM it", "queue_tables/bytes") == [([""],)]
    site.archive("work", {"n": 1}, queue="more")
    assert (site.tables().rows, site.tables(by="queue").rows) == (1, 1)
    assert (site.shown(work), site.shown("tables/work")) == ([1, 2, 3, 4], [6])


def test_archive_without_bodies_is_refused_and_says_where_they_begin(site: Site) -> None:
    with pytest.raises(RefusedError, match="run `phpmq-lite pipeline archive --bodies` first"):
        site.tables()
    archive_rows(site.out, [envelope_row(n, "urn:a", {"n": n}) for n in (1, 2)], has_bodies=False)
    with pytest.raises(RefusedError, match=r"offsets 1 to 2: .*--bodies.* from offset 3 on"):
        site.tables()
    rows = [envelope_row(n, "urn:a", {"n": n}) for n in (3, 4, 5)]
    rows[1]["body"] = None
    rows[2] |= {"body": None, "erased_at": START_MS}
    archive_rows(site.out, rows)
    result = site.tables()
    assert (result.rows, result.details["without_body"], result.details["erased"]) == (1, 3, 1)
    assert result.notes[0] == (
        "messages up to offset 2 were archived without --bodies and are in no table; bodies are"
        " there from offset 3 on"
    )
    state = site.out / "tables/_state/urn.json"
    state.write_text(state.read_text().replace('"archive_id": "', '"archive_id": "x'))
    with pytest.raises(RefusedError, match="belong to the archive x"):
        site.tables()


def test_run_stops_between_slices_and_goes_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SLICE_OFFSETS", 2)
    site.archive("urn:a", *({"n": n} for n in range(5)))
    calls = iter([False, True])
    shown: list[Any] = []
    control = JobControl(lambda *figures: shown.append(figures), lambda: next(calls))
    stopped = site.tables(control=control)
    assert [*dict.fromkeys(shown)] == [("tables", 0, 5), ("tables", 2, 5)]
    assert (stopped.is_stopped, stopped.offset, stopped.rows) == (True, 2, 2)
    assert site.shown("tables/urn%3Aa") == [1, 2]
    assert (site.tables().batches, site.shown("tables/urn%3Aa")) == (2, [1, 2, 3, 4, 5])


@pytest.mark.parametrize("urn", ["urn:a", None])
def test_rows_of_a_backfill_are_added_once_and_compaction_changes_nothing(
    site: Site, urn: str | None
) -> None:
    """The URN is that of the rows that were there before; without one, there is no table yet."""

    def select(*queues: str) -> None:
        selection = ArchiveSelection(queues=queues, outcomes=("acked", "dead"))
        (site.out / "archive.json").write_text(json.dumps(selection.document()))

    def row(offset: int, **given: Any) -> Row:
        return envelope_row(offset, "urn:a", {"n": offset}, **given)

    def change(path: str | None = None, **changes: Any) -> None:
        """Change the ledger, and rename the first file as a compaction would replace it."""
        ledger = read_ledger(files)
        assert ledger is not None
        manifests = [read_manifest(files, entry.manifest) for entry in ledger.dates.values()]
        if path is not None:
            [manifest] = manifests
            first, *others = manifest.files
            files.move(first.path, path)
            manifests = [replace(manifest, files=(replace(first, path=path), *others))]
        commit(files, ledger, now_ms=0, manifests=manifests, **changes)

    files = LocalResultsFolder(site.out)
    archive_rows(site.out, [row(n) | {"urn": urn} for n in (1, 4)])
    select("orders")
    site.tables()
    archive_rows(site.out, [row(2, queue="mail"), row(3, queue="mail", outcome="dead")])
    change(offset=4)
    select("mail", "orders")
    archive_rows(site.out, [row(5), row(6, queue="mail")])
    change("archive/date=2026-03-01/batch=merged/part-0.parquet")
    assert site.tables().rows == 4
    assert site.tables().rows == 0
    assert site.shown("tables/urn%3Aa") == ([1, 2, 3, 4, 5, 6] if urn else [2, 3, 5, 6])


def test_compaction_and_prune_leave_each_row_of_the_other_dates_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive's list is the judge; offsets 1 to 7 are those of the first two dates."""
    monkeypatch.setattr(prune, "now_ms", lambda: START_MS + 2 * DAY_MS)
    own: dict[str, Any] = {"connection": None, "out": str(site.out)}
    site.broker.schemas[URN] = {"properties": {"n": {"type": "integer"}}}
    for numbers in ((1, 2, "x"), (4, 5), (6, "y", 8)):
        site.archive(URN, *({"n": n} for n in numbers))
    assert (site.tables().rows, site.tables(by="queue").rows) == (6, 8)
    site.archive(URN, {"n": 9})
    assert compact.run(site.spark, CompactOptions(**own)).details["dates"] == 1
    pruned = prune.run(site.spark, PruneOptions(**own, older_than_s=0))
    assert (pruned.rows, pruned.details["typed_rows"]) == (7, 14)
    rejected = ("SELECT history_offset FROM it", f"rejects/{FOLDER}")
    for rebuild in ((), (URN,)):
        site.archive(URN, {"n": 10}, {"n": "z"})
        assert site.tables(rebuild=rebuild).details["rejects"] == (1 + bool(rebuild))
        assert site.tables(by="queue").rows > 0
        files = LocalResultsFolder(site.out)
        ledger = read_ledger(files)
        assert ledger is not None
        listed = [files.url(file.path) for file in archive_files(files, ledger)]
        offsets = [row[0] for row in duckdb.read_parquet(listed).order("1").fetchall()]
        shown = site.shown(f"tables/{FOLDER}") + [row[0] for row in site.query(*rejected)]
        assert sorted(shown) == site.shown("queue_tables/orders") == offsets
    assert offsets == [8, 9, 10, 11, 12, 13]


def test_from_json_with_the_schema_reads_what_the_table_has(site: Site) -> None:
    site.broker.schemas[URN] = ORDER
    site.archive(
        URN,
        {"id": 1, "total": 2.5, "paid": True, "customer": {"name": "Änne"}, "queue": "q"},
        {"id": 2, "lines": [{"sku": "a", "n": 1}, {"sku": "b"}], "tags": {"k": 5}},
        {"id": 3, "ref": 7},
    )
    site.tables()
    broker = SourceConnection(site.broker.url)
    schema = schema_of(URN, broker)
    assert schema_of(URN, out=str(site.out)) == schema
    with pytest.raises(RefusedError, match="urn:x has neither"):
        schema_of("urn:x", broker, out=str(site.out))
    rows = read_archive(site.spark, LocalResultsFolder(site.out))
    data = sf.from_json(rows.body.cast("string"), StructType([StructField("data", schema)]))
    read = rows.select("offset", data.data.alias("data")).orderBy("offset")
    names = ["id", "total", "paid", "customer", "lines", "tags"]
    table = site.spark.read.parquet(str(site.out / f"tables/{FOLDER}")).orderBy("history_offset")
    assert (
        read.select(*(f"data.{name}" for name in names)).collect() == table.select(*names).collect()
    )
    assert [row[0] for row in read.selectExpr("to_json(data.ref)").collect()] == [None, None, "7"]
    assert [row[0] for row in read.select("data.queue").collect()] == ["q", None, None]
