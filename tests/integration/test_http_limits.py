"""Limits of HTTP requests: body size per route, shared memory, connections, slow clients."""

import asyncio
import io
import json
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from ipaddress import ip_network
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import urlsplit

import aiohttp
import pytest

import phpmq_lite.admin
from phpmq_lite.admin.http.route import LOGIN_BYTES, Route
from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.admin.slow_clients import (
    ANSWER,
    BODY,
    HEAD,
    LIMITS,
    ConnectionLimits,
    LimitedConnection,
    SlowClientTimeouts,
)
from phpmq_lite.roles import Role
from phpmq_lite.server.admission import Admission
from phpmq_lite.testing import RunningBroker, running_service
from tests.support.full_broker import WRITING, FullBroker
from tests.support.http_users import BrokerFixture, HttpReply, HttpUser, broker_fixture, wait_until

MIB = 1 << 20
MAX_CONTENT = 8 * MIB
FORM = "application/x-www-form-urlencoded"


def headers_of(filled: FullBroker, route: Route, csrf: str) -> dict[str, str]:
    """Return the headers that our pages and scripts send with a body."""
    kind = route.media if route.is_api else FORM
    return {"Origin": filled.me.origin, "X-CSRF-Token": csrf, "Content-Type": kind}


# -- size of a body


def test_every_route_has_a_limit_and_a_public_one_the_smallest() -> None:
    for route in ROUTES:
        limit = route.body_limit(MAX_CONTENT)
        assert 0 < limit <= 64 * MIB, route.name
        assert (limit == LOGIN_BYTES) == (route.role is Role.PUBLIC), route.name
    content = {route.name for route in ROUTES if route.has_content}
    assert content == {
        "publish-send", "message-edit", "api-publish", "api-message-edit", "api-import",
        "api-define",
    }  # fmt: skip


async def test_body_announced_above_the_limit_is_refused_unread(filled: FullBroker) -> None:
    """Only the head is sent, so an answer shows that the broker did not wait for the body."""
    parts, csrf, wrong = urlsplit(filled.home.url), await filled.me.csrf(), []
    cookies = "; ".join(f"{name}={value}" for name, value in filled.me.cookies().items())
    for route in ROUTES:
        limit = route.body_limit(MAX_CONTENT)
        known = headers_of(filled, route, csrf) | {"Host": parts.netloc, "Cookie": cookies}
        known |= {"Content-Length": str(limit + 1), "Expect": "100-continue"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in known.items())
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(f"{route.method} {filled.path(route)} HTTP/1.1\r\n{lines}\r\n".encode())
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).decode()
        length = re.search(r"Content-Length: (\d+)", head)
        text = (await reader.readexactly(int(length[1]))).decode() if length else ""
        writer.close()
        if " 413 " not in head or str(limit) not in text.replace("\u202f", ""):
            wrong.append((route.name, head[:60], text[:200]))
    assert wrong == []


async def test_body_that_grows_above_the_limit_is_refused(filled: FullBroker) -> None:
    """The body is sent in chunks, without a length."""

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"a=b&" * 4_096

    csrf = await filled.me.csrf()
    for route in WRITING:
        if route.role is Role.PUBLIC or route.name in ("users-add", "api-user-add", "queue-pause"):
            known = headers_of(filled, route, csrf)
            try:
                answer = await filled.me.request(
                    route.method, filled.path(route), known, data=endless()
                )
            except aiohttp.ClientError:  # the connection was closed after the answer
                continue
            assert (route.name, answer.status) == (route.name, 413)


async def test_login_reads_no_more_than_its_form(filled: FullBroker) -> None:
    [route] = [route for route in ROUTES if route.name == "log-in"]
    csrf = await filled.me.csrf()
    known = headers_of(filled, route, csrf)
    form = f"csrf={csrf}&name=anna&password="
    for size, status in ((LOGIN_BYTES, 401), (LOGIN_BYTES + 1, 413)):
        body = form.encode().ljust(size, b"x")
        answer = await filled.me.request("POST", "/login", known, data=body)
        assert (size, answer.status) == (size, status)


