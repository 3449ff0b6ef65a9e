"""Write the list of docs/reference/engines.md: the tests that do not run on PostgreSQL."""

from typing import Final

from tests.docs.pages import text_of
from tests.support.engine_differences import SKIPPED

PAGE: Final = "docs/reference/engines.md"
BEGIN: Final = (
    "<!-- made from tests/support/engine_differences.py by python -m tests.docs.references -->\n"
)
END: Final = "<!-- end -->\n"


def page() -> str:
    lines = []
    for reason in dict.fromkeys(SKIPPED.values()):
        tests = [f"`{name}`" for name, why in SKIPPED.items() if why == reason]
        lines.append(f"- {reason} {', '.join(tests)}\n")
    head, _, rest = text_of(PAGE).partition(BEGIN)
    return f"{head}{BEGIN}\n{''.join(lines)}\n{END}{rest.partition(END)[2]}"
