"""Lines of CSV whose cells no spreadsheet interprets as formulas."""

import csv
import io
import json
from collections.abc import Iterable
from typing import Any, Final

# Also the full-width signs, which spreadsheets with an Asian locale read like the others.
_CSV_FORMULA: Final = (*"=+-@\t\r\n\uff1d\uff0b\uff0d\uff20",)


def csv_line(values: Iterable[Any]) -> str:
    """Return values as a line of CSV."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(map(csv_cell, values))
    return line.getvalue()


def csv_cell(value: Any) -> str:
    """Return a value as a CSV cell that no spreadsheet will interpret as a formula."""
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(_CSV_FORMULA) else text
