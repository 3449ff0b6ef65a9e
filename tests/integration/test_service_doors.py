"""Who may connect to a broker in a process of its own, and over what."""

import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from phpmq_lite.protocol.connection import ClientSide
from tests.support.fork_server import broker_process, start_error
from tests.support.socket_client import (
    WAIT_S,
    AdminApi,
    SocketClient,
    assert_closed_without_reply,
    exchange,
)

pytestmark = pytest.mark.acceptance

NO_ADMIN = ("--admin", "none")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 loopback here")
def test_client_connects_over_ipv6(data: Path) -> None:
    with broker_process(data, *NO_ADMIN, "--listen", "[::1]:0", listeners=2) as broker:
        assert broker.phpmq[1].startswith("[::1]:")
        with SocketClient(broker.phpmq[1]) as peer:
            exchange(peer)


def test_client_connects_over_a_unix_socket(data: Path, tmp_path: Path) -> None:
    """Only its owner may; a killed broker's socket does not stop the next start."""
    path = tmp_path / "phpmq.sock"
    with broker_process(data, *NO_ADMIN, "--listen", f"unix:{path}", listeners=2) as broker:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with SocketClient(path) as peer:
            exchange(peer)
        broker.kill()
        assert path.exists()
        broker.start()
        with SocketClient(path) as peer:
            exchange(peer)
        assert broker.terminate() == 0
        assert not path.exists()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl command to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = [
        openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
        "-keyout", str(key), "-out", str(certificate),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    key.chmod(0o600)
    return certificate, key


def tls_flags(pair: tuple[Path, Path]) -> list[str]:
    certificate, key = pair
    return ["--set", f"tcp.tls_cert={certificate}", "--set", f"tcp.tls_key={key}"]


def test_client_connects_over_tls(data: Path, pair: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=str(pair[0]))
    with (
        broker_process(data, *NO_ADMIN, *tls_flags(pair)) as broker,
        SocketClient(broker.port, context) as peer,
    ):
        exchange(peer)
        large = os.urandom(3_000_000)
        assert peer.confirm("large", large) is None
        peer.consume("large", 1)
        assert peer.bodies(1) == [large]


def test_plain_client_of_a_tls_listener_stores_nothing(data: Path, pair: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=str(pair[0]))
    with broker_process(data, "--admin", "127.0.0.1:0", *tls_flags(pair)) as broker:
        with SocketClient(broker.port) as plain:
            plain.publish("orders", b"{}")
            assert b"orders" not in plain.rest()
        with SocketClient(broker.port, context) as peer:
            peer.barrier()
        assert AdminApi(broker.admin[0]).queue("orders") == {}


def test_failed_handshakes_leave_their_places(data: Path, pair: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=str(pair[0]))
    flags = [*tls_flags(pair), "--set", "limits.connections=2"]
    with broker_process(data, *NO_ADMIN, *flags) as broker:
        for how in ("garbage", "nothing") * 5:
            with SocketClient(broker.port) as stranger:
                if how == "garbage":
                    stranger.publish("orders", b"{}")
                    stranger.rest()
                else:
                    stranger.half_close()
                    stranger.rest()
        with SocketClient(broker.port, context) as peer:
            exchange(peer)


def test_client_without_certificate_is_refused(data: Path, pair: tuple[Path, Path]) -> None:
    """mTLS: ``tcp.tls_client_ca``."""
    flags = [*tls_flags(pair), "--set", f"tcp.tls_client_ca={pair[0]}"]
    context = ssl.create_default_context(cafile=str(pair[0]))
    with broker_process(data, *NO_ADMIN, *flags) as broker:
        with SocketClient(broker.port, context) as stranger:
            stranger.publish("orders", b"{}")
            with suppress(ssl.SSLError):  # an alert tells why, where it comes first
                assert_closed_without_reply(stranger)
        context.load_cert_chain(*pair)
        with SocketClient(broker.port, context) as peer:
            exchange(peer)


def test_key_that_others_can_read_is_refused(data: Path, pair: tuple[Path, Path]) -> None:
    certificate, key = pair
    open_key = data.with_name("open.pem")
    shutil.copyfile(key, open_key)
    open_key.chmod(0o644)
    words = start_error(data, *tls_flags((certificate, open_key)))
    assert "(exit code 78)" in words
    assert f"tcp.tls_key: other users can read {open_key}" in words


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address")
def test_address_that_is_not_allowed_is_refused(data: Path) -> None:
    flags = ("--set", "tcp.allow=10.0.0.0/8, 127.0.0.2")
    with broker_process(data, *NO_ADMIN, "--listen", "127.0.0.2:0", *flags, listeners=2) as broker:
        with SocketClient(broker.port) as peer:
            assert_closed_without_reply(peer)
        with socket.socket() as own:
            own.bind(("127.0.0.2", 0))
            own.connect(("127.0.0.1", broker.port))
            own.settimeout(WAIT_S)
            own.sendall(ClientSide().publish("orders", b"{}", key=b"k"))
            assert own.recv(1 << 16).startswith(b"H0100702")


def test_connections_are_limited(data: Path) -> None:
    """The next one is turned away; a place that is left is taken again."""
    with broker_process(data, *NO_ADMIN, "--set", "limits.connections=3") as broker:
        peers = [SocketClient(broker.port) for _ in range(3)]
        for peer in peers:
            peer.barrier()
        with SocketClient(broker.port) as late:
            assert_closed_without_reply(late)
        for peer in peers:
            peer.barrier()
        with SocketClient(broker.port) as late:
            assert_closed_without_reply(late)
        peers[0].half_close()
        assert_closed_without_reply(peers[0])
        with SocketClient(broker.port) as late:
            late.barrier()
        for peer in peers:
            peer.close()
