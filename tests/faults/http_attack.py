"""Attack the HTTP listener of a broker limited to 1 GiB of memory; other users must be served.

``python -m tests.faults.http_attack`` attacks for 60 s with ten times the load and prints the
figures; it ends with 1 if the broker was killed, used 400 MB, confirmed nothing for a second, or
kept rejecting what a user is allowed.  ``--short`` uses the load once, for a few seconds.  The
limit needs a memory cgroup (v1 or v2); without one, only the resident memory is measured.
"""

import argparse
import asyncio
import gzip
import io
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp

from phpmq_lite.broker_process import BrokerProcess, broker_process
from phpmq_lite.cli.admin_client import AdminClient
from phpmq_lite.client import connect
from phpmq_lite.os_process import peak_resident_bytes
from tests.faults.adversaries import ARROW, arrow_of
from tests.support.latency_probe import MIB
from tests.support.socket_client import SocketClient

CAGE_BYTES: Final = 1 << 30
MOST_BYTES: Final = 400_000_000
RETRY_S: Final = 180.0  # an honest user retries for this time
LINES: Final = 100_000
CGROUPS: Final = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)
# number of requests at once in one load, by kind
LOAD: Final = {"dicts": 1, "forms": 95, "publishes": 95, "downloads": 95, "exports": 20, "gzip": 2}


