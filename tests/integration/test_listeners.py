"""Listeners on real sockets: TCP, IPv6, Unix sockets and TLS, on both event loops."""

import asyncio
import os
import resource
import socket
import ssl
import stat
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Any, cast

import pytest

from phpmq_lite.errors import SettingsError, StartRefusedError
from phpmq_lite.server.admission import NOT_ALLOWED, Admission
from phpmq_lite.server.listeners import Listeners
from phpmq_lite.server.session import EndDetector
from phpmq_lite.settings import Settings
from phpmq_lite.settings.model import TcpSettings
from phpmq_lite.sockets import KEEPALIVE
from tests.support.certificates import Certificate, CertificateAuthority
from tests.support.event_loops import on_both_loops

pytestmark = pytest.mark.timeout(30)


class Echo(asyncio.Protocol):
    """Send data back; remember how the listener created the session."""

    made: "list[Echo]"

    def __init__(self, kind: str, dispatch: str, gate: Admission | None) -> None:
        self.kind = kind
        self.dispatch = dispatch
        self.gate = gate
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.host = name[0] if isinstance(name, tuple) else None
        refusal = self.gate.admit(self.host) if self.gate is not None else None
        assert refusal is None

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.gate is not None:
            self.gate.leave(self.host)
        self.ended.set_result(exc)


class Opened:
    def __init__(self, tcp: TcpSettings, gate: Admission | None) -> None:
        self.made: list[Echo] = []
        self.gate = gate
        self.listeners = Listeners(tcp, self.make, gate)

    def make(self, kind: str, dispatch: str) -> Echo:
        echo = Echo(kind, dispatch, self.gate)
        self.made.append(echo)
        return echo

    def port(self, number: int = 0) -> int:
        return int(self.listeners.addresses[number].rpartition(":")[2])


@asynccontextmanager
async def listening(
    *listen: str, legacy: tuple[str, ...] = (), gate: Admission | None = None, **tcp: Any
) -> AsyncIterator[Opened]:
    settings = TcpSettings(listen=list(listen), legacy_listen=list(legacy), **tcp)
    opened = Opened(settings, gate)
    await opened.listeners.open()
    try:
        yield opened
    finally:
        await opened.listeners.close()
        for echo in opened.made:
            if hasattr(echo, "transport"):
                echo.transport.abort()
                await echo.ended


async def echoed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    try:
        writer.write(b"hello")
        return await reader.readexactly(5)
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


# -- TCP


@on_both_loops
async def test_client_reaches_its_protocol() -> None:
    async with listening("127.0.0.1:0", legacy=("127.0.0.1:0",)) as opened:
        first, second = opened.listeners.addresses
        assert first.startswith("127.0.0.1:")
        assert opened.port(0) != opened.port(1)
        assert first != second
        for number, dispatch in enumerate(("ttl", "legacy")):
            client = await asyncio.open_connection("127.0.0.1", opened.port(number))
            assert await echoed(*client) == b"hello"
            assert (opened.made[-1].kind, opened.made[-1].dispatch) == ("tcp", dispatch)
            assert opened.made[-1].host == "127.0.0.1"


@on_both_loops
async def test_connection_is_kept_alive_and_not_delayed() -> None:
    async with listening("127.0.0.1:0") as opened:
        assert await echoed(*await asyncio.open_connection("127.0.0.1", opened.port())) == b"hello"
        client = await asyncio.open_connection("127.0.0.1", opened.port())
        client[1].write(b"x")
        await client[0].readexactly(1)
        sock = opened.made[-1].transport.get_extra_info("socket")
        for level, option, value in KEEPALIVE:
            assert sock.getsockopt(level, option) == value
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert await echoed(*client) == b"hello"


