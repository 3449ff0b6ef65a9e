"""Contexts: stored in a file of the user, and used by the commands."""

import json
import subprocess
from pathlib import Path

import pytest
from babelqueue import BabelQueue
from click.testing import CliRunner, Result

from phpmq_lite import envelopes, settings
from phpmq_lite.cli import admin_client, contexts, worker
from phpmq_lite.cli.main import root_command
from tests.support.certificates import CertificateAuthority
from tests.support.cli_runner import invoke
from tests.support.fork_server import ForkedProcess, broker_process


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root_command, ["context", *arguments], catch_exceptions=False)


def test_first_context_is_in_use_until_another_is_chosen() -> None:
    run("create", "here", "--data", "/var/lib/phpmq")
    run("create", "there", "--url", "https://mq.example")
    assert contexts.current_context() == contexts.BrokerContext("here", data=Path("/var/lib/phpmq"))
    run("use", "there")
    rows = [json.loads(line) for line in run("list", "-o", "jsonl").stdout.splitlines()]
    assert [(row["name"], row["in_use"]) for row in rows] == [("here", False), ("there", True)]
    run("delete", "there")
    assert contexts.current_context() is None


def test_file_of_contexts_is_for_its_owner_only() -> None:
    run("create", "here", "--data", "/tmp")
    assert contexts.contexts_file().stat().st_mode & 0o077 == 0


def test_unknown_context_is_not_found() -> None:
    result = run("use", "nowhere")
    assert (result.exit_code, result.stderr) == (3, "Error: there is no context 'nowhere'\n")


def test_damaged_file_is_named() -> None:
    contexts.contexts_file().parent.mkdir(parents=True)
    contexts.contexts_file().write_text("[]")
    result = run("list")
    assert result.exit_code == 1
    assert "cannot read the contexts file" in result.stderr


def test_command_goes_to_the_broker_of_the_context() -> None:
    run("create", "there", "--url", "http://127.0.0.1:9")
    result = CliRunner().invoke(root_command, ["queue", "list"])
    assert "no broker answers on http://127.0.0.1:9" in result.stderr


def test_address_without_a_scheme_is_a_usage_error() -> None:
    for arguments in (
        ["context", "create", "x", "--url", "mq:9601"],
        ["queue", "list", "--url", "mq:9601"],
    ):
        result = invoke(*arguments, code=2)
        assert "'mq:9601' has no scheme; use http://mq:9601" in result.stderr
    assert contexts.current_context() is None


@pytest.mark.parametrize("url", ["ftp://mq", "http://", "http://mq:x", "http://[::1"])
def test_invalid_admin_address_is_a_usage_error(url: str) -> None:
    result = run("create", "x", "--url", url)
    assert result.exit_code == 2
    assert "use http://HOST:PORT" in result.stderr


def test_stored_context_without_a_scheme_is_a_usage_error() -> None:
    contexts.save_contexts("x", {"x": contexts.BrokerContext("x", url="mq:9601")})
    result = invoke("queue", "list", code=2)
    assert "use http://mq:9601" in result.stderr


@pytest.mark.parametrize("in_use", [False, True])
def test_token_file_does_not_go_with_a_data_folder(tmp_path: Path, in_use: bool) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    if in_use:
        run("create", "here", "--data", str(tmp_path))
    where = [] if in_use else ["--data", str(tmp_path)]
    result = invoke("queue", "list", "--token-file", str(path), *where, code=2)
    assert "--token-file requires --url" in result.stderr


@pytest.mark.parametrize(
    ("encoding", "mode", "code", "message"),
    [
        ("utf-16", 0o600, 1, "is not valid UTF-8; tokens must be plain text\n"),
        ("ascii", 0o644, 4, "is readable by other users"),
    ],
)
def test_token_file_must_be_private_text(
    tmp_path: Path, encoding: str, mode: int, code: int, message: str
) -> None:
    path = tmp_path / "token"
    path.write_text("phpmq_x", encoding=encoding)
    path.chmod(mode)
    where = ("--url", "http://127.0.0.1:9", "--token-file", path)
    assert f"{path} {message}" in invoke("queue", "list", *where, code=code).stderr


