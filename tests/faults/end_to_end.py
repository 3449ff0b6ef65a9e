"""A broker from outside against a ledger: sockets and HTTP, kills, stops, clocks, full disks.

``python -m tests.faults.end_to_end`` searches (``--examples N``, ``--steps N``), and ends with 1
after the shortest sequence of rules that breaks a promise.  After each rule:

- each confirmed message is there once, alive or settled, and none has expired before its time;
- a message was charged at most as often as a consumer that had received it failed;
- each dead letter has its record, although no further queue may be made;
- a publish that is repeated under its Idempotency-Key gets the first answer;
- nothing is confirmed once the database is another file, and that file stays as it is.
"""

import argparse
import json
import sys
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine as conjecture
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from phpmq_lite.model import State
from phpmq_lite.protocol.frames import Dispatch
from phpmq_lite.storage.data_folder import DATABASE
from tests.faults.ghosts import accepts
from tests.faults.ledger import IN_MEMORY, read_only
from tests.faults.shim import Shim
from tests.faults.shimmed_broker import shimmed_broker
from tests.support.socket_client import AdminApi, SocketClient, new_key
from tests.support.stores import empty_database
from tests.support.waiting import until

EXAMPLES: Final = 12
STEPS: Final = 12
SHRINKING_S: Final = 60  # a step takes a tenth of a second
QUEUES: Final = ("orders", "strict", "late", "barrier")  # limits.max_queues
FLAGS: Final = (
    "--admin", "127.0.0.1:0", "--set", f"limits.max_queues={len(QUEUES)}",
    "--set", "queues.max_deliveries=2", "--set", "storage.free_bytes=0",
)  # fmt: skip
LONG_TTL_S: Final = 7_200  # the clock is set by an hour
HOUR_MS: Final = 3_600_000
SILENCE_S: Final = 0.5  # then an unanswered publish is waiting for room on the disk
FAIL_STOP: Final = 74
ENVELOPE: Final = (
    b'{"job":"urn:babel:a:b","trace_id":"t","data":{"n":%d},"meta":{"id":"%d","queue":"strict",'
    b'"lang":"php","schema_version":1,"created_at":1},"attempts":0}'
)
SQL: Final = """
SELECT content, seq, name, charged, NULL FROM message JOIN body USING (seq)
JOIN queue ON queue.queue_id = message.queue_id
UNION ALL
SELECT content, seq, name, charged, outcome FROM history JOIN body USING (seq)
JOIN queue ON queue.queue_id = history.queue_id
"""
RECORDS: Final = """
SELECT source_seq FROM message UNION SELECT source_seq FROM history
"""


@dataclass(eq=False)
class Consumer:
    """A connection with credit, and the messages that it holds, oldest first."""

    peer: SocketClient
    held: list[Dispatch] = field(default_factory=list)

    def take(self) -> None:
        """Receive all dispatches that are under way."""
        self.peer.barrier()
        self.held += self.peer.got
        self.peer.got.clear()


