"""Counts which branches of the templates were rendered: each condition both true and false.

With ``TEMPLATE_BRANCHES`` set to a folder, every test process notes its conditions there.
``python -m tests.support.template_branches FOLDER`` prints those that a run left out, and exits
with 1 if there are any.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension

from tests.docs.pages import ROOT

FOLDER: Final = "TEMPLATE_BRANCHES"
Place = tuple[str, int, int]  # template, line, number of the condition in its line

_rendered: set[tuple[Place, bool]] = set()


class BranchCounter(Extension):
    """Notes the truth of each condition of ``if`` statements and expressions."""

    def note(self, template: str, line: int, number: int, value: Any) -> Any:
        """Record whether a condition is true; return its value."""
        _rendered.add(((template, line, number), bool(value)))
        return value


def conditions(tree: nodes.Template) -> Iterator[tuple[int, int, nodes.If | nodes.CondExpr]]:
    """Yield the line, the number within the line and the node of each condition."""
    counts: dict[int, int] = {}
    for node in tree.find_all((nodes.If, nodes.CondExpr)):
        assert isinstance(node, nodes.If | nodes.CondExpr)
        counts[node.lineno] = counts.get(node.lineno, 0) + 1
        yield node.lineno, counts[node.lineno], node


class CountingEnvironment(jinja2.Environment):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.add_extension(BranchCounter)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for line, number, node in list(conditions(tree)):
            note = nodes.ExtensionAttribute(BranchCounter.identifier, "note")
            place = [nodes.Const(name), nodes.Const(line), nodes.Const(number)]
            node.test = nodes.Call(note, [*place, node.test], [], None, None, lineno=line)
        return tree


def install() -> None:
    """Count in this process from now on, if the environment variable is set."""
    if FOLDER in os.environ:
        jinja2.Environment = CountingEnvironment  # type: ignore[misc]


def save() -> None:
    """Write what this process has rendered."""
    if FOLDER in os.environ and _rendered:
        path = Path(os.environ[FOLDER]) / f"{os.getpid()}-{time.time_ns()}.json"
        path.write_text(json.dumps(sorted(_rendered)), encoding="utf-8")


def all_branches(folder: Path) -> Iterator[tuple[Place, bool]]:
    environment = jinja2.Environment(autoescape=True)
    for path in sorted(folder.rglob("*.html")):
        name = path.relative_to(folder).as_posix()
        for line, number, _ in conditions(environment.parse(path.read_text(encoding="utf-8"))):
            yield ((name, line, number), True)
            yield ((name, line, number), False)


def main() -> int:
    """Print the branches that were not rendered; return the exit code."""
    rendered: set[tuple[Place, bool]] = set()
    for path in Path(sys.argv[1]).glob("*.json"):
        notes = json.loads(path.read_text(encoding="utf-8"))
        rendered |= {((place[0], place[1], place[2]), outcome) for place, outcome in notes}
    write = sys.stdout.write
    branches = list(all_branches(ROOT / "templates"))
    missing = [branch for branch in branches if branch not in rendered]
    for (template, line, number), outcome in missing:
        text = (ROOT / "templates" / template).read_text(encoding="utf-8").splitlines()[line - 1]
        write(f"{template}:{line}: condition {number} never {outcome}: {text.strip()[:100]}\n")
    write(f"{len(branches) - len(missing)} of {len(branches)} branches were rendered\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
