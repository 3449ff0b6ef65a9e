"""Options of tables in a catalog: ``CREATE TABLE … USING phpmq OPTIONS (…)``.

Spark hands a table's options over only once, among its own properties, when it asks for the
columns; queries of the table come without them.  The columns come with each query, so the options
are kept in the metadata of the first one.  A token is not: a catalog is no place for it.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

_MARK: Final = "provider"  # a property of every table, and no option of ours
_PREFIX: Final = "option."  # of options, among the properties
_KEY: Final = "phpmq.options"
_TOKEN: Final = "token"  # noqa: S105 - the name of the option


def table_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a table that is being created; None for anything else.

    What has no prefix is a property of Spark's (``owner``, ``location``) or of the table.
    """
    if _MARK not in options:
        return None
    return {
        name.removeprefix(_PREFIX): value
        for name, value in options.items()
        if name.startswith(_PREFIX)
    }


def add_table_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns with the options of their table, but no token."""
    kept = {name: value for name, value in options.items() if name.lower() != _TOKEN}
    first, *others = columns
    marked = StructField(first.name, first.dataType, first.nullable, {_KEY: kept})
    return StructType([marked, *others])


def read_table_options(columns: StructType) -> dict[str, str]:
    """Return the options that the columns of a table carry; none elsewhere."""
    found: dict[str, str] = {}
    for field in columns:
        found |= (field.metadata or {}).get(_KEY, {})
    return found


def remove_table_options(columns: StructType) -> StructType:
    """Return the columns without the options."""
    return StructType([StructField(f.name, f.dataType, f.nullable) for f in columns])
