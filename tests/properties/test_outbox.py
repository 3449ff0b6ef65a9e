"""The outbox against a list: transactions, failures of every kind, crashes, several relays.

The model is naive: per queue the numbers that were committed.  Whatever happens, the broker has
each of them at most once and in order, but for those that failed; once all is well it has all.
"""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from itertools import count

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from phpmq_lite.client.blocking_client import NoReplyError, PublishOutcome
from phpmq_lite.client.publishes import KeyedMessage
from phpmq_lite.envelopes import outbox as relays
from phpmq_lite.envelopes.outbox import Outbox, Relay, SqliteOutboxStore, create_tables
from phpmq_lite.errors import ConnectionLostError, LocalProtocolError, PublishRefusedError

pytestmark = pytest.mark.timeout(1_800)  # the long profile takes its time

QUEUES = ("orders", "mail")
RELAYS = 3
KINDS = ("fine", "fine", "fine", "fine", "bad", "hung")  # bad is not allowed, hung is hung up on


class Crash(BaseException):
    """The relay's process ends here."""


class Broker:
    """Stores each key once; may be away, refuse a queue, or hang up on a message."""

    def __init__(self) -> None:
        self.stored: dict[str, list[int]] = defaultdict(list)
        self.keys: set[tuple[str, bytes]] = set()
        self.refusing: set[str] = set()
        self.is_healed = False  # takes what it hung up on
        self.answers = -1  # messages until it is away; below 0: it stays
        self.is_stored = False  # by the time it goes away
        self.crash_after = -1  # messages until the relay's process ends

    def send(self, messages: Sequence[KeyedMessage]) -> list[PublishOutcome]:
        outcomes: list[PublishOutcome] = []
        is_hung = False
        for message in messages:
            if self.crash_after == 0:
                raise Crash
            self.crash_after -= 1
            kind = json.loads(message.content)["data"]["kind"]
            is_hung = is_hung or (kind == "hung" and not self.is_healed)
            outcomes.append(self._take(message, kind, is_hung=is_hung))
        if self.crash_after == 0:
            raise Crash
        return outcomes

    def _take(self, message: KeyedMessage, kind: str, *, is_hung: bool) -> PublishOutcome:
        if kind == "bad":
            return LocalProtocolError("not allowed")
        if is_hung:
            return ConnectionLostError("10 connections ended")
        is_away = self.answers == 0
        self.answers -= self.answers > 0
        if is_away and not self.is_stored:
            return NoReplyError("away")
        if message.queue in self.refusing and (message.queue, message.key) not in self.keys:
            return PublishRefusedError("paused")
        self._store(message)
        return NoReplyError("away") if is_away else None

    def _store(self, message: KeyedMessage) -> None:
        place = (message.queue, message.key)
        if place not in self.keys:
            self.keys.add(place)
            self.stored[message.queue].append(json.loads(message.content)["data"]["n"])


