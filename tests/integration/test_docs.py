"""The routes of the documentation: access, redirects and headers."""

import json
import os
import re
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from phpmq_lite.cli.admin_client import AdminClient
from phpmq_lite.cli.main import COMMANDS, DOCS, root_command
from tests.docs.snippets import in_terminal
from tests.docs.test_docs_at_broker import SHORT
from tests.support.cli_runner import invoke
from tests.support.http_users import HttpUser, broker_fixture


async def test_docs_need_no_login(tmp_path: Path) -> None:
    async with broker_fixture(tmp_path / "data") as home, HttpUser(home.url) as viewer:
        await home.add_user("anna", "admin")
        await home.add_user("vera", "viewer", "mine*")
        for path in ("/docs/", "/docs/guides/admin", "/docs/images/overview.png", "/docs/admin"):
            answer = await viewer.get(path)
            assert (answer.status, (answer.location or "").partition("?")[0]) == (303, "/login")
        assert (await viewer.log_in("vera")).status == 303
        answer = await viewer.get("/docs/guides/admin")
        assert answer.status == 200
        assert '<h2 id="find-a-message">' in answer.text
        assert (await viewer.get("/docs/images/overview.png")).status == 200


@pytest.mark.parametrize("base", ["", "/team/mq"])
async def test_addresses_lead_to_pages_below_the_base_path(tmp_path: Path, base: str) -> None:
    async with (
        broker_fixture(tmp_path / "data", admin={"base_path": base}) as home,
        HttpUser(home.url.removesuffix(base) + base) as me,
    ):
        for short, name in SHORT.items():
            for path in {short, f"{short}.md"} - {name}:
                answer = await me.get(f"/docs/{path}")
                assert (answer.status, answer.location) == (303, f"{base}/docs/{name}")
        assert (await me.get("/docs")).location == f"{base}/docs/"
        text = (await me.get("/docs/")).text
        [picture] = re.findall(rf'<img src="{base}(/docs/[^"]+)"', text)
        assert (await me.get(picture)).headers["Content-Type"] == "image/png"
        assert f'href="{base}/docs/start/tutorial"' in text
        for path in ("x", "x/y", "images/x.png", "images/index.md", "guides/admin.html"):
            answer = await me.get(f"/docs/{path}")
            assert (path, answer.status) == (path, 404)
            assert "No such page" in answer.text


async def test_pages_of_the_admin_lead_to_their_help(tmp_path: Path) -> None:
    async with broker_fixture(tmp_path / "data") as home, HttpUser(home.url) as me:
        for path, page in (("/", "guides/admin"), ("/dead", "concepts/dead-letters")):
            text = (await me.get(path)).text
            assert f'href="/docs/{page}"' in text
        text = (await me.get("/docs/?q=%3Cscript%3Ealert")).text
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text
        assert "No page contains all of these words." in text


async def test_reader_finds_a_section_by_its_text(tmp_path: Path) -> None:
    async with (
        broker_fixture(tmp_path / "data", admin={"base_path": "/mq"}) as home,
        HttpUser(home.url) as me,
    ):
        text = (await me.get("/docs/?q=FLUSH_interval")).text
        assert "1 page matches" in text
        assert '<a href="/mq/docs/operate/proxy#caddy">Caddy</a>' in text
        assert "<mark>flush_interval</mark> -1" in text


async def test_errors_lead_to_the_page_about_them(tmp_path: Path) -> None:
    async with (
        broker_fixture(tmp_path / "data", admin={"base_path": "/mq"}) as home,
        HttpUser(home.url) as me,
    ):
        await home.add_user("anna")
        problem = json.loads((await me.get("/api/v1/queues")).text)
        assert (problem["code"], problem["type"]) == (
            "login",
            "/mq/docs/guides/admin#users-and-roles",
        )
        await me.log_in("anna")
        problem = json.loads((await me.get("/api/v1/queues/nothing")).text)
        assert "type" not in problem
        answer = await me.request("POST", "/logout", {"Origin": "http://evil.test"})
        assert 'href="/mq/docs/operate/security#4-changes-from-elsewhere"' in answer.text


