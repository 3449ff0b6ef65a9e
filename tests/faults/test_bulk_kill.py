"""``kill -9`` during a bulk job: each message is processed or unchanged, and the audit is correct.

``PHPMQ_KILLS=100 python -m pytest tests/faults/test_bulk_kill.py`` kills more often.
``PHPMQ_SEED=…`` repeats the random choices of a run, but not its timing.
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.damage import copied
from tests.faults.mutants import mutant_process, program_of
from tests.support.fork_server import BrokerProcess
from tests.support.seed import SEED
from tests.support.socket_client import AdminApi, SocketClient

pytestmark = pytest.mark.faults

KILLS = int(os.environ.get("PHPMQ_KILLS", "6"))
SELECTED: Final = 6_000  # messages of a job: twelve slices
LATER: Final = 50  # messages published after the selection
ACTIONS: Final = ("delete", "move", "requeue")


@dataclass
class Round:
    data: Path
    action: str
    rng: random.Random
    mutant: str = ""
    is_second: bool = False
    offences: list[str] = field(default_factory=list)
    done: int = 0
    result: str = ""

    def run(self) -> None:
        """Publish, select, publish more, start the job, kill, and compare."""
        flags = "--admin", "127.0.0.1:0", "--set", f"ui.confirm_count={SELECTED}"
        broker = mutant_process(self.data, self.mutant, *flags, is_second=self.is_second)
        broker.start()
        try:
            token, upto = self._prepare(broker)
            self._kill_in_the_middle(broker, token)
            broker.kill()
            self._compare(upto)
            broker.program = program_of()
            broker.start()
            broker.kill()
            self._compare_audit()
        finally:
            broker.kill()

    def _prepare(self, broker: BrokerProcess) -> tuple[str, int]:
        admin = AdminApi(broker.admin[0])
        with SocketClient(broker.port) as peer:
            peer.store("orders", *(b"m%d" % at for at in range(SELECTED)))
            peer.store("mail", b"first")
            made = admin.post("/api/v1/selections", {"q": "queue:orders"})
            assert made["count"] == SELECTED
            last = int(max(sample["seq"] for sample in made["samples"]))
            peer.store("orders", *(b"later%d" % at for at in range(LATER)))
        return made["token"], last

    def _kill_in_the_middle(self, broker: BrokerProcess, token: str) -> None:
        """Start the job, and kill the broker at a random moment, perhaps after its end."""
        process = broker.process
        assert process is not None
        timer = threading.Timer(self.rng.uniform(0.0, 0.25), process.kill)
        asked = {"token": token, "action": self.action}
        timer.start()
        with suppress(OSError, HTTPException):  # killed before the response
            AdminApi(broker.admin[0]).post(
                "/api/v1/bulk", asked | ({"target": "mail"} if self.action == "move" else {})
            )
        timer.join()
        process.wait()

    # -- the data on disk

    def _read(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        with copied(self.data) as connection:
            return connection.execute(text, values).fetchall()

    def _compare(self, upto: int) -> None:
        """Check that each selected message is either alive or deleted, and later ones unchanged."""
        names = dict(self._read("SELECT queue_id, name FROM queue"))
        alive = {
            seq: (names[queue_id], position)
            for seq, queue_id, position in self._read("SELECT seq, queue_id, position FROM message")
            if names[queue_id] in ("orders", "mail")
        }
        deleted = Counter(seq for (seq,) in self._read("SELECT seq FROM history WHERE outcome = 5"))
        published = self._read("SELECT seq, content FROM body")
        selected = [seq for seq, content in published if content[:1] == b"m"]
        for seq in selected:
            if (seq in alive) + deleted[seq] != 1:
                self.offences.append(f"{seq} is alive {seq in alive}, deleted {deleted[seq]} times")
        if len(selected) != SELECTED:
            self.offences.append(f"{SELECTED - len(selected)} lost")
        later = [seq for seq, content in published if content.startswith(b"later") and seq > upto]
        if len(later) != LATER or any(alive.get(seq) != ("orders", seq) for seq in later):
            self.offences.append("a later arrival was touched")
        here = [(seq, *alive[seq]) for seq in selected if seq in alive]
        self.done = {
            "delete": len(deleted),
            "move": sum(name == "mail" for _, name, _ in here),
            "requeue": sum(position != seq for seq, _, position in here),
        }[self.action]
        counted = self._read("SELECT queue_id, live_count, (SELECT count(*) FROM message AS m "
                             "WHERE m.queue_id = q.queue_id) FROM queue AS q")  # fmt: skip
        for queue_id, count, real in counted:
            if real != count:
                self.offences.append(f"{names[queue_id]} has {real} messages and says {count}")

    def _compare_audit(self) -> None:
        """Check that the audit has the exact count, and whether the job was completed."""
        action = f"message.{self.action}"
        rows = self._read("SELECT count, result FROM audit WHERE action = ?", action)
        if not rows:
            self.result = "not begun"
            if self.done:
                self.offences.append(f"{self.done} done and no row in the audit")
            return
        ((count, self.result),) = rows
        expected = "done" if self.done == SELECTED else "interrupted"
        if (count, self.result) != (self.done, expected):
            self.offences.append(f"{self.done} done, the audit says {count} {self.result}")


@pytest.mark.slow
@pytest.mark.timeout(60 + 15 * KILLS)
def test_bulk_work_that_is_killed_leaves_each_message_done_or_not(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    rng = random.Random(SEED)
    results: Counter[str] = Counter()
    partly, began = 0, time.perf_counter()
    for number in range(KILLS):
        is_second = number // len(ACTIONS) % 2 == 1  # in the second half of the default number
        action = ACTIONS[number % len(ACTIONS)]
        one = Round(tmp_path / str(number), action, rng, is_second=is_second)
        one.run()
        results[one.result] += 1
        partly += 0 < one.done < SELECTED
        assert one.offences == [], f"{one.action}, seed {SEED}"
    figure(
        f"kill -9 in bulk work: {KILLS} kills in {time.perf_counter() - began:.1f} s, seed {SEED}: "
        f"{partly} in the middle, {dict(results)}; 0 messages half done, 0 later arrivals touched"
    )


@pytest.mark.timeout(300)
def test_comparison_finds_a_broker_that_forgets(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    rng = random.Random(SEED)
    for number in range(10):
        one = Round(tmp_path / str(number), "delete", rng, "ForgetsAcknowledgements")
        one.run()
        if one.offences:
            figure(f"mutant of bulk work: found after {number + 1} kills: {one.offences[:1]}")
            return
    pytest.fail("no offence was found")