@contextmanager
def cage(pid: int) -> Iterator[str]:
    """Limit the memory of a process to 1 GiB; yield a description."""
    for root, name in CGROUPS:
        folder = root / f"phpmq-http-attack-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / name).write_text(str(CAGE_BYTES), encoding="ascii")
            (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")
        except OSError:
            folder.rmdir()
            continue
        try:
            yield f"in {folder} of {CAGE_BYTES // MIB} MiB"
        finally:
            with suppress(OSError):
                if Path(f"/proc/{pid}").exists():
                    (root / "cgroup.procs").write_text(str(pid), encoding="ascii")
                folder.rmdir()
        return
    yield "without a cgroup: none can be made here, so only resident memory is measured"


# -- the attack, in a process of its own


@dataclass
class Attack:
    """An attacker who repeats all requests of ``loads`` loads."""

    port: int
    token: str
    message_id: str
    loads: int
    only: str = ""  # one kind; empty: all
    statuses: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        dicts = b"[" + b"{}," * MIB + b"{}]"
        bomb = gzip.compress(bytes(256 * MIB), 9)
        fields, text = b"a=" * (5 * MIB), b'{"content": "' + b"a" * (10 * MIB)
        publish, login = "/api/v1/queues/attacked/messages", "/login"
        form = "application/x-www-form-urlencoded"
        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "dicts": lambda: self._send(publish, dicts, len(dicts)),
            "gzip": lambda: self._send(publish, bomb, len(bomb), "Content-Encoding: gzip\r\n"),
            "forms": lambda: self._send(login, fields, 11 * MIB, kind=form),
            "publishes": lambda: self._send(publish, text, 11 * MIB),
            "downloads": lambda: self._trickle(f"/api/v1/messages/{self.message_id}/body?download"),
            "exports": lambda: self._trickle("/api/v1/export?q=queue:large"),
        }
        async with asyncio.TaskGroup() as group:
            for name, count in LOAD.items():
                if self.only not in ("", name):
                    continue
                for _ in range(count * self.loads):
                    group.create_task(self._again(name, kinds[name]))

    async def _again(self, name: str, send: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await send()
            except (OSError, asyncio.IncompleteReadError) as error:
                self.statuses[f"{name} {type(error).__name__}"] += 1
            await asyncio.sleep(0.05)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        own.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", self.port))
            reader, writer = await asyncio.open_connection(sock=own, limit=4_096)
        except OSError:
            own.close()
            raise
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    def _head(self, method: str, path: str, more: str = "") -> bytes:
        return (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            f"Authorization: Bearer {self.token}\r\n{more}\r\n"
        ).encode()

    async def _send(
        self, path: str, body: bytes, length: int, more: str = "", kind: str = "application/json"
    ) -> None:
        """Send a body, perhaps shorter than its announced length, and wait for a response."""
        async with self._open() as (reader, writer):
            more += f"Content-Type: {kind}\r\nContent-Length: {length}\r\n"
            writer.write(self._head("POST", path, more))
            answer = asyncio.ensure_future(reader.readline())
            try:
                for at in range(0, len(body), 64 << 10):
                    if answer.done():
                        break
                    writer.write(body[at : at + (64 << 10)])
                    await writer.drain()
                self._note(path, await answer)
            finally:
                answer.cancel()

    async def _trickle(self, path: str) -> None:
        """Read a response at 10 KiB a second, which counts as progress."""
        async with self._open() as (reader, writer):
            writer.write(self._head("GET", path))
            self._note(path.partition("?")[0][:16], await reader.readline())
            while await reader.read(1_024):  # noqa: ASYNC110 - slow on purpose
                await asyncio.sleep(0.1)

    def _note(self, path: str, line: bytes) -> None:
        self.statuses[f"{path} {line.split(b' ')[1].decode() if b' ' in line else 'closed'}"] += 1


def attack(given: str) -> None:
    """Attack until standard input ends, and print the statuses of the responses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8_192)), hard))

    async def run() -> None:
        made = Attack(*json.loads(given))
        task = asyncio.create_task(made.run())
        await asyncio.to_thread(sys.stdin.read)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        print(json.dumps(made.statuses))

    asyncio.run(run())


# -- the other users


@dataclass
class Result:
    where: str = ""
    seconds: float = 0.0
    is_alive: bool = False
    most_bytes: int = 0
    confirms_s: list[float] = field(default_factory=list)  # how long each took
    missed: int = 0  # seconds without a confirmed publish
    done: Counter[str] = field(default_factory=Counter)  # large requests that were accepted
    repeated: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    slowest_s: dict[str, float] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)

    @property
    def offences(self) -> list[str]:
        """Descriptions of what must not happen."""
        found = list(self.failed)
        if not self.is_alive:
            found.append("the broker was killed")
        if self.most_bytes >= MOST_BYTES:
            found.append(f"it had {self.most_bytes / 1e6:.0f} MB")
        return found

    def lines(self) -> Iterator[str]:
        slowest = max(self.confirms_s, default=0.0)
        yield f"{self.where}; attacked for {self.seconds:.0f} s"
        yield f"alive: {self.is_alive}; most resident memory {self.most_bytes / 1e6:.0f} MB"
        yield (
            f"confirmed publishes: {len(self.confirms_s)}, the slowest {slowest * 1_000:.0f} ms, "
            f"seconds without one: {self.missed}"
        )
        for name in ("publish 8 MiB", "import 100,000 lines", "stage 64 MiB", "publish"):
            yield (
                f"HTTP {name}: {self.done[name]} accepted, {self.repeated[name]} repeated, "
                f"slowest {self.slowest_s.get(name, 0):.1f} s"
            )
        yield f"answers to the attack: {self.answered}"


class User:
    """An honest user, connected since before the attack, who retries rejected requests."""

    def __init__(self, url: str, token: str, result: Result) -> None:
        self._url, self._result = url, result
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"},
            connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=3_600),
            timeout=aiohttp.ClientTimeout(total=RETRY_S),
        )

    async def __aenter__(self) -> "User":
        await self._session.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(self, name: str, path: str, kind: str, body: bytes) -> None:
        """Send a request until it is accepted or ``RETRY_S`` is over."""
        began, result = time.monotonic(), self._result
        said = ""
        while time.monotonic() - began < RETRY_S:
            headers = {"Content-Type": kind}
            try:
                async with self._session.post(
                    f"{self._url}api/v1{path}", data=io.BytesIO(body), headers=headers
                ) as answer:
                    text = await answer.text()
                    if answer.status in (200, 201):
                        took_s = time.monotonic() - began
                        result.done[name] += 1
                        result.slowest_s[name] = max(took_s, result.slowest_s.get(name, 0.0))
                        return
                    said = f"{answer.status} {text[:200]}"
                    if answer.status not in (429, 503):
                        break
            except (OSError, aiohttp.ClientError, TimeoutError) as error:
                said = repr(error)
            result.repeated[name] += 1
            await asyncio.sleep(0.2)
        result.failed.append(f"{name}: {said}")


async def send_large(user: User, until: Callable[[], bool]) -> None:
    """Send each large request, at least once."""
    large = json.dumps({"content": "x" * (8 * MIB)}).encode()
    lines = b"".join(
        b'{"queue": "imported", "content": "line %d", "ttl_s": 1}\n' % number
        for number in range(LINES)
    )
    rows = arrow_of([("staged", b"s" * MIB)] * 63)
    for number in count():
        await user.send("publish 8 MiB", "/queues/mine/messages", "application/json", large)
        await user.send("import 100,000 lines", "/import", "application/x-ndjson", lines)
        await user.send("stage 64 MiB", f"/pipeline/stage?token=t{number}", ARROW, rows)
        dropped = json.dumps({"tokens": [f"t{number}"]}).encode()
        await user.send("unstage", "/pipeline/unstage", "application/json", dropped)
        if until():
            return


async def publish_each_second(broker: BrokerProcess, result: Result, end: asyncio.Event) -> None:
    """Publish with a receipt once a second, and count the seconds without one."""
    async with connect("127.0.0.1", broker.port) as client:
        while not end.is_set():
            began = time.monotonic()
            try:
                async with asyncio.timeout(30):
                    await client.publish_confirmed("probe", b"{}", ttl_s=60)
            except TimeoutError:
                result.failed.append("a publish was not confirmed for 30 s")
                return
            took_s = time.monotonic() - began
            result.confirms_s.append(took_s)
            result.missed += int(took_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(end.wait(), max(0.0, 0.5 - took_s))


async def publish_small(user: User, end: asyncio.Event) -> None:
    """Publish over HTTP twice a second."""
    while not end.is_set():
        await user.send("publish", "/queues/small/messages", "application/json", b'{"content":"x"}')
        with suppress(TimeoutError):
            await asyncio.wait_for(end.wait(), 0.5)


def _prepare(broker: BrokerProcess) -> tuple[str, str, str]:
    """Create users; return the tokens of attacker and publisher, and the id of an 8 MiB message."""
    control = AdminClient(broker.data / "control.sock")
    anna = {"name": "anna", "password": "x" * 12, "role": "admin", "queues": []}
    control.post("/users", anna)
    hostile, honest = (
        control.post("/tokens", {"name": name, "role": "operator", "queues": []})["token"]
        for name in ("hostile", "honest")
    )
    with SocketClient(broker.port) as peer:
        assert peer.confirm("large", b"x" * (8 * MIB)) is None
    return hostile, honest, control.get("/queues/large/messages")["items"][0]["id"]


async def besiege(folder: Path, loads: int, seconds: float, only: str = "") -> Result:
    result = Result()
    flags = ("--admin", "127.0.0.1:0", "--set", "audit.rows=10000")
    with broker_process(folder / "data", *flags) as broker, cage(broker.pid) as where:
        result.where = where
        hostile, honest, message_id = await asyncio.to_thread(_prepare, broker)
        url = broker.admin[0]
        port = int(url.rstrip("/").rpartition(":")[2])
        given = (port, hostile, message_id, loads, only)
        end = asyncio.Event()
        async with User(url, honest, result) as large, User(url, honest, result) as small:
            for user in (large, small):
                await user.send("warm", "/queues/x/messages", "application/json", b'{"content":""}')
            attacker = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__ if __name__ != "__main__" else __spec__.name,
                "--attack", json.dumps(given),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            began = time.monotonic()
            probes = [
                asyncio.create_task(publish_each_second(broker, result, end)),
                asyncio.create_task(publish_small(small, end)),
            ]
            await asyncio.sleep(min(2.0, seconds / 2))  # until the attack is under way
            await send_large(large, lambda: time.monotonic() - began >= seconds)
            result.seconds = time.monotonic() - began
            end.set()
            await asyncio.gather(*probes, return_exceptions=True)
            answers, _ = await attacker.communicate(b"")
            result.answered = json.loads(answers)
        result.most_bytes = peak_resident_bytes(broker.pid)
        result.is_alive = broker.process is not None and broker.process.poll() is None
    return result


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="once the load, for a few seconds")
    parser.add_argument("--loads", type=int, default=10, help="times the load")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", choices=LOAD, default="", help="one kind of attack")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.attack:
        attack(asked.attack)
        return 0
    loads, seconds = (1, 5.0) if asked.short else (asked.loads, asked.seconds)
    with TemporaryDirectory() as folder:
        result = asyncio.run(besiege(Path(folder), loads, seconds, asked.only))
    offences = result.offences + ["a second without a confirmed publish"] * bool(result.missed)
    for line in (*result.lines(), *(f"FAILED: {offence}" for offence in offences)):
        print(line)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
