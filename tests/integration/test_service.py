"""Start and stop of the broker: real processes and sockets."""

import asyncio
import gc
import os
import shutil
import signal
import socket
import sqlite3
import ssl
import stat
import sys
import threading
import urllib.request
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast
from urllib.error import HTTPError, URLError

import pytest

from phpmq_lite import process, testing
from phpmq_lite.broker_process import broker_process as fresh_process
from phpmq_lite.errors import StartRefusedError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.service import lifecycle
from phpmq_lite.service import pages as service_pages
from phpmq_lite.storage.data_folder import DATABASE, DataFolder
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.sqlite import backend
from phpmq_lite.storage.sqlite.backend import record_stop
from phpmq_lite.storage.sqlite.integrity.seal import seal
from phpmq_lite.storage.sqlite.integrity.startup import StartupCheck, check_files
from phpmq_lite.storage.sqlite.migrate import migrate
from phpmq_lite.storage.sqlite.writer import Writer
from phpmq_lite.testing import running_service
from tests.support.certificates import CertificateAuthority
from tests.support.cli_runner import invoke
from tests.support.fork_server import broker_process, start_error
from tests.support.socket_client import (
    WAIT_S,
    AdminApi,
    SocketClient,
    assert_closed_without_reply,
    connect,
    exchange,
)

pytestmark = pytest.mark.acceptance

NO_ADMIN = ("--admin", "none")


def is_ready(url: str) -> bool:
    """Return whether ``/readyz`` reports ready; False also if nothing listens."""
    try:
        with urllib.request.urlopen(f"{url}readyz", timeout=20) as answer:
            return bool(answer.status == 200)
    except HTTPError as answer:
        answer.close()
        if answer.code != 503:
            raise
        return False
    except URLError:
        return False


def send_signal(broker: testing.BrokerProcess, number: signal.Signals = signal.SIGTERM) -> None:
    assert broker.process is not None
    broker.process.send_signal(number)
    while is_ready(broker.admin[0]):
        pass


def exit_code(broker: testing.BrokerProcess) -> int:
    assert broker.process is not None
    broker.process.communicate(timeout=20)
    code = int(broker.process.returncode)
    broker.process = None
    return code


def assert_ready(broker: testing.BrokerProcess, *bodies: bytes) -> None:
    with SocketClient(broker.port) as consumer:
        consumer.consume("orders", 10)
        assert consumer.bodies(len(bodies)) == [*bodies]
        consumer.barrier()
        assert not consumer.got


# -- the stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_broker_drains(data: Path, number: signal.Signals) -> None:
    """Held messages can be acknowledged, nothing new is dispatched, publishes are stored."""
    with broker_process(data, "--admin", "127.0.0.1:0") as broker:
        consumer, publisher = SocketClient(broker.port), SocketClient(broker.port)
        for number_of_message in range(3):
            assert publisher.confirm("orders", b"%d" % number_of_message) is None
        consumer.consume("orders", 2)
        held = consumer.dispatches(2)
        send_signal(broker, number)
        with suppress(ConnectionError):  # until connections are refused
            while True:
                connect(broker.port).close()
        assert publisher.confirm("orders", b"3") is None
        consumer.ack(held[0])
        consumer.barrier()
        assert not consumer.got
        consumer.ack(held[1])
        assert_closed_without_reply(consumer)
        assert_closed_without_reply(publisher)
        assert exit_code(broker) == 0
        consumer.close()
        publisher.close()
        assert not data.joinpath(f"{DATABASE}-wal").exists()
        broker.start()
        assert_ready(broker, b"2", b"3")


def test_broker_stops_although_a_consumer_neither_reads_nor_acknowledges(data: Path) -> None:
    """It waits 5 s for acknowledgements; the messages are redelivered after the start."""
    with broker_process(data, *NO_ADMIN) as broker:
        with SocketClient(broker.port) as consumer:
            for number in range(30):  # more than the kernels and the write buffer take
                assert consumer.confirm("orders", b"%03d" % number + b"{" * 1_000_000) is None
            consumer.consume("orders", 30)
            first = consumer.dispatches(1)
            assert broker.terminate() == 0
        broker.start()
        with SocketClient(broker.port) as consumer:
            consumer.consume("orders", 1)
            assert consumer.dispatches(1) == first


def test_second_signal_stops_the_broker_at_once(data: Path) -> None:
    with broker_process(data, "--admin", "127.0.0.1:0") as broker:
        with SocketClient(broker.port) as consumer:
            assert consumer.confirm("orders", b"held") is None
            consumer.consume("orders", 1)
            consumer.dispatches(1)
            send_signal(broker)
            assert broker.terminate() == 0
        assert '"stopped"' not in broker.log.read_text(encoding="utf-8")
        broker.start()
        assert_ready(broker, b"held")


