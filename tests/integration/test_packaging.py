"""What users install: wheel and sdist hold migrations, templates and everything to build again."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def build(source: Path, target: Path, kind: str) -> Path:
    """Build one artefact with the tool that pip would use; give its path."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = target.iterdir()
    return path


def names_in_wheel(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as wheel:
        return {name for name in wheel.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    return names_in_wheel(build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel"))


@pytest.mark.parametrize("folder", ["migrations", "templates"])
def test_wheel_has_every_data_file(wheel_names: set[str], folder: str) -> None:
    files = {str(p.relative_to(ROOT)) for p in (ROOT / folder).rglob("*") if p.is_file()}
    assert files
    assert {f"phpmq_lite/_data/{name}" for name in files} <= wheel_names


def test_wheel_has_every_module_and_no_test(wheel_names: set[str]) -> None:
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "phpmq_lite").rglob("*.py")}
    assert modules | {"phpmq_lite/py.typed"} <= wheel_names
    others = {name for name in wheel_names if not name.startswith("phpmq_lite/")}
    assert others == {"pyspark_phpmq/__init__.py"}  # by which Spark finds the data source


def test_sdist_builds_the_same_wheel(tmp_path: Path, wheel_names: set[str]) -> None:
    sdist = build(ROOT, tmp_path / "sdist", "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert (source / "tests" / "conftest.py").is_file()
    assert (source / ".ci" / "run").is_file()
    assert names_in_wheel(build(source, tmp_path / "wheel", "wheel")) == wheel_names
