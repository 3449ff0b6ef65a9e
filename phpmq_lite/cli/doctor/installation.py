"""What is installed: Python, packages, SQLite, pages, and what only the pipeline needs."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib import import_module
from typing import Final

from packaging.requirements import Requirement

from phpmq_lite import __version__, installation
from phpmq_lite.admin.monitoring.system_view import sqlite_note
from phpmq_lite.cli.findings import OK, Finding, bad, ok, warn
from phpmq_lite.cli.installed import (
    install,
    installed,
    look_at_python,
    package_finding,
    requirements,
)
from phpmq_lite.errors import PhpmqError
from phpmq_lite.installation import migrations_folder, templates_folder
from phpmq_lite.model import checksum
from phpmq_lite.storage.migrate import migrate

_PARTS: Final = ("phpmq_lite.process", "phpmq_lite.admin.app", "phpmq_lite.admin.serving")
PAGES: Final = (
    "base.html",
    "static/app.css",
    "static/app.js",
    "static/choices.js",
    "static/dom.js",
    "static/lists.css",
    "static/live.js",
    "static/mark.svg",
    "static/views.css",
)  # what every page needs


def look() -> Iterator[Finding]:
    """Look at what every broker needs."""
    yield look_at_python()
    yield from package_findings(requirements(), installed, _import_problem())
    yield sqlite_finding(sqlite3.sqlite_version_info, sqlite3.threadsafety, _sqlite_problem())
    yield _pages()


def package_findings(
    needed: Sequence[Requirement], find: Callable[[str], str | None], problem: str
) -> Iterator[Finding]:
    """Name the packages that will not do; one line where all will.

    ``find`` gives a version; ``problem`` is why something cannot be imported.
    """
    name, own = "packages", f"phpmq-lite {__version__} ({installation.kind()})"
    again = install(flags="--upgrade")
    found = [package_finding(one, find(one.name), again) for one in needed]
    wrong = [one for one in found if one.state != OK]
    yield from wrong
    if problem:
        yield bad(name, problem, again)
    elif not needed:
        yield warn(
            name,
            f"{own} is not installed, so no version was compared",
            install(),
        )
    elif not wrong:
        yield ok(name, f"{own} and the {len(needed)} packages that it needs")


def _import_problem() -> str:
    for part in _PARTS:
        try:
            import_module(part)
        except ImportError as error:
            return f"{part} cannot be imported: {error}"
    return ""


def sqlite_finding(found: tuple[int, ...], threadsafety: int, problem: str) -> Finding:
    """Judge SQLite; ``problem`` is why it cannot make the tables."""
    note = sqlite_note(found)
    text = ".".join(map(str, found)) + (f", {note}" if note else "")
    if problem:
        return bad("SQLite", f"{text}: {problem}", "install a newer SQLite, or Python")
    if not threadsafety:
        return bad(
            "SQLite",
            f"{text}: it was built for one thread only",
            "install a Python whose SQLite has THREADSAFE=1",
        )
    return ok("SQLite", text)


def _sqlite_problem() -> str:
    """Make all tables in memory."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.create_function("checksum", 2, checksum, deterministic=True)
        try:
            migrate(connection, migrations_folder())
        except PhpmqError as error:
            return str(error)
    return ""


def _pages() -> Finding:
    folder = templates_folder()
    missing = [name for name in PAGES if not (folder / name).is_file()]
    if missing:
        return bad(
            "pages",
            f"{folder} has no {', '.join(missing)}",
            install(flags="--force-reinstall"),
        )
    return ok("pages", "all files of the web pages are there")


def look_at_pipeline() -> Iterator[Finding]:
    """Tell of Spark and Java: no broker needs them."""
    found = installed("pyspark")
    if found is None:
        yield pipeline_finding(None, "")
        return
    from phpmq_lite.spark import java

    try:
        told = java.find_java()
    except PhpmqError as error:
        yield pipeline_finding(found, "", str(error))
    else:
        yield pipeline_finding(found, f"Java {told.version} ({told.origin})")


def pipeline_finding(spark: str | None, java: str, problem: str = "") -> Finding:
    """Judge what ``pipeline`` needs; ``problem`` is why there is no Java."""
    if spark is None:
        return ok(
            "pipeline",
            "no Spark, which only `phpmq-lite pipeline` needs",
            f"to use it: {install('spark', 'java')}",
        )
    if problem:
        return warn(
            "pipeline",
            f"Spark {spark}, no Java: {problem}",
            f"{install('java')}, or install Java 17 or newer",
        )
    return ok("pipeline", f"Spark {spark}, {java}", "`phpmq-lite pipeline doctor` looks closer")