def test_broker_ends_when_the_outcome_of_a_commit_is_unknown(data: Path) -> None:
    """No client gets a reply; exit 74; the next start reads the outcome from the disk."""
    with broker_process(data, *NO_ADMIN) as broker:
        with SocketClient(broker.port) as peer:
            assert peer.confirm("orders", b"stored") is None
            with sqlite3.connect(data / DATABASE) as other:
                other.execute(
                    "CREATE TRIGGER fault BEFORE INSERT ON receipt WHEN new.keys = x'ff' "
                    "BEGIN SELECT raise(ABORT, 'a fault: message.seq'); END"  # a broken invariant
                )
            other.close()
            peer.send(
                peer.side.publish("orders", b"{}") + peer.side.publish("orders", b"", key=b"\xff")
            )
            assert_closed_without_reply(peer)
        assert exit_code(broker) == 74
        assert "a fault" in data.joinpath("last_error.json").read_text(encoding="utf-8")
        broker.start()
        assert_ready(broker, b"stored")


# -- starts that are refused


def test_second_broker_on_a_data_folder_is_refused(data: Path) -> None:
    with broker_process(data, *NO_ADMIN) as broker:
        words = start_error(data)
        assert "(exit code 1)" in words
        assert f"{data} is in use by phpmq-lite (pid {broker.pid})" in words
        with SocketClient(broker.port) as peer:
            assert peer.confirm("orders", b"the first one goes on") is None


def test_broker_is_refused_if_a_port_is_in_use(tmp_path: Path) -> None:
    with broker_process(tmp_path / "one", *NO_ADMIN) as broker:
        words = start_error(tmp_path / "two", "--listen", broker.phpmq[0])
        problem = f"tcp.listen: port {broker.port} is already in use by "
        hint = f"(pid {broker.pid}). Choose another port with --listen, or stop that process."
    assert "(exit code 1)" in words
    assert problem in words
    assert hint in words
    assert not (tmp_path / "two").exists()  # so no command expects a broker there


