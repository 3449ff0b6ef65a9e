"""What a running broker reads anew: limits of its core, certificates of its listeners."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.errors import SettingsError
from phpmq_lite.settings import Effective, all_values
from phpmq_lite.testing import Running, running_service, settings_for
from tests.acceptance.peers import Peer
from tests.integration.authority import Authority, Certificate


def read_anew(running: Running, **sections: Any) -> None:
    settings = settings_for(running.data, **sections)
    running.service.reload(Effective(settings, dict.fromkeys(all_values(settings), "file"), []))


async def test_limit_that_is_read_anew_counts_at_once(tmp_path: Path) -> None:
    async with running_service(tmp_path / "data", limits={"held": 1}) as running:

        def hold_all_there_is() -> None:
            with Peer(running.port) as peer:
                for number in range(4):
                    assert peer.confirm("orders", b"%d" % number) is None
                peer.consume("orders", 10)
                assert peer.bodies(1) == [b"0"]
                peer.barrier()
                assert not peer.got
                read_anew_in_loop(held=3)
                assert peer.bodies(2) == [b"1", b"2"]
                peer.barrier()
                assert not peer.got
                read_anew_in_loop(
                    held=2
                )  # below what is held: nothing more goes, nothing comes back
                peer.barrier()
                assert not peer.got

        loop = asyncio.get_running_loop()

        def read_anew_in_loop(**limits: int) -> None:
            async def read() -> None:
                read_anew(running, limits=limits)

            asyncio.run_coroutine_threadsafe(read(), loop).result()

        await asyncio.to_thread(hold_all_there_is)


async def serials(running: Running, trusted: ssl.SSLContext) -> set[str]:
    """Shake hands with each listener; give the serial numbers of the certificates."""
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


async def test_certificates_are_read_anew_and_bad_ones_change_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
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
            read_anew(running, tcp=tls, admin=tls, history={"days": 1})
        assert await serials(running, trusted) == before
        assert running.service.settings.history.days == 7
        put(new)
        read_anew(running, tcp=tls, admin=tls)
        after = await serials(running, trusted)
        assert len(after) == 1
        assert after != before