async def test_malformed_head_of_a_part_is_a_client_error(filled: FullBroker) -> None:
    known = {"Origin": filled.me.origin, "Content-Type": "multipart/form-data; boundary=b"}
    rest = b'Content-Disposition: form-data; name="csrf"\r\n\r\nx\r\n--b--\r\n'
    for part in (
        b"X-A: b\r\n" * 200, b"X-A: " + b"b" * 10_000 + b"\r\n", b"X" * 10_000 + b"\r\n",
        b"\x00: b\r\n", b"no colon\r\n", b"Content-Length: x\r\n",
        b"Content-Transfer-Encoding: base64\r\n", b"Content-Type: multipart/mixed; boundary=y\r\n",
    ):  # fmt: skip
        for path in ("/login", "/publish"):
            body = b"--b\r\n" + part + rest
            answer = await filled.me.request("POST", path, known, data=body)
            assert answer.status in (400, 403, 415), (path, part[:40])


async def test_form_of_too_many_fields_is_refused(filled: FullBroker) -> None:
    known = {"Origin": filled.me.origin, "Content-Type": FORM}
    answer = await filled.me.request("POST", "/publish", known, data=b"a=&" * 1_001)
    assert (answer.status, "1000 fields" in answer.text) == (413, True)


def test_only_one_module_reads_bodies() -> None:
    found = []
    for file in Path(phpmq_lite.admin.__path__[0]).rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        wrong = r"request\.(post|read|json|text|multipart|release)\(|request\.content\b|FileField"
        found += [(file.name, what[0]) for what in re.finditer(wrong, text)]
    assert sorted(set(found)) == [
        ("body.py", "request.content"),
        ("slow_clients.py", "request.content"),  # checks whether the body is complete
    ]


# -- memory, one budget for all requests


@pytest.fixture
async def tight(tmp_path: Path) -> AsyncIterator[BrokerFixture]:
    """Run a broker with little memory for HTTP and one user for all: the worst case."""
    limits = {"http_memory": 32 * MIB}
    async with broker_fixture(tmp_path / "data", limits=limits) as home:
        yield home


def send_without_reading(home: BrokerFixture, request: bytes) -> socket.socket:
    """Open a connection that reads nothing, and send the start of a request."""
    parts = urlsplit(home.url)
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
    own.connect((parts.hostname, parts.port))
    own.setblocking(False)
    own.send(request.replace(b"HOST", parts.netloc.encode()))
    return own


async def publish(user: HttpUser, body: object) -> HttpReply:
    kind = {"Content-Type": "application/json"}
    sent = io.BytesIO(json.dumps(body).encode())
    return await user.request("POST", "/api/v1/queues/mine/messages", kind, data=sent)


async def fill(own: socket.socket, body: memoryview) -> None:
    """Send a body until the broker stops reading or closes the connection."""
    try:
        await asyncio.get_running_loop().sock_sendall(own, body)
    except OSError:
        return


async def test_large_requests_pass_stuck_ones_of_the_same_user(
    tight: BrokerFixture, figure: Callable[[str], None]
) -> None:
    head = (
        b"POST /api/v1/queues/stuck/messages HTTP/1.1\r\nHost: HOST\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (11 * MIB)
    )
    body = memoryview(b'{"content": "' + b"a" * (10 * MIB))
    refused = 0
    with ExitStack() as stack:
        stuck = [stack.enter_context(send_without_reading(tight, head)) for _ in range(20)]
        sending = [asyncio.create_task(fill(own, body)) for own in stuck]
        async with HttpUser(tight.url) as me:
            answer = await publish(me, {"content": "x" * MAX_CONTENT})
            while answer.status in (429, 503):  # other uploads use the memory
                assert answer.headers["Retry-After"]
                refused += 1
                answer = await publish(me, {"content": "x" * MAX_CONTENT})
            assert answer.status == 201, answer.text
            line = b'{"queue": "lines", "content": "%d"}\n'
            answer = await me.request(
                "POST", "/api/v1/import", {"Content-Type": "application/x-ndjson"},
                data=io.BytesIO(b"".join(line % number for number in range(20_000))),
            )  # fmt: skip
            assert (answer.status, json.loads(answer.text)) == (
                201,
                {"stored": 20_000, "skipped": 0},
            )
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
    figure(
        f"20 stuck uploads of 10 MiB, 32 MiB for all: a publish of 8 MiB, refused {refused} times"
    )


