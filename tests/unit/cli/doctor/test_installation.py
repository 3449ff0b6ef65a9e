"""Doctor checks of Python, packages, SQLite and Java."""

import platform

import pytest
from packaging.requirements import Requirement

from phpmq_lite.cli.doctor import installation
from phpmq_lite.cli.doctor.findings import BAD, OK, WARN
from phpmq_lite.installation import install_command, templates_folder

NEEDED = [Requirement("click>=8.1"), Requirement("uvloop>=0.19")]


def test_suitable_packages_are_one_line() -> None:
    versions = {"click": "8.2", "uvloop": "0.21"}
    (found,) = installation.package_findings(NEEDED, versions.get, "")
    assert found.state == OK
    assert found.text.endswith("and the 2 required packages")


def test_unsuitable_packages_are_named() -> None:
    found = list(installation.package_findings(NEEDED, {"click": "7.0"}.get, ""))
    assert [(one.check, one.state, one.text) for one in found] == [
        ("click", BAD, "7.0"),
        ("uvloop", BAD, "not installed"),
    ]
    assert found[0].hint == f">=8.1 is required: {install_command(flags='--upgrade')}"


def test_package_that_cannot_be_imported_is_bad() -> None:
    (found,) = installation.package_findings([], lambda name: "1", "no module named aiohttp")
    assert (found.state, found.text) == (BAD, "no module named aiohttp")


def test_program_that_is_not_installed_is_only_a_warning() -> None:
    (found,) = installation.package_findings([], lambda name: None, "")
    assert (found.state, found.hint) == (WARN, install_command())


@pytest.mark.parametrize(
    ("version", "threads", "problem", "state", "words"),
    [
        ((3, 51, 3), 3, "", OK, "3.51.3"),
        ((3, 40, 1), 1, "", OK, "older than 3.51.3, which is safe here"),
        ((3, 51, 3), 0, "", BAD, "for single-threaded use"),
        ((3, 8, 0), 3, "near STRICT: syntax error", BAD, "near STRICT"),
    ],
)
def test_sqlite_is_judged(
    version: tuple[int, ...], threads: int, problem: str, state: str, words: str
) -> None:
    found = installation.sqlite_finding(version, threads, problem)
    assert (found.state, words in found.text) == (state, True)


@pytest.mark.parametrize(
    ("spark", "java", "problem", "state", "words"),
    [
        (None, "", "", OK, "only `phpmq-lite pipeline` requires"),
        ("4.3.0", "Java 17 (PATH)", "", OK, "Spark 4.3.0, Java 17 (PATH)"),
        ("4.3.0", "", "none was found", WARN, "no Java: none was found"),
    ],
)
def test_pipeline_check(spark: str | None, java: str, problem: str, state: str, words: str) -> None:
    found = installation.pipeline_finding(spark, java, problem)
    assert (found.state, words in found.text) == (state, True)


def test_pages_that_are_looked_for_have_all_that_they_share() -> None:
    folder = templates_folder()
    shared = sorted(str(path.relative_to(folder)) for path in (folder / "static").iterdir())
    assert list(installation.PAGES) == ["base.html", *shared]


@pytest.mark.parametrize(
    ("found", "state"),
    [
        ("4.3.0", OK),
        ("4.2", OK),
        ("4.1.9", BAD),
        ("3.5", BAD),
        ("5", WARN),  # newer than the tested versions
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
    assert finding == ("babelqueue", BAD, "2.0", "~=1.24 is required: pip install it")


def test_newer_version_is_named_with_the_tested_range() -> None:
    finding = installation.package_finding(Requirement("pandas>=2.2,<3"), "3.0", "pip install it")
    assert finding.hint == "this version is untested: pip install 'pandas<3,>=2.2'"


def test_extras_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    told = ["click>=8", "pyspark>=4.2; extra == 'spark'", "old; python_version < '3'"]
    monkeypatch.setattr(installation, "requires", lambda name: told)
    assert [one.name for one in installation.requirements()] == ["click"]
    assert [one.name for one in installation.requirements("spark")] == ["pyspark"]


def test_installed_packages_are_suitable() -> None:
    for needed in installation.requirements():
        found = installation.installed_version(needed.name)
        assert installation.package_finding(needed, found, "").state == OK
    assert installation.check_python().state == OK


def test_python_is_judged() -> None:
    assert installation.python_finding(platform.python_version(), "").state == OK
    finding = installation.python_finding("3.10.4", ">=3.11")
    assert (finding.state, finding.hint) == (BAD, ">=3.11 is required")