@pytest.mark.usefixtures("log_stream")  # workers configure logging
@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", "q", "--body", "x"],
        ["consume", "q", "-n", "1"],
        ["worker", "--app", "some:app"],
        ["outbox", "relay", "--once", "--database", "app.db"],
    ],
)
def test_command_that_speaks_phpmq_goes_to_the_broker_of_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.db").touch()
    CliRunner().invoke(root_command, ["outbox", "init", "--database", "app.db"])
    given: list[str] = []
    add = given.append
    monkeypatch.setattr(admin_client, "client_from_url", lambda url, **_: add(url))
    monkeypatch.setattr(worker, "load_app", lambda _: BabelQueue("memory://", queue="q"))
    run("create", "prod", "--url", "https://mq.example", "--url", "phpmq://mq.example")
    for flags, expected in (
        ([], "phpmq://mq.example"),
        (["--url", "phpmqs://other:1"], "phpmqs://other:1"),
    ):
        CliRunner().invoke(root_command, [*arguments, *flags])
        assert given.pop() == expected


@pytest.mark.usefixtures("log_stream")
def test_app_of_a_worker_that_has_an_address_needs_none_of_a_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = f"unix:{tmp_path}/no.sock"
    monkeypatch.setattr(worker, "load_app", lambda _: envelopes.connect(where, queue="q"))
    run("create", "prod", "--url", "https://mq.example")
    result = CliRunner().invoke(
        root_command, ["worker", "--app", "some:app", "--max-runtime", "1s"]
    )
    assert "context prod" not in result.stderr
    assert where in result.stderr


def test_flags_that_name_a_broker_win_over_the_context(tmp_path: Path) -> None:
    run("create", "prod", "--url", "https://mq.example", "--url", "phpmq://mq.example:9100")
    where = f"unix:{tmp_path}/no.sock"
    data = tmp_path / "data"
    data.mkdir()
    config = tmp_path / "settings.toml"
    config.write_text(f'data = "{data}"\n')
    for more, named in (
        (["--url", where], where),
        (["--data", str(data)], f"{data}/control.sock"),
        (["--config", str(config)], f"{data}/control.sock"),
    ):
        result = CliRunner().invoke(root_command, ["publish", "q", "--body", "x", *more])
        assert named in result.stderr


def test_listener_of_a_context_is_checked_and_whole() -> None:
    assert "is not a valid address" in run("create", "x", "--url", "phpmq://a:b").stderr
    run("create", "x", "--data", "/d", "--url", "unix:mq.sock")
    run("create", "y", "--url", "phpmqs://[::1]")
    rows = [json.loads(line) for line in run("list", "-o", "jsonl").stdout.splitlines()]
    assert [row["connect"] for row in rows] == [f"unix:{Path.cwd()}/mq.sock", "phpmqs://[::1]"]
    run("use", "y")
    asked = CliRunner().invoke(root_command, ["queue", "list"])
    assert "phpmqs://[::1] is a PHPMQ listener; this command requires the admin" in asked.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "here"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


ASKING = (["queue", "list"], ["publish", "q", "--body", "x"], ["consume", "q", "-n", "1"])


@pytest.mark.parametrize("arguments", ASKING)
def test_every_command_searches_for_the_broker_in_the_same_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(settings.loading, "SYSTEM_FILE", folder / "none.toml")

    def asked() -> str:
        result = invoke(*arguments, code=1)
        return result.stderr

    monkeypatch.setattr(
        admin_client, "admin_url_of", lambda _: "http://127.0.0.1:9"
    )  # instead of 9101
    default = asked()
    assert "no broker was specified, and phpmq-data does not exist; trying http://127." in default
    assert "no broker answers on http://127.0.0.1:9" in default
    (folder / "phpmq-data").mkdir()
    assert "no broker answers on phpmq-data/control.sock" in asked()
    (folder / "config.toml").write_text(f'data = "{folder}/other"\n')
    assert f"no broker answers on {folder}/other/control.sock" in asked()
    run("create", "there", "--url", "http://127.0.0.1:10")
    assert "no broker answers on http://127.0.0.1:10" in asked()
    arguments = [*arguments, "--url", "http://127.0.0.1:11"]
    assert "no broker answers on http://127.0.0.1:11" in asked()


