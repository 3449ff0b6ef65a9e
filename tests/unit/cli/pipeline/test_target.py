"""Where the pipeline reads and writes: flags, context, settings."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from phpmq_lite.cli import contexts
from phpmq_lite.cli.pipeline.target import PipelineTarget, target_options


@click.command()
@target_options
def show(target: PipelineTarget) -> None:
    click.echo(repr(target))
    found.append(target)


found: list[PipelineTarget] = []


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ignore contexts and settings of this machine."""
    found.clear()
    monkeypatch.setattr(contexts, "current_context", lambda: None)
    monkeypatch.chdir(tmp_path)


def ask(*arguments: str) -> Any:
    return CliRunner().invoke(show, arguments)


def test_broker_here_is_found_by_the_settings(tmp_path: Path) -> None:
    (tmp_path / "phpmq-data").mkdir()
    assert ask().exit_code == 0
    (target,) = found
    assert target.url == "http://127.0.0.1:9101"
    assert target.results == str(tmp_path / "phpmq-data" / "pipeline")
    assert target.log == tmp_path / "phpmq-data" / "pipeline" / "logs" / "spark.log"
    assert (target.master, target.is_local) == ("local[*]", True)
    assert (target.token, target.path) == (None, None)


def test_broker_elsewhere_needs_a_place_for_the_results() -> None:
    result = ask("--url", "http://mq.example:9101")
    assert result.exit_code == 2
    assert "use --out (or --data) for the results" in result.stderr


def test_doctor_gets_what_is_known_without_a_place_for_the_results(tmp_path: Path) -> None:
    lenient = click.command()(
        target_options(lambda target: found.append(target), is_incomplete_ok=True)
    )
    assert CliRunner().invoke(lenient, ["--url", "http://mq.example:9101"]).exit_code == 0
    assert (found[0].url, found[0].results, found[0].problem) == ("http://mq.example:9101", "", "")
    token = tmp_path / "token"
    token.touch(mode=0o644)
    given = ["--url", "http://mq.example:9101", "--token-file", str(token)]
    assert CliRunner().invoke(lenient, given).exit_code == 0
    assert found[1].url is None
    assert found[1].problem == f"{token} is readable by other users; run chmod 600 {token}"


def test_folder_becomes_absolute_for_the_processes_of_spark(tmp_path: Path) -> None:
    ask("--url", "http://mq.example:9101", "--out", "results")
    assert found[0].results == str(tmp_path / "results")


def test_uri_of_a_folder_is_that_folder() -> None:
    ask("--url", "http://mq.example:9101", "--out", "file:/srv/mq%20#1")
    assert (found[0].results, found[0].results_folder) == ("/srv/mq%20#1", Path("/srv/mq%20#1"))


def test_uri_stays_as_it_is_and_the_log_comes_here(tmp_path: Path) -> None:
    ask("--url", "http://mq.example:9101", "--out", "s3a://bucket/mq")
    assert found[0].results == "s3a://bucket/mq"
    assert found[0].results_folder is None
    assert found[0].log.parent == tmp_path


def test_database_file_goes_with_results_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "phpmq.db"
    file.touch()
    ask("--path", str(file), "--conf", "spark.driver.memory=4g", "--conf", "a=b=c")
    assert (found[0].url, found[0].path) == (None, file)
    assert found[0].results == str(tmp_path / "pipeline")
    assert found[0].conf == {"spark.driver.memory": "4g", "a": "b=c"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--master", "spark://host:7077"), "--path requires a local master"),
        (("--url", "http://127.0.0.1:9101"), "--path"),
    ],
)
def test_path_excludes_cluster_and_url(tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    file = tmp_path / "phpmq.db"
    file.touch()
    result = ask("--path", str(file), *flags)
    assert (result.exit_code, words in result.stderr) == (2, True)


def test_token_comes_from_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    file.chmod(0o600)
    flags = ("--url", "http://127.0.0.1:9101", "--token-file", str(file), "--out", "x")
    ask(*flags)
    assert found[0].token == "secret"
    file.chmod(0o644)
    result = ask(*flags)
    assert "is readable by other users" in str(result.exception)


def test_context_in_use_says_url_and_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    file.chmod(0o600)
    context = contexts.BrokerContext("far", None, "http://mq.example:9101", file)
    monkeypatch.setattr(contexts, "current_context", lambda: context)
    ask("--out", "x")
    assert (found[0].url, found[0].token) == ("http://mq.example:9101", "secret")
