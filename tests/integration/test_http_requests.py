"""HTTP edge cases of the admin: security headers, hosts, methods, bodies, errors, proxies."""

import asyncio
import gzip
import io
import json
import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import helpers, web_request
from click.testing import CliRunner

from phpmq_lite import logs
from phpmq_lite.admin.http.body import FORMS
from phpmq_lite.admin.http.headers import HEADERS
from phpmq_lite.admin.http.route import Route
from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.cli.main import root_command
from tests.support.full_broker import WRITING, FullBroker, full_broker
from tests.support.http_site import HttpSite
from tests.support.http_users import PASSWORD, BrokerFixture, HttpReply, HttpUser, broker_fixture

STRANGE = """
/static/x/app.css /static/x/nothing /static/x/..%2fbase.html /nowhere /x//y /queues/nowhere
/messages/x /api/v1/nowhere /api/v1/queues/nowhere /clients/999 /bulk/999 /selections/gone
/users/nobody /api/v1/messages?q=a:b /queues?limit=x /queues/nowhere?format=json
"""
ELSEWHERE = (*STRANGE.split(), "/messages/" + "f" * 32)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
OTHER_METHODS = ("HEAD", "OPTIONS", "TRACE", "PROPFIND")


@pytest.fixture
async def filled(tmp_path: Path) -> AsyncIterator[FullBroker]:
    async with full_broker(tmp_path / "data", limits={"max_content": 1_000}) as made:
        yield made


def missing(answer: HttpReply) -> list[str]:
    """Return the security headers that an answer lacks or weakens."""
    found = [
        name for name, value in HEADERS.items() if not answer.headers.get(name, "-").endswith(value)
    ]
    if answer.headers.get("Server") != "phpmq-lite":
        found.append("Server")
    is_static = answer.headers.get("Content-Type", "").startswith("text/css")
    if answer.headers.get("Cache-Control") != ("no-cache" if is_static else "no-store"):
        found.append("Cache-Control")
    return found


# -- headers, methods, hosts


async def test_every_answer_has_the_security_headers(filled: FullBroker) -> None:
    """Requests come from a link of another site; a 405 lists the methods that are accepted."""
    wrong, statuses = [], set()
    paths = dict.fromkeys(filled.path(route) for route in ROUTES)
    for path in [*paths, *ELSEWHERE]:
        # ``/queues/act`` is also a queue of that name
        known = {
            route.method
            for route in ROUTES
            if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route.path), path)
        }
        known |= {"HEAD"} if "GET" in known else set()
        has_other = path in (*ELSEWHERE, "/", "/queues", "/api/v1/queues")
        for method in METHODS + (OTHER_METHODS if has_other else ()):
            if method == "POST" and path == "/logout":
                continue
            answer = await filled.me.request(method, path, {"Referer": "http://other.example/"})
            statuses.add(answer.status)
            if found := missing(answer):
                wrong.append((method, path, answer.status, found))
            if path in paths and method in METHODS and method not in known:
                allowed = set(answer.headers.get("Allow", "").split(","))
                assert (path, method, answer.status, allowed) == (path, method, 405, known)
    assert wrong == []
    assert statuses >= {200, 303, 403, 404, 405, 422}
    assert 500 not in statuses


async def test_answer_to_a_stranger_has_the_security_headers(filled: FullBroker) -> None:
    requests = [(route.method, filled.path(route)) for route in ROUTES]
    requests += [(method, path) for path in ELSEWHERE for method in ("GET", "PUT", "OPTIONS")]
    async with HttpUser(filled.home.url) as stranger:
        for method, path in requests:
            answer = await stranger.request(method, path)
            assert (method, path, missing(answer)) == (method, path, [])


async def test_named_host_is_answered(tmp_path: Path) -> None:
    admin = {"hosts": ["mq.example"]}
    async with broker_fixture(tmp_path / "data", admin=admin) as home, HttpUser(home.url) as me:
        assert (await me.get("/livez", Host="mq.example:80")).status == 200
        assert (await me.get("/login", Host="other.example")).status == 421


