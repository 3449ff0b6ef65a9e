"""The architecture: allowed imports, no cycles, short functions and files, checked by ``ast``.

A *part* is a module or folder directly under ``phpmq_lite``.  ``OURS`` lists the parts, or modules
of parts, that it may import.  All parts but the two cores may import the standard library.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from phpmq_lite.storage.statements import load, parts
from tests.support.statement_files import files

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = "phpmq_lite"
MAX_FUNCTION_LINES: Final = 60
MAX_FILE_LINES: Final = 900  # a longer file probably has a second concept

ANY: Final = "*"

OURS: Final[dict[str, set[str]]] = {
    "__init__": {"client", "lazy_imports"},  # client: for type checkers; loaded when used
    "__main__": {"cli"},
    "errors": set(),
    "checks": set(),
    "documentation": set(),
    "installation": set(),
    "lazy_imports": set(),
    "http_client": {"sockets"},
    "sockets": set(),
    "histogram": set(),
    "losses": set(),
    "durations": set(),
    "clock": {"model"},  # a reading is model.Now
    "standard_streams": set(),
    "text_files": {"errors"},
    "logs": {"standard_streams"},
    "queue_settings": {"durations", "errors"},
    "writes": set(),
    "settings": {"protocol.frames", "queue_settings", "text_files", "errors"},
    "broker_process": {"errors", "storage.data_folder"},
    "os_process": set(),
    "time_slices": set(),
    "insights_document": set(),
    "frame_options": {"durations", "queue_settings", "errors"},
    "model": {"frame_options", "queue_settings", "writes"},
    "operator_actions": {"model"},
    "schedules": {"errors", "model"},
    "roles": set(),
    "protocol": {"errors"},
    "broker": {
        "frame_options",
        "histogram",
        "losses",
        "model",
        "operator_actions",
        "queue_settings",
        "schedules",
        "writes",
        "errors",
    },
    "storage.search.language": {"durations", "envelopes.validation", "errors", "model"},
    "storage": {
        "clock",
        "frame_options",
        "model",
        "queue_settings",
        "writes",
        "installation",
        "errors",
        "logs",
    },
    "server": {
        "protocol",
        "frame_options",
        "text_files",
        "queue_settings",
        "writes",
        "broker",
        "storage",
        "histogram",
        "losses",
        "model",
        "clock",
        "logs",
        "os_process",
        "settings",
        "sockets",
        "errors",
    },
    "relay": {"protocol.frames", "server", "settings", "sockets", "logs", "errors"},
    "export": {"storage.arrow", "logs", "time_slices", "errors"},
    "admin": {
        "writes",
        "durations",
        "frame_options",
        "broker.broker",
        "checks",
        "histogram",
        "losses",
        "broker.state_table",
        "broker.transitions",
        "broker.operator",
        "broker.pipeline",
        "broker.queue",
        "broker.reasons",
        "documentation",
        "insights_document",
        "queue_settings",
        "installation",
        "envelopes.dead_letter_record",
        "envelopes.indexed_fields",
        "envelopes.payload_schema",
        "envelopes.schema_compatibility",
        "envelopes.schema_registry",
        "envelopes.validation",
        "errors",
        "export.exports",
        "logs",
        "model",
        "operator_actions",
        "roles",
        "schedules",
        "protocol.encoder",
        "server.admission",
        "server.processes",
        "server.maintenance",
        "server.counters",
        "server.frame_recorder",
        "server.addresses",
        "server.listeners",
        "server.frame_explanation",
        "server.backpressure",
        "server.rollups",
        "server.status",
        "server.tls",
        "settings",
        "sockets",
        "text_files",
        "storage.read.accounts",
        "storage.read.audit",
        "storage.sqlite.backups",
        "storage.read.messages",
        "storage.read.schedules",
        "storage.read.read_pool",
        "storage.read.consumers",
        "storage.read.dead_letter_groups",
        "storage.atomic_files",
        "storage.data_folder",
        "storage.disk_space",
        "storage.read.activity",
        "storage.sqlite.integrity.scrub",
        "storage.search.language",
        "storage.start_report",
        "storage.sqlite.standby_lag",
        "storage.backend",
        "storage.search.reader",
    },
    "client": {
        "frame_options",
        "protocol",
        "os_process",
        "lazy_imports",
        "queue_settings",
        "sockets",
        "errors",
    },
    "client.admin": {"admin.urls", "http_client", "errors"},
    "bench": {
        "broker_process",
        "protocol",
        "storage.mounts",
        "storage.sqlite.store",
        "errors",
        "installation",
        "__init__",
    },
    "envelopes": {
        "client",
        "lazy_imports",
        "os_process",
        "protocol.frames",
        "queue_settings",
        "text_files",
        "errors",
    },
    "envelopes.inspector": {"model", "protocol.frames", "queue_settings"},
    "envelopes.indexed_fields": {"model"},
    "envelopes.validation": {"model"},
    "envelopes.dead_letter_record": set(),
    "importers": {"client", "envelopes", "frame_options", "queue_settings", "errors"},
    "spark": {
        "model",
        "insights_document",
        "storage.arrow",
        "envelopes.dead_letter_record",
        "envelopes.indexed_fields",
        "envelopes.payload_schema",
        "envelopes.payload_shape",
        "envelopes.schema_compatibility",
        "envelopes.strict_json",
        "envelopes.validation",
        "http_client",
        "installation",
        "lazy_imports",
        "errors",
        "__init__",  # the version
    },
    "service": {
        "frame_options",
        "admin",
        "broker",
        "clock",
        "envelopes",
        "errors",
        "logs",
        "model",
        "protocol",
        "queue_settings",
        "relay",
        "server",
        "settings",
        "storage",
        "__init__",  # the version
    },
    "process": {"service", "settings", "logs", "standard_streams", "time_slices", "errors"},
    "cli": {ANY},
    "testing": {ANY},
}

THEIRS: Final[dict[str, set[str]]] = {
    "logs": {"structlog"},
    "sockets": {"aiohappyeyeballs"},
    "schedules": {"cronsim"},
    "settings": {"pydantic"},
    "insights_document": {"pydantic"},
    "storage": {"aiosqlite"},
    "storage.arrow": {"pyarrow", "adbc_driver_postgresql", "adbc_driver_sqlite"},
    "storage.postgres": {"psycopg"},
    "storage.sqlite.integrity.scrub": {"msgspec"},
    "relay": {"cryptography", "pydantic"},
    "export": {"pyarrow"},
    "admin": {"aiohttp", "aiohttp_sse", "jinja2", "pydantic", "prometheus_client", "argon2"},
    "documentation": {"markdown_it", "markupsafe"},
    "envelopes": {"babelqueue", "msgspec"},
    "admin.pipeline.arrow_rows": {"pyarrow"},
    "spark": {"deltalake", "msgspec", "numpy", "pyarrow", "pyspark"},
    "process": {"uvloop"},
    "cli": {ANY},
    "testing": {ANY},
}

USED_BY_COMMANDS: Final = {  # modules of admin/ that commands may import
    "formats",  # functions of their arguments
    "urls",
    "messages.imports",  # checks each line of a file as the API does
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
    """Return the name without the package: ``server.engine``; ``__init__`` for the package."""
    parts = path.relative_to(root / PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES: Final[dict[str, Path]] = {
    module_name(path): path for path in sorted((ROOT / PACKAGE).rglob("*.py"))
}


def imported(name: str, tree: ast.Module, modules: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Yield line and absolute module of every import, including those in functions."""
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


