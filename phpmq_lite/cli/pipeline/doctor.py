"""The ``pipeline doctor`` command, which checks the requirements of a run and suggests fixes."""

import os
import socket
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import click

from phpmq_lite.cli.doctor.findings import BAD, WARN, Finding, bad, ok, ok_if, report_findings, warn
from phpmq_lite.cli.errors import ERROR, NOT_FOUND, REFUSED, CommandError
from phpmq_lite.cli.output import output_option
from phpmq_lite.cli.parameters import flag
from phpmq_lite.cli.pipeline.job_runner import probe
from phpmq_lite.cli.pipeline.target import PipelineTarget, target_options
from phpmq_lite.errors import PhpmqError, os_reason

_WITHOUT: Final = "exports use Python, which reaches 20 to 50 % of the rows/s"
OPTIONAL: Final = ("adbc-driver-manager", "adbc-driver-sqlite")
BROKER_TIMEOUT_S: Final = 10.0
_NO_BROKER: Final = (
    "start it with `phpmq-lite serve`, or pass the admin address (not port 9100) with --url"
)
_BROKER_HINTS: Final = {
    REFUSED: "create a token with `phpmq-lite token create NAME --role operator`; use --token-file",
    NOT_FOUND: "the broker has no pipeline API; upgrade it",
}


@click.command()
@flag("--start", "Also start Spark and, if there is a broker, read from it.")
@output_option
@partial(target_options, is_incomplete_ok=True)
def doctor(target: PipelineTarget, start: bool, output: str | None) -> None:
    """Check Java, Python, packages, broker and write access.

    Exit codes: 0 a run can start, 1 something is missing.
    """
    findings = list(check_pipeline(target))
    problems = {finding.check for finding in findings if finding.state == BAD}
    if start and problems <= {"broker", "export"}:  # Spark starts without them
        try:
            findings.append(ok("Spark", probe(target, reads=not problems)))
        except (CommandError, PhpmqError) as error:
            findings.append(bad("Spark", str(error), ""))
    report_findings(findings, output)


def check_pipeline(target: PipelineTarget) -> Iterator[Finding]:
    """Run all checks, independently of each other, and yield their findings."""
    from phpmq_lite.cli.doctor.installation import (
        check_python,
        installed_version,
        package_finding,
        reinstall_command,
        requirements,
    )
    from phpmq_lite.spark.session import find_java

    yield check_python()
    for requirement in requirements("spark"):
        version = installed_version(requirement.name)
        hint = reinstall_command("spark", flags="--upgrade")
        if version is None and requirement.name in OPTIONAL:
            hint = f"{reinstall_command('spark')}; without it, {_WITHOUT}"
            yield warn(requirement.name, "not installed", hint)
        else:
            yield package_finding(requirement, version, hint)
    try:
        runtime = find_java()
        yield ok("Java", f"{runtime.version} {runtime.home} ({runtime.origin})")
    except PhpmqError as error:
        yield bad("Java", "none", str(error))
    if not target.is_local:
        yield _master(target.master)
    if target.problem:
        yield bad("broker", target.problem, "")
    elif target.path:
        with target.path.open("rb") as file:
            is_sqlite = file.read(16) == b"SQLite format 3\0"
        yield ok_if(is_sqlite, "database", str(target.path), "not an SQLite database", BAD)
    else:
        yield from _broker(target)
    yield _results(target)


def _master(master: str) -> Finding:
    """Check the TCP port of a standalone Spark master; skip masters of any other kind."""
    parts = urlsplit(master)
    if parts.scheme != "spark":
        return Finding("master", WARN, master, "only local and spark:// masters are checked")
    try:
        socket.create_connection((parts.hostname or "", parts.port or 7077), timeout=5).close()
    except OSError as error:
        return bad("master", f"{master}: {os_reason(error)}", "start it, or check the address")
    hint = f"every executor requires Python {sys.version_info[0]}.{sys.version_info[1]} and pyarrow"
    return ok("master", master, hint)


def _broker(target: PipelineTarget) -> Iterator[Finding]:
    """Check that the history can be read and exported, and that the user's role is operator."""

    def ask(path: str, method: str = "GET", **query: object) -> Any:
        return target.admin.call(method, f"/pipeline/{path}", None, query, BROKER_TIMEOUT_S)

    try:
        bounds = ask("history/bounds")
    except CommandError as error:
        problem = str(error) if str(target.url) in str(error) else f"{target.url}: {error}"
        yield bad("broker", problem, _BROKER_HINTS.get(error.code, _NO_BROKER))
        return
    history = f"history {bounds['history_id']}, offsets {bounds['lo']} to {bounds['hi']}"
    yield ok("broker", f"{target.url}: {history}")
    end = bounds["hi"]
    try:
        ask("history/arrow", "HEAD", lo=end, hi=end)
        yield ok("export", "the broker exports its history")
    except CommandError as error:
        is_bad = error.code == ERROR  # any other code may only mean that the broker is busy
        hint = "install the extra export on the broker's machine and restart it" if is_bad else ""
        yield Finding("export", BAD if is_bad else WARN, str(error), hint)
    try:
        ask("claims/state", subscription="pipeline")
    except CommandError as error:
        if error.code == REFUSED:
            yield warn("role", "viewer", "replay, consume and writing require the operator role")
            return
        if error.code != NOT_FOUND:  # NOT_FOUND only means that there is no subscription yet
            yield warn("role", f"unknown: {error}", "")
            return
    yield ok("role", "operator")


def _results(target: PipelineTarget) -> Finding:
    if not target.results:
        return warn("results", "none", "set --out to the folder for the results")
    folder = target.results_folder
    if folder is None:
        return Finding(
            "results", WARN, target.results, "not checked, because only Spark can reach it"
        )
    hint = "" if target.is_local else "every executor must see this folder at the same path"
    test_file = folder / f".doctor-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        test_file.write_text("written by phpmq-lite pipeline doctor", encoding="ascii")
        test_file.unlink()
    except OSError as error:
        hint = "set --out to a folder that you can write to"
        return bad("results", f"{folder}: {error.strerror}", hint)
    return ok("results", str(folder), hint)