@on_both_loops
@pytest.mark.parametrize("how", ["close", "reset", "half_close"])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
async def test_end_of_a_connection_is_detected_before_it_is_read(family: int, how: str) -> None:
    """Data sent before the end is still unread."""
    with socketpair(family) as (ours, theirs):
        detector = EndDetector(ours.fileno())
        theirs.sendall(b"unread")
        assert not detector.has_ended()
        if how == "reset":
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "half_close":
            theirs.shutdown(socket.SHUT_WR)
        else:
            theirs.close()
        assert detector.has_ended()


@contextmanager
def socketpair(family: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    if family == socket.AF_UNIX:
        ours, theirs = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as server:
            theirs = socket.create_connection(server.getsockname())
            ours, _ = server.accept()
    with ours, theirs:
        yield ours, theirs


async def test_client_connects_over_ipv6() -> None:
    async with listening("[::1]:0") as opened:
        assert opened.listeners.addresses == [f"[::1]:{opened.port()}"]
        assert await echoed(*await asyncio.open_connection("::1", opened.port())) == b"hello"
        assert opened.made[-1].host == "::1"


@on_both_loops
async def test_wildcards_of_both_ip_versions_share_a_port() -> None:
    async with listening("0.0.0.0:0") as opened:
        port = opened.port()
        async with listening(f"[::]:{port}") as other:
            assert other.listeners.addresses == [f"[::]:{port}"]
            assert await echoed(*await asyncio.open_connection("127.0.0.1", port)) == b"hello"
            assert await echoed(*await asyncio.open_connection("::1", port)) == b"hello"
            assert (len(opened.made), len(other.made)) == (1, 1)


@on_both_loops
async def test_host_name_opens_all_its_addresses() -> None:
    async with listening("localhost:0") as opened:
        for address in opened.listeners.addresses:
            host, _, port = address.rpartition(":")
            client = await asyncio.open_connection(host.strip("[]"), int(port))
            assert await echoed(*client) == b"hello"


@on_both_loops
async def test_none_opens_no_listener() -> None:
    async with listening("none", legacy=("none",)) as opened:
        assert opened.listeners.addresses == []


@on_both_loops
async def test_port_in_use_is_refused_and_no_listener_stays_open(tmp_path: Path) -> None:
    async with listening("127.0.0.1:0") as opened:
        address = opened.listeners.addresses[0]
        unix = tmp_path / "a.sock"
        other = Listeners(
            TcpSettings(listen=[f"unix:{unix}", address], legacy_listen=[]), opened.make
        )
        with pytest.raises(StartRefusedError, match=rf"^cannot listen on {address}: "):
            await other.open()
        assert other.addresses == []
        assert not unix.exists()


@pytest.mark.parametrize("address", ["192.0.2.1:0", "nowhere.invalid:0"])
@on_both_loops
async def test_foreign_address_is_refused(address: str) -> None:
    listeners = Listeners(
        TcpSettings(listen=[address], legacy_listen=[]), lambda *_: asyncio.Protocol()
    )
    with pytest.raises(StartRefusedError, match=f"^cannot listen on {address}: "):
        await listeners.open()


@on_both_loops
async def test_port_is_free_again_after_close() -> None:
    async with listening("127.0.0.1:0") as opened:
        port = opened.port()
        client = await asyncio.open_connection("127.0.0.1", port)
        assert await echoed(*client) == b"hello"  # leaves a port in TIME_WAIT
    async with listening(f"127.0.0.1:{port}"):
        pass


@on_both_loops
async def test_connections_outlive_the_listeners() -> None:
    async with listening("127.0.0.1:0") as opened:
        port = opened.port()
        client = await asyncio.open_connection("127.0.0.1", port)
        client[1].write(b"x")
        await client[0].readexactly(1)
        await opened.listeners.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        assert await echoed(*client) == b"hello"


@on_both_loops
async def test_listener_continues_when_a_session_cannot_be_created() -> None:
    async with listening("127.0.0.1:0") as opened:
        working, opened.listeners._factory = opened.listeners._factory, cast(Any, None)
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.port())
        assert await reader.read() == b""
        writer.close()
        opened.listeners._factory = working
        assert await echoed(*await asyncio.open_connection("127.0.0.1", opened.port())) == b"hello"


