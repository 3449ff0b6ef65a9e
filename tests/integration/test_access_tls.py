"""The admin over TLS: cookies, HSTS, refused starts (docs/operate/security.md 1, 3, 6)."""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from phpmq_lite.errors import SettingsError
from phpmq_lite.testing import running_service
from tests.support.certificates import CertificateAuthority
from tests.support.http_users import PASSWORD, BrokerFixture, HttpUser, broker_fixture


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


def tls(authority: CertificateAuthority) -> dict[str, Any]:
    cert, key = authority.make("server")
    return {"tls_cert": cert, "tls_key": key, "hsts": True}


async def test_login_over_tls_has_a_host_cookie_and_hsts(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    admin = tls(authority)
    trusting = ssl.create_default_context(cafile=str(admin["tls_cert"]))
    trusting.check_hostname = False
    async with broker_fixture(tmp_path / "data", admin=admin) as home:
        assert home.url.startswith("https://127.0.0.1:")
        await home.add_user("anna")
        connector = aiohttp.TCPConnector(ssl=trusting)
        async with HttpUser(home.url, connector=connector) as me:
            page = await me.get("/login")
            port = home.url.rpartition(":")[2]
            assert page.headers["Strict-Transport-Security"] == "max-age=31536000"
            assert page.headers["Set-Cookie"].startswith(f"__Host-phpmq-{port}=")
            assert "Secure" in page.headers["Set-Cookie"]
            assert (await me.log_in("anna", PASSWORD)).status == 303
            assert (await me.get("/account")).status == 200
            assert (await me.post("/logout")).status == 303
            assert (await me.get("/account")).status == 303


async def test_handshakes_that_never_end_have_their_places_counted(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    limits = {"http_connections": 3, "http_connections_per_address": 3}
    async with broker_fixture(tmp_path / "data", admin=tls(authority), limits=limits) as home:
        port = int(home.url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        assert 'phpmq_limit_reached_total{limit="http_connections"} 1.0' in await metrics(home)
        for _, one in silent:  # and they are free again
            one.close()
        trusting = ssl.create_default_context(cafile=str(authority.make("server")[0]))
        trusting.check_hostname = False
        async with asyncio.timeout(10):
            while True:
                with suppress(aiohttp.ClientError):
                    async with HttpUser(
                        home.url, connector=aiohttp.TCPConnector(ssl=trusting)
                    ) as me:
                        assert (await me.get("/livez")).status == 200
                        break
                await asyncio.sleep(0.05)


async def metrics(home: BrokerFixture) -> str:
    """Read them over the control socket, which needs no place."""
    connector = aiohttp.UnixConnector(str(home.data / "control.sock"))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get("http://broker/metrics") as response,
    ):
        return await response.text()


async def test_plain_request_to_tls_is_closed(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    async with broker_fixture(tmp_path / "data", admin=tls(authority)) as home:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(home.url.rpartition(":")[2])
        )
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            answer = await asyncio.wait_for(reader.read(), 10)
        except ConnectionError:
            answer = b""
        writer.close()
        assert b"HTTP" not in answer


async def test_unsafe_certificate_or_key_refuses_the_start(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    cert, key = authority.make("server")
    readable = tmp_path / "key.pem"
    readable.write_bytes(key.read_bytes())
    readable.chmod(0o644)
    _, other = authority.make("other")
    old, old_key = authority.make_dated("past", "20200101000000Z", "20210101000000Z")
    tries = {
        r"admin\.tls_key: .*chmod 600": {"tls_cert": cert, "tls_key": readable},
        r"admin\.tls_cert .*cannot be used": {"tls_cert": cert, "tls_key": other},
        r"admin\.tls_cert .*cannot be read": {"tls_cert": tmp_path / "no", "tls_key": key},
        r"admin\.tls_cert .*has expired": {"tls_cert": old, "tls_key": old_key},
    }
    for why, admin in tries.items():
        with pytest.raises(SettingsError, match=why):
            async with running_service(tmp_path / "data", admin=admin):
                pass
    assert not (tmp_path / "data").exists()
    print(f"{len(tries)} unsafe settings, 0 started")  # noqa: T201