async def test_control_socket_needs_neither_host_nor_origin(tmp_path: Path) -> None:
    async with broker_fixture(tmp_path / "data") as home:
        await home.control("POST", "/queues/orders/messages", {"content": "x"})
        connector = aiohttp.UnixConnector(str(home.data / "control.sock"))
        headers = {"Origin": "http://evil.example"}
        async with HttpUser("http://any.name", connector=connector, headers=headers) as me:
            answer = await me.request("POST", "/api/v1/queues/orders/purge", json={})
        assert (answer.status, json.loads(answer.text)) == (200, {"settled": 1})


# -- bodies


async def test_body_of_another_content_type_is_refused(filled: FullBroker) -> None:
    csrf = await filled.me.csrf()
    for media_type in ("text/plain", "application/xml", "multipart/form-data", ""):
        for route in [route for route in WRITING if route.is_api]:
            status = await _send(filled, route, b"{}", {"Content-Type": media_type}, csrf)
            assert (route.name, media_type, status) == (route.name, media_type, 415)


async def test_broken_json_is_refused(filled: FullBroker) -> None:
    csrf, json_only = await filled.me.csrf(), {"Content-Type": "application/json"}
    for route in [route for route in WRITING if route.is_api and route.takes is not None]:
        # This address answers invalid JSON as it does an invalid summary.
        refused = {422} if route.name == "api-insights-put" else {400, 413}
        if route.media != "application/json":  # the address accepts another content type only
            refused = {415}
        for body in (b"{", b"\xff", b"[" * 100_000):
            assert await _send(filled, route, body, json_only, csrf) in refused, route.name


async def _send(
    filled: FullBroker, route: Route, body: bytes, headers: dict[str, str], csrf: str
) -> int:
    """Send a body as our scripts do; return the status."""
    known = {"Origin": filled.me.origin, "X-CSRF-Token": csrf} | headers
    answer = await filled.me.request(route.method, filled.path(route), known, data=body)
    return answer.status


@pytest.mark.sample("gzip")
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "identity, gzip"])
async def test_compressed_body_is_refused_on_every_route(filled: FullBroker, encoding: str) -> None:
    """Decompression is never started: the bytes are not a stream of any encoding."""
    csrf, coded = await filled.me.csrf(), {"Content-Encoding": encoding}
    wrong = []
    for route in ROUTES:
        kind = route.media if route.is_api else "application/x-www-form-urlencoded"
        headers = {"Origin": filled.me.origin, "X-CSRF-Token": csrf, "Content-Type": kind} | coded
        answer = await filled.me.request(
            route.method, filled.path(route), headers, data=b"\x1f\x8b" * 9
        )
        if answer.status != 415 or "identity" not in answer.text:
            wrong.append((route.name, answer.status, answer.text[:200]))
    assert wrong == []