@on_both_loops
async def test_listener_continues_after_running_out_of_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = asyncio.Event()

    def is_quiet(_: str) -> bool:
        failed.set()
        return True

    monkeypatch.setattr("phpmq_lite.server.listeners.is_quiet", is_quiet)
    monkeypatch.setattr("phpmq_lite.server.listeners._RETRY_S", 0.01)
    async with listening("127.0.0.1:0") as opened:
        client = socket.socket()
        client.setblocking(False)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        next_free = os.dup(client.fileno())
        os.close(next_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, before[1]))
        try:
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", opened.port()))
            await failed.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert await echoed(*await asyncio.open_connection(sock=client)) == b"hello"


# -- Unix sockets


@on_both_loops
async def test_client_connects_over_a_unix_socket_of_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "a b.sock"
    before = os.umask(0)
    try:
        async with listening(f"unix:{path}") as opened:
            assert opened.listeners.addresses == [f"unix:{path}"]
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert await echoed(*await asyncio.open_unix_connection(str(path))) == b"hello"
            assert (opened.made[0].kind, opened.made[0].host) == ("unix", None)
        assert not path.exists()
    finally:
        os.umask(before)


@on_both_loops
async def test_socket_left_by_a_killed_broker_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
        left.listen()
    async with listening(f"unix:{path}"):
        assert await echoed(*await asyncio.open_unix_connection(str(path))) == b"hello"


@on_both_loops
async def test_socket_with_a_listener_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    async with listening(f"unix:{path}") as opened:
        other = Listeners(TcpSettings(listen=[f"unix:{path}"], legacy_listen=[]), opened.make)
        with pytest.raises(StartRefusedError, match="Address already in use"):
            await other.open()
        assert await echoed(*await asyncio.open_unix_connection(str(path))) == b"hello"


@on_both_loops
async def test_file_at_the_path_of_a_socket_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(StartRefusedError, match="is not a socket"):
        async with listening(f"unix:{path}"):
            pass
    assert path.read_text() == "data"


@on_both_loops
async def test_file_that_replaced_the_socket_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    async with listening(f"unix:{path}"):
        path.unlink()
        path.write_text("another's")
    assert path.exists()


# -- TLS


