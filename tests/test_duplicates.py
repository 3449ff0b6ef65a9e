"""The same logic is written once: no run of more than six lines is in two places.

Statements are compared as trees, without comments, line breaks, names of local variables and values
of constants.  Declarations are not logic: imports, fields, tables, docstrings.  Blocks within
statements are compared, too.  Copies that were changed in every sixth line are not found.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations, takewhile
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parent.parent
FOLDERS: Final = ("phpmq_lite", "tests", "benchmarks")  # examples stand alone, to be copied
MAX_LINES: Final = 6
USUAL: Final = 40  # a statement in more places does not start a comparison

Local = frozenset[str]
Span = tuple[int, int]  # first and last line of a statement


class Block(NamedTuple):
    """Consecutive statements: their lines, and a hash of each."""

    file: str
    spans: list[Span]
    meanings: list[int]


def is_function(node: object) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def is_logic(statement: ast.stmt, *, in_function: bool) -> bool:
    if not in_function:
        return any(map(is_function, ast.walk(statement)))
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    return not isinstance(statement, ast.Import | ast.ImportFrom)


def locals_of(function: ast.AST) -> Local:
    nodes = list(ast.walk(function))
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return frozenset(arguments) | {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


class Reader:
    """Collects the blocks of syntax trees."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def read(self, file: str, source: str) -> None:
        self._file = file
        self._meaning(ast.parse(source, filename=file), frozenset(), in_function=False)

    def _meaning(self, node: object, local: Local, *, in_function: bool) -> int:
        """Return a hash that is equal for equal logic; collect all blocks."""
        if isinstance(node, ast.Name):
            return hash(("name", node.id not in local and node.id))
        if isinstance(node, ast.Constant):
            return hash(("constant", type(node.value).__name__))
        if isinstance(node, list):
            return self._block(node, local, in_function=in_function)
        if not isinstance(node, ast.AST):
            return hash(node)
        if is_function(node):
            local, in_function = local | locals_of(node), True
        fields = [
            self._meaning(value, local, in_function=in_function)
            for name, value in ast.iter_fields(node)
            if name != "ctx"
        ]
        return hash((type(node).__name__, *fields))

    def _block(self, nodes: list[object], local: Local, *, in_function: bool) -> int:
        logic = [
            node
            for node in nodes
            if not isinstance(node, ast.stmt) or is_logic(node, in_function=in_function)
        ]
        meanings = [self._meaning(node, local, in_function=in_function) for node in logic]
        spans = [span_of(node) for node in logic if isinstance(node, ast.stmt)]
        if spans:
            self.blocks.append(Block(self._file, spans, meanings))
        return hash(tuple(meanings))


def copies(blocks: list[Block]) -> set[str]:
    """Return each pair of places with the same logic in more than ``MAX_LINES`` lines."""
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, block in enumerate(blocks):
        for at, meaning in enumerate(block.meanings):
            places[meaning].append((number, at))
    found: set[str] = set()
    for among in places.values():
        if len(among) <= USUAL:
            for (one, at), (other, there) in combinations(among, 2):
                found.update(copy(blocks[one], at, blocks[other], there))
    return found


def copy(one: Block, at: int, other: Block, there: int) -> Iterator[str]:
    """Yield the common run around these two statements, if it is long enough."""
    back = in_common(one.meanings[:at][::-1], other.meanings[:there][::-1])
    at, there = at - back, there - back
    length = in_common(one.meanings[at:], other.meanings[there:])
    if one is other:
        length = min(length, there - at)
    runs = one.spans[at : at + length], other.spans[there : there + length]
    if min(map(lines, runs)) > MAX_LINES:
        yield f"{where(one, runs[0])} ~ {where(other, runs[1])}"


def in_common(some: list[int], others: list[int]) -> int:
    pairs = zip(some, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def span_of(node: ast.stmt) -> Span:
    return node.lineno, node.end_lineno or node.lineno


def lines(run: list[Span]) -> int:
    return sum(last - first + 1 for first, last in run)


def where(block: Block, run: list[Span]) -> str:
    return f"{block.file}:{run[0][0]}-{run[-1][1]}"


def found_in(*sources: str) -> set[str]:
    reader = Reader()
    for number, source in enumerate(sources):
        reader.read(f"{number}.py", source)
    return copies(reader.blocks)


def test_no_logic_is_written_twice() -> None:
    reader = Reader()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            reader.read(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    assert "\n".join(sorted(copies(reader.blocks))) == ""


SEVEN_LINES = """
def total(rows, limit=10):
    found = 0
    for row in rows:
        if row.size > limit:
            found += row.size
        else:
            log("small", row.name)
    return found
"""
RENAMED = """
class Sizes:
    def sum_up(self, many):
        \"\"\"Add up.\"\"\"
        import this
        all_of_it = 0  # bytes
        for one in many:
            if one.size > self:
                all_of_it += one.size
            else:
                log("tiny",
                    one.name)
        return all_of_it
"""


def test_checker_finds_a_copy_under_other_names() -> None:
    assert found_in(SEVEN_LINES, RENAMED) == {"0.py:3-9 ~ 1.py:6-13"}


def test_checker_finds_a_copy_within_a_file() -> None:
    assert found_in(SEVEN_LINES + SEVEN_LINES.replace("total", "again"))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(RENAMED.replace("one.size", "one.length"), id="another attribute"),
        pytest.param(RENAMED.replace("log(", "warn("), id="another function"),
        pytest.param(RENAMED.replace("        return all_of_it\n", ""), id="six lines"),
    ],
)
def test_checker_ignores_different_logic(other: str) -> None:
    assert found_in(SEVEN_LINES, other) == set()


def test_checker_ignores_declarations() -> None:
    fields = "class Row:\n" + "".join(f"    field_{n}: int\n" for n in range(9))
    assert found_in(fields, fields) == set()
