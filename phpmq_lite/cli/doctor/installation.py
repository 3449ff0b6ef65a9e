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
from phpmq_lite.cli.doctor.findings import (
    BAD,
    OK,
    Finding,
    as_root,
    bad,
    ok,
    ok_if,
    refusal_of,
    warn,
)
from phpmq_lite.cli.parameters import SettingsArguments
from phpmq_lite.envelopes.schema_registry import ActiveSchemas, RegistryError
from phpmq_lite.errors import PhpmqError, SettingsError
from phpmq_lite.installation import (
    install_command,
    migrations_folder,
    sqlite_note,
    templates_folder,
)
from phpmq_lite.model import checksum
from phpmq_lite.settings import Settings, as_text, find_file
from phpmq_lite.storage.sqlite.migrate import migrate

DISTRIBUTION: Final = "phpmq-lite"
_LEAST: Final = (">=", ">")  # operators that specify a minimum version


def requirements(extra: str = "") -> list[Requirement]:
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
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def check_python() -> Finding:
    needed = ""
    with suppress(PackageNotFoundError):
        needed = metadata(DISTRIBUTION)["Requires-Python"] or ""
    return python_finding(platform.python_version(), needed)


def python_finding(version: str, required: str) -> Finding:
    is_good = SpecifierSet(required).contains(version, prereleases=True)
    return ok_if(is_good, "Python", f"{version}, {sys.executable}", f"{required} is required", BAD)


def package_finding(needed: Requirement, installed: str | None, install: str) -> Finding:
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
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.create_function("checksum", 2, checksum, deterministic=True)
        problem = refusal_of(lambda: migrate(connection, migrations_folder()))
    yield sqlite_finding(sqlite3.sqlite_version_info, sqlite3.threadsafety, problem)
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
    """Yield a finding for each package that is not suitable, or one if all of them are."""
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


NAME: Final = "settings"
_PROCESS_BYTES: Final = 128 << 20  # memory that a broker without messages uses, plus a reserve


def read_settings(settings_args: SettingsArguments) -> tuple[Settings, list[Finding]]:
    """Return a pair: the settings, or the defaults if they are invalid, and findings about them."""
    path = settings_args.config or find_file()
    try:
        effective = settings_args.read()
    except SettingsError as error:
        fallback = Settings() if settings_args.data is None else Settings(data=settings_args.data)
        hint = "correct it, or the broker refuses to start (exit code 78)"
        return fallback, [bad(NAME, str(error), f"{hint}; the other checks use the defaults")]
    changed = sum(source != "default" for source in effective.sources.values())
    where = "no file" if path is None else str(path)
    hint = "`phpmq-lite config init` creates a file that explains them" if path is None else ""
    findings = [ok(NAME, f"{where}, {changed} set, all others at their defaults", hint)]
    hint = "`phpmq-lite config show` lists the names"
    return effective.settings, findings + [
        warn(NAME, warning, hint) for warning in effective.warnings
    ]


def check_settings(settings: Settings) -> Iterator[Finding]:
    """Check for settings that are valid, but conflict with others or have no effect."""
    path = settings.envelopes.schemas
    if path is not None:
        try:
            ActiveSchemas(path).load()
        except RegistryError as error:
            hint = "`phpmq-lite schema check` lists the problems"
            yield bad("schemas", f"envelopes.schemas: {error}", hint)
        else:
            yield ok("schemas", str(path))
    yield from conflicting_settings(settings)


def conflicting_settings(settings: Settings) -> Iterator[Finding]:
    yield from _size_conflicts(settings)
    queues, admin = settings.queues, settings.admin
    if queues.schema_mode != "off" and settings.envelopes.schemas is None:
        text = f"queues.schema_mode is {queues.schema_mode}, but envelopes.schemas is not set"
        yield warn(NAME, text, "set envelopes.schemas; without it no payload is checked")
    if admin.hsts and admin.tls_cert is None:
        hint = "set admin.tls_cert and admin.tls_key"
        yield warn(NAME, "admin.hsts has no effect without TLS", hint)
    if settings.storage.accept_loss:
        text = "storage.accept_loss is set: every start accepts damaged files"
        yield warn(NAME, text, "remove it; for a single start, use --accept-loss instead")


def _size_conflicts(settings: Settings) -> Iterator[Finding]:
    limits, storage, history = settings.limits, settings.storage, settings.history
    needed = limits.body_cache + limits.unstored_total + storage.cache_bytes + _PROCESS_BYTES
    if needed > limits.memory:
        text = (
            f"limits.memory is {as_text(limits.memory)}; limits.body_cache, limits.unstored_total "
            "and storage.cache_bytes may use all of it, which makes publishers wait"
        )
        yield warn(NAME, text, "raise limits.memory, or lower the other three")
    if 0 < storage.max_bytes <= history.bytes:
        text = (
            f"history.bytes is {as_text(history.bytes)}, storage.max_bytes "
            f"{as_text(storage.max_bytes)}: publishing stops before the history is trimmed"
        )
        hint = "lower history.bytes to half of storage.max_bytes, or raise storage.max_bytes"
        yield warn(NAME, text, hint)
    if limits.unstored_total < limits.max_content:
        text = (
            f"limits.unstored_total is {as_text(limits.unstored_total)}, less than "
            f"limits.max_content ({as_text(limits.max_content)}): large bodies are read one by one"
        )
        yield warn(NAME, text, "raise limits.unstored_total")
