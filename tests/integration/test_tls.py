"""Certificates and keys that a listener accepts or refuses (docs/operate/security.md 8)."""

import asyncio
import os
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from phpmq_lite.errors import BrokerError, SettingsError
from phpmq_lite.server.tls import ALERT, server_context
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.source_options import SourceConnection
from phpmq_lite.testing import running_service
from tests.support.certificates import Certificate, CertificateAuthority, openssl
from tests.support.http_users import PASSWORD, BrokerFixture, HttpUser, broker_fixture


def copy_of(key: Path, folder: Path, mode: int) -> Path:
    copy = folder / "copy.key"
    copy.write_bytes(key.read_bytes())
    copy.chmod(mode)
    return copy


def test_good_certificate_is_taken(server: Certificate) -> None:
    context = server_context(*server)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_NONE


def test_chain_of_an_authority_is_taken(tmp_path: Path, authority: CertificateAuthority) -> None:
    root, _ = authority.make("root", "-addext", "basicConstraints=critical,CA:TRUE")
    cert, key = authority.make("leaf", "-addext", "basicConstraints=CA:FALSE", issuer="root")
    chain = tmp_path / "chain.pem"
    chain.write_bytes(cert.read_bytes() + root.read_bytes())
    assert server_context(chain, key, root).verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("name", "begin", "end", "wrong"),
    [
        ("past", "20200101000000Z", "20210101000000Z", "has expired"),
        ("future", "20980101000000Z", "20990101000000Z", "is not valid yet"),
    ],
)
def test_certificate_out_of_its_time_is_refused(
    authority: CertificateAuthority, name: str, begin: str, end: str, wrong: str
) -> None:
    cert, key = authority.make_dated(name, begin, end)
    with pytest.raises(SettingsError, match=rf"^tcp\.tls_cert {cert} {wrong}$"):
        server_context(cert, key)


def test_key_of_another_certificate_is_refused(
    server: Certificate, authority: CertificateAuthority
) -> None:
    with pytest.raises(SettingsError, match=r"tcp\.tls_cert .* and tcp\.tls_key .* cannot be used"):
        server_context(server[0], authority.make("foreign")[1])