async def test_refused_compressed_body_is_not_decompressed(
    filled: FullBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(
        "aiohttp.http_parser.ZLibDecompressor", lambda *_, **known: started.append(known)
    )
    headers = {"Origin": filled.me.origin, "X-CSRF-Token": await filled.me.csrf()}
    headers |= {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    for path in ("/api/v1/queues/orders/messages", "/nowhere", "/api/v1/import"):
        answer = await filled.me.request("POST", path, headers, data=gzip.compress(bytes(1 << 20)))
        assert (path, answer.status) == (path, 404 if path == "/nowhere" else 415)
    assert started == []


@pytest.mark.sample("charset=punycode")
@pytest.mark.parametrize(
    "parameter",
    [
        "charset=punycode", "charset=idna", "charset=utf-7", "charset=utf-16", 'charset="latin1"',
        "Charset = us-ascii", "charset*=punycode''x", "charset=utf-8,punycode", "charset=zlib",
    ],
)  # fmt: skip
async def test_charset_other_than_utf_8_is_refused_on_every_route(
    filled: FullBroker, parameter: str
) -> None:
    """Some codecs of Python, such as punycode, take quadratic time."""
    csrf, wrong = await filled.me.csrf(), []
    for route in ROUTES:
        kinds = route.all_media if route.is_api else sorted(FORMS)
        for kind in kinds:
            named = {"Content-Type": f"{kind}; boundary=b; {parameter}"}
            status = await _send(filled, route, b"x=1", named, csrf)
            if status != 415:
                wrong.append((route.name, kind, status))
    assert wrong == []


async def test_form_that_names_its_charset_in_a_field_is_refused(filled: FullBroker) -> None:
    csrf = await filled.me.csrf()
    kind = {"Content-Type": "application/x-www-form-urlencoded", "Origin": filled.me.origin}
    for charset, status in (("punycode", 415), ("UTF-8", 422)):
        data = f"csrf={csrf}&_charset_={charset}"
        assert (await filled.me.request("POST", "/publish", kind, data=data)).status == status


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("Content-Type", 'multipart/form-data; x="' + ";" * 8_000),
        ("Content-Type", "application/json" + ";" * 8_000),
        ("Cookie", "a=" + "a " * 4_000),
        ("Cookie", ";" * 8_000),
    ],
)
async def test_header_is_not_read_by_a_parser_that_takes_quadratic_time(
    filled: FullBroker, monkeypatch: pytest.MonkeyPatch, header: str, text: str
) -> None:
    """Aiohttp's takes 70 ms for a Content-Type of 8 KiB and 80 ms for a Cookie, in the loop."""
    parsed: list[str] = []

    def recorded(parse: Callable[[str], object], given: str) -> object:
        parsed.append(given)
        return parse(given)

    for module, name in ((helpers, "parse_content_type"), (web_request, "parse_cookie_header")):
        monkeypatch.setattr(module, name, partial(recorded, getattr(module, name)))
    headers = {"Origin": filled.me.origin, "X-CSRF-Token": await filled.me.csrf(), header: text}
    for path in ("/login", "/publish", "/api/v1/queues", "/api/v1/queues/a/messages", "/nowhere"):
        for method in ("GET", "POST"):
            await filled.me.request(method, path, headers, data=b"x")
    assert [given for given in parsed if len(given) > 1_000] == []


async def test_body_encoded_as_identity_is_accepted(filled: FullBroker) -> None:
    headers = {"Origin": filled.me.origin, "X-CSRF-Token": await filled.me.csrf()}
    headers |= {"Content-Encoding": "Identity", "Content-Type": "application/json"}
    path = "/api/v1/queues/orders/messages"
    answer = await filled.me.request("POST", path, headers, data=b'{"content": "x"}')
    assert answer.status == 201


async def test_invalid_message_is_refused_and_its_field_named(filled: FullBroker) -> None:
    tries: list[tuple[str, Any, int, str | None]] = [
        ("orders", {"content": 5}, 422, "content"),
        ("orders", {"content": "a", "ttl_s": -1}, 422, "ttl_s"),
        ("orders", [{"content": "a"}, {"content": "a", "more": 1}], 422, "1.more"),
        ("orders", {"content": "!", "encoding": "base64"}, 422, None),
        ("orders", {"content": "a", "encoding": "utf-16"}, 422, "encoding"),
        ("orders", [], 422, None),
        ("orders", "text", 422, None),
        ("orders", [{"content": "a"}] * 1_001, 422, None),
        ("orders", {"content": "x" * 2_000}, 413, "content"),
        ("%0D", {"content": "a"}, 422, "queue"),
        ("x" * 256, {"content": "a"}, 422, "queue"),
    ]
    headers = {"Origin": filled.me.origin, "X-CSRF-Token": await filled.me.csrf()}
    before = filled.home.rows("SELECT count(*) FROM message")
    for queue, body, status, field in tries:
        path = f"/api/v1/queues/{queue}/messages"
        answer = await filled.me.request("POST", path, headers, json=body)
        problem = json.loads(answer.text)
        assert (body, answer.status, problem.get("field")) == (body, status, field)
        assert {"title", "detail", "code", "request_id"} <= problem.keys()
    assert filled.home.rows("SELECT count(*) FROM message") == before


# -- errors


