"""Checks of the installation: Python, packages, SQLite, files for the web pages, and Java."""

import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from sysconfig import get_path
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from phpmq_lite import __version__, installation
from phpmq_lite.cli.doctor.findings import BAD, OK, Finding, as_root, bad, ok, ok_if, warn
from phpmq_lite.errors import PhpmqError
from phpmq_lite.installation import (
    install_command,
    migrations_folder,
    sqlite_note,
    templates_folder,
)
from phpmq_lite.model import checksum
from phpmq_lite.storage.sqlite.migrate import migrate

DISTRIBUTION: Final = "phpmq-lite"
_LEAST: Final = (">=", ">")  # operators that specify a minimum version


def requirements(extra: str = "") -> list[Requirement]:
    """Return the packages that this package requires, or those that an extra adds.

    The list is empty if this package is not installed.
    """
    try:
        declared = [Requirement(text) for text in requires(DISTRIBUTION) or []]
    except PackageNotFoundError:
        return []

    def applies(requirement: Requirement, extra: str) -> bool:
        return requirement.marker is None or requirement.marker.evaluate({"extra": extra})

    return [
        requirement
        for requirement in declared
        if applies(requirement, extra) and not (extra and applies(requirement, ""))
    ]


def reinstall_command(*extras: str, flags: str = "") -> str:
    """Return the command that reinstalls this package, or the advice to ask root to run it."""
    command = install_command(*extras, flags=flags)
    return command if os.access(get_path("purelib"), os.W_OK) else as_root(command)


def installed_version(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def check_python() -> Finding:
    """Check the version of the running Python interpreter."""
    needed = ""
    with suppress(PackageNotFoundError):
        needed = metadata(DISTRIBUTION)["Requires-Python"] or ""
    return python_finding(platform.python_version(), needed)


def python_finding(version: str, required: str) -> Finding:
    """Return a finding about a Python version."""
    is_good = SpecifierSet(required).contains(version, prereleases=True)
    return ok_if(is_good, "Python", f"{version}, {sys.executable}", f"{required} is required", BAD)


def package_finding(needed: Requirement, installed: str | None, install: str) -> Finding:
    """Return a finding about a package; ``installed`` is its version, or None.

    ``install`` is the command that installs it.  A version newer than those tested is a warning.
    """
    name = needed.name
    if installed is None:
        return bad(name, "not installed", install)
    if needed.specifier.contains(installed, prereleases=True):
        return ok(name, installed)
    minimums = [str(part) for part in needed.specifier if part.operator in _LEAST]
    oldest = SpecifierSet(",".join(minimums))
    if not oldest or not oldest.contains(installed, prereleases=True):
        return bad(name, installed, f"{needed.specifier} is required: {install}")
    return warn(
        name, installed, f"this version is untested: pip install '{name}{needed.specifier}'"
    )


_PARTS: Final = ("phpmq_lite.process", "phpmq_lite.admin.app", "phpmq_lite.admin.serving")
PAGES: Final = (  # files required by every web page
    "base.html",
    "static/app.css",
    "static/app.js",
    "static/choices.js",
    "static/dom.js",
    "static/lists.css",
    "static/live.js",
    "static/mark.svg",
    "static/views.css",
)


def check_installation() -> Iterator[Finding]:
    """Check what every broker requires: Python, packages, SQLite and the web pages' files."""
    yield check_python()
    yield from package_findings(requirements(), installed_version, _import_problem())
    yield sqlite_finding(sqlite3.sqlite_version_info, sqlite3.threadsafety, _sqlite_problem())
    folder = templates_folder()
    missing = [name for name in PAGES if not (folder / name).is_file()]
    if missing:
        reinstall = reinstall_command(flags="--force-reinstall")
        yield bad("pages", f"{folder} lacks {', '.join(missing)}", reinstall)
    else:
        yield ok("pages", "all files for the web pages exist")


def package_findings(
    needed: Sequence[Requirement], find: Callable[[str], str | None], problem: str
) -> Iterator[Finding]:
    """Yield a finding for each package that is not suitable, or one finding if all are suitable.

    ``find`` returns a package's version; ``problem`` states why a module cannot be imported.
    """
    name, own = "packages", f"phpmq-lite {__version__} ({installation.build_kind()})"
    upgrade = reinstall_command(flags="--upgrade")
    findings = [package_finding(package, find(package.name), upgrade) for package in needed]
    problems = [finding for finding in findings if finding.state != OK]
    yield from problems
    if problem:
        yield bad(name, problem, upgrade)
    elif not needed:
        text = f"{own} is not installed, so versions were not checked"
        yield warn(name, text, reinstall_command())
    elif not problems:
        yield ok(name, f"{own} and the {len(needed)} required packages")


def _import_problem() -> str:
    for part in _PARTS:
        try:
            import_module(part)
        except ImportError as error:
            return f"{part} cannot be imported: {error}"
    return ""


def sqlite_finding(version: tuple[int, ...], threadsafety: int, problem: str) -> Finding:
    """Return a finding about SQLite; ``problem`` states why it cannot create the tables."""
    note = sqlite_note(version)
    text = ".".join(map(str, version)) + (f", {note}" if note else "")
    if problem:
        return bad("SQLite", f"{text}: {problem}", "install a newer SQLite or Python")
    if not threadsafety:
        hint = "install a Python whose SQLite has THREADSAFE=1"
        return bad("SQLite", f"{text}: it was built for single-threaded use", hint)
    return ok("SQLite", text)


def _sqlite_problem() -> str:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.create_function("checksum", 2, checksum, deterministic=True)
        try:
            migrate(connection, migrations_folder())
        except PhpmqError as error:
            return str(error)
    return ""


def check_pipeline_packages() -> Iterator[Finding]:
    """Check Spark and Java, which are required only by the pipeline."""
    spark = installed_version("pyspark")
    runtime = problem = ""
    if spark is not None:
        from phpmq_lite.spark.session import find_java

        try:
            java_home = find_java()
            runtime = f"Java {java_home.version} ({java_home.origin})"
        except PhpmqError as error:
            problem = str(error)
    yield pipeline_finding(spark, runtime, problem)


def pipeline_finding(spark: str | None, java: str, problem: str = "") -> Finding:
    """Return a finding about Spark and Java; ``problem`` states why Java was not found."""
    name = "pipeline"
    if spark is None:
        hint = f"to install it: {reinstall_command('spark', 'java')}"
        return ok(name, "Spark is not installed; only `phpmq-lite pipeline` requires it", hint)
    if problem:
        hint = f"{reinstall_command('java')}, or install Java 17 or newer"
        return warn(name, f"Spark {spark}, no Java: {problem}", hint)
    return ok(name, f"Spark {spark}, {java}", "`phpmq-lite pipeline doctor` runs more checks")