@pytest.mark.parametrize(
    ("page", "path"),
    [("", ""), ("admin", "guides/admin"), ("concepts/ttl#try-it", "concepts/ttl#try-it")],
)
def test_command_opens_the_page_at_the_broker(
    monkeypatch: pytest.MonkeyPatch, page: str, path: str
) -> None:
    opened: list[str] = []

    def launch(url: str) -> int:
        opened.append(url)
        return 0

    monkeypatch.setattr(click, "launch", launch)
    monkeypatch.setattr(AdminClient, "get", lambda *_: {})
    call = ["docs", *filter(None, [page]), "--url", "http://mq.example/team"]
    found = CliRunner().invoke(root_command, call)
    assert (found.exit_code, opened) == (0, [f"http://mq.example/team/docs/{path}"])
    printed = CliRunner().invoke(root_command, [*call, "--print-url"])
    assert (printed.stdout.strip(), len(opened)) == (opened[0], 1)


def test_command_shows_a_page_without_a_broker_and_suggests_one_for_a_typo() -> None:
    found = invoke("docs", "ttl", "--text")
    assert "Time to live" in found.stdout
    found = CliRunner().invoke(root_command, ["docs", "piplines", "--text"])
    assert (found.exit_code, found.stderr) == (
        3, "Error: there is no page 'piplines'. Did you mean pipeline?\n",
    )  # fmt: skip


def test_command_prints_the_address_if_no_browser_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click, "launch", lambda _: 1)
    monkeypatch.setattr(AdminClient, "get", lambda *_: {})
    found = invoke("docs", "--url", "http://mq.example", code=1)
    assert "open http://mq.example/docs/ yourself, or use --text" in found.stderr


def test_command_lists_what_a_search_finds() -> None:
    found = invoke("docs", "--search", "FLUSH_interval", code=0).stdout.split("\n")
    assert found[:2] == ["operate/proxy: Behind a proxy", "  operate/proxy#caddy"]
    assert "flush_interval -1" in found[2]
    nothing = invoke("docs", "--search", "flush_interval saucer", code=3).stderr
    assert nothing == "Error: no page has all these words; try fewer or shorter ones\n"


@pytest.mark.parametrize(
    ("display", "arguments", "shown"),
    [
        (None, [], "text"),
        ("", [], "text"),
        (":0", [], "browser"),
        (None, ["--print-url"], "address"),
    ],
)
def test_command_shows_the_page_over_ssh_without_a_display(
    monkeypatch: pytest.MonkeyPatch, display: str | None, arguments: list[str], shown: str
) -> None:
    opened: list[str] = []

    def launch(url: str) -> int:
        opened.append(url)
        return 0

    monkeypatch.setattr(click, "launch", launch)
    monkeypatch.setattr(AdminClient, "get", lambda *_: {})
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 50000 192.0.2.2 22")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if display is not None:
        monkeypatch.setenv("DISPLAY", display)
    said = invoke("docs", "ttl", "--url", "http://mq.example", *arguments).stdout
    assert opened == (["http://mq.example/docs/concepts/ttl"] if shown == "browser" else [])
    assert ("Time to live" in said) == (shown == "text")
    assert (said == "http://mq.example/docs/concepts/ttl\n") == (shown == "address")


@pytest.mark.skipif(sys.platform != "linux", reason="a display is optional on Linux")
def test_command_shows_the_page_on_a_terminal_without_a_display(tmp_path: Path) -> None:
    """A browser was said to be open, because ``xdg-open`` fails after it was started."""
    kept = {name: value for name, value in os.environ.items() if "DISPLAY" not in name}
    command = [sys.executable, "-m", "phpmq_lite", "docs", "ttl"]
    code, said = in_terminal(command, tmp_path, kept)
    assert (code, "Time to live" in said, "opened" in said) == (0, True, False), said


@pytest.mark.parametrize("command", [name for name in DOCS if name in COMMANDS])
def test_help_names_the_page_on_one_line_that_can_be_pasted(command: str) -> None:
    found = CliRunner(env={"COLUMNS": "60"}).invoke(root_command, [command, "--help"])
    assert found.stdout.endswith(f"Documentation: phpmq-lite docs {DOCS[command]}\n")


def test_help_of_groups_cuts_no_sentence_on_a_terminal_of_80_columns() -> None:
    context = click.Context(root_command)
    groups = [
        name
        for name in COMMANDS
        if isinstance(root_command.get_command(context, name), click.Group)
    ]
    assert len(groups) > 10
    for name in groups:
        found = CliRunner().invoke(root_command, [name, "--help"], terminal_width=80)
        assert "..." not in found.stdout.partition("Commands:")[2], found.stdout


def test_help_ends_with_the_page_about_the_command() -> None:
    found = CliRunner().invoke(root_command, ["worker", "--help"])
    assert found.stdout.endswith("Documentation: phpmq-lite docs guides/workers\n")
