"""Run tests on a compiled copy of the checkout: ``python -m tests.compiled [ARGUMENT…]``.

The arguments are those of pytest.  The copy is the sdist, with the libraries of the compiled wheel
beside the sources: each test, and each process that it starts, imports the libraries.  The checkout
itself stays pure Python.
"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from tests.support.builds import build

ROOT: Final = Path(__file__).parent.parent
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
MODULES: Final[list[str]] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"][
    "custom"
]["modules"]
NAMES: Final = [f"phpmq_lite.{path.removesuffix('.py').replace('/', '.')}" for path in MODULES]


def pytest_sessionstart() -> None:
    """Fail unless the tests, and the processes that they start, import the libraries."""
    loaders = {name: type(import_module(name).__loader__).__name__ for name in NAMES}
    assert set(loaders.values()) == {"ExtensionFileLoader"}, loaders
    command = [sys.executable, "-m", "phpmq_lite", "--version"]
    child = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
    assert child.stdout.endswith("(compiled)\n"), child.stdout


def build_wheel(folder: Path) -> Path:
    """Build the compiled wheel, which takes a minute, and return its path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HATCH_BUILD_HOOK_ENABLE_CUSTOM", "1")
        return build(ROOT, folder, "wheel")


def make_copy(folder: Path, wheel: Path) -> Path:
    """Copy the checkout into ``folder``, add the libraries of ``wheel``, and return the root."""
    with tarfile.open(build(ROOT, folder / "sdist", "sdist")) as archive:
        archive.extractall(folder, filter="data")
    (copy,) = folder.glob("phpmq_lite-*")
    with zipfile.ZipFile(wheel) as opened:
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        opened.extractall(copy, [name for name in opened.namelist() if name.endswith(suffix)])
    return copy


def run_tests(copy: Path, *arguments: str) -> int:
    """Run pytest in the copy, and return its exit code."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.compiled", *arguments]
    environment = os.environ | {"PYTHONPATH": str(copy)}  # ahead of the editable install
    return subprocess.run(command, cwd=copy, env=environment, check=False).returncode


def main() -> int:
    """Run the tests that the command line selects."""
    with TemporaryDirectory() as folder:
        copy = make_copy(Path(folder), build_wheel(Path(folder, "wheel")))
        return run_tests(copy, *sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
