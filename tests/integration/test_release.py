"""``.ci/release.py``: what it refuses before it builds anything, and its notes."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from phpmq_lite import __version__
from tests.support.builds import NEEDS_SOURCES

ROOT = Path(__file__).parents[2]
pytestmark = [NEEDS_SOURCES, pytest.mark.skipif(shutil.which("git") is None, reason="missing: git")]
Git = Callable[..., None]


@pytest.fixture(name="program", scope="module")
def _program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["release"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Create a checkout in ``tmp_path``; return a function that calls git there."""

    def call(*words: str) -> None:
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(tmp_path), *identity, *words]
        subprocess.run(command, check=True, capture_output=True)

    (tmp_path / "phpmq_lite").mkdir()
    (tmp_path / "phpmq_lite" / "__init__.py").write_text('__version__ = "0.3.0"\n')
    changelog = (
        "# Changes\n\n## 0.3.0 - 2026\n\n- New.\n\n### Fixed\n\n- A bug.\n\n## 0.2.0\n\n- Old.\n"
    )
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    call("init", "--quiet")
    call("add", ".")
    call("commit", "--quiet", "-m", "first")
    return call


def test_notes_are_the_newest_section_of_the_changelog(
    program: ModuleType, git: Git, tmp_path: Path
) -> None:
    git("tag", "v0.3.0")  # of this commit
    release = program.read_release(tmp_path)
    assert release == program.Release("0.3.0", "- New.\n\n### Fixed\n\n- A bug.")
    files = [Path("a.tar.gz"), Path("a-py3-none-any.whl"), Path("a-cp311-linux.whl")]
    notes = program.notes_of(release, *files)
    assert notes.startswith("# PHPMQ Lite 0.3.0\n\n- New.\n")
    assert "- `a-cp311-linux.whl`: compiled, for machines like the one that built it only" in notes


def test_changed_or_unknown_file_is_refused(program: ModuleType, git: Git, tmp_path: Path) -> None:
    (tmp_path / "new.txt").touch()
    with pytest.raises(program.ReleaseError, match=r"not clean[^\n]*\n\?\? new.txt"):
        program.read_release(tmp_path)


@pytest.mark.parametrize(
    ("version", "changelog", "message"),
    [
        ("0.4.0", "## 0.3.0\n", r"version is 0\.4\.0 .* CHANGELOG\.md begins with 0\.3\.0"),
        ("0.4.0", "## Unreleased\n\n## 0.4.0\n", "begins with Unreleased"),
        ("0.4.0", "", "begins with nothing"),
    ],
)
def test_version_must_be_that_of_the_changelog(
    program: ModuleType, git: Git, tmp_path: Path, version: str, changelog: str, message: str
) -> None:
    (tmp_path / "phpmq_lite" / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    git("commit", "--quiet", "-am", "second")
    with pytest.raises(program.ReleaseError, match=message):
        program.read_release(tmp_path)


def test_version_of_another_commit_is_refused(
    program: ModuleType, git: Git, tmp_path: Path
) -> None:
    git("tag", "v0.3.0")
    git("commit", "--quiet", "--allow-empty", "-m", "second")
    with pytest.raises(program.ReleaseError, match=r"the tag v0\.3\.0 names another commit"):
        program.read_release(tmp_path)


def test_changelog_begins_with_this_version(program: ModuleType) -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert text.partition("\n## ")[2].startswith(f"{__version__}\n")


@pytest.mark.slow
def test_installed_sdist_is_tried_out(program: ModuleType, tmp_path: Path) -> None:
    """The wheels take the same way; `python .ci/release.py` builds and tries all three."""
    sdist = program._build(ROOT, tmp_path, "sdist")
    with pytest.raises(program.ReleaseError, match=r"says 'phpmq-lite .* \(pure Python\)'"):
        program.try_out(sdist, "9.9.9", "pure Python", is_offline=True)
