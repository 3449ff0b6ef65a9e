"""How commands write lists: a table for people, JSON, JSON lines or CSV for programs."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from phpmq_lite.logs import escape

if TYPE_CHECKING:
    from rich.table import Table

Command = TypeVar("Command", bound=Callable[..., Any])
Row = Mapping[str, Any]

FORMATS: Final = ("table", "json", "jsonl", "csv")
_WORTH_A_BAR: Final = 1_000


class Column(NamedTuple):
    """A column of a list: the key of its values, the head in a table, and how it is aligned."""

    key: str
    title: str
    is_number: bool = False


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
    from phpmq_lite.admin.lists import csv_cell

    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow([column.key for column in columns])
    for row in rows:
        out.writerow([csv_cell(row.get(column.key)) for column in columns])


def _write_table(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right" if column.is_number else "left")
    for row in rows:
        table.add_row(*(Text(cell(row.get(column.key))) for column in columns))
    print_table(table)


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
