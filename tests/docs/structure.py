"""What docs/architecture.md and docs/files.md say of the code, made from the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.docs.pages import text_of
from tests.test_layers import ANY, MODULES, OURS, PACKAGE, ROOT, THEIRS

PAGE: Final = "docs/architecture.md"
BEGIN: Final = "<!-- made from tests/test_layers.py by python -m tests.docs.references -->\n"
END: Final = "<!-- end -->\n"
_HEAD: Final = """# Every file in one line

Made from the first lines of the files by `python -m tests.docs.references`; a test compares. The
order to read them in, and what may import what, is in [architecture.md](architecture.md).
"""


def purpose(path: Path) -> str:
    """Give the first sentence or line of a module's docstring, as Markdown."""
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = said.partition("\n\n")[0].replace("\n", " ")
    plain = re.sub(r":\w+:`(\w+)`", r"`\1`", first).replace("``", "`").replace("  ", " ")
    return plain.replace("|", "\\|")


def named(allowed: set[str]) -> str:
    """Write what a part may import: parts, and behind each the modules where not all are meant."""
    if ANY in allowed:
        return "anything"
    modules: dict[str, list[str]] = {}
    for name in sorted(allowed):
        part, _, module = name.partition(".")
        modules.setdefault(part, []).extend([module] if module else [])
    texts = [f"{part} ({', '.join(some)})" if some else part for part, some in modules.items()]
    return ", ".join(texts).replace("__init__", "the version") or "–"


def parts_table() -> str:
    """Write the table of the parts: what each is for, and what it may import."""
    rows = ["| part | is for | ours | libraries |", "|---|---|---|---|"]
    for name, ours in OURS.items():
        rows.append(f"| `{name}` | {purpose(MODULES[name])} | {named(ours)} | {libraries(name)} |")
    return "\n".join(rows) + "\n"


def libraries(name: str) -> str:
    """Write which libraries a part, or one module of it, may import."""
    return named({library.replace("_", "-") for library in THEIRS.get(name, ())})


def files_page() -> str:
    """Write the page of all files, folder by folder."""
    return _HEAD + "".join(_folders())


def _folders() -> Iterator[str]:
    root = ROOT / PACKAGE
    folders = sorted({path.parent for path in MODULES.values()}, key=lambda f: f.parts)
    for folder in folders:
        yield f"\n## {folder.relative_to(ROOT).as_posix()}\n\n"
        if folder != root:
            yield f"{purpose(folder / '__init__.py')}\n\n"
        for path in sorted(folder.glob("*.py")):
            if path.name != "__init__.py" or folder == root:
                yield f"- `{path.name}`: {purpose(path)}\n"


def architecture_page() -> str:
    """Write the page of the architecture: as it stands, with the table of the parts of today."""
    head, _, rest = text_of(PAGE).partition(BEGIN)
    return f"{head}{BEGIN}\n{parts_table()}\n{END}{rest.partition(END)[2]}"