class EndToEnd(RuleBasedStateMachine):
    """One broker, its clients, and the ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(dir=IN_MEMORY, prefix="phpmq-e2e-")
        self.shim = Shim(Path(self.folder.name))
        self.broker = shimmed_broker(self.shim, *FLAGS, is_hasty=True)
        self.consumers: list[Consumer] = []
        self.confirmed: set[bytes] = set()
        self.failures: Counter[bytes] = Counter()  # of consumers that had received it
        self.answers: list[tuple[str, list[dict[str, Any]], Any]] = []  # key, asked, first answer
        self.number = 0
        self.start()
        with SocketClient(self.broker.port) as peer:
            for name in QUEUES:
                peer.consume(name, 0)
            peer.barrier()
        self.configure("strict", {"payload_policy": "envelope"})
        self.configure("late", {"on_expire": "forward:elsewhere"})

    def teardown(self) -> None:
        for consumer in self.consumers:
            consumer.peer.close()
        self.broker.kill()
        self.folder.cleanup()

    # -- the broker

    def start(self) -> None:
        """Start the broker; all connections ended with the previous process."""
        for consumer in self.consumers:
            consumer.peer.close()
        self.consumers.clear()
        self.broker.start()
        self.admin = AdminApi(self.broker.admin[0])

    def configure(self, queue: str, changes: dict[str, Any]) -> None:
        self.call("PATCH", f"/api/v1/queues/{queue}", changes)

    def call(self, method: str, path: str, body: Any, **headers: str) -> Any:
        request = urllib.request.Request(
            self.admin.url + path, json.dumps(body).encode(),
            {"Content-Type": "application/json", "Origin": self.admin.url, **headers},
            method=method,
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def body(self) -> bytes:
        self.number += 1
        return b"body %d" % self.number

    def confirm(self, queue: str, body: bytes, ttl_s: int = 0) -> None:
        with SocketClient(self.broker.port) as peer:
            assert peer.confirm(queue, body, ttl_s) is None
            self.confirmed.add(body)
            peer.barrier()

    def row(self, body: bytes) -> tuple[Any, ...]:
        """Return seq, queue, charged and outcome (None: alive) of the message with this body."""
        (row,) = [row[1:] for row in self.rows(SQL) if row[0] == body]
        return row

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with read_only(self.broker.data) as database:
            return database.execute(sql).fetchall()

    # -- clients

    @rule(ttl_s=st.sampled_from([0, LONG_TTL_S]))
    def publish(self, ttl_s: int) -> None:
        self.confirm("orders", self.body(), ttl_s)

    @precondition(lambda self: len(self.consumers) < 4)
    @rule(credit=st.integers(1, 2))
    def consume(self, credit: int) -> None:
        consumer = Consumer(SocketClient(self.broker.port))
        consumer.peer.consume("orders", credit)
        consumer.take()
        self.consumers.append(consumer)

    @precondition(lambda self: self.consumers)
    @rule(
        how=st.sampled_from(["close", "half_close", "reset"]),
        count=st.integers(1, 4),
        is_followed=st.booleans(),
    )
    def leave(self, how: str, count: int, is_followed: bool) -> None:
        """Consumers end their connections; perhaps a message is published right after."""
        for consumer in self.consumers:
            consumer.take()
        leaving, self.consumers = self.consumers[:count], self.consumers[count:]
        for consumer in leaving:
            if consumer.held:
                self.failures[consumer.held[0].content] += 1
            getattr(consumer.peer, how)()
        if is_followed:
            self.confirm("orders", self.body())
        for consumer in leaving:
            consumer.peer.close()

    @precondition(lambda self: any(consumer.held for consumer in self.consumers))
    @rule(verb=st.sampled_from(["ack", "requeue", "dead_letter"]))
    def end(self, verb: str) -> None:
        consumer = next(consumer for consumer in self.consumers if consumer.held)
        dispatch = consumer.held.pop(0)
        if verb == "requeue":
            self.failures[dispatch.content] += 1
        getattr(consumer.peer, verb)(dispatch)
        consumer.take()
        seq, _, _, outcome = self.row(dispatch.content)
        if verb == "ack":
            assert outcome == State.ACKED, f"{dispatch.content!r} was acknowledged"
        elif verb == "dead_letter":
            assert outcome == State.DEAD, f"{dispatch.content!r} was dead-lettered"
            assert (seq,) in self.rows(RECORDS), f"{dispatch.content!r} has no record"

    @rule()
    def expire(self) -> None:
        """A message expires whose destination queue cannot be created."""
        body = self.body()
        self.confirm("late", body, 1)
        until(lambda: self.row(body)[1:] != ("late", 0, None), 20)

    # -- HTTP

    @rule(kinds=st.lists(st.booleans(), min_size=1, max_size=3))
    def publish_by_http(self, kinds: list[bool]) -> None:
        """Publish valid and invalid envelopes twice under a key."""
        asked = []
        for is_good in kinds:
            self.number += 1
            content = ENVELOPE % (self.number, self.number) if is_good else self.body()
            asked.append({"content": content.decode()})
            self.confirmed.add(content)
        key = new_key().decode()
        self.answers.append((key, asked, self._ask(key, asked)))
        self.ask_again()

    @precondition(lambda self: self.answers)
    @rule()
    def ask_again(self) -> None:
        key, asked, first = self.answers[-1]
        again = self._ask(key, asked)
        assert again == first, f"asked again under {key}: {again}, at first {first}"
        for message_id in again[0]:
            with urllib.request.urlopen(f"{self.admin.url}/api/v1/messages/{message_id}") as found:
                assert found.status == 200

    def _ask(self, key: str, asked: list[dict[str, Any]]) -> tuple[list[str], dict[str, str]]:
        path = "/api/v1/queues/strict/messages"
        answer = self.call("POST", path, asked, **{"Idempotency-Key": key})
        return answer["ids"], answer.get("quarantined", {})

    # -- ends of the process

    @rule()
    def kill(self) -> None:
        self.broker.kill()
        self.start()

    @rule(leaving=st.integers(0, 2))
    def stop(self, leaving: int) -> None:
        """Stop the broker while workers disconnect, which counts as no failed delivery."""
        for consumer in self.consumers:
            consumer.take()
        assert self.broker.process is not None
        self.broker.process.terminate()
        while accepts(self.broker):
            pass
        for consumer in self.consumers[:leaving]:
            consumer.peer.close()
        assert self.broker.process.wait(30) == 0
        self.broker.kill()  # it has ended
        self.start()

    # -- the machine below it

    @rule(hours=st.sampled_from([-1, 0, 1]))
    def set_clock(self, hours: int) -> None:
        self.shim.clock_offset_ms = hours * HOUR_MS

    @rule(room=st.sampled_from([0, 16_384]))
    def fill_disk(self, room: int) -> None:
        """A publish on a full disk is rejected, or waits for room; its receipt is correct."""
        body, key = self.body() + b" " + b"x" * 20_000, new_key()
        self.shim.quota_bytes = self.shim.used_bytes + room
        with SocketClient(self.broker.port) as peer:
            peer.publish("orders", body, key=key)
            peer.socket.settimeout(SILENCE_S)
            with suppress(TimeoutError):
                peer.take()
            self.shim.heal()
            peer.socket.settimeout(20)
            if peer.receipt_for(key).reason is None:
                self.confirmed.add(body)
            until(lambda: peer.confirm("barrier", b"") is None, 20)  # because there is room

    @rule(
        name=st.sampled_from([DATABASE, f"{DATABASE}-wal"]),
        is_replaced=st.booleans(),
        is_stopped=st.booleans(),
    )
    def lose_file(self, name: str, is_replaced: bool, is_stopped: bool) -> None:
        """A file is moved away while the broker runs, and moved back after it has exited."""
        file, foreign = self.broker.data / name, empty_database()
        kept = self.broker.data.parent / f"kept-{name}"
        file.rename(kept)
        if is_replaced:
            file.write_bytes(foreign)
        assert self.broker.process is not None
        if is_stopped:
            self.broker.process.terminate()
        else:
            with suppress(ConnectionError), SocketClient(self.broker.port) as peer:
                peer.publish("orders", self.body(), key=new_key())
                assert peer.rest() == b"", f"confirmed, although {name} is another file"
        code = self.broker.process.wait(30)
        assert code == FAIL_STOP, f"exit code {code}, although {name} is another file"
        if is_replaced:
            assert file.read_bytes() == foreign, f"the foreign {name} was written to"
        self.broker.kill()
        kept.replace(file)
        self.start()

    # -- the ledger

    @invariant()
    def ledger_agrees(self) -> None:
        for consumer in self.consumers:
            consumer.take()
        with SocketClient(self.broker.port) as peer:
            peer.barrier()
        found = [row for row in self.rows(SQL) if row[0] in self.confirmed]
        records = {seq for (seq,) in self.rows(RECORDS)}
        assert Counter(row[0] for row in found) == Counter(self.confirmed)
        for body, seq, queue, charged, outcome in found:
            failures = self.failures[body]
            assert charged <= failures, f"{body!r} is charged {charged}, it failed {failures} times"
            assert outcome != State.EXPIRED, f"{body!r} has expired in {queue}"
            if outcome == State.DEAD:
                assert seq in records, f"{body!r} is dead, and has no record"


def main() -> int:
    """Search from the command line, and print the shortest failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.end_to_end", description=__doc__)
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args()
    conjecture.MAX_SHRINKING_SECONDS = SHRINKING_S
    began = time.monotonic()
    chosen = settings(
        max_examples=given.examples, stateful_step_count=given.steps, deadline=None,
        derandomize=True, database=None, report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    try:
        run_state_machine_as_test(EndToEnd, settings=chosen)
    except AssertionError as error:
        notes = [note for note in getattr(error, "__notes__", ()) if "state" in note]
        print(f"{error}\n" + "\n".join(notes))
        return 1
    took_s = time.monotonic() - began
    print(f"end to end: {given.examples} examples of {given.steps} steps in {took_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
