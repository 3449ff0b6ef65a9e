"""``worker``: how it finds the app, and the effect of its flags."""

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from babelqueue import BabelQueue
from click.testing import CliRunner, Result

from phpmq_lite import logs
from phpmq_lite.cli import worker
from phpmq_lite.cli.main import root_command
from phpmq_lite.envelopes.worker import WorkerLimits
from phpmq_lite.envelopes.worker_app import connect


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return an empty module that can be imported; logging stays unconfigured."""
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    module: Any = types.ModuleType("shop_of_the_tests")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def run(*flags: str) -> Result:
    return CliRunner().invoke(root_command, ["worker", "--app", "shop_of_the_tests:app", *flags])


@pytest.mark.parametrize("made", [connect(), BabelQueue("memory://")], ids=["ours", "sdk"])
def test_app_is_found_and_a_factory_called(shop: Any, made: BabelQueue) -> None:
    shop.app = made
    shop.make = lambda: made
    assert worker.load_app("shop_of_the_tests:app") is made
    assert worker.load_app("shop_of_the_tests:make") is made


@pytest.mark.parametrize("is_absolute", [True, False])
def test_app_is_found_by_the_path_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_absolute: bool
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    module = f"mails_of_the_tests_{is_absolute}"
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / f"{module}_names.py").write_text("QUEUE = 'mails'\n")
    (folder / f"{module}.py").write_text(
        f"from babelqueue import BabelQueue\nfrom {module}_names import QUEUE\n"
        "app = BabelQueue('memory://', queue=QUEUE)\n"
    )
    path = folder / module if is_absolute else Path("src") / module
    assert isinstance(worker.load_app(f"{path}.py:app"), BabelQueue)
    with pytest.raises(click.BadParameter, match="there is no module 'missing'"):
        worker.load_app(f"{folder}/missing.py:app")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("src/mails.py", "is not an app; use MODULE:ATTR or FILE.py:ATTR"),
        ("shop_of_the_tests", "is not an app; use MODULE:ATTR"),
        (":app", "is not an app; use MODULE:ATTR"),
        ("no_such_module:app", "there is no module 'no_such_module'"),
        ("shop_of_the_tests:app", "has no attribute 'app'"),
        ("shop_of_the_tests:number", "is a int, not an app"),
    ],
)
def test_invalid_app_is_refused(shop: Any, name: str, text: str) -> None:
    shop.number = 5
    with pytest.raises(click.BadParameter, match=text):
        worker.load_app(name)


FLAGS: dict[str, Any] = {
    "once": False, "max_jobs": 0, "max_runtime": 0, "memory_limit": None,
    "stop_when_empty": False, "parent": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({}, WorkerLimits()),
        ({"once": True, "max_jobs": 9}, WorkerLimits(max_jobs=1)),
        ({"memory_limit": 256 << 20, "max_runtime": 90}, WorkerLimits(0, 90, 256 << 20)),
    ],
)
def test_limits_of_flags(given: dict[str, Any], limits: WorkerLimits) -> None:
    assert worker._worker_limits(FLAGS | given) == limits


def test_memory_limit_has_a_unit() -> None:
    assert worker._memory_size("256MiB") == 256 << 20


@pytest.mark.parametrize("flags", [["--backoff", "x"], ["--memory-limit", "much"]])
def test_invalid_flags_exit_with_2(shop: Any, flags: list[str]) -> None:
    shop.app = connect()
    result = run(*flags)
    assert result.exit_code == 2, result.output


@pytest.mark.parametrize("option", ["--queue", "--dead-letter-queue"])
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a\tb", "contains a control character"),
        ("a" * 256, "is 256 bytes long; it must be 1 to 255"),
        ("", "is 0 bytes long; it must be 1 to 255"),
        ("\udcff", "is not UTF-8"),
    ],
)
def test_invalid_queue_name_exits_with_2(shop: Any, option: str, name: str, problem: str) -> None:
    shop.app = connect()
    result = run(option, name, "--max-runtime", "1s", "--once")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        2, f"Error: Invalid value for '{option}': the queue name {problem}",
    )  # fmt: skip


def test_app_with_an_invalid_queue_name_exits_with_78(shop: Any) -> None:
    shop.app = connect(queue="a\tb")
    result = run("--max-runtime", "1s")
    assert result.exit_code == 78
    problem = "a queue name must not contain control characters"
    assert f"the app cannot consume 'a\\tb': {problem}" in result.stderr


def test_app_without_dead_letters_exits_with_78(shop: Any) -> None:
    shop.app = connect(dead_letter=False)
    result = run()
    assert result.exit_code == 78
    assert "--drop-exhausted" in result.stderr
