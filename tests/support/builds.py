"""Wheels and sdists, and the tests that a compiled build cannot pass."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from phpmq_lite.installation import build_kind

# tests/compiled.py runs the others on a compiled build.
NEEDS_SOURCES: Final = pytest.mark.skipif(
    build_kind() == "compiled", reason="replaces, inspects or builds from the sources"
)


def build(source: Path, target: Path, kind: str) -> Path:
    """Build an artefact with the tool that pip would use; return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = target.iterdir()
    return path