def client_context(ca: Path, own: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    if own is not None:
        context.load_cert_chain(*own)
    return context


def tls_settings(server: Certificate, client_ca: Path | None = None) -> dict[str, Any]:
    return {"tls_cert": server[0], "tls_key": server[1], "tls_client_ca": client_ca}


async def connect_tls(
    opened: Opened, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(
        "127.0.0.1", opened.port(), ssl=context, server_hostname="localhost"
    )


@on_both_loops
async def test_client_connects_over_tls(server: Certificate) -> None:
    async with listening("127.0.0.1:0", **tls_settings(server)) as opened:
        assert await echoed(*await connect_tls(opened, client_context(server[0]))) == b"hello"
        assert (opened.made[0].kind, opened.made[0].host) == ("tls", "127.0.0.1")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
@on_both_loops
async def test_tls_below_1_2_is_refused(server: Certificate) -> None:
    async with listening("127.0.0.1:0", **tls_settings(server)) as opened:
        old = client_context(server[0])
        old.minimum_version = ssl.TLSVersion.TLSv1_1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await connect_tls(opened, old)
        good = client_context(server[0])
        good.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await echoed(*await connect_tls(opened, good)) == b"hello"


@on_both_loops
async def test_plain_text_to_tls_is_closed_without_a_session(server: Certificate) -> None:
    gate = Admission(10, 10, 10)
    async with listening("127.0.0.1:0", gate=gate, **tls_settings(server)) as opened:
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.port())
        writer.write(b"00100000000000000000000000000000" * 4)
        await asyncio.gather(reader.read(), return_exceptions=True)
        writer.close()
        assert await echoed(*await connect_tls(opened, client_context(server[0]))) == b"hello"
        assert not hasattr(opened.made[0], "transport")


@on_both_loops
async def test_client_needs_a_certificate_of_the_authority(
    server: Certificate, authority: CertificateAuthority
) -> None:
    ca, _ = authority.make("clients", "-addext", "basicConstraints=critical,CA:TRUE")
    own = authority.make("worker", "-addext", "basicConstraints=CA:FALSE", issuer="clients")
    foreign = authority.make("foreign")
    async with listening("127.0.0.1:0", **tls_settings(server, ca)) as opened:
        assert await echoed(*await connect_tls(opened, client_context(server[0], own))) == b"hello"
        for wrong in (None, foreign):
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await echoed(*await connect_tls(opened, client_context(server[0], wrong)))
        assert [hasattr(echo, "transport") for echo in opened.made] == [True, False, False]


@on_both_loops
async def test_unfinished_handshake_gives_up_its_place(server: Certificate) -> None:
    """Clients that never finish their handshakes keep nobody out."""
    gate = Admission(10, 10, 2)
    async with listening("127.0.0.1:0", gate=gate, **tls_settings(server)) as opened:
        silent = [await asyncio.open_connection("127.0.0.1", opened.port()) for _ in range(4)]
        assert await echoed(*await connect_tls(opened, client_context(server[0]))) == b"hello"
        await opened.made[-1].ended
        for reader, _ in silent[:3]:
            with suppress(ConnectionError):
                assert await reader.read() == b""
        assert gate.connections == 1
        for _, writer in silent:
            writer.close()
        await asyncio.gather(*list(opened.listeners._handshakes))
        assert gate.connections == 0
        assert (gate.refused, gate.given_up) == ({}, 3)


@on_both_loops
async def test_foreign_network_is_refused_before_tls(server: Certificate) -> None:
    gate = Admission(10, 10, 10, [ip_network("10.0.0.0/8")])
    async with listening("127.0.0.1:0", gate=gate, **tls_settings(server)) as opened:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await connect_tls(opened, client_context(server[0]))
        assert gate.refused == {NOT_ALLOWED: 1}
        assert opened.made == []


@on_both_loops
async def test_handshake_times_out(server: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phpmq_lite.server.listeners.HANDSHAKE_S", 0.05)
    gate = Admission(10, 10, 10)
    async with listening("127.0.0.1:0", gate=gate, **tls_settings(server)) as opened:
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.port())
        await asyncio.gather(reader.read(), return_exceptions=True)  # until it is closed
        writer.close()
        await asyncio.gather(*list(opened.listeners._handshakes))
        assert gate.connections == 0


@on_both_loops
async def test_close_aborts_unfinished_handshakes(server: Certificate) -> None:
    gate = Admission(10, 10, 1)
    async with listening("127.0.0.1:0", gate=gate, **tls_settings(server)) as opened:
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.port())
        connection_refused = await asyncio.open_connection("127.0.0.1", opened.port())
        assert await connection_refused[0].read() == b""  # so the first one is being served
        connection_refused[1].close()
        await opened.listeners.close()
        await asyncio.gather(reader.read(), return_exceptions=True)
        writer.close()
        assert gate.connections == 0


@on_both_loops
async def test_listeners_stay_closed_when_tls_cannot_be_used(tmp_path: Path) -> None:
    tcp = Settings(tcp=TcpSettings(tls_cert=tmp_path / "c", tls_key=tmp_path / "k")).tcp
    listeners = Listeners(tcp, lambda *_: asyncio.Protocol())
    with pytest.raises(SettingsError, match=r"tcp\.tls_cert"):
        await listeners.open()
    assert listeners.addresses == []
