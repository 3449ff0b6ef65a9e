"""The broker behind nginx, Caddy and HAProxy, configured as in ``docs/operate/proxy.md``."""

import asyncio
import io
import json
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.docs.pages import blocks
from tests.support.free_ports import free_ports
from tests.support.http_users import BrokerFixture, HttpUser, broker_fixture

PAGE: Final = "docs/operate/proxy.md"
PROXIES: Final = ("nginx", "caddy", "haproxy")
PLAIN: Final = {  # with which a broker without users would be open to everybody
    "nginx": "location / {{ proxy_pass http://127.0.0.1:{broker}; }}",
    "caddy": "reverse_proxy 127.0.0.1:{broker}",
    "haproxy": (
        "frontend web\n mode http\n bind 127.0.0.1:8080\n default_backend phpmq\n"
        "backend phpmq\n mode http\n option forwardfor\n server broker 127.0.0.1:{broker}\n"
    ),
}
FRAME: Final = {
    "nginx": (
        "daemon off; master_process off; pid {folder}/pid; error_log stderr; events {{}}\n"
        "http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/p;"
        " fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
        "server {{ listen 127.0.0.1:{port};\n{config}\n}} }}\n"
    ),
    "caddy": "{{\n admin off\n auto_https off\n}}\nhttp://127.0.0.1:{port} {{\n{config}\n}}\n",
    "haproxy": "defaults\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n{config}",
}


def program(name: str) -> str:
    """Return the path of a proxy's program, or skip the test."""
    found = shutil.which(name, path=f"/usr/sbin:/usr/local/bin:{'/usr/bin'}")
    if found is None:
        pytest.skip(f"{name} is missing")
    return found


def documented(name: str) -> str:
    """Return the configuration on the page."""
    (found,) = [block.text for block in blocks(PAGE) if block.language == name]
    return found


@asynccontextmanager
async def proxy(name: str, folder: Path, config: str) -> AsyncIterator[str]:
    """Run a proxy with a configuration; yield the URL at which it listens."""
    (port,), file = free_ports(1), folder / f"{name}.conf"
    config = config.replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    file.write_text(FRAME[name].format(folder=folder, port=port, config=config))
    options = {
        "nginx": ["-p", str(folder), "-e", "stderr", "-c", str(file)],
        "caddy": ["run", "--adapter", "caddyfile", "--config", str(file)],
        "haproxy": ["-db", "-f", str(file)],
    }
    with (folder / f"{name}.log").open("wb") as log:
        running = subprocess.Popen(  # noqa: ASYNC220 - does not block
            [program(name), *options[name]], stdout=log, stderr=log,
            env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 5).close()
                    break
                except ConnectionRefusedError:
                    assert running.poll() is None, (folder / f"{name}.log").read_text()
                    await asyncio.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            running.kill()  # a graceful end waits for streams
            await asyncio.to_thread(running.wait)


def port_of(home: BrokerFixture) -> str:
    return str(urlsplit(home.url).port)


@pytest.mark.parametrize("name", PROXIES)
async def test_documented_proxy_serves_pages_names_streams_and_uploads(
    tmp_path: Path, name: str
) -> None:
    program(name)
    admin: dict[str, Any] = {"base_path": "/mq", "trusted_proxies": ["127.0.0.1/32"]}
    async with broker_fixture(tmp_path / "data", admin=admin) as home:
        await home.add_user("anna")
        config = documented(name).replace("127.0.0.1:9101", f"127.0.0.1:{port_of(home)}")
        async with (
            proxy(name, tmp_path, config) as url,
            HttpUser(f"{url}/mq", Origin=url, headers={"X-Forwarded-For": "192.0.2.99"}) as anna,
        ):
            assert (await anna.get("/queues")).location == "/mq/login?next=/mq/queues"
            assert (await anna.log_in("anna")).status == 303
            body = io.BytesIO(b'{"content": "%s"}' % (b"x" * (5 << 20)))
            answer = await anna.request(
                "POST", "/api/v1/queues/a%2Fb/messages",
                {"X-CSRF-Token": await anna.csrf(), "Content-Type": "application/json"}, data=body,
            )  # fmt: skip
            assert answer.status == 201, answer.text
            page = await anna.get("/queues/a%2Fb")
            assert (page.status, "a/b" in page.text) == (200, True)
            assert "/mq/queues/a%2Fb" in page.text
            async with anna._session.get(f"{url}/mq/api/v1/events?topic=overview") as stream:
                assert stream.status == 200
                async with asyncio.timeout(20):
                    assert await stream.content.readline()  # is not buffered
        logins = home.rows("SELECT address FROM audit WHERE action = 'session.login'")
        # nginx and HAProxy append the address of their peer; the nearest one that is not trusted
        # counts, and 127.0.0.1 is.
        expected = "127.0.0.1" if name == "caddy" else "192.0.2.99"
        assert logins == [(expected,)]


@pytest.mark.parametrize("name", PROXIES)
async def test_broker_without_users_is_not_open_behind_a_plain_proxy(
    tmp_path: Path, name: str
) -> None:
    program(name)
    async with broker_fixture(tmp_path / "data") as home:
        config = PLAIN[name].format(broker=port_of(home))
        async with proxy(name, tmp_path, config) as url, HttpUser(url) as stranger:
            for path in ("/", "/api/v1/queues", "/queues", "/metrics"):
                answer = await stranger.get(path)
                assert answer.status == 401, (path, answer.status)
                assert "Decide who may" in answer.text
                assert "user create" in answer.text
                if path == "/queues":
                    assert '/setup">Create the first user</a>' in answer.text
            answer = await stranger.call("POST", "/queues/a/messages", {"content": "x"})
            assert (answer.status, json.loads(answer.text)["code"]) == (401, "forwarded")
            assert (await stranger.get("/readyz")).status == 200
        async with HttpUser(home.url) as local:
            assert (await local.get("/queues")).status == 200


def test_page_shows_each_proxy() -> None:
    assert {"nginx", "caddy", "haproxy", "yaml"} <= {block.language for block in blocks(PAGE)}
    assert re.search(r"only\s+configuration on this page that our tests do not try",
                     Path(PAGE).read_text(encoding="utf-8"))  # fmt: skip
