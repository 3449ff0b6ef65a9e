"""Users, sessions, tokens and rights over HTTP (docs/operate/security.md 1 to 6 and 10)."""

import asyncio
import json
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import argon2
import pytest
from argon2 import PasswordHasher
from structlog.testing import capture_logs

from phpmq_lite.admin.accounts.services import SERVICES
from phpmq_lite.errors import SettingsError
from phpmq_lite.settings.loading import initial_password
from phpmq_lite.testing import running_service
from tests.support.http_users import PASSWORD, BrokerFixture, HttpUser, broker_fixture, visible_text

OTHER = "another password here"


# -- without users


async def test_loopback_without_users_needs_no_login_but_creates_no_user(tmp_path: Path) -> None:
    async with broker_fixture(tmp_path / "data") as home, HttpUser(home.url) as me:
        assert (await me.get("/queues")).status == 200
        user = {"name": "eve", "password": PASSWORD, "role": "admin"}
        token = {"name": "eve", "role": "admin"}
        for path, body in (("/users", user), ("/tokens", token)):
            answer = await me.call("POST", path, body)
            assert (answer.status, json.loads(answer.text)["code"]) == (403, "local")
            assert "setup-token" in answer.text
            assert (await me.post(path, **{**body, "queues": "", "days": "30"})).status == 403
        assert home.rows('SELECT count(*) FROM "user"') == [(0,)]
        assert [row[0] for row in home.audit()] == ["local"] * 4


async def test_program_on_this_machine_needs_no_token_until_there_is_a_user(tmp_path: Path) -> None:
    async with broker_fixture(tmp_path / "data") as home, aiohttp.ClientSession() as program:
        url = f"{home.url}/api/v1/queues/orders/messages"
        async with program.post(url, json={"content": "x"}) as response:
            assert response.status == 201
        async with program.post(url, data=b'{"content": "x"}') as response:
            assert response.status == 415
        async with program.post(url, json={"content": "x"}, headers={"Cookie": "a=b"}) as response:
            assert (response.status, (await response.json())["code"]) == (403, "no_origin")
        await home.add_user("anna")
        async with program.post(url, json={"content": "x"}) as response:
            assert (response.status, (await response.json())["code"]) == (401, "login")


async def test_setup_makes_the_first_admin_with_the_token_of_the_file(tmp_path: Path) -> None:
    async with broker_fixture(tmp_path / "data") as home, HttpUser(home.url) as me:
        file = home.data / "setup-token"
        token = file.read_text().strip()
        assert len(token) == 32
        form = {"name": "anna", "password": PASSWORD, "again": PASSWORD}
        for wrong in ("", "0" * 32):
            answer = await me.post("/setup", token=wrong, **form)
            assert (answer.status, "Incorrect setup token" in answer.text) == (403, True)
        answer = await me.post("/setup", **(form | {"token": token, "again": "x"}))
        assert (answer.status, 'value="anna"' in answer.text) == (422, True)
        answer = await me.post(
            "/setup", **(form | {"token": token, "password": "short", "again": "short"})
        )
        assert (answer.status, "12 to 1024" in answer.text) == (422, True)
        before = me.cookies()
        assert (await me.post("/setup", token=token, **form)).location == "/"
        assert me.cookies() != before
        page = await me.get("/")
        assert "anna is the first admin" in page.text
        assert not file.exists()
        assert (await me.get("/setup")).status == 404
        async with HttpUser(home.url) as stranger:
            assert (await stranger.get("/")).location == "/login"
            assert (await stranger.post("/setup", token=token, **form)).status == 404


async def test_login_can_be_required_without_users(tmp_path: Path) -> None:
    always = broker_fixture(tmp_path / "data", admin={"login": "always"})
    async with always as home, HttpUser(home.url) as me:
        assert (await me.get("/queues")).location == "/login?next=/queues"
        assert "There are no users yet" in (await me.get("/login")).text
        assert (await me.get("/metrics")).status == 401


