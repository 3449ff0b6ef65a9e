"""Output of commands: tables, JSON and CSV on stdout, messages and questions on stderr."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
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
_TEXT_WIDTH: Final = 24  # SPARE columns are hidden before a text of several words becomes narrower
_GAP: Final = 2  # number of spaces between columns
_ANY_WIDTH: Final = 10_000  # the width of tables without a terminal


class ColumnOverflow(Enum):
    """What happens to a column if the terminal is too narrow to show all columns."""

    WRAPPED = "the text is wrapped"
    WHOLE = "the text is never cut, so that it can be copied"
    SPARE = "the column is hidden"
    REST = "the column gets the remaining width and one line"


SPARE: Final = ColumnOverflow.SPARE


class Column(NamedTuple):
    """A column of a list; ``is_number`` and ``fit`` determine how tables display it.

    If a terminal has no room for ``below`` letters of the text, it is on a line below each row.
    """

    key: str
    title: str
    is_number: bool = False
    fit: ColumnOverflow = ColumnOverflow.WRAPPED
    below: int = 0


def columns(
    *keys: str, fit: ColumnOverflow = ColumnOverflow.WRAPPED, **titles: str
) -> tuple[Column, ...]:
    """Return a column for each of ``keys``, titled with the key, and for each of ``titles``."""
    titles = {key: key.replace("_", " ").upper() for key in keys} | titles
    return tuple(Column(key, title, fit=fit) for key, title in titles.items())


def number_columns(
    *keys: str, fit: ColumnOverflow = ColumnOverflow.WRAPPED, **titles: str
) -> tuple[Column, ...]:
    """Return the same columns as ``columns``, but for numbers."""
    return tuple(column._replace(is_number=True) for column in columns(*keys, fit=fit, **titles))


def add_options(command: Command, *options: Callable[[Any], Any]) -> Command:
    """Add options to a command; the help lists the last one first."""
    for option in options:
        command = option(command)
    return command


output_option: Final = click.option(
    "-o",
    "--output",
    type=click.Choice(FORMATS),
    help="Output format.  [default: PHPMQ_OUTPUT, or table on a terminal and jsonl in a pipe]",
)


def output_format(style: str | None, piped: str = "jsonl") -> str:
    """Return the format that ``-o`` or PHPMQ_OUTPUT selects, or the default format."""
    default = os.environ.get("PHPMQ_OUTPUT")
    if not style and default and default not in FORMATS:
        raise click.UsageError(f"PHPMQ_OUTPUT is {default!r}; use one of {', '.join(FORMATS)}")
    return style or default or ("table" if sys.stdout.isatty() else piped)


def write_rows(
    rows: Iterable[Row], columns: Sequence[Column], style: str | None, empty: str
) -> None:
    """Write rows to standard output, or ``empty`` to standard error instead of an empty table."""
    rows = list(rows)
    style = output_format(style)
    if style == "json":
        click.echo(json.dumps(rows, indent=2))
    elif style == "jsonl":
        for row in rows:
            click.echo(json.dumps(row))
    elif style == "csv":
        from phpmq_lite.text_files import csv_line

        keys: list[Any] = [column.key for column in columns]
        for cells in (keys, *([row.get(key) for key in keys] for row in rows)):
            sys.stdout.write(csv_line(cells).removesuffix("\r\n") + "\n")
    elif rows:
        _write_table(rows, columns)
    else:
        print_message(empty)


def write_record(record: Row, style: str | None) -> None:
    """Write an object as JSON, or as a table or CSV with one row for each field."""
    style = output_format(style)
    if style in ("json", "jsonl"):
        click.echo(json.dumps(record, indent=2 if style == "json" else None))
        return
    rows = [{"what": name, "value": value} for name, value in _flatten(record)]
    columns = (Column("what", "WHAT", fit=ColumnOverflow.WHOLE), Column("value", "VALUE"))
    write_rows(rows, columns, style, "")


def _flatten(record: Row, prefix: str = "") -> Iterator[tuple[str, str | None]]:
    from phpmq_lite.admin.formats import format_time

    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            if key.endswith("_at") and isinstance(value, int) and value > 10**11:  # Unix ms
                value = format_time(value, value).title
            is_plain = value is None or isinstance(value, str)
            yield prefix + key, value if is_plain else json.dumps(value, ensure_ascii=False)


def _write_table(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    from rich.console import Console
    from rich.text import Text

    text_column = next((column for column in columns if column.below), None)
    if text_column is None or _excess(_measure(rows, _fit_columns(rows, columns))) <= 0:
        print_table(make_table(rows, columns))
        return
    fitting = _fit_columns(rows, [column for column in columns if column is not text_column])
    uncut = [column._replace(fit=ColumnOverflow.WHOLE) for column in fitting]
    console = Console(file=sys.stdout)
    with console.capture() as captured:
        console.print(make_table(rows, uncut), width=_ANY_WIDTH, crop=False)
    head, *lines = captured.get().splitlines()
    click.echo(head)
    for line, row in zip(lines, rows, strict=True):
        click.echo(line)
        text = f"  {format_cell(row.get(text_column.key))}"
        console.print(Text(text), no_wrap=True, overflow="ellipsis")


def make_table(rows: Sequence[Row], columns: Sequence[Column], title: str | None = None) -> "Table":
    """Return a table of the columns that fit on the terminal, with unbroken words if they fit."""
    from rich.table import Table
    from rich.text import Text

    columns = _fit_columns(rows, columns)
    sizes = _measure(rows, columns)
    excess = _excess(sizes)
    for key, (width, minimum) in sorted(sizes.items(), key=lambda size: size[1][1] - size[1][0]):
        cut = max(0, min(width - minimum, excess))
        sizes[key], excess = (width - cut, minimum), excess - cut
    has_rest = sys.stdout.isatty() and any(column.fit is ColumnOverflow.REST for column in columns)
    table = Table(box=None, pad_edge=False, expand=has_rest, title=title, title_justify="left")
    table.header_style = "bold"
    for column in columns:
        is_rest = column.fit is ColumnOverflow.REST
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=is_rest or column.is_number or column.fit is ColumnOverflow.WHOLE,
            overflow="fold" if column.fit is ColumnOverflow.WRAPPED else "ellipsis",
            ratio=1 if is_rest else None,
            width=None if is_rest or excess > 0 else sizes[column.key][0],
        )
    for row in rows:
        table.add_row(*(Text(format_cell(row.get(column.key))) for column in columns))
    return table


def _measure(rows: Sequence[Row], columns: Sequence[Column]) -> dict[str, tuple[int, int]]:
    """Return the width of each column, and that at which only words of it are wrapped."""
    from rich.cells import cell_len

    sizes = {}
    for column in columns:
        texts = [column.title, *(format_cell(row.get(column.key)) for row in rows)]
        width = max(map(cell_len, texts))
        if column.fit is ColumnOverflow.REST:
            width = max(_REST_WIDTH, min(width, column.below))
        is_text = column.fit is ColumnOverflow.WRAPPED and not column.is_number
        words = " ".join(texts).split() if is_text else []
        sizes[column.key] = (width, max(map(cell_len, words), default=width))
    return sizes


def _excess(sizes: Mapping[str, tuple[int, int]]) -> int:
    """Return by how many letters a table with these columns is too wide for the terminal."""
    from rich.console import Console

    room = Console().width if sys.stdout.isatty() else _ANY_WIDTH
    return sum(width + _GAP for width, _ in sizes.values()) - _GAP - room


def _fit_columns(rows: Sequence[Row], columns: Sequence[Column]) -> Sequence[Column]:
    """Return the columns that fit on the terminal, after dropping SPARE columns in order."""
    sizes = {
        key: (max(minimum, min(width, _TEXT_WIDTH)), minimum)
        for key, (width, minimum) in _measure(rows, columns).items()
    }
    for column in columns:
        if column.fit is ColumnOverflow.SPARE and _excess(sizes) > 0:
            del sizes[column.key]
    return [column for column in columns if column.key in sizes]


def print_table(table: "Table") -> None:
    """Print a table as wide as the terminal, or at its full width if the output is redirected."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _ANY_WIDTH
    Console(file=sys.stdout, width=width).print(table, soft_wrap=not width)


def format_cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return escape(str(value))


def format_utc(at_ms: float | None) -> str | None:
    """Format a time in Unix milliseconds as UTC, to the second."""
    if not at_ms:
        return None
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S}"


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
    """Ask the user for confirmation, unless ``is_yes``, which is required without a terminal."""
    if is_yes:
        return
    if not is_terminal():
        raise click.UsageError("--yes is required when standard input is not a terminal")
    click.confirm(question, abort=True, err=True)
