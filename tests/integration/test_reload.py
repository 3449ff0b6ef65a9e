"""Settings that a running broker reloads: limits of its core, certificates of its listeners."""

import asyncio
import os
import socket
import ssl
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.errors import SettingsError
from phpmq_lite.settings import EffectiveSettings, all_values
from phpmq_lite.testing import RunningBroker, running_service, settings_for
from tests.support.certificates import EC, RSA, Certificate, CertificateAuthority
from tests.support.socket_client import SocketClient


def reload_settings(running: RunningBroker, **sections: Any) -> None:
    settings = settings_for(running.data, **sections)
    sources = dict.fromkeys(all_values(settings), "file")
    running.service.reload(EffectiveSettings(settings, sources, []))


async def test_reloaded_limit_applies_at_once(tmp_path: Path) -> None:
    async with running_service(tmp_path / "data", limits={"held": 1}) as running:

        def hold_all_there_is() -> None:
            with SocketClient(running.port) as peer:
                for number in range(4):
                    assert peer.confirm("orders", b"%d" % number) is None
                peer.consume("orders", 10)
                assert peer.bodies(1) == [b"0"]
                peer.barrier()
                assert not peer.got
                reload_in_loop(held=3)
                assert peer.bodies(2) == [b"1", b"2"]
                peer.barrier()
                assert not peer.got
                reload_in_loop(held=2)  # below what is held: no dispatch, and nothing comes back
                peer.barrier()
                assert not peer.got

        loop = asyncio.get_running_loop()

        def reload_in_loop(**limits: int) -> None:
            async def read() -> None:
                reload_settings(running, limits=limits)

            asyncio.run_coroutine_threadsafe(read(), loop).result()

        await asyncio.to_thread(hold_all_there_is)


async def test_welcome_names_the_reloaded_limit(tmp_path: Path) -> None:
    async with running_service(tmp_path / "data", limits={"max_hold_s": 60}) as running:

        def longest_hold_s() -> Any:
            with SocketClient(running.port) as peer:
                peer.send(peer.side.hello(b"key", b"{}"))
                return peer.welcome()[1]["max_hold_s"]

        assert await asyncio.to_thread(longest_hold_s) == 60
        reload_settings(running, limits={"max_hold_s": 90})
        assert await asyncio.to_thread(longest_hold_s) == 90


async def test_reload_and_a_lost_listener_charge_nothing(tmp_path: Path) -> None:
    async with running_service(tmp_path / "data") as running:

        def hold() -> SocketClient:
            peer = SocketClient(running.port)
            assert peer.confirm("orders", b"slow") is None
            peer.consume("orders", 1)
            assert len(peer.dispatches(1)) == 1
            return peer

        peer = await asyncio.to_thread(hold)
        reload_settings(running, limits={"held": 1})
        stop_listening(running.port)
        await asyncio.to_thread(peer.barrier)
        engine = running.service.handle.engine
        assert engine is not None
        [held] = engine.core.messages.values()
        assert (held.deliveries, held.charged, held.is_sent) == (1, 0, True)
        peer.close()


def stop_listening(port: int) -> None:
    """Close the listener without the broker noticing."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as found:
            if found.getsockname()[1:2] == (port,) and found.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN
            ):
                found.shutdown(socket.SHUT_RDWR)
                return
    raise AssertionError("nobody listens there")


async def serials(running: RunningBroker, trusted: ssl.SSLContext) -> set[str]:
    """Shake hands with each listener; return the serial numbers of the certificates."""
    admin = int(running.admin_url.rstrip("/").rpartition(":")[2])
    found = set()
    for port in (running.port, running.legacy_port, admin):
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trusted, server_hostname="localhost"
        )
        certificate = writer.get_extra_info("peercert")
        found.add(certificate["serialNumber"])
        writer.close()
    return found


async def test_certificate_with_another_type_of_key_replaces_the_old(tmp_path: Path) -> None:
    """OpenSSL keeps one of each type, and would still present the old one to most clients."""
    authority = CertificateAuthority(tmp_path)
    pairs = authority.make("old", kind=EC), authority.make("new", kind=RSA)
    trusted = ssl.create_default_context()
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    key.touch(0o600)
    tls: dict[str, Any] = {"tls_cert": cert, "tls_key": key}
    found: list[set[str]] = []
    async with AsyncExitStack() as stack:
        for pair in pairs:
            trusted.load_verify_locations(pair[0])
            cert.write_bytes(pair[0].read_bytes())
            key.write_bytes(pair[1].read_bytes())
            if not found:
                service = running_service(tmp_path / "data", tcp=tls, admin=tls)
                running = await stack.enter_async_context(service)
            reload_settings(running, tcp=tls, admin=tls)
            found.append(await serials(running, trusted))
    assert [len(one) for one in found] == [1, 1]
    assert not found[0] & found[1]


async def test_authority_of_clients_is_reloaded(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    pair, one, other = (authority.make(name) for name in ("server", "one", "other"))
    ca = tmp_path / "clients.pem"
    ca.write_bytes(one[0].read_bytes())
    trusted = ssl.create_default_context(cafile=pair[0])
    trusted.load_cert_chain(*other)
    tls: dict[str, Any] = {"tls_cert": pair[0], "tls_key": pair[1], "tls_client_ca": ca}
    async with running_service(tmp_path / "data", tcp=tls) as running:

        def publish() -> None:
            with SocketClient(running.port, context=trusted) as peer:
                assert peer.confirm("orders", b"x") is None

        with pytest.raises((OSError, AssertionError)):
            await asyncio.to_thread(publish)
        ca.write_bytes(other[0].read_bytes())
        reload_settings(running, tcp=tls)
        await asyncio.to_thread(publish)


async def test_certificates_are_reloaded_and_invalid_ones_change_nothing(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    old, new, other = (authority.make(name) for name in ("old", "new", "other"))
    trusted = ssl.create_default_context()
    for cert, _ in (old, new):
        trusted.load_verify_locations(cert)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    key.touch(0o600)

    def put(pair: Certificate) -> None:
        cert.write_bytes(pair[0].read_bytes())
        key.write_bytes(pair[1].read_bytes())

    put(old)
    tls: dict[str, Any] = {"tls_cert": cert, "tls_key": key}
    async with running_service(tmp_path / "data", tcp=tls, admin=tls) as running:
        before = await serials(running, trusted)
        assert len(before) == 1
        put((new[0], other[1]))
        with pytest.raises(SettingsError, match=r"admin\.tls_cert .* cannot be used"):
            reload_settings(running, tcp=tls, admin=tls, history={"days": 1})
        assert await serials(running, trusted) == before
        assert running.service.state.settings.history.days == 7
        put(new)
        reload_settings(running, tcp=tls, admin=tls)
        after = await serials(running, trusted)
        assert len(after) == 1
        assert after != before