FORWARDED = [
    ("X-Forwarded-For", "192.0.2.1"), ("x-forwarded-server", "web"), ("Forwarded", "for=x"),
    ("Via", "1.1 web"), ("X-Real-IP", "192.0.2.1"), ("CF-Ray", "1"), ("X-Client-IP", "x"),
    ("Origin", "http://mq.example"), ("Referer", "https://mq.example:8443/queues"),
    ("Referer", "http://a@mq.example/"),
]  # fmt: skip


async def raw_reply(home: BrokerFixture, request: bytes) -> bytes:
    """Send a request as it is; return the first line of the reply."""
    host, port = home.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    line = await reader.readline()
    writer.close()
    return line


@pytest.mark.parametrize(
    "headers",
    [
        {}, {"User-Agent": "curl/8.5.0", "Accept": "*/*"}, {"Accept-Encoding": "identity"},
        {"Referer": "http://localhost:9101/queues"}, {"Origin": "http://127.0.0.1:9101"},
        {"Referer": "http://[::1]:9101/"},
    ],
)  # fmt: skip
async def test_request_of_this_machine_needs_no_login_without_users(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async with broker_fixture(tmp_path / "data") as home, HttpUser(home.url) as me:
        assert (await me.request("GET", "/api/v1/queues", headers)).status == 200


async def test_unknown_host_is_named_with_its_setting_but_health_checks_are_answered(
    tmp_path: Path,
) -> None:
    async with broker_fixture(tmp_path / "data") as home, HttpUser(home.url) as me:
        with capture_logs() as logged:
            for path in ("/", "/api/v1/queues"):
                answer = await me.request("GET", path, {"Host": "mq.lan:9101"})
                assert answer.status == 421
                assert "'mq.lan'" in answer.text
                assert "admin.hosts" in answer.text
        named = [entry["host"] for entry in logged if entry["event"] == "host_refused"]
        assert named[:1] == ["mq.lan"]
        for path in ("/livez", "/readyz", "/startupz"):
            assert (await me.request("GET", path, {"Host": "10.0.0.7:9101"})).status == 200
            for header, value in (
                ("Origin", "http://mq.lan"), ("Referer", "http://mq.lan/"), ("Cookie", "a=b"),
                ("Accept-Language", "en"), ("Sec-Fetch-Mode", "cors"), ("User-Agent", "Mozilla/5"),
            ):  # fmt: skip
                answer = await me.request("GET", path, {"Host": "mq.lan", header: value})
                assert answer.status == 421, header
        assert b" 200 " in await raw_reply(home, b"GET /readyz HTTP/1.0\r\n\r\n")


async def test_forwarded_address_counts_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    admin = {"listen": [f"unix:{path}", "127.0.0.1:0"]}
    async with broker_fixture(tmp_path / "data", admin=admin) as home:
        await home.add_user("anna")
        proxied = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "http"}
        connector = aiohttp.UnixConnector(str(path))
        async with HttpUser("http://localhost", connector=connector, headers=proxied) as anna:
            assert (await anna.log_in("anna")).status == 303
        assert home.rows("SELECT address FROM session") == [("192.0.2.7",)]