async def test_error_is_a_page_for_browsers_and_json_for_programs(filled: FullBroker) -> None:
    answer = await filled.me.get("/queues/nope")
    assert (answer.status, answer.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "No such queue" in answer.text
    for path in ("/queues/nope?format=json", "/api/v1/queues/nope", "/api/v1/nowhere"):
        answer = await filled.me.get(path)
        assert (path, answer.status) == (path, 404)
        assert answer.headers["Content-Type"].startswith("application/problem+json")
        assert json.loads(answer.text)["request_id"] == answer.headers["X-Request-Id"]


async def test_failure_is_logged_and_leaks_nothing(
    filled: FullBroker, monkeypatch: pytest.MonkeyPatch, log_stream: io.StringIO
) -> None:
    logs.configure(stream=log_stream)

    def fail(*_: object) -> None:
        raise LookupError("a secret")

    monkeypatch.setattr(filled.home.broker.service.handle, "status", fail)
    answer = await filled.me.get("/api/v1/queues")
    problem = json.loads(answer.text)
    assert (answer.status, problem["code"]) == (500, "internal")
    assert "secret" not in answer.text
    assert missing(answer) == []
    written = log_stream.getvalue()
    assert problem["request_id"] in written
    assert "a secret" in written
    answer = await filled.me.get("/queues")
    assert (answer.status, "secret" in answer.text, missing(answer)) == (500, False, [])
    assert re.search(problem["title"], answer.text)


# -- host names, proxies and the command line


async def test_rebound_name_gets_nothing(filled: FullBroker, figure: Callable[[str], None]) -> None:
    """An answer has the security headers, names only the host, and leaves no audit row."""
    before, texts = filled.home.audit(), set[str]()
    requests = [("GET", filled.path(route)) for route in ROUTES]
    requests += [(method, path) for path in ("/login", *ELSEWHERE) for method in ("GET", "POST")]
    async with HttpUser(filled.home.url, headers={"Accept-Language": "en"}) as me:
        for method, path in requests:
            answer = await me.request(method, path, {"Host": "rebound.example:9101"})
            assert (path, answer.status, missing(answer)) == (path, 421, [])
            texts.add(re.sub(r"[0-9a-f]{16}", "", answer.text))
    assert filled.home.audit() == before
    assert len(texts) == 2, texts  # for pages and for the API, with nothing of the broker
    figure(f"rebound name: {len(requests)} requests, all 421")


@pytest.mark.parametrize(
    "request_bytes",
    [b"GET / HTTP/9.x\r\n\r\n", b"G\x00T / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n"],
)  # fmt: skip
async def test_unreadable_request_gets_the_headers_too(
    site: HttpSite, request_bytes: bytes
) -> None:
    port = int(site.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
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
            assert cookie.startswith("__Host-phpmq-web-mq=")
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


async def test_command_line_makes_the_first_admin(tmp_path: Path, log_stream: io.StringIO) -> None:
    logs.configure(stream=log_stream)  # commands write to the standard output of this process
    async with broker_fixture(tmp_path / "data") as home:
        file = tmp_path / "password"
        file.write_text(PASSWORD + "\n")
        await run(home, "user", "create", "anna", "--password-file", str(file))
        secret = (await run(home, "token", "create", "ci", "--expires", "30d")).strip()
        listed = json.loads(await run(home, "user", "list", "-o", "json"))
        assert [(user["name"], user["role"]) for user in listed] == [("anna", "admin")]
        async with HttpUser(home.url) as me, HttpUser(home.url, secret) as program:
            assert (await me.log_in("anna")).status == 303
            assert (await program.get("/api/v1/queues")).status == 200
            file.write_text("another password here")
            await run(home, "user", "set-password", "anna", "--password-file", str(file))
            assert (await me.get("/account")).status == 303
            await run(home, "token", "revoke", "ci", "--yes")
            assert (await program.get("/api/v1/queues")).status == 401
        assert "ci" not in await run(home, "token", "list", "-o", "csv")
        await run(home, "user", "delete", "anna", "--yes")
        async with HttpUser(home.url) as program:
            assert (await program.get("/api/v1/queues")).status == 200  # no login is needed again


async def run(home: BrokerFixture, *arguments: str) -> str:
    """Run a command in a thread; return its standard output."""
    line = [*arguments, "--data", str(home.data)]
    result = await asyncio.to_thread(CliRunner().invoke, root_command, line)
    assert result.exit_code == 0, result.stderr
    return result.stdout
