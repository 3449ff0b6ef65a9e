"""Publishers that compete for unique keys, over kills of the brokers and of the publishers.

``python -m tests.faults.unique_keys`` prints the figures, and ends with 1 if two messages of a key
were live at once, or a key is missing.  ``--failover`` uses two brokers of a PostgreSQL database;
``--short`` publishes fewer keys and kills less often.
"""

import os
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from itertools import cycle, pairwise
from math import inf
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from phpmq_lite.model import State
from tests.faults.sites import Site, Trial, main
from tests.support.socket_client import SocketClient
from tests.support.waiting import until

PUBLISHERS: Final = 8
KEYS: Final = 25  # times the square of the number of rounds
WINDOW: Final = 100  # unanswered publishes of a connection
LIMIT_S: Final = 300.0  # from one disturbance to the next
# Messages of half of the keys are consumed, so that a key becomes free and is taken again.
QUEUES: Final = ("kept", "worked")
_MESSAGES: Final = """
SELECT name, unique_key, seq, published_at, NULL, NULL FROM message JOIN queue USING (queue_id)
WHERE unique_key IS NOT NULL
UNION ALL
SELECT name, unique_key, seq, published_at, settled_at, outcome FROM history
JOIN queue USING (queue_id) WHERE unique_key IS NOT NULL
"""
_TWICE: Final = """
SELECT count(*) FROM (SELECT 1 FROM message WHERE unique_key IS NOT NULL
  GROUP BY queue_id, unique_key HAVING count(*) > 1) AS twice
"""


def publish(ports: list[int], journal: Path, number: int, keys: int) -> None:
    """Publish under each of the keys, in random order, what the journal does not have yet."""
    random_ = random.Random(number)
    known = set(journal.read_text().splitlines()) if journal.exists() else set()
    waiting = [key for key in random_.sample(range(keys), keys) if str(key) not in known]
    noted = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for port in cycle(ports):
        with suppress(OSError, AssertionError), SocketClient(port) as peer:
            while waiting:
                for key in waiting[-WINDOW:]:
                    publish_key(peer, number, key)
                for key in waiting[-WINDOW:]:
                    receipt = peer.receipt()
                    assert receipt.key == b"%d %d" % (number, key)
                    if receipt.reason not in (None, "unique_key_held"):
                        raise SystemExit(f"refused: {receipt.reason}")
                    os.write(noted, b"%d\n" % key)
                del waiting[-WINDOW:]
            return
        time.sleep(0.02)


