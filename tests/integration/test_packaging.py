"""The wheel and the sdist have migrations, templates and all that a build needs."""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import venv
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from phpmq_lite.broker_process import BrokerProcess
from tests.support.builds import NEEDS_SOURCES, build
from tests.support.programs import run_program
from tests.support.socket_client import WAIT_S, SocketClient

ROOT = Path(__file__).parent.parent.parent


def names_in_wheel(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as wheel:
        return {name for name in wheel.namelist() if ".dist-info/" not in name}


def hashes_in_wheel(path: Path) -> dict[str, str]:
    """Return the hashes of all files, with those of the metadata."""
    with zipfile.ZipFile(path) as wheel:
        return {name: hashlib.sha256(wheel.read(name)).hexdigest() for name in wheel.namelist()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> set[str]:
    return names_in_wheel(wheel)


def test_wheel_has_the_metadata_of_a_package_index(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        found = message_from_bytes(opened.read(name))
        assert any(name.endswith("licenses/LICENSE") for name in opened.namelist())
    assert found["Description-Content-Type"] == "text/markdown"
    assert str(found.get_payload()).startswith("# PHPMQ Lite\n")
    assert (found["License-Expression"], found["License-File"]) == ("MIT", "LICENSE")
    assert found["Requires-Python"] == ">=3.11"
    assert {"message queue", "job queue", "sqlite", "php"} <= set(found["Keywords"].split(","))
    classifiers = found.get_all("Classifier", [])
    assert len(classifiers) == len(set(classifiers))
    for kind in ("Development Status", "Environment", "Framework", "Intended Audience",
                 "Operating System", "Topic"):  # fmt: skip
        assert any(one.startswith(f"{kind} :: ") for one in classifiers), kind
    for version in ("3", "3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {version}" in classifiers
    assert "Project-URL" not in found  # there is no public host yet


@pytest.mark.parametrize("folder", ["docs", "migrations", "templates"])
def test_wheel_has_every_data_file(wheel_names: set[str], folder: str) -> None:
    files = {str(p.relative_to(ROOT)) for p in (ROOT / folder).rglob("*") if p.is_file()}
    assert files
    assert {f"phpmq_lite/_data/{name}" for name in files} <= wheel_names


def test_wheel_has_every_module_and_no_test(wheel_names: set[str]) -> None:
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "phpmq_lite").rglob("*.py")}
    assert modules | {"phpmq_lite/py.typed"} <= wheel_names
    others = {name for name in wheel_names if not name.startswith("phpmq_lite/")}
    assert others == {"pyspark_phpmq/__init__.py"}  # by which Spark finds the data source


def commit_at_build(root: Path) -> str:
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module._commit(root))


def test_wheel_records_the_commit_of_its_checkout(wheel: Path) -> None:
    name = "phpmq_lite/_data/commit"
    with zipfile.ZipFile(wheel) as opened:
        recorded = opened.read(name).decode() if name in opened.namelist() else ""
    assert recorded.strip() == commit_at_build(ROOT)


@pytest.mark.skipif(shutil.which("git") is None, reason="missing: git")
def test_build_of_a_tagged_commit_is_a_release_and_records_none(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert commit_at_build(tmp_path) == ""
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "-m", "first")
    assert commit_at_build(tmp_path) == git("rev-parse", "--short", "HEAD").strip()
    git("tag", "v1.0")
    assert commit_at_build(tmp_path) == ""


@pytest.mark.slow
def test_sdist_builds_the_same_wheel(tmp_path: Path, wheel: Path) -> None:
    sdist = build(ROOT, tmp_path / "sdist", "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert (source / "tests" / "conftest.py").is_file()
    assert (source / ".ci" / "run").is_file()
    assert (source / ".dockerignore").is_file()
    again = build(source, tmp_path / "wheel", "wheel")
    assert again.name == wheel.name
    assert hashes_in_wheel(again) == hashes_in_wheel(wheel)


def test_wheel_has_nothing_compiled(wheel_names: set[str]) -> None:
    assert not [name for name in wheel_names if "__pycache__" in name or name.endswith(".pyc")]


@dataclass
class Installed(BrokerProcess):
    """A broker of an installation, without access to the checkout."""

    home: Path = Path()

    @property
    def command(self) -> list[str]:
        return [str(self.home / "bin" / "phpmq-lite"), *super().command[3:]]


def install(wheel: Path, home: Path) -> None:
    """Install it into an empty environment, which finds the libraries of this one."""
    venv.create(home, with_pip=False)
    place = sysconfig.get_path("purelib", vars={"base": str(home)})
    libraries = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    Path(place, "libraries.pth").write_text("\n".join(libraries), encoding="utf-8")
    subprocess.run(
        [
            sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install",
            "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel),
        ],
        check=True, capture_output=True,
    )  # fmt: skip


@NEEDS_SOURCES
@pytest.mark.slow
@pytest.mark.acceptance
def test_broker_of_an_empty_environment_serves(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(wheel, tmp_path / "venv")
    monkeypatch.chdir(tmp_path)
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    flags = ["--admin", "127.0.0.1:0"]
    broker = Installed(tmp_path / "data", flags, env=outside, home=tmp_path / "venv")
    where = "import phpmq_lite; print(phpmq_lite.__file__)"
    found = run_program([str(broker.home / "bin" / "python"), "-c", where], env=outside, check=True)
    assert Path(found.stdout.strip()).is_relative_to(broker.home)
    try:
        broker.start()
        for path in ("", "queues", "static/x/app.css", "docs/guides/admin"):
            with urllib.request.urlopen(broker.admin[0] + path, timeout=WAIT_S) as answer:
                assert answer.status == 200
        with SocketClient(broker.port) as peer:
            assert peer.confirm("orders", b"stored") is None
        assert broker.terminate() == 0
    finally:
        broker.kill()
