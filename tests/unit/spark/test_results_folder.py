"""Result files in a local folder; ``tests/spark`` tests Hadoop file systems."""

import os
from pathlib import Path

import pytest

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark import results_folder
from phpmq_lite.spark.results_folder import LocalResultsFolder, missing_jar, open_results


def test_files_are_replaced_without_leftovers(tmp_path: Path) -> None:
    files = open_results(None, str(tmp_path / "out"))
    assert files.read("a/b.json") is None
    files.write("a/b.json", "é")
    files.write("a/b.json", "ü")
    assert files.read("a/b.json") == "ü"
    assert files.names("a") == ["b.json"]
    assert files.url("a") == f"file://{tmp_path}/out/a"


def test_concurrent_writers_of_a_file_do_not_interfere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, sync = LocalResultsFolder(tmp_path), os.fsync

    def write_meanwhile(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "getpid", lambda: 1)
        LocalResultsFolder(tmp_path).write("a", "theirs")

    monkeypatch.setattr(os, "fsync", write_meanwhile)
    files.write("a", "ours")
    assert (files.names(""), files.read("a")) == (["a"], "ours")


@pytest.mark.parametrize("uri", ["file:///a b%20#c", "file:/a b%20#c", "/a b%20#c"])
def test_folder_of_a_uri_is_the_same_as_for_hadoop(uri: str) -> None:
    assert open_results(None, uri).url("x") == "file:///a b%20#c/x"


def test_sizes_omit_files_that_spark_ignores(tmp_path: Path) -> None:
    files = LocalResultsFolder(tmp_path)
    for name in ("x/p.parquet", "x/_SUCCESS", "x/.p.crc", "x/_temporary/p.parquet", "x/y/q"):
        files.write(name, "12")
    assert list(files.data_files("x").values()) == [2, 2]
    assert files.data_files("none") == {}


def test_folders_can_be_moved_and_removed(tmp_path: Path) -> None:
    files = LocalResultsFolder(tmp_path)
    files.write("a/f", "1")
    files.move("a", "b/c")
    assert (files.exists("a"), files.read("b/c/f")) == (False, "1")
    files.sync("b")
    files.remove("b")
    files.remove("b")
    assert files.names("b") == []


def test_lock_is_exclusive_unless_shared(tmp_path: Path) -> None:
    files, others = LocalResultsFolder(tmp_path), LocalResultsFolder(tmp_path)
    with files.lock("archive", is_shared=True):
        with others.lock("archive", is_shared=True), others.lock("metrics"):
            pass
        with (
            pytest.raises(RefusedError, match="another job is working on archive"),
            others.lock("archive"),
        ):
            pass
    with others.lock("archive"):
        pass


@pytest.mark.parametrize("name", ["..", ".hidden", "_x", "a/b", "a%2Fb", "ö x"])
def test_queue_names_become_visible_single_folders(name: str) -> None:
    folder, _, file = results_folder.consumed_folder(name).partition("/")
    assert folder == "consumed"
    assert "/" not in file
    assert not file.startswith((".", "_"))
    assert results_folder.consumed_folder("a/b") != results_folder.consumed_folder("a%2Fb")


@pytest.mark.parametrize("name", ["ä" * 100, "a" * 255, "_" * 255, "/" * 255, "𝄞" * 63])
def test_longest_names_become_valid_file_names(tmp_path: Path, name: str) -> None:
    files = LocalResultsFolder(tmp_path)
    other = f"{name[:-1]}b"
    for place in (results_folder.consumed_folder, results_folder.consume_checkpoint_folder):
        assert place(name) != place(other)
        (tmp_path / place(name)).mkdir(parents=True)
    for file in (results_folder.replay_plan_file, results_folder.replay_progress_file):
        assert file(name) != file(other)
        files.write(file(name), "kept")
        assert files.read(file(name)) == "kept"
    with (
        files.lock(results_folder.consume_lock_name(name)),
        files.lock(results_folder.consume_lock_name(other)),
    ):
        pass


def test_only_overlong_names_are_shortened() -> None:
    assert results_folder.consumed_folder("ä" * 42) == f"consumed/{'%C3%A4' * 42}"
    assert results_folder.consumed_folder("a" * 255) == f"consumed/{'a' * 255}"
    short, long = results_folder.consumed_folder("ä" * 42), results_folder.consumed_folder("ä" * 43)
    assert long.startswith(f"consumed/{'%C3%A4' * 21}%C%-")
    assert long != short
    assert results_folder.consume_lock_name("a") == "consume-a"


@pytest.mark.parametrize(
    ("root", "error", "words"),
    [
        (
            "s3a://b/x",
            "java.lang.ClassNotFoundException: Class o.a.h.fs.s3a.S3AFileSystem not found",
            "spark.jars.packages=org.apache.hadoop:hadoop-aws:3.4.2",
        ),
        ("abfss://c@a/x", "java.lang.NoClassDefFoundError: x", "hadoop-azure:3.4.2"),
        ("gs://b/x", 'No FileSystem for scheme "gs"', "bigdataoss:gcs-connector:hadoop3-"),
        ("s3://b/x", 'No FileSystem for scheme "s3"', "use s3a://"),
        ("cos://b/x", 'No FileSystem for scheme "cos"', "spark.jars.packages=GROUP:NAME:VERSION"),
    ],
)
def test_missing_file_system_is_reported_with_the_remedy(root: str, error: str, words: str) -> None:
    refusal = str(missing_jar(root, f"An error occurred.\n: {error}\n\tat a.b", "3.4.2"))
    assert root in refusal
    assert words in refusal
    assert "\n" not in refusal


def test_other_error_is_not_a_missing_file_system() -> None:
    assert missing_jar("s3a://b/x", "403 Forbidden", "3.4.2") is None
