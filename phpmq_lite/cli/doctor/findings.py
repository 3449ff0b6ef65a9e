"""The findings of ``doctor``, and the table in which they are printed."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import click

from phpmq_lite.admin.formats import count_of
from phpmq_lite.checks import Level
from phpmq_lite.cli.errors import ERROR
from phpmq_lite.cli.output import (
    columns,
    format_cell,
    output_format,
    print_message,
    print_table,
    write_rows,
)
from phpmq_lite.errors import PhpmqError

OK, WARN, BAD = Level.OK, Level.WARN, Level.BAD
MEMBERS: Final = ("check", "state", "found", "hint")
_STYLES: Final = {OK: "green", WARN: "yellow", BAD: "bold red"}


class Finding(NamedTuple):
    """The result of a check."""

    check: str
    state: Level
    text: str
    hint: str = ""  # advice on what the user can do


def as_root(command: str) -> str:
    """Return a command that requires root; unless the user is root, add the advice to ask root."""
    return command if os.geteuid() == 0 else f"ask root to run: {command}"


def ok(check: str, text: str, hint: str = "") -> Finding:
    """Return a finding about something that has no problems."""
    return Finding(check, OK, text, hint)


def warn(check: str, text: str, hint: str) -> Finding:
    """Return a finding about something that works but requires attention."""
    return Finding(check, WARN, text, hint)


def bad(check: str, text: str, hint: str) -> Finding:
    """Return a finding about something that does not work."""
    return Finding(check, BAD, text, hint)


def ok_if(is_good: bool, check: str, text: str, hint: str, otherwise: Level = WARN) -> Finding:
    """Return a finding that is ok or, with a hint, has the state ``otherwise``."""
    return at_level(OK if is_good else otherwise, check, text, hint)


def at_level(level: Level, check: str, text: str, hint: str) -> Finding:
    """Return a finding with this state, and with the hint if it is not ok."""
    return Finding(check, level, text, "" if level is OK else hint)


def refusal_of(check: Callable[[], object], kind: type[PhpmqError] = PhpmqError) -> str:
    """Return the text of the error that a check raises, or an empty text if it raises none."""
    try:
        check()
    except kind as error:
        return str(error)
    return ""


def report_findings(findings: Sequence[Finding], output: str | None) -> None:
    """Write the findings, and exit with code 1 if any of them is bad.

    In a table, each hint is below its finding, because two columns would be too narrow.
    """
    if output_format(output) == "table":
        _write_table(findings)
    else:
        rows = [dict(zip(MEMBERS, finding, strict=True)) for finding in findings]
        write_rows(rows, columns(*MEMBERS), output, "")
    if any(finding.state is BAD for finding in findings):
        click.get_current_context().exit(ERROR)


def _write_table(findings: Sequence[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        text = Text(format_cell(finding.text))
        if finding.hint:
            text.append(f"\n→ {format_cell(finding.hint)}", style="italic")
        state = Text(finding.state, style=_STYLES[finding.state])
        table.add_row(state, Text(finding.check), text)
    print_table(table)
    print_message(summarize_findings(findings))


def summarize_findings(findings: Sequence[Finding]) -> str:
    states = [finding.state for finding in findings]
    bad, warnings = states.count(BAD), states.count(WARN)
    if not bad + warnings:
        return f"All {len(findings)} checks passed."
    return f"{len(findings)} checks: {bad} bad, {count_of(warnings, 'warning', 'warnings')}."


def run_check(part: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a group of checks; if the group fails, yield the error as a finding."""
    try:
        yield from check()
    except Exception as error:  # the other groups of checks must still run
        text = error if isinstance(error, PhpmqError | OSError) else repr(error)
        is_foreign = isinstance(error, PermissionError)
        hint = "run doctor from the broker's account" if is_foreign else ""
        yield bad(part, f"cannot be checked: {text}", hint)