def test_commands_read_the_address_of_the_admin_from_config_toml(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.loading, "SYSTEM_FILE", folder / "none.toml")
    (folder / "config.toml").write_text('[admin]\nlisten = ["127.0.0.1:9"]\n')
    result = CliRunner().invoke(root_command, ["queue", "list"])
    words = "Error: no broker answers on http://127.0.0.1:9: Connection refused. Start one with"
    assert result.stderr.startswith(words)


def test_publish_and_consume_learn_the_listener_from_the_broker(tmp_path: Path) -> None:
    """They use its folder, its admin address or a context, over TCP and over a Unix socket."""
    data = tmp_path / "data"
    with broker_process(data, "--admin", "127.0.0.1:0") as broker:
        admin = broker.admin[0]
        for where in (["--data", str(data)], ["--url", admin], []):
            if not where:
                run("create", "there", "--url", admin)
            stored = CliRunner().invoke(root_command, ["publish", "q", "--body", "x", *where])
            assert stored.stderr == f"1 message stored in q by the broker on {broker.phpmq[0]}\n"
            taken = CliRunner().invoke(root_command, ["consume", "q", "-n", "1", *where])
            assert (taken.stdout, taken.exit_code) == ("x\n", 0)


def test_broker_and_commands_read_the_file_from_init(folder: Path) -> None:
    """Only ./config.toml has the folder, the admin address and the only listener, a Unix socket."""
    flags = ["--data", "store", "--listen", "unix:mq.sock", "--legacy-listen", "none"]
    written = CliRunner().invoke(root_command, ["config", "init", *flags, "--admin", "none"])
    assert written.stderr.endswith("  phpmq-lite doctor\n  phpmq-lite serve\n")
    broker = ForkedProcess(["phpmq_lite", "serve"], stdout=subprocess.PIPE, stderr=2)
    assert broker.stdout is not None
    with broker.stdout:
        try:
            assert broker.stdout.readline() == "listening phpmq unix:mq.sock\n"
            stored = CliRunner().invoke(root_command, ["publish", "q", "--body", "x"])
            where = f"unix:{folder}/mq.sock"
            assert stored.stderr == f"1 message stored in q by the broker on {where}\n"
            listed = CliRunner().invoke(root_command, ["queue", "list", "-o", "jsonl"])
            assert json.loads(listed.stdout)["ready"] == 1
            assert (folder / "store" / "phpmq.db").exists()
        finally:
            broker.terminate()
            broker.wait(30)


def test_config_toml_of_another_program_is_named(folder: Path) -> None:
    (folder / "config.toml").write_text("baseURL = 'https://example.org'\n")
    result = invoke("queue", "list", code=78)
    assert "baseURL in config.toml is not a setting" in result.stderr
    assert "select yours with --config" in result.stderr