async def test_download_is_served_while_others_are_stuck(tight: BrokerFixture) -> None:
    async with HttpUser(tight.url) as me:
        made = json.loads((await publish(me, {"content": "x" * MAX_CONTENT})).text)
    path = f"/api/v1/messages/{made['ids'][0]}/body?download"
    request = f"GET {path} HTTP/1.1\r\nHost: HOST\r\n\r\n".encode()
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(send_without_reading(tight, request))
        async with HttpUser(tight.url) as me:
            for _ in range(3):
                answer = None
                while answer is None or answer.status == 503:
                    # An older request of the same user that waits for memory may end a download.
                    with suppress(aiohttp.ClientPayloadError):
                        answer = await me.get(path)
                assert (answer.status, len(answer.text)) == (200, MAX_CONTENT)


async def test_flood_of_values_is_refused_and_the_next_request_is_served(
    tight: BrokerFixture,
) -> None:
    async with HttpUser(tight.url) as me:
        flood = b"[" + b"{}," * MIB + b"{}]"
        kind = {"Content-Type": "application/json"}
        for method, path in (
            ("POST", "/queues/a/messages"), ("POST", "/import"), ("PUT", "/definitions"),
            ("POST", "/pipeline/unstage"), ("PUT", "/pipeline/insights"),
        ):  # fmt: skip
            answer = await me.request(method, f"/api/v1{path}", kind, data=io.BytesIO(flood))
            assert (path, answer.status) == (path, 413), answer.text
            line = {"Content-Type": "application/x-ndjson"}
        answer = await me.request("POST", "/api/v1/import", line, data=io.BytesIO(flood))
        assert answer.status == 413, answer.text
        assert (await me.call("POST", "/queues/a/messages", {"content": "x"})).status == 201


async def test_memory_is_returned_however_a_request_ends(tight: BrokerFixture) -> None:
    async with HttpUser(tight.url) as me:
        large = "x" * (4 * MIB)
        for body in ({"content": large}, {"content": large, "odd": 1}, [large], {"content": 5}):
            await publish(me, body)
        text = (await me.get("/metrics")).text
    assert 'phpmq_limit_used{limit="http_memory"} 0.0' in text
    assert 'phpmq_limit{limit="http_memory"} 3.3554432e+07' in text


# -- number of connections, and slow clients


WAIT_S = 60
Connect = Callable[[], Awaitable["HttpConnection"]]
GET = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
POST = (  # without a content type it would be refused unread
    b"POST /api/v1/queues/orders/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n"
)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    limits = {"http_connections": 5, "http_connections_per_address": 3}
    async with running_service(tmp_path / "data", limits=limits) as running:
        yield running


async def limits_of(broker: RunningBroker) -> ConnectionLimits:
    return (await broker.service.pages.open()).app[LIMITS]


@pytest.fixture
async def connect(broker: RunningBroker) -> AsyncIterator[Connect]:
    """Return a function that connects; all connections are closed at the end."""
    port = int(broker.admin_url.rstrip("/").rpartition(":")[2])
    connections: list[HttpConnection] = []

    async def connect() -> HttpConnection:
        connections.append(HttpConnection(*await asyncio.open_connection("127.0.0.1", port)))
        return connections[-1]

    yield connect
    for connection in connections:
        connection.writer.transport.abort()


class HttpConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self) -> bytes:
        """Send a request; return the status line, empty if the connection is closed instead."""
        try:
            self.writer.write(GET)
            async with asyncio.timeout(WAIT_S):
                line = await self.reader.readline()
                if line:
                    head = await self.reader.readuntil(b"\r\n\r\n")
                    await self.reader.readexactly(
                        int(head.split(b"Content-Length: ")[1].split()[0])
                    )
                return line
        except ConnectionError:
            return b""

    async def rest(self) -> bytes:
        try:
            async with asyncio.timeout(WAIT_S):
                return await self.reader.read()
        except ConnectionError:
            return b""


async def test_silent_connections_keep_nobody_out(broker: RunningBroker, connect: Connect) -> None:
    """100 of them ended pages, API and health checks; now the longest idle one is closed."""
    first = await connect()
    assert b"200" in await first.ask()
    silent = [await connect() for _ in range(20)]
    for _ in range(3):
        assert b"200" in await (await connect()).ask()
    assert await silent[0].rest() == b""
    limits = await limits_of(broker)
    assert len(limits.open) <= 5
    assert not limits.admission.refused


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 9000\r\n\r\ncsrf=",
    ],
)
async def test_request_that_does_not_end_keeps_nobody_out(tmp_path: Path, sent: bytes) -> None:
    async with broker_fixture(tmp_path / "data", limits={"http_connections": 5}) as home:
        await home.add_user("anna")
        place = urlsplit(home.url)
        with ExitStack() as stack:
            for _ in range(20):
                peer = socket.create_connection((place.hostname, place.port), WAIT_S)
                stack.callback(peer.close)
                peer.sendall(sent)
            async with HttpUser(home.url, await home.token("boss", "admin")) as boss:
                assert (await boss.get("/readyz")).status == 200
                assert (await boss.get("/api/v1/queues")).status == 200


async def test_requests_of_one_user_leave_places_to_others(tmp_path: Path) -> None:
    """A viewer's long polls, downloads or streams kept health checks and other users out."""
    async with broker_fixture(tmp_path / "data", limits={"http_connections": 10}) as home:
        secrets = [await home.token(name, "viewer") for name in ("many", "few")]

        def working() -> Counter[str]:
            return home.context.app[LIMITS]._working

        async with HttpUser(home.url, secrets[0]) as many, HttpUser(home.url, secrets[1]) as few:
            waits: list[asyncio.Task[HttpReply]] = []
            for _ in range(8):
                waits.append(asyncio.create_task(many.get("/api/v1/wait?timeout=60")))
                await wait_until(lambda: working().total() == len(waits))
            answer = await many.get("/api/v1/wait?timeout=60")
            assert (answer.status, json.loads(answer.text)["code"]) == (429, "too_many_requests")
            assert (await few.get("/api/v1/queues")).status == 200
            async with HttpUser(home.url) as prober:
                assert (await prober.get("/readyz")).status == 200
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            async with HttpUser(home.url, await home.token("boss", "admin")) as boss:
                ending = await publish(boss, {"content": "ends the abandoned waits"})
                assert ending.status == 201, ending.text
            await wait_until(lambda: not working())


async def test_control_socket_accepts_connections_at_the_limit(
    broker: RunningBroker, connect: Connect
) -> None:
    """Only the broker's user can open it, so other users cannot exhaust its connections."""
    for _ in range(5):
        assert b"200" in await (await connect()).ask()
    control = HttpConnection(*await asyncio.open_unix_connection(broker.data / "control.sock"))
    assert b"200" in await control.ask()
    control.writer.close()
    limits = await limits_of(broker)
    await wait_until(lambda: len(limits.open) == limits.admission.connections)
    assert 4 <= limits.admission.connections <= 5


async def test_slow_clients_are_disconnected_and_counted_by_reason(
    broker: RunningBroker, connect: Connect
) -> None:
    limits, loop = await limits_of(broker), asyncio.get_running_loop()
    silent, head, body, idle = [await connect() for _ in range(4)]
    head.writer.write(GET[:-2])
    body.writer.write(POST + b"{")
    assert b"200" in await idle.ask()
    await wait_until(lambda: sum(each.has_begun for each in limits.open) == 2)
    assert len(limits.open) == 4
    limits.close_slow(loop.time() + 5)
    assert limits.ended.total() == 0
    limits.close_slow(loop.time() + 25)
    assert limits.ended == {HEAD: 2}
    assert (await head.rest()).startswith(b"HTTP/1.1 408 ")
    assert await silent.rest() == b""
    limits.close_slow(loop.time() + 60)
    assert limits.ended == {HEAD: 2, BODY: 1}
    assert b"408" in await body.rest()
    assert b"200" in await idle.ask()  # between two requests it may be silent


