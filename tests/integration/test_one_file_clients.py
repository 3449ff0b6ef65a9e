"""The one-file clients of ``examples/node`` and ``examples/go``: one scenario, two languages."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from phpmq_lite import __version__
from phpmq_lite.protocol.frames import (
    OUR_FRAMES,
    Acknowledge,
    ClientFrame,
    Consume,
    ConsumeWithOptions,
    Publish,
    PublishWithOptions,
    Requeue,
    Settle,
)
from tests.support.certificates import CertificateAuthority
from tests.support.fork_server import BrokerProcess, broker_process, broker_with_all_listeners
from tests.support.php_client import ROOT
from tests.support.programs import run_program
from tests.support.scripted_broker import ScriptedBroker, ScriptedPeer
from tests.support.socket_client import AdminApi, SocketClient
from tests.support.waiting import until

pytestmark = pytest.mark.acceptance

NODE = ROOT / "examples" / "node" / "phpmq.mjs"
GO = ROOT / "examples" / "go" / "phpmq.go"
ID = b"0123456789abcdef" * 2
_numbers = count(1)


@dataclass(frozen=True)
class Program:
    command: tuple[str, ...]

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run the client to its end; return its output, or its errors if ``code`` is not 0."""
        done = run_program([*self.command, *arguments])
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self.command, *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip


