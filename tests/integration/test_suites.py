"""``.ci/suites.py``: at most five failed tests are repeated; templates are rendered completely."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.pages import ROOT
from tests.support.template_branches import FOLDER, all_branches

PROGRAM = Path(__file__).parents[2] / ".ci" / "suites.py"

# Fails the first time; the file remembers that there was one.
FAILS_ONCE = """
import pathlib
def test_fails_once():
    marker = pathlib.Path(__file__).with_suffix(".ran")
    first = not marker.exists()
    marker.touch()
    assert not first
"""


@pytest.fixture(name="program", scope="module")
def _program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("suites", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(name="check")
def _check(program: ModuleType, tmp_path: Path) -> Callable[..., str | None]:
    """Return a function that checks one suite, which consists of a file with this text."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def check(text: str, workers: int = 0) -> str | None:
        (tmp_path / "test_toy.py").write_text(text)
        ini, test = str(tmp_path / "pytest.ini"), str(tmp_path / "test_toy.py")
        arguments = ("-p", "xdist.plugin", "-c", ini, "-n", str(workers), test)
        # Starting all plugins of our tests takes three seconds.
        suite = program.Suite("toy", arguments, {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
        refusal: str | None = program.check([suite], tmp_path / "cache")
        return refusal

    return check


def test_change_passes_when_no_test_fails(check: Callable[..., str | None]) -> None:
    assert check("def test_passes(): pass") is None


def test_unstable_test_is_named_and_refuses_nothing(
    check: Callable[..., str | None], capfd: pytest.CaptureFixture[str]
) -> None:
    assert check(FAILS_ONCE + "def test_passes(): pass\n", workers=2) is None
    output = capfd.readouterr().out
    _, heading, tests = output.partition("unstable")
    assert heading
    assert "toy: " in tests
    assert "::test_fails_once" in tests
    assert "test_passes" not in tests


def test_test_that_fails_twice_refuses(check: Callable[..., str | None]) -> None:
    refusal = check(FAILS_ONCE + "def test_fails(): assert False\n")
    assert refusal is not None
    assert "test_fails" in refusal
    assert "test_fails_once" not in refusal


@pytest.mark.parametrize(("count", "is_repeated"), [(5, True), (6, False)])
def test_at_most_five_tests_are_repeated(
    count: int, is_repeated: bool, check: Callable[..., str | None], tmp_path: Path
) -> None:
    refusal = check(
        "import pathlib, pytest\n"
        f"@pytest.mark.parametrize('number', range({count}))\n"
        "def test_fails(number):\n"
        "    with pathlib.Path(__file__).with_suffix('.runs').open('a') as file:\n"
        "        file.write('x')\n"
        "    assert False\n"
    )
    assert refusal is not None
    runs = (tmp_path / "test_toy.runs").read_text()
    assert len(runs) == (2 if is_repeated else 1) * count


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("import nothing_of_that_name", id="not collected"),
        pytest.param("", id="no test"),
        pytest.param("import pytest\ndef test_ends(): pytest.exit('over', 3)", id="ended"),
    ],
)
def test_suite_that_did_not_run_to_its_end_refuses(
    text: str, check: Callable[..., str | None]
) -> None:
    assert check(text) is not None


def test_test_that_ends_its_process_is_repeated_and_refuses(
    check: Callable[..., str | None],
) -> None:
    refusal = check("import os\ndef test_ends_its_process(): os._exit(1)\n", workers=1)
    assert refusal is not None


def test_branch_that_was_not_rendered_refuses(
    program: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folders = [suite.environment.get(FOLDER) for suite in program.suites([], tmp_path)]
    assert folders == [str(tmp_path), str(tmp_path), None]
    branches = sorted(all_branches(ROOT / "templates"))
    (tmp_path / "1.json").write_text(json.dumps(branches[1:]))
    assert "every branch" in program.check_templates(tmp_path)
    assert "never" in capfd.readouterr().out
    (tmp_path / "2.json").write_text(json.dumps(branches[:1]))
    assert program.check_templates(tmp_path) is None
