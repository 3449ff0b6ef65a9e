"""Envelopes under any order of commands and kills: nothing lost, nothing bad dispatched."""

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from phpmq_lite.broker.broker import BACKGROUND_BYTES
from phpmq_lite.broker.operator.message_actions import ActionOptions
from phpmq_lite.envelopes.inspector import BabelQueueInspector
from phpmq_lite.model import State
from phpmq_lite.operator_actions import Action
from phpmq_lite.queue_settings import QueueSettings
from tests.support.core_and_store import Client, Delivery, Driver
from tests.support.envelope_cases import body

POLICIES = ["opaque", "observe", "envelope"]
CONTENTS = {
    "good": body(),
    "poison": b"\xff",
    "plain": b"[1]",
    "old block": body(dead_letter='{"reason":"failed"}'),
    "missing_trace_id": body(trace_id=None),
    "unsupported_schema_version": body(meta='{"schema_version":2}'),
    "large": body(x='"%s"' % ("x" * BACKGROUND_BYTES)),
    "large and bad": body(data=None, x='"%s"' % ("x" * BACKGROUND_BYTES)),
}
GOOD = frozenset({"good", "old block", "large"})
REASONS = """
poison missing_meta missing_trace_id unsupported_schema_version invalid_data client worker
max_deliveries expired
"""
CAUSES = frozenset(REASONS.split())


class Envelopes(RuleBasedStateMachine):
    """One queue, its policy, a publisher and a consumer that may write records itself."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        defaults = QueueSettings(on_expire="dead_letter", max_deliveries=3)
        self.driver = Driver(Path(self.folder.name), None, defaults, BabelQueueInspector())
        self.policy = "observe"
        self.number = 0
        self.held: list[Delivery] = []
        self.written: set[int] = set()  # a worker keeps to one queue
        self.published: dict[bytes, bytes] = {}  # key -> content, receipted
        self.driver.publish(b"first")
        self.published[b"first"] = b"first"
        self._connect()

    def _connect(self) -> None:
        self.publisher = self.driver.connect()
        self.consumer: Client = self.driver.connect()
        self.consumer.consume("orders", 5)
        self.held = []
        self._step()

    def _step(self) -> None:
        self.driver.step()
        self.held += self.consumer.take()
        for delivery in self.held[-5:]:
            if self.policy == "envelope" and delivery.seq >= self.policy_since:
                assert delivery.body in {CONTENTS[name] for name in GOOD}

    policy_since = 0

    @rule(name=st.sampled_from(sorted(CONTENTS)), ttl_s=st.sampled_from([0, 0, 5]))
    def publish(self, name: str, ttl_s: int) -> None:
        key = b"%d" % self.number
        self.number += 1
        self.publisher.publish("orders", CONTENTS[name], ttl_s, key)
        self._step()
        assert [r.reason for r in self.publisher.receipts if r.key == key] == [None]
        self.published[key] = CONTENTS[name]

    @rule(policy=st.sampled_from(POLICIES))
    def set_policy(self, policy: str) -> None:
        self.driver.ask("configure", "orders", {"payload_policy": policy})
        self._step()
        self.policy, self.policy_since = policy, self.driver.core.next_number

    @rule(name=st.sampled_from([None, "errors"]))
    def set_dead_letter_queue(self, name: str | None) -> None:
        self.driver.ask("configure", "orders", {"dead_letter_queue": name})
        self._step()

    @rule(how=st.sampled_from(["ack", "requeue", "bare", "record", "elsewhere", "record, kill"]))
    def settle(self, how: str) -> None:
        if not self.held:
            return
        held = self.held.pop(0)
        if how == "ack":
            self.consumer.acknowledge("orders", held.message_id)
        elif how == "requeue":
            self.consumer.requeue("orders", held.message_id)
        else:
            if how != "bare":
                is_elsewhere = how == "elsewhere" and held.seq not in self.written
                self._write_record(held, "graves" if is_elsewhere else "orders.dlq")
            if how == "record, kill":
                self.driver.turn()
                self.kill()
                return
            self.consumer.dead_letter("orders", held.message_id)
        self._step()

    def _write_record(self, held: Delivery, queue: str) -> None:
        said = {"reason": "failed", "detail": "worker", "original_queue": "orders",
                "message_id": held.message_id.decode()}  # fmt: skip
        self.written.add(held.seq)
        content = b'{"job":"urn:a","dead_letter":' + json.dumps(said).encode() + b"}"
        self.consumer.publish(queue, content, 0, held.message_id + b":dead")

    @rule()
    def kill(self) -> None:
        self.driver.kill_and_restart()
        self._connect()

    @rule()
    def leave(self) -> None:
        self.consumer.disconnect()
        self._step()
        self._connect()

    @rule()
    def wait(self) -> None:
        self.driver.clock.advance(5)
        self._step()

    @rule(data=st.data())
    def redrive(self, data: st.DataObject) -> None:
        rows = self.driver.rows(  # of messages that are dead: until then 006 may still come
            "SELECT m.seq FROM message AS m JOIN queue USING (queue_id) WHERE name = 'orders.dlq'"
            " AND source_seq NOT IN (SELECT seq FROM message) ORDER BY m.seq"
        )
        if not rows:
            return
        seq = data.draw(st.sampled_from([seq for (seq,) in rows]))
        is_dry_run = data.draw(st.booleans())
        before = self.driver.tables() if is_dry_run else None
        self.driver.ask(
            "act_on_messages", Action.REDRIVE, [seq], ActionOptions(is_dry_run=is_dry_run)
        )
        if is_dry_run:
            self.driver.turn()
            assert before == self.driver.tables()
        self._step()

    @invariant()
    def each_dead_letter_has_one_record(self) -> None:
        rows = self.driver.rows(
            "SELECT h.seq, h.token, h.reason FROM history AS h JOIN queue USING (queue_id)"
            " WHERE name = 'orders' AND outcome = ?", int(State.DEAD),
        )  # fmt: skip
        sources = Counter(
            seq for (seq,) in self.driver.rows(
                "SELECT source_seq FROM message UNION ALL SELECT source_seq FROM history")
        )  # fmt: skip
        for seq, _, reason in rows:
            assert sources[seq] == 1, (seq, reason)
            assert reason in CAUSES, reason

    @invariant()
    def nothing_receipted_is_lost(self) -> None:
        stored: Counter[Any] = Counter(c for (c,) in self.driver.rows("SELECT content FROM body"))
        for content, count in Counter(self.published.values()).items():
            assert stored[content] >= count

    @invariant()
    def counts_are_those_of_the_rows(self) -> None:
        assert self.driver.rows(
            "SELECT name FROM queue WHERE live_count <> (SELECT count(*) FROM message"
            " WHERE message.queue_id = queue.queue_id) OR live_bytes <> (SELECT"
            " coalesce(sum(size), 0) FROM message WHERE message.queue_id = queue.queue_id)"
        ) == []  # fmt: skip

    def teardown(self) -> None:
        self.driver.close()
        self.folder.cleanup()


TestEnvelopes = Envelopes.TestCase
TestEnvelopes.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
