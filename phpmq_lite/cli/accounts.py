"""How lists of users and tokens are shown: their globs in a row, times as people write them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from phpmq_lite.admin.base.formats import format_time
from phpmq_lite.cli.output import Column, Row, style_of, write

_TIMES: Final = ("created_at", "expires_at", "last_login_at", "last_used_at")  # Unix ms


def write_accounts(
    rows: Iterable[Row], columns: Sequence[Column], style: str | None, empty: str
) -> None:
    """Write rows as ``write`` does; a table is for people, all else has the API's own values."""
    if style_of(style) == "table":
        rows = map(_shown, rows)
    write(rows, columns, style, empty)


def _shown(row: Row) -> Mapping[str, Any]:
    times = {key: _time(row[key]) for key in _TIMES if row.get(key) is not None}
    return {**row, **times, "queues": ", ".join(row["queues"]) or "all"}


def _time(at_ms: int) -> str:
    """Give the second; what is beyond the year 9999 stays a number."""
    return format_time(at_ms, at_ms).title.partition(".")[0]