async def test_request_through_a_local_proxy_is_not_local(tmp_path: Path) -> None:
    async with broker_fixture(tmp_path / "data") as home, HttpUser(home.url) as me:
        for name, value in FORWARDED:
            answer = await me.request("GET", "/", {name: value})
            assert (answer.status, "Decide who may" in answer.text) == (401, True), name
        assert b" 401 " in await raw_reply(home, b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
    named = broker_fixture(tmp_path / "other", admin={"public_url": "https://mq.example"})
    async with named as home, HttpUser(home.url) as me:
        assert (await me.get("/")).status == 303


# -- login, sessions


async def test_login_leads_back_to_the_page_and_keeps_the_name(home: BrokerFixture) -> None:
    async with HttpUser(home.url) as me:
        answer = await me.get("/queues?q=mail")
        assert answer.location == "/login?next=/queues?q%3Dmail"
        page = await me.get(answer.location)
        assert 'value="/queues?q=mail"' in page.text
        wrong = await me.log_in("anna", "wrong password", next="/queues?q=mail")
        assert wrong.status == 401
        assert "The name or password is incorrect." in visible_text(wrong.text)
        assert 'value="anna"' in wrong.text
        assert 'value="/queues?q=mail"' in wrong.text
        right = await me.log_in("anna", next="/queues?q=mail")
        assert (right.status, right.location) == (303, "/queues?q=mail")
        assert (await me.get("/queues")).status == 200
        for evil in ("//evil.example", "https://evil.example", "/\\evil.example", "/\t/evil"):
            assert (await me.log_in("anna", next=evil)).location in ("/", None)


async def test_cookie_is_new_at_login_and_hidden_from_scripts(home: BrokerFixture) -> None:
    async with HttpUser(home.url) as me:
        await me.get("/login")
        [(name, before)] = me.cookies().items()
        assert name == f"phpmq-{home.url.rpartition(':')[2]}"
        answer = await me.log_in("anna", keep="yes")
        cookie = answer.headers["Set-Cookie"]
        for part in ("HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=2592000"):
            assert part in cookie
        assert me.cookies()[name] != before
        hashes = [sha256.hex() for (sha256,) in home.rows("SELECT sha256 FROM session")]
        assert not any(before.lower() in sha256 for sha256 in hashes)
        async with HttpUser(home.url, Cookie=f"{name}={before}") as fixed:
            assert (await fixed.get("/")).status == 303


async def test_logout_ends_the_session_for_a_copied_cookie_too(home: BrokerFixture) -> None:
    async with HttpUser(home.url) as me:
        await me.log_in("anna")
        [(name, cookie)] = me.cookies().items()
        async with HttpUser(home.url, Cookie=f"{name}={cookie}") as thief:
            assert (await thief.get("/queues")).status == 200
            assert (await me.post("/logout")).location == "/login"
            assert (await thief.get("/queues")).status == 303
        assert home.rows("SELECT count(*) FROM session") == [(0,)]


@pytest.mark.parametrize("change", [{"password": OTHER}, {"role": "viewer"}, {"queues": ["a*"]}])
async def test_change_of_a_user_ends_their_sessions(
    home: BrokerFixture, change: dict[str, Any]
) -> None:
    await home.add_user("ben", "operator")
    async with HttpUser(home.url) as ben, HttpUser(home.url) as twice:
        await ben.log_in("ben")
        await twice.log_in("ben")
        await home.control("PATCH", "/users/ben", change)
        for browser in (ben, twice):
            assert (await browser.get("/")).status == 303
        assert home.rows("SELECT count(*) FROM session") == [(0,)]
        answer = await ben.log_in("ben", change.get("password", PASSWORD))
        assert answer.status == 303


async def test_changing_ones_password_keeps_only_this_session(home: BrokerFixture) -> None:
    async with HttpUser(home.url) as me, HttpUser(home.url) as other:
        await me.log_in("anna")
        await other.log_in("anna")
        form = {"password": OTHER, "again": OTHER}
        assert (await me.post("/account/password", old="wrong", **form)).status == 403
        before = me.cookies()
        assert (await me.post("/account/password", old=PASSWORD, **form)).status == 303
        assert me.cookies() != before
        assert "Your password was changed" in (await me.get("/account")).text
        assert (await other.get("/account")).status == 303


async def test_sessions_are_listed_and_ended(home: BrokerFixture) -> None:
    await home.add_user("ben", "viewer")
    async with HttpUser(home.url) as anna, HttpUser(home.url) as ben:
        await anna.log_in("anna")
        await ben.request("GET", "/login")
        await ben.log_in("ben")
        listed = json.loads((await anna.call("GET", "/sessions")).text)["items"]
        assert {(one["user"], one["is_own"]) for one in listed} == {("anna", True), ("ben", False)}
        assert "127.0.0.1" in (await anna.get("/sessions")).text
        number = next(one["id"] for one in listed if one["user"] == "ben")
        assert (await anna.post(f"/sessions/{number}/end")).status == 303
        assert (await ben.get("/")).status == 303
        assert (await anna.call("DELETE", "/sessions/999")).status == 404
        assert (await anna.call("DELETE", "/sessions/x")).status == 404


async def test_sessions_survive_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with broker_fixture(data) as home:
        await home.add_user("anna")
        async with HttpUser(home.url) as me:
            await me.log_in("anna")
            [(_, cookie)] = me.cookies().items()
    async with broker_fixture(data) as home:
        name = f"phpmq-{home.url.rpartition(':')[2]}"
        async with HttpUser(home.url, Cookie=f"{name}={cookie}") as me:
            assert (await me.get("/queues")).status == 200


async def test_hundred_tries_hash_at_most_ten_and_make_one_row(
    home: BrokerFixture, figure: Callable[[str], None]
) -> None:
    context = home.context
    before = context.app[SERVICES].passwords.count
    async with HttpUser(home.url) as me:
        token = await me.csrf()
        data = {"csrf": token, "name": "anna", "password": "guess guess guess"}
        statuses = []
        for _ in range(100):
            answer = await me.request("POST", "/login", {"Origin": home.url}, data=data)
            statuses.append(answer.status)
        assert answer.headers["Retry-After"].isdecimal()
    assert set(statuses) == {401, 429}
    hashed = context.app[SERVICES].passwords.count - before
    figure(f"100 wrong passwords: {hashed} hashed")
    assert hashed <= 10
    rows = [row for row in home.audit() if row[2] == "session.login"]
    *row, count, reason = rows[0]
    assert (row, reason) == (["nobody", "ui", "session.login", "anna"], "wrong_password")
    assert count == 1 or len(rows) == 2  # a minute ended meanwhile: its count and another row
    assert context.app[SERVICES].refused_logins.total == 100
    assert home.broker.service.pages.context is context
    async with HttpUser(home.url) as owner:  # no account is locked, but this address must wait
        assert (await owner.log_in("anna")).status == 429


async def test_unknown_user_is_hashed_too(home: BrokerFixture) -> None:
    context = home.context
    before = context.app[SERVICES].passwords.count
    async with HttpUser(home.url) as me:
        assert (await me.log_in("nobody-here")).status == 401
    assert context.app[SERVICES].passwords.count == before + 1
    assert home.audit()[-1][3] == ""  # the typed name may have been a password


async def test_old_hash_is_renewed_at_the_next_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(argon2, "PasswordHasher", PasswordHasher)  # at the real cost
    async with broker_fixture(tmp_path / "data") as home:
        await home.add_user("anna")
        context = home.context
        old = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
        context.app[SERVICES].accounts.users["anna"].password = old
        async with HttpUser(home.url) as me:
            assert (await me.log_in("anna")).status == 303
            assert (await me.get("/account")).status == 200
        [(stored,)] = home.rows('SELECT password FROM "user"')
        assert stored.startswith("$argon2id$v=19$m=65536,t=3,p=4$")
        assert context.app[SERVICES].accounts.users["anna"].password == stored


# -- users, tokens


async def test_users_are_created_changed_and_removed_on_their_pages(home: BrokerFixture) -> None:
    async with HttpUser(home.url) as me:
        await me.log_in("anna")
        new = {"name": "ben", "role": "viewer", "queues": "orders*\n\nmail"}
        short = await me.post("/users", password="tiny", **new)
        assert (short.status, 'value="ben"' in short.text, "tiny" in visible_text(short.text)) == (
            422,
            True,
            False,
        )
        assert (await me.post("/users", password=PASSWORD, **new)).location == "/users"
        assert "ben can now log in" in (await me.get("/users")).text
        assert (await me.post("/users", password=PASSWORD, **new)).status == 409
        assert (await me.post("/users/ben/rights", role="operator", queues="")).status == 303
        assert (await me.post("/users/ben/password", password=OTHER)).status == 303
        assert (await me.post("/users/ben/remove", confirm="be", reason="")).status == 422
        assert (await me.post("/users/ben/remove", confirm="ben", reason="left us")).status == 303
        assert (await me.get("/users/ben")).status == 404
        assert (await me.post("/users/anna/remove", confirm="anna")).status == 409
        assert (await me.post("/users/anna/rights", role="viewer", queues="")).status == 409
    rows = [(row[2], row[3], row[5]) for row in home.audit()]
    assert rows[2:] == [
        ("user.add", "ben", "invalid"),
        ("user.add", "ben", "done"),
        ("user.add", "ben", "taken"),
        ("user.change", "ben", "done"),
        ("user.password", "ben", "done"),
        ("user.remove", "ben", "not_confirmed"),
        ("user.remove", "ben", "done"),
        ("user.remove", "anna", "last_admin"),
        ("user.change", "anna", "last_admin"),
    ]
    assert home.rows("SELECT reason FROM audit WHERE reason <> ''") == [("left us",)]


async def test_invalid_names_are_rejected(home: BrokerFixture) -> None:
    async with HttpUser(home.url) as me:
        await me.log_in("anna")
        for name in (
            "", "local", "Control", "a" * 65, "a b", "a\nb", "<script>", "\u202eevil", "-x", "../x",
        ):  # fmt: skip
            user = {"name": name, "password": PASSWORD, "role": "viewer"}
            answer = await me.call("POST", "/users", user)
            found = (name, answer.status, json.loads(answer.text)["field"])
            assert found == (name, 422, "name")


async def test_token_is_shown_once_and_worthless_once_revoked(
    home: BrokerFixture, figure: Callable[[str], None]
) -> None:
    async with HttpUser(home.url) as anna:
        await anna.log_in("anna")
        page = await anna.post("/tokens", name="ci", role="operator", queues="orders*", days="30")
        [secret] = re.findall(r"phpmq_[\w-]{43}", page.text)
        assert secret not in (await anna.get("/tokens")).text
        assert secret not in (await anna.call("GET", "/tokens")).text
        async with HttpUser(home.url, secret) as program:
            assert (
                await program.call("POST", "/queues/orders/messages", {"content": "x"})
            ).status == 201
            assert (await anna.post("/tokens/ci/remove")).status == 303
            revoked = time.perf_counter()
            answer = await program.call("POST", "/queues/orders/messages", {"content": "x"})
            assert (answer.status, json.loads(answer.text)["code"]) == (401, "bad_token")
            figure(f"revoked token: refused in {(time.perf_counter() - revoked) * 1_000:.0f} ms")
    stored = json.dumps(
        [key.hex() for (key,) in home.rows("SELECT sha256 FROM token")]
    ) + json.dumps(home.audit())
    assert secret not in stored
    assert ("token ci", "http", "message.publish", "orders", 1, "done") in home.audit()


async def test_token_ends_at_its_time(home: BrokerFixture) -> None:
    context = home.context
    soon = context.now_ms() + 3_600_000
    secret = await home.token("soon", "viewer", expires_at=soon)
    async with HttpUser(home.url, secret) as program:
        assert (await program.get("/api/v1/queues")).status == 200
        context.now_ms = lambda: soon
        assert (await program.get("/api/v1/queues")).status == 401


async def test_token_takes_precedence_over_a_cookie(home: BrokerFixture) -> None:
    secret = await home.token("ci", "viewer")
    async with HttpUser(home.url) as me:
        await me.log_in("anna")
        for bearer, status in ((secret, 403), ("phpmq_wrong", 401), ("", 401)):
            answer = await me.request("GET", "/api/v1/users", {"Authorization": f"Bearer {bearer}"})
            assert answer.status == status
        assert (
            await me.request("GET", "/api/v1/users", {"Authorization": "Basic eA=="})
        ).status == 200


async def test_last_use_is_stored_at_most_every_five_minutes(home: BrokerFixture) -> None:
    secret = await home.token("ci", "viewer")
    context = home.context
    start = context.now_ms()
    async with HttpUser(home.url, secret) as program:
        for minutes in (0, 1, 4, 6, 7):
            context.now_ms = lambda minutes=minutes: start + minutes * 60_000  # type: ignore[misc]
            await program.get("/api/v1/queues")
        await context.app[SERVICES].accounts.close()
    assert home.rows("SELECT last_used_at FROM token") == [(start + 360_000,)]


async def test_rights_end_at_the_queues_of_a_token(home: BrokerFixture) -> None:
    ids = {}
    for queue in ("orders", "mail"):
        made = await home.control("POST", f"/queues/{queue}/messages", {"content": queue})
        ids[queue] = made["ids"][0]
    async with HttpUser(home.url, await home.token("ci", "operator", "orders*")) as program:
        listed = json.loads((await program.get("/api/v1/queues")).text)["items"]
        assert [queue["name"] for queue in listed] == ["orders"]
        assert (await program.get("/api/v1/queues/mail")).status == 404
        assert (await program.get("/queues/mail")).status == 404
        assert (await program.get(f"/api/v1/messages/{ids['mail']}")).status == 404
        assert (await program.get(f"/api/v1/messages/{ids['orders']}")).status == 200
        for queue, status in (("mail", 403), ("new", 403), ("orders", 201), ("orders.new", 201)):
            answer = await program.call("POST", f"/queues/{queue}/messages", {"content": "x"})
            assert (queue, answer.status) == (queue, status)
        moves = (
            (f"/messages/{ids['orders']}/move", {"target": "mail"}),
            (f"/messages/{ids['orders']}/move", {"target": "new", "create": True}),
            (f"/messages/{ids['orders']}/edit", {"content": "x", "queue": "mail"}),
            ("/dead/orders/redrive", {"target": "mail"}),
        )
        for path, body in moves:
            answer = await program.call("POST", path, body)
            assert (path, answer.status) == (path, 403), answer.text
        assert (await program.call("POST", f"/messages/{ids['mail']}/delete")).status == 404
    limited = await home.token("boss", "admin", "orders*")
    async with HttpUser(home.url, limited) as program:
        answer = await program.call("POST", "/tokens", {"name": "free", "role": "admin"})
        assert (answer.status, json.loads(answer.text)["code"]) == (403, "foreign_queue")


async def test_secrets_are_in_no_log_row_or_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], figure: Callable[[str], None]
) -> None:
    canary, wrong = "canary-password-1", "canary-wrong-password-2"
    seen = []
    async with broker_fixture(tmp_path / "data") as home:
        setup = (home.data / "setup-token").read_text().strip()
        await home.add_user("anna")
        async with HttpUser(home.url) as me:
            seen.append(await me.log_in("anna", wrong))
            seen.append(await me.log_in(wrong, canary))
            await me.log_in("anna")
            cookies = list(me.cookies().values())
            user = {"name": "ben", "password": canary, "role": "viewer"}
            seen.append(await me.call("POST", "/users", user))
            seen.append(await me.call("POST", "/users", user | {"role": canary}))
            seen.append(await me.call("POST", "/users", {"password": [canary]}))
            seen.append(await me.call("PATCH", "/users/ben", {"password": canary[:11]}))
            seen.append(await me.post("/users", name="eve", password=canary, role="x", queues=""))
        secret = await home.token("ci", "viewer")
        async with HttpUser(home.url, secret) as program:
            seen.append(await program.call("POST", "/users", {}))
            seen.append(await program.get("/nowhere"))
        audit = json.dumps(home.rows("SELECT * FROM audit"))
    log = "".join(capfd.readouterr())
    for hidden in (canary, canary[:11], wrong, secret, setup, *cookies):
        assert hidden not in log
        assert hidden not in audit
        for answer in seen:
            if hidden == wrong and 'name="name"' in answer.text:
                continue  # the name that was typed stays in its field
            assert hidden not in answer.text
    figure(f"{5 + len(cookies)} canary secrets: 0 in {len(seen)} answers, the log and the audit")


