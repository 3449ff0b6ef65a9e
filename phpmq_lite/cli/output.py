"""Output of commands: tables, JSON and CSV on stdout, messages and questions on stderr."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from phpmq_lite.logs import escape

if TYPE_CHECKING:
    from rich.table import Table

Command = TypeVar("Command", bound=Callable[..., Any])
Row = Mapping[str, Any]

FORMATS: Final = ("table", "json", "jsonl", "csv")
_REST_WIDTH: Final = 16  # SPARE columns are hidden before a REST column becomes narrower than this
_GAP: Final = 2  # number of spaces between columns


class ColumnOverflow(Enum):
    """What happens to a column if the terminal is too narrow to show all columns."""

    WRAPPED = "the text is wrapped"
    WHOLE = "the text is never cut, so that it can be copied"
    SPARE = "the column is hidden"
    REST = "the column gets the remaining width and one line"


class Column(NamedTuple):
    """A column of a list; ``is_number`` and ``fit`` determine how tables display it."""

    key: str
    title: str
    is_number: bool = False
    fit: ColumnOverflow = ColumnOverflow.WRAPPED


def columns(*keys: str, **titles: str) -> tuple[Column, ...]:
    """Return a column for each of ``keys``, titled with the key, and for each of ``titles``."""
    named = {key: key.replace("_", " ").upper() for key in keys} | titles
    return tuple(Column(key, title) for key, title in named.items())


def number_columns(*keys: str, **titles: str) -> tuple[Column, ...]:
    """Return the same columns as ``columns``, but for numbers."""
    return tuple(one._replace(is_number=True) for one in columns(*keys, **titles))


def add_options(command: Command, *options: Callable[[Any], Any]) -> Command:
    """Add options to a command; the help lists the last one first."""
    for option in options:
        command = option(command)
    return command


output_option: Final = click.option(
    "-o",
    "--output",
    type=click.Choice(FORMATS),
    help="Output format.  [default: table on a terminal, else jsonl]",
)


def output_format(style: str | None) -> str:
    """Return the format that ``-o`` selects, or the default format."""
    return style or ("table" if sys.stdout.isatty() else "jsonl")


def write_rows(
    rows: Iterable[Row], columns: Sequence[Column], style: str | None, empty: str
) -> None:
    """Write rows to standard output; tables and CSV contain only the given columns.

    If there are no rows, ``empty`` is printed to standard error instead of a table.
    """
    rows = list(rows)
    style = output_format(style)
    if style == "json":
        click.echo(json.dumps(rows, indent=2))
    elif style == "jsonl":
        for row in rows:
            click.echo(json.dumps(row))
    elif style == "csv":
        _write_csv(rows, columns)
    elif rows:
        _write_table(rows, columns)
    else:
        click.echo(empty, err=True)


def _write_csv(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    from phpmq_lite.admin.base.responses import csv_cell

    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow([column.key for column in columns])
    for row in rows:
        out.writerow([csv_cell(row.get(column.key)) for column in columns])


def write_record(found: Row, style: str | None) -> None:
    """Write an object as JSON, or as a table or CSV with one row for each field."""
    style = output_format(style)
    if style in ("json", "jsonl"):
        click.echo(json.dumps(found, indent=2 if style == "json" else None))
        return
    rows = [{"what": what, "value": value} for what, value in _flatten(found)]
    what = Column("what", "WHAT", fit=ColumnOverflow.WHOLE)
    write_rows(rows, (what, Column("value", "VALUE")), style, "")


def _flatten(found: Row, above: str = "") -> Iterator[tuple[str, str | None]]:
    for key, value in found.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{above}{key}.")
        else:
            is_plain = value is None or isinstance(value, str)
            yield above + key, value if is_plain else json.dumps(value, ensure_ascii=False)


def _write_table(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    from rich.table import Table
    from rich.text import Text

    texts = {each.key: [format_cell(row.get(each.key)) for row in rows] for each in columns}
    columns = _fit_columns(columns, texts)
    has_rest = sys.stdout.isatty() and any(each.fit is ColumnOverflow.REST for each in columns)
    table = Table(box=None, pad_edge=False, header_style="bold", expand=has_rest)
    for column in columns:
        is_rest = column.fit is ColumnOverflow.REST
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=is_rest or column.is_number or column.fit is ColumnOverflow.WHOLE,
            overflow="fold" if column.fit is ColumnOverflow.WRAPPED else "ellipsis",
            ratio=1 if is_rest else None,
        )
    for row in zip(*(texts[column.key] for column in columns), strict=True):
        table.add_row(*map(Text, row))
    print_table(table)


def _fit_columns(columns: Sequence[Column], texts: Mapping[str, Sequence[str]]) -> Sequence[Column]:
    """Return the columns that fit on the terminal, after dropping SPARE columns in order."""
    if not sys.stdout.isatty():
        return columns
    from rich.cells import cell_len
    from rich.console import Console

    left = list(columns)
    widths = {
        each.key: _REST_WIDTH
        if each.fit is ColumnOverflow.REST
        else max(map(cell_len, (each.title, *texts[each.key])))
        for each in columns
    }
    room = Console().width + _GAP
    for column in columns:
        if sum(widths[each.key] + _GAP for each in left) <= room:
            break
        if column.fit is ColumnOverflow.SPARE:
            left.remove(column)
    return left


def print_table(table: "Table") -> None:
    """Print a table as wide as the terminal, or at its full width if the output is redirected."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 10_000
    Console(file=sys.stdout, width=width).print(table, soft_wrap=not width)


def format_cell(value: object) -> str:
    """Format a value as the text of a table cell."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return escape(str(value))


def escape_content(body: bytes) -> bytes:
    """Escape control characters in a body, so that it cannot affect the terminal."""
    lines = body.decode("utf-8", "backslashreplace").split("\n")
    return "\n".join(map(escape, lines)).encode()


def print_message(message: str) -> None:
    """Print a message to standard error."""
    click.echo(message, err=True)


def format_message_count(count: int) -> str:
    """Return a count such as ``1 message`` or ``2,000 messages``."""
    return f"{count:,} message{'' if count == 1 else 's'}"


def is_terminal() -> bool:
    """Return whether standard input is a terminal."""
    return sys.stdin.isatty()


yes_option: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm(question: str, *, is_yes: bool) -> None:
    """Ask the user for confirmation, unless ``is_yes``.

    Raises:
        UsageError: standard input is not a terminal, so ``--yes`` is required.
    """
    if is_yes:
        return
    if not is_terminal():
        raise click.UsageError("--yes is required when standard input is not a terminal")
    click.confirm(question, abort=True, err=True)
