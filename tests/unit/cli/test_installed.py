"""Packages are judged by what the distribution says that it needs."""

import platform

import pytest
from packaging.requirements import Requirement

from phpmq_lite.cli.doctor import installation
from phpmq_lite.cli.doctor.findings import BAD, OK, WARN


@pytest.mark.parametrize(
    ("found", "state"),
    [
        ("4.3.0", OK),
        ("4.2", OK),
        ("4.1.9", BAD),
        ("3.5", BAD),
        ("5", WARN),  # newer than what was tried
        ("5.0rc1", WARN),
        (None, BAD),
    ],
)
def test_version_is_judged(found: str | None, state: str) -> None:
    finding = installation.package_finding(Requirement("pyspark>=4.2,<5"), found, "pip install it")
    assert finding.state == state
    assert bool(finding.hint) == (state != OK)


def test_version_that_may_not_differ_is_needed() -> None:
    finding = installation.package_finding(Requirement("babelqueue~=1.24"), "2.0", "pip install it")
    assert finding == ("babelqueue", BAD, "2.0", "~=1.24 is needed: pip install it")


def test_newer_one_is_named_with_what_was_tried() -> None:
    finding = installation.package_finding(Requirement("pandas>=2.2,<3"), "3.0", "pip install it")
    assert finding.hint == "not tested with this version: pip install 'pandas<3,>=2.2'"


def test_extras_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    told = ["click>=8", "pyspark>=4.2; extra == 'spark'", "old; python_version < '3'"]
    monkeypatch.setattr(installation, "requires", lambda name: told)
    assert [one.name for one in installation.requirements()] == ["click"]
    assert [one.name for one in installation.requirements("spark")] == ["pyspark"]


def test_what_is_installed_here_will_do() -> None:
    for needed in installation.requirements():
        found = installation.installed_version(needed.name)
        assert installation.package_finding(needed, found, "").state == OK
    assert installation.check_python().state == OK


def test_python_is_judged() -> None:
    assert installation.python_finding(platform.python_version(), "").state == OK
    finding = installation.python_finding("3.10.4", ">=3.11")
    assert (finding.state, finding.hint) == (BAD, ">=3.11 is needed")