async def test_user_is_removed_once(home: BrokerFixture) -> None:
    await home.add_user("bob", "viewer")
    async with HttpUser(home.url, await home.token("robot", "admin")) as robot:
        done = await asyncio.gather(*(robot.call("DELETE", "/users/bob") for _ in range(3)))
        assert sorted(answer.status for answer in done) == [200, 404, 404]
        changed = {"role": "operator"}
        assert (await robot.call("PATCH", "/users/bob", changed)).status == 404
        assert (await robot.get("/readyz")).status == 200


async def test_browser_with_an_invalid_user_agent_logs_in_and_changes_the_password(
    home: BrokerFixture,
) -> None:
    odd = {"User-Agent": "odd \udcff"}  # a byte that is not UTF-8
    async with HttpUser(home.url) as anna:
        host, port = home.url.removeprefix("http://").split(":")

        async def post(path: str, fields: str) -> bytes:
            body = f"csrf={await anna.csrf()}&{fields}".encode()
            cookies = "; ".join(f"{name}={value}" for name, value in anna.cookies().items())
            head = (
                f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nOrigin: {home.url}\r\n"
                f"Cookie: {cookies}\r\nUser-Agent: {odd['User-Agent']}\r\nConnection: close\r\n"
                "Content-Type: application/x-www-form-urlencoded\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            ).encode(errors="surrogateescape")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(head + body)
            answer = await reader.read()
            writer.close()
            return answer.partition(b"\r\n")[0]

        word = PASSWORD.replace(" ", "+")
        assert b"303" in await post("/login", f"name=anna&password={word}")
        await anna.log_in("anna")
        fields = f"old={word}&password=another+long+one&again=another+long+one"
        assert b"303" in await post("/account/password", fields)
        assert (await anna.get("/readyz")).status == 200
    assert home.rows("SELECT agent FROM session WHERE agent LIKE 'odd%'") == [("odd \\udcff",)]


async def test_metrics_need_a_viewer_or_a_metrics_token(home: BrokerFixture) -> None:
    """Otherwise, any local program could read the names and figures of all queues."""
    secret = await home.token("prometheus", "metrics")
    async with HttpUser(home.url) as stranger, HttpUser(home.url, secret) as scraper:
        assert (await stranger.get("/metrics")).status == 401
        assert "phpmq_" not in (await stranger.get("/metrics")).text
        answer = await scraper.get("/metrics")
        assert (answer.status, answer.text.count("phpmq_") > 5) == (200, True)
        assert (await scraper.get("/api/v1/queues")).status == 403
        assert (await scraper.get("/")).status == 403
    asked = {"name": "x", "password": PASSWORD, "role": "metrics", "queues": []}
    async with HttpUser(home.url, await home.token("boss", "admin")) as boss:
        assert (await boss.call("POST", "/users", asked)).status == 422
        assert (await boss.get("/metrics")).status == 200


async def test_metrics_show_the_queues_of_a_limited_token_only(home: BrokerFixture) -> None:
    for queue in ("orders", "mail"):
        await home.control("POST", f"/queues/{queue}/messages", {"content": "x"})
    secret = await home.token("limited", "metrics", "orders*")
    async with HttpUser(home.url, secret) as scraper:
        text = (await scraper.get("/metrics")).text
    assert ('queue="orders"' in text, 'queue="mail"' in text) == (True, False)


# -- the first password, wide binds, files


def password_file(folder: Path, text: str = PASSWORD + "\n", mode: int = 0o600) -> Path:
    file = folder / "first-password"
    file.write_text(text)
    file.chmod(mode)
    return file


async def test_first_password_is_read_from_a_file_once(tmp_path: Path) -> None:
    data, file = tmp_path / "data", password_file(tmp_path)
    admin = {"initial_password_file": file}
    async with broker_fixture(data, admin=admin) as home, HttpUser(home.url) as me:
        assert not (home.data / "setup-token").exists()
        assert (await me.get("/")).status == 303
        assert (await me.log_in("admin")).status == 303
        assert (await me.get("/users")).status == 200
    file.unlink()
    async with broker_fixture(data, admin=admin) as home, HttpUser(home.url) as me:
        assert (await me.log_in("admin")).status == 303


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [(PASSWORD, 0o640, "mode 0640"), (PASSWORD, 0o604, "chmod 600"), ("short", 0o600, "12 to 1024"),
     (None, 0, "cannot be read")],
)  # fmt: skip
async def test_unsafe_first_password_refuses_the_start(
    tmp_path: Path, text: str | None, mode: int, why: str
) -> None:
    file = tmp_path / "nothing" if text is None else password_file(tmp_path, text, mode)
    with pytest.raises(SettingsError, match=rf"admin\.initial_password_file.*{why}"):
        async with running_service(tmp_path / "data", admin={"initial_password_file": file}):
            pass


