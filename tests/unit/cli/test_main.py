"""The root command: its commands, exit codes and imports."""

import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner, Result

from phpmq_lite import __version__
from phpmq_lite.cli import errors, main
from phpmq_lite.errors import (
    ConnectionLostError,
    DataDamagedError,
    OutcomeUnknownError,
    PublishRefusedError,
    RefusedError,
    SettingsError,
    StartRefusedError,
)
from phpmq_lite.installation import build_kind

VERSION = re.compile(
    rf"phpmq-lite {re.escape(__version__)}(, commit [0-9a-f]{{7,40}}(-dirty)?)? "
    rf"\({build_kind()}\)\n"
)
SEE = {code: f"See: phpmq-lite docs {page}\n" for code, page in main.DOCS_OF_CODES.items()}


def fail_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> Result:
    @click.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr(main.RootGroup, "get_command", lambda *_: fail)
    return CliRunner().invoke(main.root_command, ["fail"])


def end_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Return exit code and standard error of a command that fails with ``error``."""
    result = fail_with(error, monkeypatch)
    assert result.stdout == ""
    return result.exit_code, result.stderr


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConnectionLostError("x"), 1),
        (StartRefusedError("x"), 1),
        (errors.CommandError("x", errors.NOT_FOUND), 3),
        (RefusedError("paused", "x"), 4),
        (TimeoutError("x"), 5),
        (DataDamagedError("x"), 65),
        (OutcomeUnknownError("x"), 74),
        (SettingsError("x"), 78),
    ],
)
def test_error_line_and_code(monkeypatch: pytest.MonkeyPatch, error: Exception, code: int) -> None:
    assert end_with(error, monkeypatch) == (code, "Error: x\n" + SEE.get(code, ""))


def test_refused_publish_exits_4_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    error = PublishRefusedError("paused")
    assert end_with(error, monkeypatch) == (4, "Error: publish refused: paused\n")


def test_group_of_errors_reports_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    group = ExceptionGroup("tasks", [ExceptionGroup("inner", [SettingsError("x")]), OSError("y")])
    assert end_with(group, monkeypatch) == (78, "Error: x\n" + SEE[78])


def test_defect_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    group = ExceptionGroup("tasks", [SettingsError("x"), KeyError("defect")])
    assert fail_with(group, monkeypatch).exception is group


def test_error_of_the_system_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    error = FileNotFoundError(2, "No such file or directory", "a.txt")
    assert end_with(error, monkeypatch) == (1, "Error: a.txt: No such file or directory\n")


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (UnicodeDecodeError("utf-8", b"x" * 50 + b"\xff" + b"y" * 50, 50, 51, "bad"),
         repr(b"x" * 20 + b"\xff" + b"y" * 20)),
        (UnicodeEncodeError("utf-8", "bad\udcff", 3, 4, "bad"), r"'bad\udcff'"),
    ],
)  # fmt: skip
def test_bad_utf_8_is_quoted(monkeypatch: pytest.MonkeyPatch, error: Exception, shown: str) -> None:
    assert end_with(error, monkeypatch) == (1, f"Error: {shown} is not valid UTF-8\n")


def test_unknown_command_is_a_wrong_use() -> None:
    assert CliRunner().invoke(main.root_command, ["frobnicate"]).exit_code == 2


def test_version_is_printed() -> None:
    result = CliRunner().invoke(main.root_command, ["--version"])
    assert VERSION.fullmatch(result.stdout)


@pytest.mark.parametrize(("commit", "shown"), [("", ""), ("0a1b2c3", ", commit 0a1b2c3")])
def test_version_names_the_commit_if_it_is_known(
    monkeypatch: pytest.MonkeyPatch, commit: str, shown: str
) -> None:
    monkeypatch.setattr("phpmq_lite.installation.commit", lambda: commit)
    result = CliRunner().invoke(main.root_command, ["-V"])
    assert result.stdout == f"phpmq-lite {__version__}{shown} ({build_kind()})\n"


def test_other_commands_do_not_ask_for_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phpmq_lite.installation.commit", lambda: pytest.fail("asked"))
    assert CliRunner().invoke(main.root_command, ["--help"]).exit_code == 0
    assert CliRunner().invoke(main.root_command, ["completion", "bash"]).exit_code == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_the_program(shell: str) -> None:
    result = CliRunner().invoke(main.root_command, ["completion", shell])
    assert result.exit_code == 0
    assert "_PHPMQ_LITE_COMPLETE" in result.stdout


@pytest.mark.parametrize("name", main.COMMANDS)
def test_command_can_be_imported_and_has_the_listed_help(name: str) -> None:
    command = main.root_command.get_command(click.Context(main.root_command), name)
    assert command is not None
    assert command.get_short_help_str(limit=200) == main.COMMANDS[name].help


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_version_and_help_import_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        "from phpmq_lite.cli.main import root_command\n"
        f"root_command({arguments!r}, standalone_mode=False)\n"
        "heavy = {'aiohttp', 'aiosqlite', 'asyncio', 'pydantic', 'rich', 'structlog'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    assert run_python("-c", program).stderr == "[]\n"


def test_serve_imports_what_clients_need_and_no_more() -> None:
    """The admin is imported later, in a thread; these modules would double the time of a start."""
    program = (
        "import sys\n"
        "import phpmq_lite.cli.serve, phpmq_lite.logs, phpmq_lite.process\n"
        "heavy = {'aiohttp', 'argon2', 'babelqueue', 'jinja2', 'phpmq_lite.admin.app',\n"
        "    'phpmq_lite.bench', 'phpmq_lite.client', 'phpmq_lite.spark', 'prometheus_client',\n"
        "    'pyarrow', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
        "import rich.console"
    )
    assert run_python("-c", program).stderr == "[]\n"


def test_package_runs_as_a_module() -> None:
    assert VERSION.fullmatch(run_python("-m", "phpmq_lite", "--version").stdout)
