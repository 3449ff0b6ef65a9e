"""Findings of doctor and their report."""

import json

import click
import pytest
from click.testing import CliRunner, Result

from phpmq_lite.cli.doctor.findings import (
    Finding,
    bad,
    ok,
    report_findings,
    summarize_findings,
    warn,
)

WELL = [ok("a", "fine")]
LATE = [*WELL, warn("b", "late", "hurry")]
ILL = [*LATE, bad("c", "gone \x1b[31m", "put it back")]


def shown(findings: list[Finding], output: str) -> Result:
    @click.command()
    def command() -> None:
        report_findings(findings, output)

    return CliRunner().invoke(command, [], catch_exceptions=False)


@pytest.mark.parametrize(("findings", "code"), [(WELL, 0), (LATE, 0), (ILL, 1)])
def test_only_bad_findings_exit_with_1(findings: list[Finding], code: int) -> None:
    for output in ("json", "table"):
        assert shown(findings, output).exit_code == code


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        (WELL, "All 1 checks passed."),
        (LATE, "2 checks: 0 bad, 1 warning."),
        (ILL, "3 checks: 1 bad, 1 warning."),
    ],
)
def test_summary_counts(findings: list[Finding], expected: str) -> None:
    assert summarize_findings(findings) == expected


def test_json_has_every_key() -> None:
    assert json.loads(shown(LATE, "json").stdout)[1] == {
        "check": "b",
        "state": "warn",
        "found": "late",
        "hint": "hurry",
    }


def test_table_has_the_hint_below_and_no_escapes() -> None:
    done = shown(ILL, "table")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[:4] == [
        "ok    a  fine",
        "warn  b  late",
        "         → hurry",
        "bad   c  gone \\x1b[31m",
    ]
    assert done.stderr == "3 checks: 1 bad, 1 warning.\n"