async def test_wide_admin_starts_with_a_user_and_a_decision_only(tmp_path: Path) -> None:
    data = tmp_path / "data"
    wide: dict[str, Any] = {"listen": ["0.0.0.0:0"]}
    for admin in (wide, wide | {"plaintext": True}):
        with pytest.raises(SettingsError, match=r"admin\.listen .*requires an admin user"):
            async with running_service(data, admin=admin):
                pass
    assert not data.exists()
    async with broker_fixture(data) as home:
        await home.add_user("anna")
    with pytest.raises(SettingsError, match=r"admin\.plaintext"):
        async with running_service(data, admin=wide):
            pass
    decided = broker_fixture(data, admin=wide | {"plaintext": True})
    async with decided as home, HttpUser(home.url.replace("0.0.0.0", "127.0.0.1")) as me:
        assert (await me.get("/queues")).status == 303
        assert (await me.log_in("anna")).status == 303
        assert (await me.get("/queues")).status == 200


async def test_plain_http_on_an_address_of_the_network_works(tmp_path: Path) -> None:
    address = lan_address()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    file = password_file(tmp_path)
    admin = {"listen": [f"{address}:0"], "plaintext": True, "initial_password_file": file}
    async with broker_fixture(tmp_path / "data", admin=admin) as home, HttpUser(home.url) as me:
        assert (await me.get("/")).status == 303  # over plain HTTP, browsers send no Sec-Fetch-Site
        assert (await me.log_in("admin")).status == 303
        assert "Unencrypted HTTP" in (await me.get("/")).text
        answer = await me.post("/test-message")
        assert answer.status == 303
        assert (await me.request("GET", "/", {"Host": "mq.lan"})).status == 421


