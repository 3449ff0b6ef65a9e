"""Lint, format, types, and names in texts."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("phpmq_lite", "migrations", "templates", "tests", "benchmarks", "examples", "deploy")
NAMED = re.compile(r"(?:docs|benchmarks|examples|deploy)/[\w/-]+\.md")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "check", "--no-fix"], id="lint"),
        pytest.param(["ruff", "format", "--check"], id="format"),
        pytest.param(["mypy"], id="types", marks=pytest.mark.slow),
    ],
)
def test_tool_finds_nothing(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)


def texts() -> Iterator[tuple[Path, str]]:
    """Yield the files that name pages: code, statements, templates."""
    for folder in OURS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".sql", ".html", ".js", ".css", ".php", ".yml", ".c"}:
                yield path, path.read_text(encoding="utf-8")


def test_every_name_of_a_module_is_used() -> None:
    """Within the package; ``testing`` is for other programs, decorators register functions."""
    sources = {p: text for p, text in texts() if "tests" not in p.relative_to(ROOT).parts}
    words = Counter(word for text in sources.values() for word in re.findall(r"\w+", text))
    unused = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in sources.items()
        if path.suffix == ".py" and path.is_relative_to(ROOT / "phpmq_lite")
        for name in names_of(ast.parse(text))
        if words[name] == 1 and path.name != "testing.py"
    ]
    assert unused == []


def names_of(module: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines, without decorated functions."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.decorator_list:
                yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for each in targets if isinstance(each, ast.Name))


def test_pages_named_in_the_code_exist() -> None:
    """Readers have only the files of the repository."""
    named = {name for _, text in texts() for name in NAMED.findall(text)}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    without_folder = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in texts()
        for name in re.findall(r"``([\w-]+\.md)``", text)
    }
    assert without_folder == set()


def test_rules_named_in_the_code_exist() -> None:
    """``R7`` in a comment is a row of docs/reference/wire.md."""
    page = (ROOT / "docs" / "reference" / "wire.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| (R\d+) \|", page, re.MULTILINE))
    parts = [text for path, text in texts() if {"protocol", "conformance"} & set(path.parts)]
    named = {name for text in parts for name in re.findall(r"\bR\d{1,2}\b", text)}
    assert named - known == set()
    assert named
