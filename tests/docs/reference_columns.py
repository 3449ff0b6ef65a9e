"""Write docs/reference/columns.md: the tables for readers, with what each column means.

The texts are those of the columns' definitions, which are also the comments in Spark's schemas.
A new table is a line of ``SECTIONS``.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

from phpmq_lite.insights_document import PipelineSummary
from phpmq_lite.spark.table_columns import (
    ARCHIVE_COLUMNS,
    FILE_COLUMNS,
    METRIC_COLUMNS,
    PAYLOAD_COLUMNS,
    QUEUE_KEY_COLUMNS,
    REJECT_COLUMNS,
)
from phpmq_lite.storage.arrow import BODY, CLAIM_COLUMNS, EVENT_COLUMNS, READER_COLUMNS, ArrowColumn
from tests.docs.reference_cli import cell, plain

PAGE: Final = "docs/reference/columns.md"
_HEAD: Final = """\
# Columns

The tables that readers get: the history as Arrow and in Spark, a queue in Spark, the archive, the
metrics and `summary.json`; [Pipeline](../guides/pipeline.md) says how to read them. The tables of
the broker's database are on [their own page](tables.md). This page is made from the definitions of
the columns by `python -m tests.docs.references`; a test compares. `DESCRIBE` in Spark shows the
same texts, also of a view of the files.

*From* says who determines a value: the `broker`; the `publisher`, the `worker` or the body's
[envelope](../guides/envelopes.md), whose values the broker only records; or the columns that it is
computed from. A column without *null* has no nulls. Types are those of Arrow. Times are UTC, in
milliseconds in the Arrow stream and in microseconds in Parquet files. `deadline` is on the clock as
it was when the message was settled; `ready_at` is when the message was published, or when its last
[delay](../concepts/delay.md) ended.
"""
_OFFSET: Final = """\
`offset` is a reserved word of SQL: write it in double quotes, or in Spark's backticks."""
_OLD: Final = """\
The history's columns, and these. `date` and `batch` are folders and not columns of the files: the
source and our jobs have them, other readers compute the day from `settled_at`
([how](../guides/read-history.md#an-archive)). In files of version 0.1.0, the columns from
`ready_at` on are missing, and `body` is missing if they were written without bodies."""


class Section(NamedTuple):
    title: str
    text: str
    columns: Sequence[ArrowColumn]


SECTIONS: Final = (
    Section("The history", f"One row for each settled message. {_OFFSET}", (*READER_COLUMNS, BODY)),
    Section("Events", "One row for each exceptional step of a settled message, with `mode=events`"
            " and in the archive's [table](../guides/pipeline.md#files-of-the-archive) `events`.",
            (*EVENT_COLUMNS, *READER_COLUMNS[-3:-1])),
    Section("A queue", "One row for each claimed message, with `mode=queue`.", CLAIM_COLUMNS),
    Section("The archive", _OLD, (FILE_COLUMNS[1], *ARCHIVE_COLUMNS)),
    Section("minutes", "One row for each queue and minute in which something happened.",
            METRIC_COLUMNS["minutes"]),
    Section("hours", "The same by hour.", METRIC_COLUMNS["hours"]),
    Section("urns", "One row for each day, queue and URN.", METRIC_COLUMNS["urns"]),
    Section("attempts", "One row for each day, queue, URN and number of attempts.",
            METRIC_COLUMNS["attempts"]),
    Section("deaths", "One row for each day, queue, URN and reason.", METRIC_COLUMNS["deaths"]),
    Section("expiries", "One row for each day and queue.", METRIC_COLUMNS["expiries"]),
    Section("paths", "One row for each day and path of traces, the most frequent 1,000.",
            METRIC_COLUMNS["paths"]),
    Section("Typed tables", "One row for each settled message, with these columns before those of"
            " the [payload](../guides/tables.md); `urn` only in tables by queue.",
            (*QUEUE_KEY_COLUMNS, *PAYLOAD_COLUMNS)),
    Section("Rejects", "One row for each body that a registered schema rejects.", REJECT_COLUMNS),
)  # fmt: skip
SOURCES: Final = "examples/dbt/models/sources.yml"
_DUCKDB: Final = {
    "int32": "integer", "int64": "bigint", "string": "varchar", "binary": "blob",
    "timestamp": "timestamptz",
}  # fmt: skip
_TESTS: Final = {
    "offset": "[unique, not_null]",
    "queue": "[not_null]",
    "settled_at": "[not_null]",
    "outcome": "[accepted_values: {arguments: {values: [acked, expired, dead, deleted]}}]",
}
_SOURCES_HEAD: Final = """\
# Made from the definitions of the columns by python -m tests.docs.references.
version: 2
sources:
  - name: phpmq
    tables:
      - name: history
        description: One row for each settled message of an archive
        config:
          meta:
            external_location: >-
              read_parquet({{ var('archive') }}, hive_partitioning = false, union_by_name = true)
        columns:
"""
_SUMMARY: Final = """\
## summary.json

The document of the page *Insights*, as JSON. The file also has fields that no page shows.
"""


def page() -> str:
    parts = [_HEAD]
    for section in SECTIONS:
        parts += [f"## {section.title}\n", f"{section.text}\n", _columns(section.columns)]
    return "\n".join([*parts, _SUMMARY, *_models(PipelineSummary)])


def dbt_sources() -> str:
    """Return the source of the dbt project: the columns of the archive with their texts."""
    lines = []
    for column in (*READER_COLUMNS, BODY):
        lines += [
            f"          - name: {column.name}",
            f"            description: {json.dumps(column.comment)}",
            f"            data_type: {_DUCKDB[column.type]}",
            "            quote: true",
        ]
        if tests := _TESTS.get(column.name):
            lines.append(f"            data_tests: {tests}")
    return _SOURCES_HEAD + "\n".join(lines) + "\n"


def _columns(columns: Iterable[ArrowColumn]) -> str:
    return _table(
        ("column", "type", "meaning", "unit", "null", "from"),
        (
            (
                f"`{column.name}`",
                column.type.replace(",", ", ").replace("<", "&lt;"),
                column.meaning,
                column.unit or ("UTC" if column.type == "timestamp" else ""),
                column.null,
                column.source,
            )
            for column in columns
        ),
    )


def _models(model: type[BaseModel]) -> Iterator[str]:
    """Yield a table for the document and each list or object in it."""
    yield _fields(model)
    names: dict[type[BaseModel], list[str]] = {}
    for name, field in model.model_fields.items():
        if (inner := _model_in(field.annotation)) is not None:
            names.setdefault(inner, []).append(name)
    for inner, fields in names.items():
        text = plain(inner.__doc__ or "").splitlines()[0]
        yield f"### {' and '.join(fields)}\n\n{text}\n"
        yield _fields(inner)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    kinds = (annotation, *getattr(annotation, "__args__", ()))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)


def _fields(model: type[BaseModel]) -> str:
    schema = model.model_json_schema()["properties"]
    return _table(
        ("field", "type", "meaning"),
        (
            (f"`{name}`", _type(schema[field.alias or name]), cell(field.description or ""))
            for name, field in model.model_fields.items()
        ),
    )


def _type(schema: dict[str, Any]) -> str:
    kinds = schema.get("anyOf", [schema])
    names = [kind.get("type", "object") for kind in kinds]
    return " or ".join({"array": "list"}.get(name, name) for name in names)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
