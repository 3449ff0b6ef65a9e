"""Options of tables, carried by their columns."""

from phpmq_lite.spark.catalog_options import (
    add_table_options,
    read_table_options,
    remove_table_options,
    table_options,
)
from phpmq_lite.spark.columns import QUEUE_COLUMNS


def test_options_of_a_table_are_told_from_its_properties() -> None:
    given = {
        "provider": "phpmq",
        "owner": "root",
        "location": "/tmp/x",
        "comment": "c",
        "queue": "a property of the table",
        "url": "http://a",
        "option.url": "http://a",
    }
    assert table_options(given) == {"url": "http://a"}
    assert table_options({"url": "http://a"}) is None


def test_columns_carry_options_but_no_token() -> None:
    marked = add_table_options(QUEUE_COLUMNS, {"url": "http://a", "Token": "geheim"})
    assert marked.names == QUEUE_COLUMNS.names
    assert read_table_options(marked) == {"url": "http://a"}
    assert read_table_options(QUEUE_COLUMNS) == {}
    assert remove_table_options(marked) == QUEUE_COLUMNS
