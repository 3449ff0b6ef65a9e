"""Options of catalog tables: ``CREATE TABLE … USING phpmq OPTIONS (…)``.

Spark passes a table's options only once, among its properties, when it asks for the columns;
queries of the table come without options, but with the columns. So the options are stored in the
metadata of the first column, except for tokens, which do not belong in a catalog.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

_MARK: Final = "provider"  # a property of every table, but not an option
_PREFIX: Final = "option."  # of options among the properties
_KEY: Final = "phpmq.options"
_TOKEN: Final = "token"  # noqa: S105 - the name of the option


def table_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a table that is being created; None otherwise.

    Properties without the prefix belong to Spark (``owner``, ``location``) or to the table.
    """
    if _MARK not in options:
        return None
    return {
        name.removeprefix(_PREFIX): value
        for name, value in options.items()
        if name.startswith(_PREFIX)
    }


def add_table_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns with the options of their table, except for a token."""
    kept = {name: value for name, value in options.items() if name.lower() != _TOKEN}
    first, *others = columns
    marked = StructField(first.name, first.dataType, first.nullable, {_KEY: kept})
    return StructType([marked, *others])


def read_table_options(columns: StructType) -> dict[str, str]:
    """Return the options stored in a table's columns; empty for other columns."""
    found: dict[str, str] = {}
    for field in columns:
        found |= (field.metadata or {}).get(_KEY, {})
    return found


def remove_table_options(columns: StructType) -> StructType:
    """Return the columns without stored options."""
    return StructType([StructField(f.name, f.dataType, f.nullable) for f in columns])
