"""A page of another site, in Chromium, tries what it can: rebound names, posts, the TCP port.

``docs/operate/security.md`` 11.  The page is at http://evil.test, which resolves to this machine;
each attempt is also made by our own page where that may succeed, so that the refusal is no
accident.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from phpmq_lite.testing import RunningBroker, running_service
from tests.browser.tabs import close_tabs, launched

EVIL: Final = "evil.test"
# Chromium has begun to block such pages itself; the broker must not depend on that.
UNHELPED: Final = (
    "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests,"
    "PrivateNetworkAccessSendPreflights,PrivateNetworkAccessForNavigations"
)
FETCH: Final = """async ([url, options]) => {
  try {
    const response = await fetch(url, options);
    return [response.status, (await response.text()).length];
  } catch (error) { return [0, 0]; }
}"""
READ: Final = """async (path) => {
  const response = await fetch(path);
  return [response.status, await response.text()];
}"""
SUBMIT: Final = """async ([url, fields]) => {
  const form = document.createElement("form");
  form.method = "post"; form.action = url; form.target = `out${Date.now()}`;
  const frame = document.createElement("iframe");
  frame.name = form.target; document.body.append(frame, form);
  for (const [name, value] of Object.entries(fields)) {
    const input = document.createElement("input");
    input.name = name; input.value = value; form.append(input);
  }
  form.submit();
  await new Promise((go) => setTimeout(go, 300));  // a refused frame may never say that it is done
}"""


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningBroker]:
    """Run one broker for all tests: none of them may store a message in it."""
    async with running_service(tmp_path_factory.mktemp("strangers") / "data") as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def stranger() -> AsyncIterator[Any]:
    """Run a browser that resolves the other site to this machine."""
    async with launched(f"--host-resolver-rules=MAP {EVIL} 127.0.0.1", UNHELPED) as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def evil(stranger: Any) -> AsyncIterator[Any]:

    async def home(_request: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><title>evil</title>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", home)
    server = TestServer(app)
    await server.start_server()
    page = await stranger.new_page()
    await page.goto(f"http://{EVIL}:{server.port}/")
    yield page
    await close_tabs(stranger)
    await server.close()


def port_of(broker: RunningBroker) -> int:
    return int(broker.admin_url.rstrip("/").rpartition(":")[2])


async def at_home(page: Any, origin: str) -> None:
    """Open a page of the other site with this origin, as DNS rebinding gives it."""
    await page.route(
        "**/home", lambda route: route.fulfill(body="<title>x</title>", content_type="text/html")
    )
    await page.goto(origin + "home")


async def stored(broker: RunningBroker) -> int:
    """Return the number of stored messages after everything sent before was processed."""
    engine = broker.service.handle.engine
    assert engine is not None
    await asyncio.sleep(0.1)  # the http guard holds bytes back for 20 ms
    return sum(queue.ready + queue.dispatched for queue in broker.service.handle.status().queues)


async def test_rebound_name_gets_nothing(broker: RunningBroker, evil: Any) -> None:
    """The name of the page resolves to the broker: same origin, but 421 and its own name."""
    await at_home(evil, f"http://{EVIL}:{port_of(broker)}/")
    detail = (
        f"The host name '{EVIL}' is not one of this broker's. If browsers or programs use it, add "
        "it to admin.hosts, or set admin.public_url to the address that they use."
    )
    for path in ("/", "/metrics", "/livez", "/static/x/app.js", "/nowhere"):
        assert await evil.evaluate(READ, path) == [421, f"{detail}\n"]
    status, text = await evil.evaluate(READ, "/api/v1/queues")
    problem = json.loads(text)
    assert status == 421
    assert problem.pop("request_id")
    assert problem == {
        "title": "Misdirected Request", "status": 421, "code": "unknown_host", "detail": detail,
        "field": "Host", "bound": "admin.hosts",
    }  # fmt: skip


async def test_allowed_name_gets_a_response(tmp_path: Path, evil: Any) -> None:
    """The control: without the refusal the page could read the response."""
    async with running_service(tmp_path / "data", admin={"hosts": [EVIL]}) as broker:
        await at_home(evil, f"http://{EVIL}:{port_of(broker)}/")
        status, length = await evil.evaluate(FETCH, ["/api/v1/queues", {}])
    assert (status, length > 0) == (200, True)


async def test_foreign_page_changes_nothing(broker: RunningBroker, evil: Any) -> None:
    base = f"http://127.0.0.1:{port_of(broker)}"
    publish = f"{base}/api/v1/queues/orders/messages"
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/json"):
        for mode in ("no-cors", "cors"):
            options = {
                "method": "POST", "mode": mode, "body": '{"content":"x"}',
                "headers": {"Content-Type": content_type}, "credentials": "include",
            }  # fmt: skip
            status, length = await evil.evaluate(FETCH, [publish, options])
            assert (status, length) == (0, 0)
    for path in ("/test-message", "/publish", "/queues/orders/purge"):
        await evil.evaluate(SUBMIT, [base + path, {"csrf": "x", "queue": "orders", "body": "x"}])
    assert await stored(broker) == 0


async def test_foreign_page_cannot_read_or_frame(broker: RunningBroker, evil: Any) -> None:
    base = f"http://127.0.0.1:{port_of(broker)}"
    assert await evil.evaluate(FETCH, [f"{base}/api/v1/queues", {}]) == [0, 0]
    opaque = await evil.evaluate(FETCH, [f"{base}/api/v1/queues", {"mode": "no-cors"}])
    assert opaque == [0, 0]
    refused: list[str] = []
    evil.on("console", lambda message: refused.append(message.text))
    await evil.evaluate(
        """async (url) => {
          const frame = document.createElement("iframe"); frame.src = url;
          const done = new Promise((go) => frame.addEventListener("load", go, {once: true}));
          document.body.append(frame); await done;
        }""",
        base + "/",
    )
    assert any("frame-ancestors" in text for text in refused)


def frame(queue: str, content: str) -> str:
    """Write a publish in the compact form, as the first line of a request could carry it."""

    def packet(kind: str, text: str) -> str:
        return f"P{kind}{len(text):029d}{text}"

    return "H0100102" + packet("01", queue) + packet("02", content)


Attack = Callable[[Any, str], Awaitable[object]]


async def as_method(page: Any, base: str) -> object:
    """A frame is a valid HTTP method; the name of the page resolves to the port."""
    return await page.evaluate(FETCH, [base, {"method": frame("orders", "x"), "mode": "cors"}])


async def as_body(page: Any, base: str) -> object:
    options = {"method": "POST", "mode": "no-cors", "body": frame("orders", "x") * 10}
    return await page.evaluate(FETCH, [base, options])


async def as_form(page: Any, base: str) -> object:
    return await page.evaluate(SUBMIT, [base, {frame("orders", "x"): "y"}])


async def as_socket(page: Any, base: str) -> object:
    return await page.evaluate(
        """(url) => new Promise((go) => {
          const socket = new WebSocket(url);
          socket.onclose = socket.onerror = () => go(0); socket.onopen = () => go(1);
        })""",
        base.replace("http:", "ws:"),
    )


@pytest.mark.parametrize("attack", [as_method, as_body, as_form, as_socket])
@pytest.mark.parametrize("host", ["127.0.0.1", EVIL])
async def test_browser_requests_to_the_tcp_port_store_nothing(
    broker: RunningBroker, evil: Any, attack: Attack, host: str, figure: Callable[[str], None]
) -> None:
    before = broker.service.handle.counters.clients_opened
    async with asyncio.timeout(30):
        await attack(evil, f"http://{host}:{broker.port}/")
    count = await stored(broker)
    figure(f"Chromium to the TCP port, {attack.__name__} to {host}: {count} messages stored")
    assert count == 0
    assert broker.service.handle.counters.clients_opened > before  # the attack reached the port


async def test_frame_as_method_of_rebound_page_is_not_stored(
    broker: RunningBroker, evil: Any
) -> None:
    """Same origin, so without a preflight: the case that the http guard is for."""
    sink = f"http://{EVIL}:{broker.port}/"
    await at_home(evil, sink)
    await as_method(evil, sink)
    assert await stored(broker) == 0


async def test_frame_as_method_is_stored_without_guard(tmp_path: Path, evil: Any) -> None:
    """The control: Chromium sends the method, and the broker reads it as a frame."""
    async with running_service(tmp_path / "data", tcp={"http_guard": False}) as broker:
        sink = f"http://{EVIL}:{broker.port}/"
        await at_home(evil, sink)
        await as_method(evil, sink)
        assert await stored(broker) > 0
