"""``pipeline doctor``: what a run needs, checked one by one, with a hint where it is missing."""

import os
import platform
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import click

from phpmq_lite.cli.main import ERROR, NOT_FOUND, REFUSED, CommandError
from phpmq_lite.cli.output import Column, output_option, write
from phpmq_lite.cli.pipeline.sessions import INSTALL, probe
from phpmq_lite.cli.pipeline.target import Target, target_options
from phpmq_lite.errors import PhpmqError

FINE, NOTE, BAD = "ok", "note", "missing"

PYTHON: Final = (3, 11)
LEAST: Final = {"pyspark": (4, 2), "pyarrow": (16,), "pandas": (2, 2)}
BELOW: Final = {"pyspark": (5,), "pandas": (3,)}  # not tried, or Spark warns of it
OPTIONAL: Final = {
    "adbc-driver-sqlite": "exports go through Python: a half to a fifth of the rows/s"
}
EXPORT: Final = "pip install 'phpmq-lite[export]'"
BROKER_TIMEOUT_S: Final = 10.0

COLUMNS: Final = (
    Column("check", "CHECK"),
    Column("state", "STATE"),
    Column("found", "FOUND"),
    Column("hint", "HINT"),
)


class Finding(NamedTuple):
    """One check: ``state`` is ok, note (a run works without it) or missing."""

    check: str
    state: str
    found: str
    hint: str = ""


@click.command()
@click.option("--start", is_flag=True, help="Start Spark too, and read from the broker with it.")
@output_option
@target_options
def doctor(target: Target, start: bool, output: str | None) -> None:
    """Check Java, Python, versions, the broker and write access, with a hint each.

    Exit 1 where something is missing that a run needs.
    """
    findings = list(look(target))
    if start and all(one.state != BAD for one in findings):
        findings.append(_session(target))
    write([one._asdict() for one in findings], COLUMNS, output, "")
    if any(one.state == BAD for one in findings):
        click.get_current_context().exit(ERROR)


def look(target: Target) -> Iterator[Finding]:
    """Check one thing after another; each works without the others."""
    yield _python()
    for name, least in LEAST.items():
        yield package_finding(name, _installed(name), least, BELOW.get(name))
    for name, consequence in OPTIONAL.items():
        found = _installed(name)
        yield Finding(name, FINE if found else NOTE, found or "not installed",
                      "" if found else f"{INSTALL}; without: {consequence}")  # fmt: skip
    yield _java()
    if not target.is_local:
        yield _master(target.master)
    yield from _database(target.path) if target.path else _broker(target)
    yield _results(target)


def _python() -> Finding:
    fine = sys.version_info >= PYTHON
    return Finding(
        "Python", FINE if fine else BAD, f"{platform.python_version()} {sys.executable}",
        "" if fine else "3.11 or newer is needed",
    )  # fmt: skip


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def package_finding(
    name: str, found: str | None, least: tuple[int, ...], below: tuple[int, ...] | None = None
) -> Finding:
    """Judge the version of a package, ``least`` <= version < ``below``; None is not installed."""
    needed = ".".join(map(str, least))
    if found is None:
        return Finding(name, BAD, "not installed", INSTALL)
    numbers = tuple(int(part) for part in found.split(".")[: len(least)] if part.isdigit())
    if numbers < least:
        return Finding(name, BAD, found, f"{needed} or newer is needed: {INSTALL} --upgrade")
    if below is not None and numbers >= below:
        return Finding(name, NOTE, found, f"not tried with it: pip install '{name}<{below[0]}'")
    return Finding(name, FINE, found)


def _java() -> Finding:
    from phpmq_lite.spark import java

    try:
        found = java.find_java()
    except PhpmqError as error:
        return Finding("Java", BAD, "none", str(error))
    return Finding("Java", FINE, f"{found.version} {found.home} ({found.origin})")


def _master(master: str) -> Finding:
    """Try the TCP port of a standalone master; others are Spark's to judge."""
    parts = urlsplit(master)
    if parts.scheme != "spark":
        return Finding("master", NOTE, master, "not checked: only local and spark:// are")
    try:
        socket.create_connection((parts.hostname or "", parts.port or 7077), timeout=5).close()
    except OSError as error:
        return Finding("master", BAD, f"{master}: {error}", "is it started, and reachable?")
    hint = f"every executor needs Python {sys.version_info[0]}.{sys.version_info[1]} and pyarrow"
    return Finding("master", FINE, master, hint)


def _broker(target: Target) -> Iterator[Finding]:
    """Ask for the bounds and for no rows (viewer), then for something that only an operator may."""
    where = str(target.url)

    def ask(path: str, method: str = "GET", **query: object) -> Any:
        return target.node.call(method, f"/pipeline/{path}", None, query, BROKER_TIMEOUT_S)

    try:
        bounds = ask("history/bounds")
    except CommandError as error:
        found = str(error) if where in str(error) else f"{where}: {error}"
        yield Finding("broker", BAD, found, _broker_hint(error))
        return
    found = f"{where}: history {bounds['history_id']}, offsets {bounds['lo']} to {bounds['hi']}"
    yield Finding("broker", FINE, found)
    end = bounds["hi"]
    try:
        ask("history/arrow", "HEAD", lo=end, hi=end)
        yield Finding("export", FINE, "the broker hands out its history")
    except CommandError as error:
        is_bad = error.code == ERROR  # else it is busy, perhaps
        hint = f"where the broker runs: {EXPORT}, and a restart" if is_bad else ""
        yield Finding("export", BAD if is_bad else NOTE, str(error), hint)
    try:
        ask("claims/state", subscription="pipeline")
    except CommandError as error:
        if error.code == REFUSED:
            yield Finding("role", NOTE, "viewer", "replay, consume and writing need an operator")
            return
        if error.code != NOT_FOUND:  # no such subscription yet: but we may ask
            yield Finding("role", NOTE, f"unknown: {error}")
            return
    yield Finding("role", FINE, "operator")


def _broker_hint(error: CommandError) -> str:
    if error.code == REFUSED:
        return "a token: phpmq-lite token add --role operator, then --token-file"
    if error.code == NOT_FOUND:
        return "does this broker have the pipeline? It came with the version after 0.1"
    return "start it with phpmq-lite serve, or say --url (the admin's address, not port 9100)"


def _database(path: Path) -> Iterator[Finding]:
    with path.open("rb") as file:
        fine = file.read(16) == b"SQLite format 3\0"
    yield Finding(
        "database", FINE if fine else BAD, str(path), "" if fine else "this is no SQLite database"
    )


def _results(target: Target) -> Finding:
    """Write and remove a file where the results go."""
    folder = target.out_folder
    if folder is None:
        return Finding("results", NOTE, target.out, "not checked: only Spark reaches it")
    hint = "" if target.is_local else "every executor must reach this folder under this path"
    probe = folder / f".doctor-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("written by phpmq-lite pipeline doctor", encoding="ascii")
        probe.unlink()
    except OSError as error:
        return Finding(
            "results", BAD, f"{folder}: {error.strerror}", "give --out a folder of yours"
        )
    return Finding("results", FINE, str(folder), hint)


def _session(target: Target) -> Finding:
    """Start a session and count a few rows of the source."""
    return _tried("Spark", lambda: probe(target))


def _tried(check: str, do: Callable[[], Any]) -> Finding:
    try:
        return Finding(check, FINE, str(do()))
    except (CommandError, PhpmqError) as error:
        return Finding(check, BAD, str(error))