def lan_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address


async def test_files_are_private_under_any_umask(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    before = os.umask(0)
    listen = [f"unix:{tmp_path / 'admin.sock'}", "127.0.0.1:0"]
    try:
        async with broker_fixture(tmp_path / "data", admin={"listen": listen}) as home:
            await home.control("POST", "/queues/orders/messages", {"content": "x"})
            files = [*home.data.iterdir(), tmp_path / "admin.sock"]
            wide = [file.name for file in files if file.stat().st_mode & 0o077]
            figure(f"umask 000: {len(wide)} of {len(files)} files are too wide")
            assert "setup-token" in {file.name for file in files}
            assert (wide, home.data.stat().st_mode & 0o777) == ([], 0o700)
    finally:
        os.umask(before)
    assert not (tmp_path / "admin.sock").exists()


@pytest.mark.parametrize(
    ("mode", "is_taken"), [(0o400, True), (0o440, True), (0o640, True), (0o444, False)]
)
def test_first_password_may_be_handed_out_by_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_taken: bool
) -> None:
    file = tmp_path / "admin.initial_password_file"
    file.write_text(f"{PASSWORD}\n", encoding="utf-8")
    file.chmod(mode)
    if file.stat().st_uid != 0:
        pytest.skip("only root can make a file of root's")
    monkeypatch.setattr(os, "geteuid", lambda: 10_001)
    if is_taken:
        assert initial_password(file) == PASSWORD
    else:
        with pytest.raises(SettingsError, match=rf"mode {mode:04o}"):
            initial_password(file)
