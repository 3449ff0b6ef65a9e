"""A broker on a full disk: its confirms and acknowledgements, and when it resumes.

``python -m pytest tests/faults/test_disk_full.py`` prints the figures; ``PHPMQ_FULL_MESSAGES`` sets
the number of messages.  The disk is a small file system, which only root can mount, or a quota of
the shim.
"""

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from phpmq_lite.model import State
from phpmq_lite.protocol.frames import Dispatch
from tests.faults.ledger import read_only, seq_of
from tests.faults.mutants import mutant_process
from tests.faults.shim import Shim
from tests.faults.shimmed_broker import shimmed_broker
from tests.support.fork_server import BrokerProcess
from tests.support.socket_client import WAIT_S, AdminApi, SocketClient

SIZE: Final = 96 << 20  # twice the ballast, and the files of a new broker
MESSAGES: Final = int(os.environ.get("PHPMQ_FULL_MESSAGES", "400"))
CREDIT: Final = 1_000
WINDOW: Final = 200  # unanswered publishes, before the disk is full
MOST: Final = 1_500  # publishes until the disk is full
ROUND: Final = 20  # acknowledgements sent together
ROOM: Final = MESSAGES * 4_096  # upper bound for storing them, with the WAL
RESUME_S: Final = 10.0
SILENCE_S: Final = 3.0  # after it, an acknowledgement that will never be stored is given up
_BLOCK: Final = 4096
_KEY: Final = 8  # bytes of a key, at the beginning of each body


class Tmpfs:
    """A small file system in memory."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self._folder = folder
        self._fill = folder / "foreign"

    def broker(self, *flags: str, mutant: str = "") -> BrokerProcess:
        return mutant_process(self.data, mutant, *flags)

    def fill(self) -> None:
        """Use up the free space, to the last block."""
        with self._fill.open("wb") as file:
            size, step = 0, SIZE
            while step >= _BLOCK:
                try:
                    os.posix_fallocate(file.fileno(), size, step)
                    size += step
                except OSError:
                    step //= 2

    def grow(self) -> None:
        self._fill.unlink(missing_ok=True)
        _mount("-o", f"remount,size={2 * SIZE}", self._folder)


class Quota:
    """A folder with a quota of the shim; a writer process may store the broker's batches."""

    def __init__(self, folder: Path, *, is_second: bool = False) -> None:
        self.is_second = is_second
        self.shim = Shim(folder)
        self.shim.quota_bytes = SIZE
        self.data = self.shim.data

    def broker(self, *flags: str, mutant: str = "") -> BrokerProcess:
        return shimmed_broker(self.shim, *flags, mutant=mutant, is_second=self.is_second)

    def fill(self) -> None:
        """Use up the free space."""
        self.shim.quota_bytes = self.shim.used_bytes

    def grow(self) -> None:
        self.shim.quota_bytes = 2 * max(SIZE, self.shim.quota_bytes or 0)


Disk = Tmpfs | Quota


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True, capture_output=True)


