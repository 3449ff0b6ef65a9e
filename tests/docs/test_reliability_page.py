"""The page about reliability names programs and tests that are there, with options they take."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "operate" / "reliability.md").read_text(encoding="utf-8")
PROGRAMS = sorted(set(re.findall(r"`python -m (tests\.[^`]+)`", PAGE)))


def test_page_names_the_programs() -> None:
    assert len(PROGRAMS) >= 9


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_takes_its_options(program: str) -> None:
    module, *arguments = shlex.split(program)
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(a in done.stdout for a in arguments if a.startswith("--"))


def test_files_are_there() -> None:
    named = set(re.findall(r"`(?:python -m pytest -n 0 )?(tests/[\w/.]+)`", PAGE))
    assert len(named) >= 12
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