def entry_of(name: str, table: dict[str, set[str]]) -> str:
    """Return the entry of a module in a table: its own, or that of the package or part around."""
    while name not in table and "." in name:
        name = name.rpartition(".")[0]
    return name


def rules_of(name: str, table: dict[str, set[str]]) -> set[str]:
    return table.get(entry_of(name, table), set())


def offences(name: str, imports: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Yield one sentence for each import that the tables do not allow."""
    part = name.partition(".")[0]
    for line, target in imports:
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


def long_file(path: Path) -> Iterator[str]:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{path.name} has {lines} lines, the limit is {MAX_FILE_LINES}"


def long_functions(path: Path, tree: ast.Module) -> Iterator[str]:
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


@cache
def imports_of(name: str) -> tuple[tuple[int, str], ...]:
    return tuple(imported(name, parse(MODULES[name]), MODULES))


# Groups of modules in storage/, from the bottom: none imports one of a later group.  Rows are what
# any engine stores; above them are the two engines, which do not know each other.
STORAGE_GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "rows": ("arrow", "batch_sql", "migrations", "read", "search", "statements"),
    "folder": ("atomic_files", "copy_state", "data_folder", "disk_space", "mounts"),
    "store": ("backend", "database_check", "retention", "start_report", "store"),
    "SQLite files": (
        "sqlite.database_file",
        "sqlite.errors",
        "sqlite.integrity",
        "sqlite.litestream",
        "sqlite.migrate",
        "sqlite.read_connections",
        "sqlite.standby_lag",
    ),
    "SQLite writer": (
        "sqlite.history_index",
        "sqlite.store",
        "sqlite.writer",
        "sqlite.writer_process",
    ),
    "SQLite backend": ("sqlite.backend", "sqlite.backups", "sqlite.copy_side", "sqlite.restore"),
    "PostgreSQL": ("postgres",),
    "both engines": ("copying",),
}


def storage_group(name: str) -> int | None:
    """Return the position of a module's group; None: a package, or not in storage."""
    inner = name.removeprefix("storage.")
    groups = (
        at
        for at, members in enumerate(STORAGE_GROUPS.values())
        if inner != name and is_allowed(inner, set(members))
    )
    return next(groups, None)


def upward_imports(name: str, imports: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Yield one sentence for each import of a later group of storage."""
    own = storage_group(name)
    for line, target in imports:
        other = storage_group(target.removeprefix(f"{PACKAGE}."))
        if own is not None and other is not None and other > own:
            yield f"{name}:{line} imports {target}, which is in a later group of storage"


# Which parts of admin/ each part may import; ``app`` and the like put the parts together.
PURE: Final = {"dead_letter_queues", "formats", "urls"}
DRAWING: Final = {"charts", "history_chart", "trends"}
TOP: Final = ("app", "middlewares", "page_environment", "routes", "serving")
ADMIN: Final[dict[str, set[str]]] = {
    **{part: set() for part in ("__init__", "listeners", *PURE)},
    "http": {*PURE},
    "slow_clients": {"http"},
    "trends": {*PURE, "http"},
    "charts": {*PURE, "http", "trends"},
    "history_chart": {*PURE, "http", "trends", "charts"},
    "accounts": {*PURE, "http"},
    "messages": {*PURE, *DRAWING, "http", "accounts"},
    "pipeline": {*PURE, *DRAWING, "http", "accounts", "messages"},
    "queues": {*PURE, *DRAWING, "http", "accounts", "messages", "pipeline"},
    "system": {*PURE, *DRAWING, "http", "accounts", "messages", "pipeline", "queues"}
    | {"slow_clients"},
    **{part: {ANY} for part in TOP},
}


def admin_part(name: str) -> str:
    """Return the module or folder directly under admin/ that a module belongs to."""
    return name.removeprefix("admin").removeprefix(".").partition(".")[0] or "__init__"


def admin_imports() -> Iterator[tuple[str, str, str]]:
    """Yield the importing and the imported part of each import between parts, and its place."""
    for name in MODULES:
        for line, target in imports_of(name) if name.partition(".")[0] == "admin" else ():
            parts = admin_part(name), admin_part(target.removeprefix(f"{PACKAGE}."))
            if target.startswith(f"{PACKAGE}.admin.") and parts[0] != parts[1]:
                yield *parts, f"{name}:{line} imports {target}"


STATEMENTS: Final = frozenset(
    (file, name)
    for file in files("sqlite")
    for name in {**load(file, "sqlite"), **parts(file, "sqlite")}
)


def statement_names(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield one sentence for each SQL statement that a module outside storage names."""
    if name.partition(".")[0] == "storage":
        return
    for line, target in imported(name, tree, MODULES):
        if target == f"{PACKAGE}.storage.statements":
            yield f"{name}:{line} imports {target}, which only storage may"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call | ast.Tuple | ast.List):
            continue
        values = node.args if isinstance(node, ast.Call) else node.elts
        texts = [value.value if isinstance(value, ast.Constant) else None for value in values]
        for pair in pairwise(texts):
            if pair in STATEMENTS:
                yield f"{name}:{node.lineno} names the statement {pair}, which only storage may"


def test_only_storage_names_statements() -> None:
    found = [each for name in MODULES for each in statement_names(name, parse(MODULES[name]))]
    assert found == []


def test_module_of_storage_imports_no_later_group() -> None:
    modules = [name for name in MODULES if name.startswith("storage.")]
    assert [each for name in modules for each in upward_imports(name, imports_of(name))] == []
    assert [name for name in modules if storage_group(name) is None] == ["storage.sqlite"]


def test_part_of_the_admin_imports_only_what_it_may() -> None:
    against = {
        place
        for part, target, place in admin_imports()
        if target not in ADMIN[part] and ANY not in ADMIN[part]
    }
    assert against == set()


def test_parts_of_the_admin_have_no_cycle() -> None:
    assert first_cycle({part: targets - {ANY} for part, targets in ADMIN.items()}) is None


def test_engine_knows_the_database_by_its_interface_only() -> None:
    """``BatchStore``, so that another engine can replace the SQLite file."""
    for name in ("server.engine", "server.frame_processing"):
        assert [target for _, target in imports_of(name) if ".storage" in target] == []


def test_modules_import_only_what_their_part_may() -> None:
    assert [each for name in MODULES for each in offences(name, imports_of(name))] == []


def test_commands_do_not_import_the_inside_of_the_admin() -> None:
    """They use the API of a running broker, and what both need is in a lower part."""
    commands = [name for name in MODULES if name.startswith("cli.")]
    imports = {target for name in commands for _, target in imports_of(name)}
    imports = {target for target in imports if target.startswith(f"{PACKAGE}.admin")}
    assert imports == {f"{PACKAGE}.admin.{module}" for module in USED_BY_COMMANDS}


def test_every_part_is_in_the_table() -> None:
    assert {name.partition(".")[0] for name in MODULES} - OURS.keys() == set()


@pytest.mark.parametrize("table", [OURS, THEIRS], ids=["ours", "theirs"])
def test_every_permission_is_used(table: dict[str, set[str]]) -> None:
    """So that the table has no outdated entries."""
    unused = {(entry, target) for entry, targets in table.items() for target in targets - {ANY}}
    for name in MODULES:
        entry = entry_of(name, table)
        for _, whole in imports_of(name):
            top, _, inner = whole.partition(".")
            target = (inner or "__init__") if top == PACKAGE else top
            given = table.get(entry, set())
            unused -= {(entry, one) for one in given if is_allowed(target, {one})}
    assert unused == set()


def test_module_imports_have_no_cycle() -> None:
    graph = {
        name: {
            target.removeprefix(PACKAGE).removeprefix(".") or "__init__"
            for _, target in imports_of(name)
            if target.partition(".")[0] == PACKAGE
        }
        for name in MODULES
    }
    assert first_cycle(graph) is None


@pytest.mark.parametrize("folder", [PACKAGE, "tests", "benchmarks", "examples"])
def test_functions_and_files_are_short(folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert [piece for path in paths for piece in long_file(path)] == []
    assert [piece for path in paths for piece in long_functions(path, parse(path))] == []


def test_files_of_the_pages_are_short() -> None:
    paths = sorted(path for path in (ROOT / "templates").rglob("*") if path.is_file())
    assert [piece for path in paths for piece in long_file(path)] == []


def test_script_imports_have_no_cycle() -> None:
    imports = re.compile(r'^import .* from "\./(.+)";$', re.MULTILINE)
    scripts = (ROOT / "templates" / "static").glob("*.js")
    graph = {path.name: set(imports.findall(path.read_text(encoding="utf-8"))) for path in scripts}
    assert graph["app.js"]
    assert first_cycle(graph) is None


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("broker.broker", "import phpmq_lite.storage.sqlite.writer"),
        ("broker.broker", "from phpmq_lite.protocol import frames"),
        ("broker.broker", "import time"),
        ("protocol.parser", "def f():\n    import asyncio"),
        ("server.session", "from phpmq_lite.admin.app import create_app"),
        ("admin.resources", "from phpmq_lite.server.session import Connection"),
        ("client.async_client", "from ..protocol import frames"),
        ("errors", "import aiohttp"),
    ],
)
def test_checker_reports_a_forbidden_import(name: str, source: str) -> None:
    assert len(list(offences(name, imported(name, ast.parse(source), MODULES)))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from phpmq_lite.storage.statements import load",
        "from phpmq_lite.storage import statements",
        'rows = await readers.read("audit", "older", limit=1)',
        'write = ("writes", "drop_stage")',
    ],
)
def test_checker_reports_the_name_of_a_statement(source: str) -> None:
    assert len(list(statement_names("admin.app", ast.parse(source)))) == 1
    assert list(statement_names("storage.read.audit", ast.parse(source))) == []


def test_checker_reports_an_import_of_a_later_group() -> None:
    tree = ast.parse("from phpmq_lite.storage.data_folder import DataFolder")
    assert len(list(upward_imports("storage.read.audit", imported("", tree, MODULES)))) == 1
    assert list(upward_imports("storage.sqlite.restore", imported("", tree, MODULES))) == []


def test_checker_finds_a_cycle() -> None:
    assert first_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) is not None
