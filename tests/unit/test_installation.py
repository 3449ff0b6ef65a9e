"""The printed command that reinstalls this package, and the commit that it knows."""

import json
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite import installation
from tests.support.programs import run_program

PIP = f"{shlex.quote(sys.executable)} -m pip install"
REQUIRES = [
    "click>=8.4",
    "pyarrow>=16; extra == 'export'",
    'phpmq-lite[export]; extra == "spark"',
    "pyspark<5,>=4.2; extra == 'spark'",
]


class Installed:
    """Stands in for the metadata of an installation; ``origin`` is its direct_url.json."""

    requires = REQUIRES

    def __init__(self, **origin: Any) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return json.dumps(self.origin) if self.origin else None


def command(
    monkeypatch: pytest.MonkeyPatch, found: Installed, *extras: str, flags: str = ""
) -> str:
    monkeypatch.setattr(metadata, "distribution", lambda _: found)
    text = installation.install_command(*extras, flags=flags)
    assert text.startswith(PIP)
    return text.removeprefix(PIP).strip()


def test_checkout_is_reinstalled_from_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = tmp_path.as_uri()
    plain, editable = Installed(url=url, dir_info={}), Installed(url=url, dir_info={"editable": 1})
    assert command(monkeypatch, plain, "spark") == f"'{tmp_path}[spark]'"
    assert command(monkeypatch, editable, "spark", "java") == f"-e '{tmp_path}[spark,java]'"
    assert command(monkeypatch, plain, flags="--upgrade") == f"--upgrade {tmp_path}"


def test_wheel_is_named_while_it_exists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "my wheels.whl"
    wheel.touch()
    found = Installed(url=wheel.as_uri(), archive_info={})
    assert command(monkeypatch, found, "spark") == f"'{wheel}[spark]'"
    wheel.unlink()
    assert command(monkeypatch, found, "spark") == "'pyarrow>=16' 'pyspark<5,>=4.2'"


def test_packages_of_the_extra_are_named_if_the_origin_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert command(monkeypatch, Installed(), "export") == "'pyarrow>=16'"
    assert command(monkeypatch, Installed()) == "phpmq_lite-VERSION-py3-none-any.whl"


def test_checkout_that_was_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "distribution", missing)
    checkout = Path(installation.__file__).parent.parent
    assert installation.install_command("java") == f"{PIP} -e '{checkout}[java]'"


def test_no_message_suggests_an_installation_from_an_index() -> None:
    package = Path(installation.__file__).parent
    pages = [*(package.parent / "docs").rglob("*.md"), package.parent / "README.md"]
    for path in [*package.rglob("*.py"), *pages]:
        text = path.read_text(encoding="utf-8")
        assert "pip install 'phpmq-lite" not in text, path
        assert "pip install phpmq-lite" not in text, path


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    done = run_program(["git", "-C", str(folder), *identity, *words], check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a repository with one commit and the package in it."""
    if shutil.which("git") is None:
        pytest.skip("missing: git")
    package = tmp_path / "phpmq_lite"
    package.mkdir()
    (package / "__init__.py").touch()
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    monkeypatch.setattr(installation, "_PACKAGE", package)
    return tmp_path


def test_checkout_knows_its_commit_and_whether_it_was_changed(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert commit.startswith(installation.commit())
    assert len(installation.commit()) >= 7
    git(checkout, "tag", "a-tag")
    assert commit.startswith(installation.commit())
    (checkout / "phpmq_lite" / "__init__.py").write_text("changed")
    assert installation.commit().endswith("-dirty")


def test_build_names_the_commit_that_it_recorded(checkout: Path) -> None:
    (checkout / "phpmq_lite" / "_data").mkdir()
    (checkout / "phpmq_lite" / "_data" / "commit").write_text("0a1b2c3\n")
    assert installation.commit() == "0a1b2c3"


def test_commit_is_unknown_without_git(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    assert installation.commit() == ""
    monkeypatch.undo()
    shutil.rmtree(checkout / ".git")
    monkeypatch.setattr(installation, "_PACKAGE", checkout / "phpmq_lite")
    assert installation.commit() == ""