def test_encrypted_key_is_refused_without_a_question(tmp_path: Path, server: Certificate) -> None:
    locked = tmp_path / "locked.key"
    openssl("ec", "-in", server[1], "-aes256", "-passout", "pass:secret", "-out", locked)
    locked.chmod(0o600)
    with pytest.raises(SettingsError, match="the key is encrypted"):
        server_context(server[0], locked)


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o660, 0o602], ids=oct)
def test_key_that_others_can_read_is_refused(
    tmp_path: Path, server: Certificate, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    key = copy_of(server[1], tmp_path, mode)
    with pytest.raises(SettingsError, match=rf"^tcp\.tls_key: .*\(mode {mode:04o}\)"):
        server_context(server[0], key)


@pytest.mark.parametrize(
    ("mode", "is_taken"), [(0o640, True), (0o440, True), (0o644, False), (0o660, False)]
)
def test_group_may_read_a_key_that_root_hands_out(
    tmp_path: Path, server: Certificate, monkeypatch: pytest.MonkeyPatch, mode: int, is_taken: bool
) -> None:
    key = copy_of(server[1], tmp_path, mode)
    if key.stat().st_uid != 0:
        pytest.skip("only root can make a key of root's")
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    if is_taken:
        server_context(server[0], key)
    else:
        with pytest.raises(SettingsError, match=r"tcp\.tls_key"):
            server_context(server[0], key)


@pytest.mark.parametrize("name", ["tls_cert", "tls_key", "tls_client_ca"])
@pytest.mark.parametrize("content", [None, b"", b"nonsense"], ids=["missing", "empty", "nonsense"])
def test_file_that_cannot_be_used_is_refused_with_its_setting(
    tmp_path: Path, server: Certificate, name: str, content: bytes | None
) -> None:
    bad = tmp_path / "bad.pem"
    if content is not None:
        bad.write_bytes(content)
        bad.chmod(0o600)
    files = {"tls_cert": server[0], "tls_key": server[1], "tls_client_ca": server[0], name: bad}
    with pytest.raises(SettingsError, match=rf"admin\.{name} {bad}"):
        server_context(*files.values(), section="admin")


# -- the admin over TLS


def admin_tls(authority: CertificateAuthority) -> dict[str, Any]:
    cert, key = authority.make("server")
    return {"tls_cert": cert, "tls_key": key, "hsts": True}


async def test_login_over_tls_has_a_host_cookie_and_hsts(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    admin = admin_tls(authority)
    trusting = ssl.create_default_context(cafile=str(admin["tls_cert"]))
    trusting.check_hostname = False
    async with broker_fixture(tmp_path / "data", admin=admin) as home:
        assert home.url.startswith("https://127.0.0.1:")
        connector = aiohttp.TCPConnector(ssl=trusting)
        async with HttpUser(home.url, connector=connector) as me:
            page = await me.get("/setup")
            assert "This page uses plain HTTP" not in page.text
            port = home.url.rpartition(":")[2]
            assert page.headers["Strict-Transport-Security"] == "max-age=31536000"
            assert page.headers["Set-Cookie"].startswith(f"__Host-phpmq-{port}=")
            assert "Secure" in page.headers["Set-Cookie"]
            await home.add_user("anna")
            assert (await me.log_in("anna", PASSWORD)).status == 303
            assert (await me.get("/account")).status == 200
            assert (await me.post("/logout")).status == 303
            assert (await me.get("/account")).status == 303


async def test_handshakes_that_never_end_keep_nobody_out(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    limits = {"http_connections": 3, "http_connections_per_address": 3}
    async with broker_fixture(tmp_path / "data", admin=admin_tls(authority), limits=limits) as home:
        port = int(home.url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(9)]
        trusting = ssl.create_default_context(cafile=str(authority.make("server")[0]))
        trusting.check_hostname = False
        connector = aiohttp.TCPConnector(ssl=trusting)
        async with HttpUser(home.url, connector=connector) as me:
            assert (await me.get("/livez")).status == 200
        for _, one in silent:
            one.close()
        assert 'phpmq_limit_reached_total{limit="http_connections"} 0.0' in await metrics(home)


async def metrics(home: BrokerFixture) -> str:
    """Read them over the control socket, which needs no place."""
    connector = aiohttp.UnixConnector(str(home.data / "control.sock"))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get("http://broker/metrics") as response,
    ):
        return await response.text()


async def test_plain_request_is_told_to_use_https(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    async with broker_fixture(tmp_path / "data", admin=admin_tls(authority)) as home:
        answer = await send_plain(int(home.url.rpartition(":")[2]), b"GET / HTTP/1.1\r\n\r\n")
    head, _, text = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n")
    assert text == b"This address uses TLS: use https:// instead of http://.\n"


@pytest.mark.parametrize("size", [0, 1 << 20], ids=["a frame", "a large message"])
async def test_plain_client_gets_an_alert(
    tmp_path: Path, authority: CertificateAuthority, size: int
) -> None:
    cert, key = authority.make("server")
    async with running_service(tmp_path / "data", tcp={"tls_cert": cert, "tls_key": key}) as home:
        for port in (home.port, home.legacy_port):
            assert await send_plain(port, b"H0100102P01" + bytes(size)) == ALERT


async def send_plain(port: int, sent: bytes) -> bytes:
    """Send bytes without TLS; return everything that the listener answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    return answer


async def test_unsafe_certificate_or_key_refuses_the_start(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    cert, key = authority.make("server")
    readable = tmp_path / "key.pem"
    readable.write_bytes(key.read_bytes())
    readable.chmod(0o644)
    _, other = authority.make("other")
    old, old_key = authority.make_dated("expired", "20200101000000Z", "20210101000000Z")
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


async def test_spark_does_not_retry_a_certificate_that_is_not_trusted(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    async with broker_fixture(tmp_path / "data", admin=admin_tls(authority)) as home:
        waits: list[float] = []
        client = PipelineClient(SourceConnection(url=home.url), waits.append)
        with pytest.raises(BrokerError, match="certificate verify failed"):
            await asyncio.to_thread(client.queues)
    assert waits == []