async def test_client_that_does_not_read_its_answer_is_disconnected(
    broker: RunningBroker, connect: Connect
) -> None:
    limits, loop = await limits_of(broker), asyncio.get_running_loop()
    limits.timeouts = SlowClientTimeouts(answer_s=1.0)
    connection = await connect()
    page = b"GET /static/x/app.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
    connection.writer.write(page * 2_000)
    async with asyncio.timeout(WAIT_S):
        at = loop.time()
        while not limits.ended:
            at += 0.7
            limits.close_slow(at)
            await asyncio.sleep(0.01)
    assert set(limits.ended) == {ANSWER}


def refused_connection(limits: ConnectionLimits) -> tuple[LimitedConnection, Mock, Mock]:
    """Return a connection with a refused request, its protocol and its transport."""
    inner = Mock()
    transport = Mock(**{"is_closing.return_value": False, "get_extra_info.return_value": None})
    connection = LimitedConnection(limits, inner)
    connection.connection_made(transport)
    connection.take(Mock(**{"content.is_eof.return_value": False}))
    connection.finish()
    return connection, inner, transport


async def test_refused_bodies_are_read_one_connection_at_a_time() -> None:
    """Reading the bodies of 95 connections at full speed blocked the loop for 60 ms at a time."""
    limits = ConnectionLimits(Admission(9, 9, 9))
    refused = [refused_connection(limits) for _ in range(3)]
    for part in (b"the ", b"rest"):
        for connection, _, _ in refused:
            connection.data_received(part)
    assert all(transport.pause_reading.called for _, _, transport in refused)
    assert not any(inner.data_received.called for _, inner, _ in refused)
    counts: list[int] = []
    async with asyncio.timeout(WAIT_S):
        while not counts or counts[-1] < 3:
            counts.append(sum(inner.data_received.called for _, inner, _ in refused))
            await asyncio.sleep(0)
    assert sorted(set(counts)) == [0, 1, 2, 3]
    for _, inner, transport in refused:
        transport.resume_reading.assert_called_once_with()
        inner.data_received.assert_called_once_with(b"the rest")


async def test_next_request_does_not_overtake_a_refused_body() -> None:
    """A client may send it at once, and aiohttp may resume reading before our turn comes."""
    connection, inner, _ = refused_connection(ConnectionLimits(Admission(9, 9, 9)))
    connection.data_received(b"rest, POST 1 ")
    connection.take(Mock(**{"content.is_eof.return_value": False}))
    connection.data_received(b"body")
    async with asyncio.timeout(WAIT_S):
        while not inner.data_received.called:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0)
    inner.data_received.assert_called_once_with(b"rest, POST 1 body")


async def test_request_after_a_refused_one_is_answered(connect: Connect) -> None:
    connection = await connect()
    refused = POST.replace(b"application/json", b"text/plain") + b"123456789"
    for request, status in ((refused, b"415"), (refused, b"415"), (GET + b"\r\n", b"200")):
        connection.writer.write(request)
        head = await asyncio.wait_for(connection.reader.readuntil(b"\r\n\r\n"), WAIT_S)
        assert head.split(b" ")[1] == status
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await connection.reader.readexactly(length)


def test_connections_of_a_trusted_proxy_are_not_counted_as_one_address() -> None:
    limits = ConnectionLimits(Admission(5, 1, 5), [ip_network("10.0.0.0/8")])
    assert [limits.name_of(host) for host in ("10.1.2.3", "192.0.2.1", None)] == [
        None, "192.0.2.1", None,
    ]  # fmt: skip
