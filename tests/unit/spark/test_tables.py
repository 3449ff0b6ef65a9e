"""Options of tables, carried by their columns."""

from phpmq_lite.spark.schema import QUEUE
from phpmq_lite.spark.tables import of_table, options_in, plain, with_options


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
    assert of_table(given) == {"url": "http://a"}
    assert of_table({"url": "http://a"}) is None


def test_columns_carry_options_but_no_token() -> None:
    marked = with_options(QUEUE, {"url": "http://a", "Token": "geheim"})
    assert marked.names == QUEUE.names
    assert options_in(marked) == {"url": "http://a"}
    assert options_in(QUEUE) == {}
    assert plain(marked) == QUEUE
