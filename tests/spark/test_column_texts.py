"""The texts of docs/reference/columns.md are comments in the schemas of Spark."""

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructField

from phpmq_lite.spark.columns import commented_schema
from phpmq_lite.spark.insights_tables import TABLES
from phpmq_lite.spark.jobs import archive
from phpmq_lite.spark.jobs.metrics import conform, write_table
from phpmq_lite.spark.jobs.options import ArchiveOptions
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.spark.source_options import SourceConnection
from phpmq_lite.spark.table_columns import ARCHIVE_COLUMNS, FILE_COLUMNS, METRIC_COLUMNS
from phpmq_lite.storage.arrow import READER_COLUMNS
from tests.spark.fake_broker import FakeBroker
from tests.spark.history_rows import history_rows
from tests.unit.spark.jobs.test_metric_tables import computed as metric_tables_of
from tests.unit.spark.jobs.test_metric_tables import narrowed


def parts_of(field: StructField) -> tuple[str, str, str]:
    return field.name, field.dataType.simpleString(), (field.metadata or {}).get("comment", "")


def test_metric_tables_have_the_columns_and_texts_of_the_page(
    spark: SparkSession, tmp_path: Path
) -> None:
    computed = metric_tables_of(narrowed(history_rows(60)))
    assert computed.keys() == set(TABLES) == METRIC_COLUMNS.keys()
    for table, rows in computed.items():
        written = conform(rows, table)
        days = written["date"].unique().to_pylist()
        write_table(LocalResultsFolder(tmp_path), table, written, days)
        schema = spark.read.parquet(str(tmp_path / "metrics" / table)).schema
        expected = commented_schema(METRIC_COLUMNS[table])
        found = [part for part in map(parts_of, schema) if part[0] != "date"]
        assert found == [part for part in map(parts_of, expected) if part[0] != "date"], table


def test_texts_are_in_the_files_of_an_archive_and_in_describe(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    broker.settle(3)
    options = ArchiveOptions(connection=SourceConnection(broker.url), out=str(tmp_path))
    assert archive.run(spark, options).rows == 3
    spark.read.parquet(str(tmp_path / "archive")).createOrReplaceTempView("archived")
    rows = spark.sql("DESCRIBE archived").collect()
    spark.catalog.dropTempView("archived")
    folders = {"date": None, "batch": None}
    comments = {row.col_name: row.comment for row in rows if row.col_name[0] != "#"} | folders
    archived = (*READER_COLUMNS, *FILE_COLUMNS, *ARCHIVE_COLUMNS)
    texts = {column.name: column.comment for column in archived}
    assert comments == texts | folders