@pytest.fixture(scope="module", params=["node", "go"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    if shutil.which(request.param) is None:
        pytest.skip(f"missing: {request.param}")
    if request.param == "node":
        return Program(("node", str(NODE)))
    built = tmp_path_factory.mktemp("go") / "phpmq"
    subprocess.run(["go", "build", "-o", str(built), str(GO)], check=True, timeout=100)
    return Program((str(built),))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("clients") / "data"
    with broker_with_all_listeners(data) as running:
        yield running


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as made:
        yield made


@pytest.fixture
def queue() -> str:
    return f"orders-{next(_numbers)} ü"


async def ended(process: asyncio.subprocess.Process) -> str:
    out, error = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, error.decode()
    return out.decode()


# -- a real broker


@pytest.mark.parametrize("port", [0, 1], ids=["newer", "older"])
def test_client_consumes_what_it_published(
    program: Program, broker: BrokerProcess, queue: str, port: int
) -> None:
    for content in ("first", "Grüße, 世界", "third"):
        assert program.run("publish", broker.phpmq[0], queue, content) == "stored\n"
    shown = program.run("consume", broker.phpmq[port], queue, "2")
    assert shown == "first\nGrüße, 世界\n"
    assert AdminApi(broker.admin[0]).queue(queue)["ready"] == 1


def test_client_requeues_with_a_new_ttl(
    program: Program, broker: BrokerProcess, queue: str
) -> None:
    for content in ("first", "second"):
        program.run("publish", broker.phpmq[0], queue, content)
    assert program.run("requeue", broker.phpmq[0], queue, "3600") == "first\n"
    assert program.run("consume", broker.phpmq[0], queue, "1") == "second\n"
    with SocketClient(broker.port) as peer:
        peer.consume(queue, 1)
        (again,) = peer.dispatches(1)
    assert again.content == b"first"
    assert again.ttl_s is not None
    assert 0 < again.ttl_s <= 3600


def test_client_publishes_with_a_ttl(program: Program, broker: BrokerProcess, queue: str) -> None:
    program.run("publish", broker.phpmq[0], queue, "short", "3600")
    assert program.run("consume", broker.phpmq[0], queue).startswith("short  (3")


def test_client_publishes_with_options_and_retries(
    program: Program, broker: BrokerProcess, queue: str
) -> None:
    api, address = AdminApi(broker.admin[0]), broker.phpmq[0]
    program.run("publish", address, queue, "usual")
    for _ in range(2):  # stored once
        program.run("publish", address, queue, "urgent", "3600", '{"priority":0,"unique_key":"k"}')
    program.run("publish", address, queue, "late", "0", '{"deliver_at":4000000000000}')
    assert program.run("retry", address, queue, "3600").startswith("urgent  (3")
    assert program.run("consume", address, queue) == "usual\n"
    items = api.get("/api/v1/messages")["items"]
    live = [m["preview"] for m in items if m["queue"] == queue and m["state"] == "scheduled"]
    assert sorted(live) == ["late", "urgent"]
    assert "priority" in program.run("publish", address, queue, "x", "0", '{"priority":-1}', code=1)


def test_client_reports_a_refusal(program: Program, broker: BrokerProcess, queue: str) -> None:
    with SocketClient(broker.port) as peer:
        assert peer.confirm(queue, b"x") is None
    AdminApi(broker.admin[0]).pause(queue, "publishing")
    assert "paused" in program.run("publish", broker.phpmq[0], queue, "x", code=1)


@pytest.mark.parametrize("wrong", ["", "q" * 256, "a\x07"])
def test_client_refuses_an_invalid_queue_name(
    program: Program, broker: BrokerProcess, wrong: str
) -> None:
    for command in ("publish", "consume"):
        assert "a queue name must have 1 to 255" in program.run(
            command, broker.phpmq[0], wrong, "1", code=1
        )


def test_client_speaks_tls(
    program: Program, tmp_path: Path, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = CertificateAuthority(tmp_path).make("server")
    for name in ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, str(cert))
    flags = ("--set", f"tcp.tls_cert={cert}", "--set", f"tcp.tls_key={key}")
    with broker_process(tmp_path / "data", *flags) as broker:
        for host in ("localhost", "127.0.0.1"):
            address = f"tls://{host}:{broker.port}"
            assert program.run("publish", address, queue, "x" * 100_000) == "stored\n"
            assert program.run("consume", address, queue) == "x" * 100_000 + "\n"


async def test_consumer_continues_after_a_restart_of_the_broker(
    program: Program, tmp_path: Path, queue: str
) -> None:
    with broker_process(tmp_path / "data", "--admin", "127.0.0.1:0") as broker:
        await asyncio.to_thread(program.run, "publish", broker.phpmq[0], queue, "before")
        process = await program.start("consume", broker.phpmq[0], queue, "2")
        assert process.stdout is not None
        assert await process.stdout.readline() == b"before\n"
        acked = "/api/v1/messages?q=" + quote(f'queue:"{queue}" state:acked')
        await asyncio.to_thread(until, lambda: AdminApi(broker.admin[0]).get(acked)["items"])
        await asyncio.to_thread(broker.kill)
        late = await program.start("publish", broker.phpmq[0], queue, "after")
        await asyncio.to_thread(broker.start)
        assert await ended(late) == "stored\n"
        out, error = await asyncio.wait_for(process.communicate(), 60)
        said = error.decode()
        assert (process.returncode, out) == (0, b"after\n"), said
        away, back = (f"phpmq: {one}" for one in (
            f"the connection to {broker.phpmq[0]} is lost", f"connected to {broker.phpmq[0]} again"
        ))  # fmt: skip
        assert [said.count(away), said.count(back)] == [1, 1], said


# -- a scripted broker


async def test_publish_is_repeated_under_its_key_after_a_lost_connection(
    program: Program, scripted: ScriptedBroker, queue: str
) -> None:
    keys: list[bytes | None] = []

    def cutting(peer: ScriptedPeer, frame: ClientFrame) -> None:
        assert isinstance(frame, Publish)
        keys.append(frame.key)
        if len(keys) < 3:
            peer.cut()
        else:
            peer.answer(frame)

    scripted.script = cutting
    process = await program.start("publish", f"127.0.0.1:{scripted.port}", queue, "once")
    assert await ended(process) == "stored\n"
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert keys[0]


async def test_message_in_pieces_is_acknowledged_and_credit_withdrawn(
    program: Program, scripted: ScriptedBroker, queue: str
) -> None:
    def dispatching(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Consume) and frame.count:
            parts: list[bytes] = []
            peer.side.append_dispatch(parts, queue, b"x" * 3_000, ID, 7)
            for byte in b"".join(parts):
                peer.transport.write(bytes([byte]))

    scripted.script = dispatching
    process = await program.start("consume", f"127.0.0.1:{scripted.port}", queue)
    assert (await scripted.next(Consume)).count == 1
    acknowledged = await scripted.next(Acknowledge)
    assert (acknowledged.queue, acknowledged.message_id) == (queue, ID)
    assert (await scripted.next(Consume)).count == 0
    assert await ended(process) == "x" * 3_000 + "  (7 s left)\n"


async def test_requeue_has_its_three_packets(
    program: Program, scripted: ScriptedBroker, queue: str
) -> None:
    def dispatching(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Consume) and frame.count:
            peer.dispatch(queue, b"", ID, 0)

    scripted.script = dispatching
    process = await program.start("requeue", f"127.0.0.1:{scripted.port}", queue, "60")
    requeued = await scripted.next(Requeue)
    assert (requeued.queue, requeued.message_id, requeued.ttl_s) == (queue, ID, 60)
    assert await ended(process) == "\n"


def dispatching(queue: str) -> Any:
    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, ConsumeWithOptions) and frame.count:
            peer.dispatch(queue, b"job", ID, 60, attempt=2)
        elif isinstance(frame, Consume) and frame.count:
            peer.dispatch(queue, b"job", ID, 60)
        elif isinstance(frame, Publish):
            peer.answer(frame)

    return script


async def test_retry_names_the_attempt_that_failed(
    program: Program, scripted: ScriptedBroker, queue: str
) -> None:
    scripted.known_frames, scripted.script = OUR_FRAMES, dispatching(queue)
    process = await program.start("retry", f"127.0.0.1:{scripted.port}", queue, "5")
    sent = await scripted.next(Settle)
    assert (sent.queue, sent.message_id, sent.content) == (queue, ID, None)
    options = json.loads(sent.options)
    assert options.pop("exception")
    options.pop("traceback", None)
    assert options == {
        "action": "retry", "delay_s": 5, "attempt": 2, "error": "the retry command"
    }  # fmt: skip
    await ended(process)
    said = json.loads(scripted.hellos[0].options)
    assert said.keys() == {"name", "version", "pid", "host"}
    assert said["version"] == __version__


@pytest.mark.parametrize("known", [None, ()], ids=["closes", "knows none"])
async def test_release_before_gets_a_copy_and_no_options(
    program: Program, scripted: ScriptedBroker, queue: str, known: tuple[int, ...] | None
) -> None:
    scripted.known_frames, scripted.script = known, dispatching(queue)
    address = f"127.0.0.1:{scripted.port}"
    process = await program.start("retry", address, queue, "5")
    copy = await scripted.next(Publish)
    assert copy == Publish(f"{queue}.retry", b"job", 5, ID + b":copy")
    assert await scripted.next(Acknowledge) == Acknowledge(queue, ID)
    await ended(process)
    assert len(scripted.peers) == (3 if known is None else 1)
    process = await program.start("publish", address, queue, "x", "0", '{"group":"g"}')
    _, error = await asyncio.wait_for(process.communicate(), 60)
    assert "earlier version, which knows no options" in error.decode()
    assert not any(isinstance(frame, PublishWithOptions) for _, frame in scripted.frames._queue)  # type: ignore[attr-defined]


async def test_foreign_protocol_is_reported(program: Program, queue: str) -> None:
    arrived = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n")
        arrived.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        process = await program.start("publish", f"127.0.0.1:{port}", queue, "x")
        await arrived.wait()
        assert process.stderr is not None
        assert b"not a PHPMQ broker" in await process.stderr.readline()
        process.kill()
        await process.communicate()
