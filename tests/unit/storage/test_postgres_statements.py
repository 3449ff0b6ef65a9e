"""Parameters of PostgreSQL statements."""

import pytest

from phpmq_lite.storage.statements import compiled


@pytest.mark.parametrize(
    ("text", "expected", "names"),
    [
        ("SELECT 1", "SELECT 1", ()),
        ("SELECT :a, :b, :a", "SELECT $1, $2, $1", ("a", "b")),
        ("VALUES (?, ?), (?, ?)", "VALUES ($1, $2), ($3, $4)", ("1", "2", "3", "4")),
        ("SELECT ?2, ?1, ?", "SELECT $2, $1, $3", ("1", "2", "3")),
        ("SELECT ?1, ?1, ?", "SELECT $1, $1, $2", ("1", "2")),
        ("SELECT :a, ?, :a", "SELECT $1, $2, $1", ("a", "2")),
        ("SELECT :a::text, x::bigint", "SELECT $1::text, x::bigint", ("a",)),
        ("SELECT ':a ?' || :b, \":c\"", "SELECT ':a ?' || $1, \":c\"", ("b",)),
        ("SELECT 'it''s :a', :a", "SELECT 'it''s :a', $1", ("a",)),
    ],
)
def test_parameters_get_numbers_as_in_sqlite(
    text: str, expected: str, names: tuple[str, ...]
) -> None:
    assert compiled(text) == (expected, names)