def test_broker_names_all_ports_that_are_in_use(tmp_path: Path) -> None:
    with broker_process(tmp_path / "one", "--admin", "127.0.0.1:0") as broker:
        admin = broker.admin[0].removeprefix("http://").removesuffix("/")
        flags = ("--listen", broker.phpmq[0], "--admin", admin)
        words, pid = start_error(tmp_path / "two", *flags), broker.pid
    for name, address, flag in (
        ("tcp.listen", broker.phpmq[0], "--listen"), ("admin.listen", admin, "--admin"),
    ):  # fmt: skip
        port = address.rpartition(":")[2]
        assert f"{name}: port {port} is already in use by" in words
        assert f"(pid {pid}). Choose another port with {flag}, or stop" in words
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize("problem", ["port", "socket", "certificate"])
def test_refused_start_migrates_nothing(tmp_path: Path, problem: str) -> None:
    """An older version refuses a newer database, so a migration cannot be undone."""
    data, older = tmp_path / "data", tmp_path / "migrations"
    older.mkdir()
    data.mkdir()
    for path in sorted(migrations_folder().glob("*.sql"))[:1]:
        shutil.copy(path, older)
    with closing(sqlite3.connect(data / DATABASE, isolation_level=None)) as database:
        migrate(database, older)
    with socket.socket(socket.AF_UNIX) as taken, broker_process(tmp_path / "one", *NO_ADMIN) as one:
        taken.bind(str(tmp_path / "mq.sock"))
        taken.listen()
        flags = {
            "port": ["--legacy-listen", one.phpmq[0]],
            "socket": ["--listen", f"unix:{tmp_path}/mq.sock"],
            "certificate": ["--set", "tcp.tls_cert=/none", "--set", "tcp.tls_key=/none"],
        }[problem]
        words = start_error(data, *NO_ADMIN, *flags)
    assert f"(exit code {78 if problem == 'certificate' else 1})" in words
    with closing(sqlite3.connect(data / DATABASE)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (1,)


def test_broker_is_refused_if_its_admin_port_is_in_use(tmp_path: Path) -> None:
    """Before all else: no client is accepted, and no database is created."""
    with broker_process(tmp_path / "one", "--admin", "127.0.0.1:0") as broker:
        address = broker.admin[0].removeprefix("http://").removesuffix("/")
        words = start_error(tmp_path / "two", "--admin", address)
    assert "(exit code 1)" in words
    assert f"admin.listen: port {address.rpartition(':')[2]} is already in use by" in words
    assert "Choose another port with --admin" in words
    assert not (tmp_path / "two").exists()


def test_broker_is_refused_if_the_port_for_its_standbys_is_in_use(tmp_path: Path) -> None:
    """Before the database is reached, of which there is none."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        relay = f"store.relay_listen=127.0.0.1:{port}"
        store = "postgresql://127.0.0.1:1/x"
        words = start_error(tmp_path / "one", *NO_ADMIN, "--store", store, "--set", relay)
    assert f"store.relay_listen: port {port} is already in use by" in words
    assert "Choose another port with --set store.relay_listen" in words
    assert not (tmp_path / "one").exists()


def test_start_warns_of_fewer_open_files_than_connections(data: Path) -> None:
    with broker_process(data, *NO_ADMIN, "--set", "limits.connections=100000000") as broker:
        log = broker.log.read_text(encoding="utf-8")
    assert "few_open_files" in log
    assert "of the 100,000,000 connections in limits.connections" in log
    assert "LimitNOFILE=" in log


def test_newer_database_is_refused(data: Path) -> None:
    with broker_process(data, *NO_ADMIN) as broker:
        assert broker.terminate() == 0
    with sqlite3.connect(data / DATABASE) as database:
        database.execute("PRAGMA user_version = 9999")
    database.close()
    with closing(DataFolder.open(data)) as folder:
        seal(folder)
    words = start_error(data)
    assert "(exit code 1)" in words
    assert "schema version 9999" in words


@pytest.mark.parametrize("is_sealed", [True, False])
def test_folder_of_an_unreleased_version_is_refused_and_stays_as_it_is(
    data: Path, is_sealed: bool
) -> None:
    with broker_process(data, *NO_ADMIN) as broker:
        assert broker.terminate() == 0
    with closing(sqlite3.connect(data / DATABASE, isolation_level=None)) as database:
        database.execute("UPDATE migration SET sha256 = 'another'")
        database.execute("PRAGMA user_version = 12")
    with closing(DataFolder.open(data)) as folder:
        if is_sealed:
            seal(folder)
        else:
            folder.seal(None)
    before = (data / DATABASE).read_bytes()
    words = start_error(data)
    assert "(exit code 1)" in words
    assert f"{data} was made by an unreleased version of phpmq-lite" in words
    assert "phpmq-lite message export 'state:ready state:dispatched' > messages.jsonl" in words
    assert "phpmq-lite docs operate/operations#data-of-an-unreleased-version" in words
    for command in (("database", "migrate"), ("database", "verify")):
        error = invoke(*command, "--data", data, code=1).stderr
        assert f"{data} was made by an unreleased version" in error
    assert (data / DATABASE).read_bytes() == before


def test_lost_database_is_refused(data: Path) -> None:
    """A new one would hide the loss."""
    with broker_process(data, *NO_ADMIN) as broker:
        with SocketClient(broker.port) as peer:
            assert peer.confirm("orders", b"") is None
        assert broker.terminate() == 0
    data.joinpath(DATABASE).unlink()
    words = start_error(data)
    assert "(exit code 65)" in words
    assert f"{DATABASE} is missing" in words


@pytest.mark.parametrize(
    ("flags", "setting"),
    [
        (["--listen", "0.0.0.0:0"], "tcp.listen 0.0.0.0:0"),
        (["--legacy-listen", "[::]:0"], "tcp.legacy_listen [::]:0"),
        (["--admin", "0.0.0.0:0"], "admin.listen 0.0.0.0:0"),
        (["--set", "tcp.tls_cert=/nowhere.pem"], "tls_key"),
    ],
)
def test_unsafe_settings_are_refused(data: Path, flags: list[str], setting: str) -> None:
    words = start_error(data, *flags)
    assert "(exit code 78)" in words
    assert setting in words


# -- health


def test_broker_is_ready_when_its_listeners_are_open(data: Path) -> None:
    with broker_process(data, "--admin", "127.0.0.1:0") as broker:
        for name in ("livez", "readyz", "startupz"):
            with urllib.request.urlopen(f"{broker.admin[0]}{name}", timeout=20) as answer:
                assert answer.status == 200


@pytest.fixture
def broken_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_name: str) -> None:
        raise ImportError("broken")

    monkeypatch.setattr(service_pages, "import_module", fail)


def libraries_of(pid: int) -> str:
    """Return the paths of the libraries that a process has loaded."""
    return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def test_admin_is_imported_when_its_first_client_connects(data: Path) -> None:
    with fresh_process(data, "--admin", "127.0.0.1:0") as broker:
        with SocketClient(broker.port) as peer:
            exchange(peer)
        assert "aiohttp" not in libraries_of(broker.pid)
        with urllib.request.urlopen(f"{broker.admin[0]}readyz", timeout=WAIT_S) as answer:
            assert answer.status == 200
        assert "aiohttp" in libraries_of(broker.pid)


@pytest.mark.usefixtures("broken_admin")
async def test_broker_whose_admin_is_broken_keeps_serving_its_clients(data: Path) -> None:
    async with running_service(data) as running:
        for _ in range(2):
            with pytest.raises((ConnectionError, URLError)):
                await asyncio.to_thread(urllib.request.urlopen, running.admin_url, timeout=WAIT_S)
        peer = await asyncio.to_thread(SocketClient, running.port)
        await asyncio.to_thread(exchange, peer)
        peer.close()


@pytest.mark.usefixtures("broken_admin")
async def test_broker_that_needs_its_broken_admin_accepts_no_client(data: Path) -> None:
    """The admin creates the first user."""
    password = data.parent / "password"
    password.write_text("correct horse battery", encoding="utf-8")
    password.chmod(0o600)
    lines: list[str] = []
    settings = testing.settings_for(data, admin={"initial_password_file": password})
    broker = lifecycle.Service(settings, lines.append)
    with pytest.raises(ExceptionGroup) as failure:
        await asyncio.wait_for(broker.run(), WAIT_S)
    assert failure.group_contains(ImportError, match="broken")
    assert not [line for line in lines if "phpmq" in line]


async def test_pages_answer_while_the_database_is_being_recovered(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, is_open = threading.Event(), asyncio.Event()

    def check_later(*args: Any, **more: Any) -> StartupCheck:
        go_on.wait(WAIT_S)
        return check_files(*args, **more)

    monkeypatch.setattr(backend, "check_files", check_later)
    broker = lifecycle.Service(testing.settings_for(data), lambda _line: is_open.set())
    running = asyncio.create_task(broker.run())
    try:
        await asyncio.wait_for(is_open.wait(), WAIT_S)
        assert not await asyncio.to_thread(is_ready, broker.state.admin[0])
        assert not broker.state.phpmq
        go_on.set()
        await asyncio.wait_for(broker.state.ready.wait(), WAIT_S)
        assert await asyncio.to_thread(is_ready, broker.state.admin[0])
    finally:
        go_on.set()
        broker.stop()
        await running


async def test_garbage_is_collected_again_once_the_broker_has_started() -> None:
    before, is_started = gc.get_threshold(), asyncio.Event()

    class State:
        listening = opened = is_started

    class Starting:
        state = pages = State

    tending = asyncio.create_task(
        process._manage_garbage_collection(cast("lifecycle.Service", Starting()))
    )
    try:
        await asyncio.sleep(0)
        assert not gc.isenabled()
        is_started.set()
        await tending
        assert gc.isenabled()
        assert gc.get_threshold() != before
    finally:
        gc.enable()
        gc.unfreeze()
        gc.set_threshold(*before)


async def test_service_runs_in_the_process_of_a_test(data: Path) -> None:
    """``testing.running_service``, for the tests of users."""
    async with running_service(data) as running:
        peer = await asyncio.to_thread(SocketClient, running.port)
        with peer:
            await asyncio.to_thread(exchange, peer)
        assert running.service.handle.status().is_ready
    async with running_service(data) as running:
        assert running.service.handle.status().queues[0].totals["acked"] == 0


async def test_database_is_sealed_in_a_thread(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop must keep running: it ends the process after ten seconds."""
    threads: list[threading.Thread] = []
    monkeypatch.setattr(backend, "seal", lambda *_given: threads.append(threading.current_thread()))
    async with running_service(data):
        pass
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def test_second_service_on_a_data_folder_is_refused(data: Path) -> None:
    async with running_service(data):
        with pytest.raises(StartRefusedError, match=f"{data} is in use"):
            async with running_service(data):
                pass


@pytest.mark.parametrize(("failure", "code"), [(None, 0), (OSError("no room"), 74)])
def test_exit_code_of_a_stop_that_cannot_be_recorded(
    data: Path, monkeypatch: pytest.MonkeyPatch, failure: OSError | None, code: int
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    folder = DataFolder.open(data)
    folder.record(is_running=True)

    def fail(*_: object, **_more: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(DataFolder, "record", fail)
    record_stop(folder, Writer(folder.database, DiskSpace(data)), None, failure, None)
    folder.close()
    assert codes == [code]


# -- connections


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
    return CertificateAuthority(tmp_path_factory.mktemp("tls")).make("localhost")


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


def test_failed_handshakes_free_their_places(data: Path, pair: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=str(pair[0]))
    flags = [*tls_flags(pair), "--set", "limits.connections=2"]
    with broker_process(data, *NO_ADMIN, *flags) as broker:
        for how in ("garbage", "nothing") * 5:
            with SocketClient(broker.port) as stranger:
                if how == "garbage":
                    stranger.publish("orders", b"{}")
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
            with suppress(ssl.SSLError):  # the reason, if its alert comes first
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
    """Further connections are closed; a freed place can be used again."""
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
