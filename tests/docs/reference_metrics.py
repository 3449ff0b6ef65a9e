"""Generate the tables of docs/reference/metrics.md from the definitions of the metrics."""

import re
from collections.abc import Iterable
from typing import Final

from phpmq_lite.admin.system.metrics import METRICS, MetricDefinition
from tests.docs.pages import text_of

PAGE: Final = "docs/reference/metrics.md"


def page() -> str:
    """Return the page with its tables made from the code."""
    text = text_of(PAGE)
    for title, definitions in METRICS.items():
        head = f"## {title}\n\n"
        assert head in text, title
        before, _, after = text.partition(head)
        rest = re.sub(r"\A(\|.*\n)*", "", after)
        text = f"{before}{head}{_table(definitions)}{rest}"
    return text


def _table(definitions: Iterable[MetricDefinition]) -> str:
    lines = ["| metric | type | what |", "|---|---|---|"]
    for each in definitions:
        labels = f"{{{', '.join(each.labels)}}}" if each.labels else ""
        lines.append(f"| `{each.full_name}{labels}` | {each.kind} | {each.help} |")
    return "\n".join(lines) + "\n"
