"""Hosts, headers, proxies and TLS: by which names and ways a request comes in."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from phpmq_lite.admin.auth.browser_security import HEADERS
from tests.support.http_users import PASSWORD, BrokerFixture, HttpUser, broker_fixture

OTHER = "another password here"


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[BrokerFixture]:
    """Run a broker with an admin."""
    async with broker_fixture(tmp_path / "data") as made:
        await made.add_user("anna")
        yield made


async def test_rebound_name_gets_nothing(
    home: BrokerFixture, figure: Callable[[str], None]
) -> None:
    asked = 0
    async with HttpUser(home.url) as me:
        for path in (
            "/",
            "/login",
            "/livez",
            "/metrics",
            "/static/x/app.css",
            "/nowhere",
            "/api/v1/x",
        ):
            for method in ("GET", "POST"):
                answer = await me.request(method, path, {"Host": "rebound.example:9101"})
                asked += 1
                assert (answer.status, answer.text) == (421, "")
        rows = home.audit()
        assert all(row[2] == "user.add" for row in rows)
    figure(f"rebound name: {asked} requests, all 421 with 0 bytes")


async def test_every_answer_has_its_headers(
    home: BrokerFixture, figure: Callable[[str], None]
) -> None:
    paths = ["/", "/login", "/livez", "/nowhere", "/static/x/app.css", "/api/v1/users", "/x//y"]
    async with HttpUser(home.url) as me:
        for path in paths:
            for method in ("GET", "PUT", "OPTIONS"):
                answer = await me.request(method, path)
                assert [name for name in HEADERS if name not in answer.headers] == []
                assert answer.headers["Server"] == "phpmq-lite"
    figure(f"{3 * len(paths)} answers, errors too: 0 without the security headers")


@pytest.mark.parametrize(
    "request_bytes",
    [b"GET / HTTP/9.x\r\n\r\n", b"G\x00T / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n"],
)  # fmt: skip
async def test_unreadable_request_gets_the_headers_too(
    tmp_path: Path, request_bytes: bytes
) -> None:
    async with broker_fixture(tmp_path / "data") as home:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(home.url.rpartition(":")[2])
        )
        writer.write(request_bytes)
        answer = (await asyncio.wait_for(reader.read(), 10)).decode()
        writer.close()
        await writer.wait_closed()
    assert answer.startswith("HTTP/1.0 400")
    assert [name for name in HEADERS if name not in answer] == []
    assert "aiohttp" not in answer


async def test_sub_path_behind_a_trusted_proxy(tmp_path: Path) -> None:
    admin = {
        "base_path": "/mq",
        "public_url": "https://tools.example/mq",
        "trusted_proxies": ["127.0.0.0/8"],
        "hsts": True,
    }
    proxy = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7", "Host": "tools.example"}
    async with broker_fixture(tmp_path / "data", admin=admin) as home:
        await home.add_user("anna")
        async with HttpUser(home.url, Origin="https://tools.example", headers=proxy) as me:
            answer = await me.get("/mq/queues")
            assert answer.location == "/mq/login?next=/mq/queues"
            page = await me.get("/mq/login")
            assert page.headers["Strict-Transport-Security"] == "max-age=31536000"
            cookie = page.headers["Set-Cookie"]
            assert cookie.startswith("__Host-phpmq-web=")
            assert "Secure" in cookie
            [token] = re.findall(r'name="csrf" value="(\w+)"', page.text)
            me.headers["Cookie"] = cookie.partition(";")[0]
            form = {"csrf": token, "name": "anna", "password": PASSWORD, "next": "/mq/queues"}
            answer = await me.request("POST", "/mq/login", data=form)
            assert (answer.status, answer.location) == (303, "/mq/queues")
            me.headers["Cookie"] = answer.headers["Set-Cookie"].partition(";")[0]
            assert (await me.get("/mq/queues")).status == 200
            answer = await me.request(
                "POST", "/mq/login", {"Origin": "http://tools.example"}, data=form
            )
            assert answer.status == 403
        assert ("anna", "session.login", "192.0.2.7") in home.rows(
            "SELECT actor, action, address FROM audit"
        )
        assert home.rows("SELECT address FROM session") == [("192.0.2.7",)]


async def test_public_url_may_be_the_only_setting_for_a_proxy(tmp_path: Path) -> None:
    async with broker_fixture(
        tmp_path / "data", admin={"public_url": "https://mq.example"}
    ) as home:
        await home.add_user("anna")
        async with HttpUser(home.url, Origin="https://mq.example") as me:
            assert (await me.log_in("anna")).status == 303  # the proxy did not pass Host on
            assert (await me.request("GET", "/", {"Host": "mq.example"})).status == 303


async def test_command_line_over_the_control_socket_is_the_owner(home: BrokerFixture) -> None:
    users = await home.control("GET", "/users")
    assert [user["name"] for user in users["items"]] == ["anna"]
    assert home.audit() == [("control", "cli", "user.add", "anna", 1, "done")]


async def test_command_line_makes_the_first_admin(tmp_path: Path) -> None:
    async with broker_fixture(tmp_path / "data") as home:
        file = tmp_path / "password"
        file.write_text(PASSWORD + "\n")
        where = ("--data", str(home.data))
        await run("user", "create", "anna", "--password-file", str(file), *where)
        secret = (await run("token", "create", "ci", "--expires", "30d", *where)).strip()
        listed = json.loads(await run("user", "list", "-o", "json", *where))
        assert [(user["name"], user["role"]) for user in listed] == [("anna", "admin")]
        async with HttpUser(home.url) as me, HttpUser(home.url, secret) as program:
            assert (await me.log_in("anna")).status == 303
            assert (await program.get("/api/v1/queues")).status == 200
            file.write_text(OTHER)
            await run("user", "set-password", "anna", "--password-file", str(file), *where)
            assert (await me.get("/account")).status == 303
            await run("token", "revoke", "ci", "--yes", *where)
            assert (await program.get("/api/v1/queues")).status == 401
        assert "ci" not in await run("token", "list", "-o", "csv", *where)
        with pytest.raises(AssertionError, match="only admin"):
            await run("user", "delete", "anna", "--yes", *where)


async def run(*arguments: str) -> str:
    """Run the command line; gives its standard output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "phpmq_lite", *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()
