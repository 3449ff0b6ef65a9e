"""The installation, judged by made-up facts."""

import pytest
from packaging.requirements import Requirement

from phpmq_lite.cli.doctor import installation
from phpmq_lite.cli.doctor.findings import BAD, OK, WARN
from phpmq_lite.installation import install_command, templates_folder

NEEDED = [Requirement("click>=8.1"), Requirement("uvloop>=0.19")]


def test_packages_that_will_do_are_one_line() -> None:
    versions = {"click": "8.2", "uvloop": "0.21"}
    (found,) = installation.package_findings(NEEDED, versions.get, "")
    assert found.state == OK
    assert found.found.endswith("and the 2 required packages")


def test_packages_that_will_not_are_named() -> None:
    found = list(installation.package_findings(NEEDED, {"click": "7.0"}.get, ""))
    assert [(one.check, one.state, one.found) for one in found] == [
        ("click", BAD, "7.0"),
        ("uvloop", BAD, "not installed"),
    ]
    assert found[0].hint == f">=8.1 is needed: {install_command(flags='--upgrade')}"


def test_package_that_cannot_be_imported_is_bad() -> None:
    (found,) = installation.package_findings([], lambda name: "1", "no module named aiohttp")
    assert (found.state, found.found) == (BAD, "no module named aiohttp")


def test_package_that_was_not_installed_is_only_told() -> None:
    (found,) = installation.package_findings([], lambda name: None, "")
    assert (found.state, found.hint) == (WARN, install_command())


@pytest.mark.parametrize(
    ("version", "threads", "problem", "state", "words"),
    [
        ((3, 51, 3), 3, "", OK, "3.51.3"),
        ((3, 40, 1), 1, "", OK, "before 3.51.3, which is safe here"),
        ((3, 51, 3), 0, "", BAD, "for one thread only"),
        ((3, 8, 0), 3, "near STRICT: syntax error", BAD, "near STRICT"),
    ],
)
def test_sqlite_is_judged(
    version: tuple[int, ...], threads: int, problem: str, state: str, words: str
) -> None:
    found = installation.sqlite_finding(version, threads, problem)
    assert (found.state, words in found.found) == (state, True)


@pytest.mark.parametrize(
    ("spark", "java", "problem", "state", "words"),
    [
        (None, "", "", OK, "only `phpmq-lite pipeline` needs"),
        ("4.3.0", "Java 17 (PATH)", "", OK, "Spark 4.3.0, Java 17 (PATH)"),
        ("4.3.0", "", "none was found", WARN, "no Java: none was found"),
    ],
)
def test_nothing_of_the_pipeline_is_bad(
    spark: str | None, java: str, problem: str, state: str, words: str
) -> None:
    found = installation.pipeline_finding(spark, java, problem)
    assert (found.state, words in found.found) == (state, True)


def test_pages_that_are_looked_for_have_all_that_they_share() -> None:
    folder = templates_folder()
    shared = sorted(str(path.relative_to(folder)) for path in (folder / "static").iterdir())
    assert list(installation.PAGES) == ["base.html", *shared]
