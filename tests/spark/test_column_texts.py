"""The texts of docs/reference/columns.md are comments in the schemas of Spark."""

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructField

from phpmq_lite.spark.columns import ARCHIVE_SCHEMA, commented_schema, with_comments
from phpmq_lite.spark.jobs.archive import transform
from phpmq_lite.spark.jobs.metrics import TABLES
from phpmq_lite.spark.table_columns import METRIC_COLUMNS
from phpmq_lite.storage.arrow import BODY, READER_COLUMNS
from tests.spark.history_rows import history_row, to_arrow


def parts_of(field: StructField) -> tuple[str, str, str]:
    return field.name, field.dataType.simpleString(), (field.metadata or {}).get("comment", "")


def test_metric_tables_have_the_columns_and_texts_of_the_page(spark: SparkSession) -> None:
    rows = spark.createDataFrame([], ARCHIVE_SCHEMA).withColumn("retried", sf.lit(False))
    assert TABLES.keys() == METRIC_COLUMNS.keys()
    for table, compute in TABLES.items():
        schema = with_comments(compute(rows), METRIC_COLUMNS[table]).schema
        expected = commented_schema(METRIC_COLUMNS[table])
        assert sorted(map(parts_of, schema)) == sorted(map(parts_of, expected)), table


def test_texts_are_in_the_files_and_in_describe(spark: SparkSession, tmp_path: Path) -> None:
    history = spark.createDataFrame(to_arrow([history_row(1)]))
    described = with_comments(transform(history), (*READER_COLUMNS, BODY))
    described.write.parquet(str(tmp_path / "archive"))
    spark.read.parquet(str(tmp_path / "archive")).createOrReplaceTempView("archived")
    comments = {row.col_name: row.comment for row in spark.sql("DESCRIBE archived").collect()}
    assert comments == {column.name: column.comment for column in (*READER_COLUMNS, BODY)} | {
        "date": None
    }
    spark.catalog.dropTempView("archived")
