"""A migration is split into statements where SQLite ends them."""

import pytest

from phpmq_lite.storage.sqlite.migrate import split_statements


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("", []),
        ("SELECT 1;", ["SELECT 1;"]),
        ("SELECT 1;\nSELECT 2;\n", ["SELECT 1;", "\nSELECT 2;"]),
        ("SELECT ';'; SELECT \";\";", ["SELECT ';';", ' SELECT ";";']),
        ("-- a; b\nSELECT 1; -- c;\n", ["-- a; b\nSELECT 1;", " -- c;\n"]),
        ("/* ; */ SELECT 1;", ["/* ; */ SELECT 1;"]),
        ("SELECT 1", ["SELECT 1"]),  # SQLite accepts it or reports what is missing
        (
            "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM b; DELETE FROM c; END; SELECT 1;",
            [
                "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM b; DELETE FROM c; END;",
                " SELECT 1;",
            ],
        ),
    ],
)
def test_text_is_split_into_statements(text: str, statements: list[str]) -> None:
    assert list(split_statements(text)) == statements
