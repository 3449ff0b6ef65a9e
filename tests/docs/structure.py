"""Generate the table of parts in docs/develop/architecture.md from the code."""

import ast
import re
from pathlib import Path
from typing import Final

from tests.docs.pages import text_of
from tests.test_layers import ANY, MODULES, OURS, THEIRS

PAGE: Final = "docs/develop/architecture.md"
BEGIN: Final = "<!-- made from tests/test_layers.py by python -m tests.docs.references -->\n"
END: Final = "<!-- end -->\n"


def purpose(path: Path) -> str:
    """Return the first paragraph of a module's docstring, as Markdown."""
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = said.partition("\n\n")[0].replace("\n", " ")
    plain = re.sub(r":\w+:`(\w+)`", r"`\1`", first).replace("``", "`").replace("  ", " ")
    return plain.replace("|", "\\|")


def named(allowed: set[str]) -> str:
    """Return the parts that a part may import, with modules in brackets if not all are allowed."""
    if ANY in allowed:
        return "anything"
    modules: dict[str, list[str]] = {}
    for name in sorted(allowed):
        part, _, module = name.partition(".")
        modules.setdefault(part, []).extend([module] if module else [])
    texts = [f"{part} ({', '.join(some)})" if some else part for part, some in modules.items()]
    return ", ".join(texts).replace("__init__", "the version") or "–"


def parts_table() -> str:
    """Return the table of parts: what each is for, and what it may import."""
    rows = ["| part | is for | ours | libraries |", "|---|---|---|---|"]
    for name, ours in OURS.items():
        rows.append(f"| `{name}` | {purpose(MODULES[name])} | {named(ours)} | {libraries(name)} |")
    return "\n".join(rows) + "\n"


def libraries(name: str) -> str:
    """Return the libraries that a part, or one module of it, may import."""
    return named({library.replace("_", "-") for library in THEIRS.get(name, ())})


def architecture_page() -> str:
    """Return the architecture page with its table of parts made from the code."""
    head, _, rest = text_of(PAGE).partition(BEGIN)
    return f"{head}{BEGIN}\n{parts_table()}\n{END}{rest.partition(END)[2]}"