def publish_key(peer: SocketClient, number: int, key: int) -> None:
    """Publish in one of several ways, always the same for a publisher and a key."""
    options: dict[str, Any] = {"unique_key": f"key {key}"}
    match (number + key // 2) % 4:
        case 0:
            options["if_exists"] = "replace"
        case 1:
            options["delay_s"] = key % 10 / 10
    content = b"%d %d" % (number, key)
    peer.publish_with(QUEUES[key % 2], content, content, **options)


class UniqueKeys(Trial):
    """Eight publishers that compete for unique keys; they and their broker are killed."""

    rounds = 20
    short = 4

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.keys = 0
        self.acked: set[int] = set()  # seqs that we acknowledged
        self.stored: Counter[str] = Counter()  # messages, by queue
        self._ports = [broker.port for broker in site.brokers]
        self._is_ended = threading.Event()
        self._slack_ms = 20 if len(site.brokers) > 1 else 0  # in which a broker knows the time

    def run(self, rounds: int) -> None:
        """Publish, consume and kill; compare what was stored."""
        self.keys = KEYS * rounds**2
        workers = [threading.Thread(target=self.work, args=(number,)) for number in range(2)]
        with TemporaryDirectory() as folder:
            journals = [Path(folder) / str(number) for number in range(PUBLISHERS)]
            publishers = [self.start(number, path) for number, path in enumerate(journals)]
            for worker in workers:
                worker.start()
            try:
                for part in range(1, rounds + 1):
                    self.wait(journals, part / (rounds + 1))
                    self.disturb(publishers, journals)
                self.wait(journals, 1)
            finally:
                self._is_ended.set()
                for worker in workers:
                    worker.join()
            for publisher in publishers:
                publisher.join(LIMIT_S)
            if any(publisher.exitcode for publisher in publishers):
                self.wrong.append("a publisher was refused")
        self.compare()

    def start(self, number: int, journal: Path) -> BaseProcess:
        process = get_context("forkserver").Process(
            target=publish, args=(self._ports, journal, number, self.keys), daemon=True
        )
        process.start()
        return process

    def wait(self, journals: list[Path], part: float) -> None:
        """Wait until this part of the publishes has been answered."""
        size = part * PUBLISHERS * len("".join(f"{key}\n" for key in range(self.keys)))
        until(
            lambda: sum(path.stat().st_size for path in journals if path.exists()) >= size, LIMIT_S
        )

    def disturb(self, publishers: list[BaseProcess], journals: list[Path]) -> None:
        """Kill or stop the active broker, or kill two publishers."""
        way = self.site.random_.choice(("kill", "kill", "stop", "publishers"))
        if way == "publishers":
            self.site.ways["kill of two publishers"] += 1
            for number in self.site.random_.sample(range(PUBLISHERS), 2):
                publishers[number].kill()
                publishers[number].join()
                publishers[number] = self.start(number, journals[number])
        else:
            self.site.replace(way)
            self.site.connect().close()
        [(twice,)] = self.site.rows(_TWICE)
        if twice:
            self.wrong.append(f"{twice} keys have two live messages")

    def work(self, number: int) -> None:
        """Acknowledge, retry or return messages until the end."""
        random_ = random.Random(number)
        for port in cycle(self._ports):
            with suppress(OSError, AssertionError), SocketClient(port) as peer:
                peer.consume("worked", 20)
                peer.socket.settimeout(0.2)
                while not self._is_ended.is_set():
                    with suppress(TimeoutError):
                        (dispatch,) = peer.dispatches(1)
                        match random_.randrange(10):
                            case 0:
                                peer.requeue(dispatch)
                            case 1:
                                peer.settle(dispatch, "retry", attempt=1, delay_s=0.2)
                            case _:
                                self.acked.add(int(dispatch.message_id[:16], 16))
                                peer.ack(dispatch)
            if self._is_ended.is_set():
                return
            time.sleep(0.02)

    def compare(self) -> None:
        """Compare the lives of the messages of each key."""
        lives: dict[tuple[str, str], list[tuple[int, int, float]]] = defaultdict(list)
        for name, key, seq, published_at, settled_at, outcome in self.site.rows(_MESSAGES):
            lives[name, key].append((seq, published_at, inf if settled_at is None else settled_at))
            self.stored[name] += 1
            if outcome == State.ACKED and seq not in self.acked:
                self.wrong.append(f"message {seq} of {key} is acknowledged, but not by us")
        for number in range(self.keys):
            name, key = QUEUES[number % 2], f"key {number}"
            found = sorted(lives.pop((name, key), ()))
            for (one, _, end), (other, begin, _) in pairwise(found):
                if end > begin + self._slack_ms:
                    self.wrong.append(f"{key}: messages {one} and {other} were live at once")
            if not found or (name == "kept" and found[-1][2] < inf):
                self.wrong.append(f"{key} is missing in {name}")
        if lives:
            self.wrong.append(f"unknown keys: {list(lives)[:3]}")

    def result(self) -> str:
        stored = ", ".join(f"{count:,} in {name!r}" for name, count in sorted(self.stored.items()))
        return (
            f"{PUBLISHERS} publishers of the same {self.keys:,} keys: "
            f"{PUBLISHERS * self.keys:,} publishes, messages stored: {stored}"
        )


if __name__ == "__main__":
    sys.exit(main(UniqueKeys))