class OutboxAgainstList(RuleBasedStateMachine):
    """Writers, relays and a broker; each rule ends with no transaction open."""

    def __init__(self) -> None:
        super().__init__()
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        create_tables(self.connection)
        self.outbox = Outbox(self.connection)
        self.broker = Broker()
        self.now_s = 1_000_000.0
        self.written: dict[str, list[int]] = defaultdict(list)
        self.kinds: dict[int, str] = {}
        self.count = 0

    @initialize(batch=st.integers(1, 5))
    def begin(self, batch: int) -> None:
        self.batch = batch
        self.relays = [self.fresh_relay() for _ in range(RELAYS)]

    def fresh_relay(self) -> Relay:
        store = SqliteOutboxStore(self.connection, now_ms=lambda: round(self.now_s * 1_000))
        return Relay(store, self.broker.send, lambda: self.now_s, batch=self.batch)

    @rule(
        rows=st.lists(
            st.tuples(st.sampled_from(QUEUES), st.sampled_from(KINDS)), min_size=1, max_size=8
        ),
        is_committed=st.booleans(),
    )
    def write(self, rows: list[tuple[str, str]], is_committed: bool) -> None:
        self.connection.execute("BEGIN")
        for queue, kind in rows:
            self.count += 1
            self.outbox.publish("urn:babel:a:b", {"n": self.count, "kind": kind}, queue=queue)
            if is_committed:
                self.written[queue].append(self.count)
                self.kinds[self.count] = kind
        self.connection.execute("COMMIT" if is_committed else "ROLLBACK")

    @rule(which=st.integers(0, RELAYS - 1))
    def run(self, which: int) -> None:
        self.relays[which].run()

    @rule(which=st.integers(0, RELAYS - 1), answers=st.integers(0, 6), is_stored=st.booleans())
    def run_and_lose_the_broker(self, which: int, answers: int, is_stored: bool) -> None:
        """The broker is away from one message on, with or without storing them."""
        self.broker.answers, self.broker.is_stored = answers, is_stored
        self.relays[which].run()
        self.broker.answers = -1

    @rule(which=st.integers(0, RELAYS - 1), after=st.integers(0, 8))
    def run_and_crash(self, which: int, after: int) -> None:
        """End the process after some messages reached the broker, and start another."""
        self.broker.crash_after = after
        try:
            self.relays[which].run()
        except Crash:
            self.relays[which] = self.fresh_relay()
        self.broker.crash_after = -1

    @rule(queues=st.sets(st.sampled_from(QUEUES)))
    def refuse(self, queues: set[str]) -> None:
        self.broker.refusing = queues

    @rule(seconds=st.sampled_from([1, 5, 30, 300]))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds

    @rule()
    def heal(self) -> None:
        self.broker.is_healed = True

    @invariant()
    def each_is_stored_at_most_once_and_in_order(self) -> None:
        for queue, stored in self.broker.stored.items():
            assert len(set(stored)) == len(stored)
            assert set(stored) <= set(self.written[queue])
            never_failed = [n for n in stored if self.kinds[n] == "fine"]
            assert never_failed == sorted(never_failed)

    def teardown(self) -> None:
        """Recover from every fault: all messages arrive, except those that can never be sent."""
        with closing(self.connection):  # also when an assertion below fails, as a mutant makes it
            self.broker.refusing, self.broker.is_healed = set(), True
            for _ in range(2):
                self.now_s += 400
                for relay in getattr(self, "relays", ()):
                    relay.run()
            self.each_is_stored_at_most_once_and_in_order()
            for queue, numbers in self.written.items():
                sendable = {n for n in numbers if self.kinds[n] != "bad"}
                assert set(self.broker.stored[queue]) == sendable
            left = self.connection.execute(
                "SELECT count(*), count(error) FROM phpmq_outbox WHERE sent_ms IS NULL"
            ).fetchone()
            bad = sum(kind == "bad" for kind in self.kinds.values())
            assert left == (bad, bad)


TestOutbox = OutboxAgainstList.TestCase


@pytest.mark.parametrize("mutant", ["other keys", "lost failures", "wrong order"])
def test_machine_finds_a_relay_with(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine detects each defect, so it can fail."""
    if mutant == "other keys":
        numbers = count()
        monkeypatch.setattr(
            relays,
            "_keyed_message",
            lambda row: KeyedMessage(row.queue, row.body, row.ttl_s, b"%d" % next(numbers)),
        )
    elif mutant == "lost failures":
        monkeypatch.setattr(
            SqliteOutboxStore,
            "mark_failed",
            lambda self, row_id, _, **__: self.mark_published([row_id]),
        )
    else:
        real = SqliteOutboxStore.lease_rows
        monkeypatch.setattr(SqliteOutboxStore, "lease_rows", lambda *given: real(*given)[::-1])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            OutboxAgainstList,
            settings=settings(
                max_examples=1_000,  # it stops at the first failure
                print_blob=False,
                phases=[Phase.generate],
                report_multiple_bugs=False,
            ),
        )
