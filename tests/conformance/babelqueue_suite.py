"""Where BabelQueue's public suite comes from: a folder that is named, else the package's archive.

Nothing of it enters the repository.  ``PHPMQ_CONFORMANCE_DIR`` names a folder that has
``manifest.json``, the unpacked archive or the archive itself; without it ``pip download`` fetches
the archive of the installed version into pytest's cache, once.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest

VARIABLE: Final = "PHPMQ_CONFORMANCE_DIR"
PACKAGE: Final = "babelqueue"
FETCH_S: Final = 300


class Suite:
    """The manifest and its fixtures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
        self.version: str = self.manifest["conformance_version"]

    def section(self, name: str) -> Any:
        """Return a section; fail the test if it is missing or empty."""
        found = self.manifest.get(name)
        if not found:
            pytest.fail(f"the suite {self.version} has no section {name}", pytrace=False)
        return found

    def fixture(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


def open_suite(cache: Path) -> Suite:
    """Find or fetch the suite, or fail: a skip would hide that; ``cache`` outlives the run."""
    named = os.environ.get(VARIABLE)
    if named:
        folder = _manifest_folder(Path(named)) or _unpacked(Path(named), cache)
        if folder is None:
            pytest.fail(f"{VARIABLE}={named} has no manifest.json and no archive", pytrace=False)
        return Suite(folder)
    installed = version(PACKAGE)
    folder = _manifest_folder(cache / f"{PACKAGE}-{installed}")
    return Suite(folder or _fetched(cache, installed))


def _manifest_folder(folder: Path) -> Path | None:
    for place in (folder, folder / "tests" / "conformance"):
        if (place / "manifest.json").is_file():
            return place
    return next((found.parent for found in folder.glob("*/tests/conformance/manifest.json")), None)


def _unpacked(folder: Path, cache: Path) -> Path | None:
    """Unpack the archive of the suite, the newest of the folder, into the cache."""
    archives = sorted(folder.glob(f"{PACKAGE}-*.tar.gz"))
    if not archives:
        return None
    target = cache / f"{archives[-1].name.removesuffix('.tar.gz')}"
    if _manifest_folder(target) is None:
        # A temporary name until it is complete: several pytest processes may do this at once.
        unfinished = cache / f"{target.name}.{os.getpid()}"
        with tarfile.open(archives[-1]) as archive:
            archive.extractall(unfinished, filter="data")
        try:
            unfinished.rename(target)
        except OSError:  # another process was first
            if _manifest_folder(target) is None:
                raise
    return _manifest_folder(target)


def _fetched(cache: Path, installed: str) -> Path:
    folder = cache / f"download-{os.getpid()}"
    wanted = f"{PACKAGE}=={installed}"
    options = ["--quiet", "--no-deps", "--no-binary", PACKAGE, "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
        trouble = done.stderr.strip()[-600:] if done.returncode else ""
    except subprocess.TimeoutExpired:
        trouble = f"no answer within {FETCH_S} s"
    found = None if trouble else _unpacked(folder, cache)
    shutil.rmtree(folder, ignore_errors=True)
    if found is None:
        pytest.fail(
            f"BabelQueue's suite for {wanted} could not be fetched. Where there is no network, "
            f"fetch it elsewhere with\n    pip download --no-deps --no-binary {PACKAGE} {wanted}\n"
            f"and set {VARIABLE} to the folder it lies in.\n{trouble}",
            pytrace=False,
        )
    return found
