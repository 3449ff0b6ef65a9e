"""Output of commands: tables, JSON and CSV on stdout; messages and questions on stderr."""

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
_REST_WIDTH: Final = 16  # at least, where other columns can make room
_GAP: Final = 2  # between two columns


class ColumnOverflow(Enum):
    """What becomes of a column where a terminal has no room for all of them."""

    WRAPPED = "it is broken into lines"
    WHOLE = "nothing: it is to be copied"
    SPARE = "it is left out"
    REST = "it has what the others leave, on one line"


class Column(NamedTuple):
    """A column of a list: the key of its values, the head in a table, and how it is shown there."""

    key: str
    title: str
    is_number: bool = False
    fit: ColumnOverflow = ColumnOverflow.WRAPPED


def output_option(command: Command) -> Command:
    """Add ``-o``; None means a table on a terminal, else JSON lines."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        help="Format.  [default: table on a terminal, else jsonl]",
    )(command)


def output_format(style: str | None) -> str:
    """Give the format that ``-o`` asked for, or the usual one."""
    return style or ("table" if sys.stdout.isatty() else "jsonl")


def write_rows(
    rows: Iterable[Row], columns: Sequence[Column], style: str | None, empty: str
) -> None:
    """Write rows to standard output; tables and CSV show ``columns``, JSON has every key.

    ``empty`` says on standard error why there is nothing, where a table would have no rows.
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
    """Write one thing: a line for each member in a table and in CSV, or a JSON object."""
    style = output_format(style)
    if style in ("json", "jsonl"):
        click.echo(json.dumps(found, indent=2 if style == "json" else None))
        return
    rows = [{"what": what, "value": value} for what, value in _members(found)]
    write_rows(
        rows,
        (Column("what", "WHAT", fit=ColumnOverflow.WHOLE), Column("value", "VALUE")),
        style,
        "",
    )


def _members(found: Row, above: str = "") -> Iterator[tuple[str, str | None]]:
    for key, value in found.items():
        if isinstance(value, Mapping):
            yield from _members(value, f"{above}{key}.")
        else:
            is_plain = value is None or isinstance(value, str)
            yield above + key, value if is_plain else json.dumps(value, ensure_ascii=False)


def _write_table(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    from rich.table import Table
    from rich.text import Text

    texts = {each.key: [format_cell(row.get(each.key)) for row in rows] for each in columns}
    columns = _fitting(columns, texts)
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


def _fitting(columns: Sequence[Column], texts: Mapping[str, Sequence[str]]) -> Sequence[Column]:
    """Leave out spare columns, the first one first, until a terminal has room for the rest."""
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
    """Write a table as wide as the terminal; a file has no edge."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 10_000
    Console(file=sys.stdout, width=width).print(table, soft_wrap=not width)


def format_cell(value: object) -> str:
    """Write a value as a table shows it."""
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
    """Give a content so that it cannot command the terminal."""
    lines = body.decode("utf-8", "backslashreplace").split("\n")
    return "\n".join(map(escape, lines)).encode()


def print_message(message: str) -> None:
    """Say something to the person at the terminal: on standard error."""
    click.echo(message, err=True)


def format_message_count(count: int) -> str:
    """Say how many: ``1 message``, ``2,000 messages``."""
    return f"{count:,} message{'' if count == 1 else 's'}"


def is_terminal() -> bool:
    """Tell whether somebody sits at standard input."""
    return sys.stdin.isatty()


def confirm(question: str, *, is_yes: bool) -> None:
    """Ask before something is destroyed; without a terminal ``--yes`` must have been given."""
    if is_yes:
        return
    if not is_terminal():
        raise click.UsageError("without a terminal this needs --yes")
    click.confirm(question, abort=True, err=True)