@contextmanager
def tmpfs(folder: Path) -> Iterator[Tmpfs | None]:
    """Mount a small file system; yield None if this account may not."""
    folder.mkdir()
    try:
        _mount("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder)
    except (OSError, subprocess.CalledProcessError):
        yield None
        return
    try:
        yield Tmpfs(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@dataclass
class Story:
    """The history of a broker on a disk, as its clients saw it."""

    broker: BrokerProcess
    disk: Disk
    silence_s: float = WAIT_S  # time limit for replies while the disk is full
    confirmed: list[bytes] = field(default_factory=list)  # keys
    refused: dict[str, int] = field(default_factory=dict)  # by reason
    acked: int = 0  # acknowledgements sent while the disk was full
    stored: list[Dispatch] = field(default_factory=list)  # acknowledgements known to be stored
    resumed_s: float | None = None  # from the new room to the first receipt
    _count: int = 0

    @contextmanager
    def clients(self) -> Iterator[tuple[SocketClient, SocketClient]]:
        """Connect a producer and a consumer."""
        with SocketClient(self.broker.port) as one, SocketClient(self.broker.port) as other:
            yield one, other

    @property
    def admin(self) -> AdminApi:
        return AdminApi(self.broker.admin[0])

    def publish(self, peer: SocketClient, size: int = 1_000) -> bool:
        """Publish; return whether the message was confirmed."""
        key = self._new_key()
        reason = peer.confirm("orders", key + bytes(size), key=key)
        if reason is None:
            self.confirmed.append(key)
        else:
            self.refused[reason] = self.refused.get(reason, 0) + 1
        return reason is None

    def _new_key(self) -> bytes:
        self._count += 1
        return b"%0*d" % (_KEY, self._count)

    def publish_until_refused(self, peer: SocketClient, size: int) -> None:
        for _ in range(MOST):
            if not self.publish(peer, size):
                return

    def acknowledge(self, peer: SocketClient, number: int) -> None:
        """Acknowledge in rounds, each followed by a publish whose reply proves that it is stored.

        The reply is a receipt or, while the disk is full, a rejection.
        """
        peer.socket.settimeout(self.silence_s)
        self.acked += number
        for at in range(0, number, ROUND):
            try:
                some = peer.dispatches(min(ROUND, number - at))
                peer.ack(*some)
                self.publish(peer)
            except TimeoutError:
                return
            self.stored += some

    def wait_until_resumed(self, peer: SocketClient) -> None:
        peer.socket.settimeout(RESUME_S)
        began = time.monotonic()
        with suppress(TimeoutError):
            while time.monotonic() - began < 2 * RESUME_S:
                if self.publish(peer):
                    self.resumed_s = time.monotonic() - began
                    return
                time.sleep(0.05)

    def fill_by_others(self, producer: SocketClient, consumer: SocketClient) -> None:
        """Fill the disk from outside the broker, publish, and acknowledge."""
        self._begin(producer, consumer)
        self.disk.fill()
        producer.socket.settimeout(self.silence_s)
        with suppress(TimeoutError):
            self.publish_until_refused(producer, 20_000)
        self.acknowledge(consumer, MESSAGES)

    def fill_by_publishing(self, producer: SocketClient, consumer: SocketClient) -> None:
        """Publish until a publish is rejected, and acknowledge."""
        self._begin(producer, consumer)
        self.publish_until_refused(producer, 200_000)
        self.acknowledge(consumer, MESSAGES)

    def _begin(self, producer: SocketClient, consumer: SocketClient) -> None:
        """Store messages, and let the consumer hold as many as allowed."""
        for at in range(0, MESSAGES, WINDOW):
            keys = [self._new_key() for _ in range(min(WINDOW, MESSAGES - at))]
            for key in keys:
                producer.publish("orders", key + bytes(1_000), key=key)
            receipts = [producer.receipt() for _ in keys]
            self.confirmed += [receipt.key for receipt in receipts if receipt.reason is None]
        consumer.consume("orders", CREDIT)
        consumer.got.extend(consumer.dispatches(min(MESSAGES, CREDIT)))

    @contextmanager
    def retrying(self) -> Iterator[list[int]]:
        """Publish in a thread with immediate retries, from the first rejection on.

        Yields a list whose item is the number of rejections, at the end.
        """
        is_over, tries = threading.Event(), [0]
        thread = threading.Thread(target=self._retry, args=(is_over, tries))
        thread.start()
        try:
            yield tries
        finally:
            is_over.set()
            thread.join()

    def _retry(self, is_over: threading.Event, tries: list[int]) -> None:
        with SocketClient(self.broker.port) as peer, suppress(TimeoutError, ConnectionError):
            while not self.refused and not is_over.is_set():
                time.sleep(0.01)
            for number in count():
                key = b"r%0*d" % (_KEY - 1, number)
                while peer.confirm("orders", key + bytes(100), key=key) is not None:
                    tries[0] += 1
                    if is_over.is_set():
                        return
                self.confirmed.append(key)
                if is_over.is_set():
                    return

    # -- the disk after a kill

    def lost(self) -> list[str]:
        """Return the confirmed messages and ends that are not stored, and damage."""
        with read_only(self.disk.data) as database:
            bodies = {row[0] for row in database.execute(
                "SELECT substr(content, 1, ?) FROM body", (_KEY,))}  # fmt: skip
            settled = {row[0] for row in database.execute(
                "SELECT seq FROM history WHERE outcome = ?", (int(State.ACKED),))}  # fmt: skip
            alive = {row[0] for row in database.execute("SELECT seq FROM message")}
            found = database.execute("PRAGMA integrity_check").fetchone()[0]
        offences = [f"{key!r} was confirmed" for key in self.confirmed if key not in bodies]
        for dispatch in self.stored:
            seq = seq_of(dispatch.message_id)
            if seq not in settled or seq in alive:
                offences.append(f"{dispatch.message_id!r} was acknowledged")
        return offences if found == "ok" else [*offences, found]

    def __str__(self) -> str:
        resumed = "never" if self.resumed_s is None else f"after {self.resumed_s:.1f} s"
        return (
            f"{len(self.confirmed)} confirmed, {sum(self.refused.values())} refused, "
            f"{len(self.stored)} of {self.acked} acknowledgements stored, "
            f"publishing resumed {resumed}"
        )


@contextmanager
def story_on(
    disk: Disk, *settings: str, mutant: str = "", silence_s: float = WAIT_S
) -> Iterator[Story]:
    flags = ["--admin", "127.0.0.1:0", "--set", f"storage.ballast_bytes={32 << 20}"]
    for each in settings:
        flags += ["--set", each]
    with disk.broker(*flags, mutant=mutant) as broker:
        yield Story(broker, disk, silence_s)
