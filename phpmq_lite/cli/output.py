"""How commands write lists: a table for people, JSON, JSON lines or CSV for programs."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from phpmq_lite.logs import escape

if TYPE_CHECKING:
    from rich.table import Table

Command = TypeVar("Command", bound=Callable[..., Any])
Row = Mapping[str, Any]

FORMATS: Final = ("table", "json", "jsonl", "csv")
_WORTH_A_BAR: Final = 1_000
_REST_WIDTH: Final = 16  # at least, where other columns can make room
_GAP: Final = 2  # between two columns


class Fit(Enum):
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
    fit: Fit = Fit.WRAPPED


def output_option(command: Command) -> Command:
    """Add ``-o``; None means a table on a terminal, else JSON lines."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        help="Format.  [default: table on a terminal, else jsonl]",
    )(command)


def style_of(style: str | None) -> str:
    """Give the format that ``-o`` asked for, or the usual one."""
    return style or ("table" if sys.stdout.isatty() else "jsonl")


def write(rows: Iterable[Row], columns: Sequence[Column], style: str | None, empty: str) -> None:
    """Write rows to standard output; tables and CSV show ``columns``, JSON has every key.

    ``empty`` says on standard error why there is nothing, where a table would have no rows.
    """
    rows = list(rows)
    style = style_of(style)
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


def write_one(found: Row, style: str | None) -> None:
    """Write one thing: a line for each member in a table and in CSV, or a JSON object."""
    style = style_of(style)
    if style in ("json", "jsonl"):
        click.echo(json.dumps(found, indent=2 if style == "json" else None))
        return
    rows = [{"what": what, "value": value} for what, value in _members(found)]
    write(rows, (Column("what", "WHAT", fit=Fit.WHOLE), Column("value", "VALUE")), style, "")


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

    texts = {each.key: [cell(row.get(each.key)) for row in rows] for each in columns}
    columns = _fitting(columns, texts)
    has_rest = sys.stdout.isatty() and any(each.fit is Fit.REST for each in columns)
    table = Table(box=None, pad_edge=False, header_style="bold", expand=has_rest)
    for column in columns:
        is_rest = column.fit is Fit.REST
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=is_rest or column.is_number or column.fit is Fit.WHOLE,
            overflow="fold" if column.fit is Fit.WRAPPED else "ellipsis",
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
        if each.fit is Fit.REST
        else max(map(cell_len, (each.title, *texts[each.key])))
        for each in columns
    }
    room = Console().width + _GAP
    for column in columns:
        if sum(widths[each.key] + _GAP for each in left) <= room:
            break
        if column.fit is Fit.SPARE:
            left.remove(column)
    return left


def print_table(table: "Table") -> None:
    """Write a table as wide as the terminal; a file has no edge."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 10_000
    Console(file=sys.stdout, width=width).print(table, soft_wrap=not width)


def cell(value: object) -> str:
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


@contextmanager
def counting(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error if that is a terminal; gives what advances it.

    ``total`` is None where it is not known; with less than a thousand there is nothing to see.
    """
    if not sys.stderr.isatty() or (total is not None and total < _WORTH_A_BAR):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Elapsed())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