def test_publish_asks_for_a_token_where_there_are_users(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", "--admin", "127.0.0.1:0") as broker:
        here, url = ["--data", str(broker.data)], ["--url", broker.admin[0]]
        CliRunner().invoke(
            root_command,
            ["user", "create", "anna", "--role", "admin", "--password-file", "-", *here],
            input="a long password", catch_exceptions=False,
        )  # fmt: skip
        publish = ["publish", "q", "--body", "x", *url]
        refused = invoke(*publish, code=4)
        assert "requires a login: pass an API token with --token-file FILE" in refused.stderr
        made = CliRunner().invoke(root_command, ["token", "create", "t", "--role", "viewer", *here])
        token = tmp_path / "token"
        token.touch(0o600)
        token.write_text(made.stdout)
        stored = CliRunner().invoke(root_command, [*publish, "--token-file", str(token)])
        assert (stored.exit_code, stored.stderr[:16]) == (0, "1 message stored")


OPTIONAL = ["queue", "list"], ["check", "ready"], ["publish", "q", "--body", "x"]


@pytest.mark.parametrize("problem", ["folder", "loop", "not JSON", "utf-16", "no home", "mode 000"])
@pytest.mark.parametrize("arguments", OPTIONAL, ids=lambda one: one[0])
def test_command_works_without_a_contexts_file_that_cannot_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, problem: str, arguments: list[str]
) -> None:
    file = contexts.contexts_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    if problem == "folder":
        file.mkdir()
    elif problem == "loop":
        file.symlink_to(file)
    elif problem == "no home":
        monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null")
    elif problem == "mode 000":
        file.write_text("{}")
        real = Path.read_bytes

        def read_bytes(path: Path) -> bytes:  # tests may run as root
            if path == file:
                raise PermissionError(13, "Permission denied", str(path))
            return real(path)

        monkeypatch.setattr(Path, "read_bytes", read_bytes)
    else:
        file.write_text("{", encoding=problem if problem == "utf-16" else "ascii")
    with broker_process(folder / "phpmq-data", "--admin", "127.0.0.1:0"):
        result = invoke(*arguments)
        assert (str(file) in result.stderr) is (problem != "no home")
    if problem not in ("no home", "folder", "loop"):
        assert str(file) in invoke("context", "list", code=1).stderr


@pytest.mark.parametrize(
    "content", [b"[other]\nx = 1\n", b"\xff\xfe=\0", b"a = ", b"data = 5\n", None]
)
def test_command_that_names_its_broker_does_not_need_a_config_file(
    folder: Path, content: bytes | None
) -> None:
    if content is None:
        (folder / "config.toml").symlink_to("config.toml")
    else:
        (folder / "config.toml").write_bytes(content)
    with broker_process(folder / "data", "--admin", "127.0.0.1:0", "--config", "/dev/null") as it:
        for arguments in OPTIONAL:
            invoke(*arguments, "--data", "data")
            invoke(*arguments, "--url", it.admin[0])
        invoke("publish", "q", "--body", "x", "--url", f"phpmq://{it.phpmq[0]}")
        invoke("context", "create", "here", "--data", "data")
        for arguments in OPTIONAL:
            invoke(*arguments)


def test_config_file_may_begin_with_a_byte_order_mark(folder: Path) -> None:
    (folder / "config.toml").write_text("data = 'other'\n", encoding="utf-8-sig")
    assert "other" in invoke("config", "show").stdout


def test_private_authority_of_the_context_is_trusted_by_http_and_phpmq(tmp_path: Path) -> None:
    cert, key = CertificateAuthority(tmp_path).make("server")
    flags = [
        text
        for section in ("tcp", "admin")
        for name, path in (("tls_cert", cert), ("tls_key", key))
        for text in ("--set", f"{section}.{name}={path}")
    ]
    with broker_process(tmp_path / "data", "--admin", "127.0.0.1:0", *flags) as broker:
        url = broker.admin[0].rstrip("/")
        untrusted = CliRunner().invoke(root_command, ["queue", "list", "--url", url])
        assert f"cannot connect to {url}: its certificate is not trusted" in untrusted.stderr
        assert "--tls-ca FILE" in untrusted.stderr
        invoke("publish", "q", "--body", "a", "--url", url, "--tls-ca", cert)
        plain = CliRunner().invoke(
            root_command, ["queue", "list", "--url", url.replace("https", "http")]
        )
        assert f"{url.replace('https', 'http')} uses TLS" in plain.stderr
        assert f"use {url}" in plain.stderr
        run("create", "there", "--url", url, "--tls-ca", str(cert))
        invoke("publish", "q", "--body", "b")
        invoke("queue", "show", "q")
        run("create", "direct", "--url", f"phpmqs://{broker.phpmq[0]}", "--tls-ca", str(cert))
        run("use", "direct")
        assert invoke("consume", "q", "-n", "2").stdout == "a\nb\n"
