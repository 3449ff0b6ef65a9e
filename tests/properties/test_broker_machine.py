"""The broker on a real SQLite file against a naive model, at every commit.

Windows, pages and caches are tiny, so that most operations need the disk.
"""

import os
import tempfile
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phpmq_lite.broker import batches
from phpmq_lite.broker.operator import message_actions
from phpmq_lite.broker.operator.message_actions import ActionOptions
from phpmq_lite.model import Limits, State
from phpmq_lite.operator_actions import Action
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.storage import store as stores
from tests.properties.broker_acts import Acts
from tests.properties.broker_model import Copy, Model
from tests.properties.broker_rest import assert_memory_agrees, assert_rows_agree, unserved
from tests.support.core_and_store import Client, Cycle, Driver

pytestmark = pytest.mark.timeout(1_800)  # the long profile takes its time

# A real file in both cases: the tests restart the broker, but do not simulate a power cut.
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
LIMITS = Limits(
    window=3,
    window_bytes=60,
    bodies_bytes=100,
    credit=6,
    credit_bytes=120,
    held=9,
    write_bytes=80,
    receipts=50,
    receipt_window_ms=20_000,
)
DEFAULTS = QueueSettings(max_deliveries=3, ack_timeout_s=60)
OWN: dict[str, dict[str, object]] = {
    "orders": {},
    "orders.retry": {},  # forwards to orders by itself
    "mails": {"on_expire": "dead_letter", "max_deliveries": 2, "default_ttl_s": 8},
    "late": {"on_expire": "forward:mails", "max_messages": 6, "ack_timeout_s": 0},
    "orders.dlq": {},
    "mails.dlq": {"on_expire": "dead_letter"},
}

queues = st.sampled_from(["orders", "mails", *OWN])
picks = st.integers(0, 1_000)
ttls = st.sampled_from([None, 0, 1, 1, 2, 9, 10**18])
sizes = st.sampled_from([0, 1, 5, 20, 40])
VERBS = ["ack", "ack", "requeue", "dead_letter"]
then = st.sampled_from(["wait", "turn", "turn", "step"])


class BrokerAgainstModel(RuleBasedStateMachine):
    """Commands gather; ``then`` selects whether a turn follows, or turns until all is at rest."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.patches = [
            patch.object(message_actions, "PAGE_ROWS", 3),
            patch.object(batches, "_PREFETCHED_BODIES", 2),
            patch.object(stores, "DUE_AT_ONCE", 2),
            patch.object(stores, "_PAGE_BYTES", 30),
        ]
        for each in self.patches:
            each.start()
        self.driver = Driver(Path(self.folder.name), LIMITS, DEFAULTS)
        self.model = Model(DEFAULTS, self.driver.rows, window_ms=LIMITS.receipt_window_ms)
        self.model.acts = Acts(self.model)
        self.driver.on_turn = self.follow
        self.bodies = 0
        self.is_at_rest = True

    def teardown(self) -> None:
        problems = self.driver.database.problems(self.driver.store)
        self.driver.close()
        for each in self.patches:
            each.stop()
        self.folder.cleanup()
        # All but the bodies, which ``damage`` damages.
        problems.pop("bodies")
        assert not any(problems.values()), problems

    @initialize()
    def make_queues(self) -> None:
        client = self.driver.connect()
        for queue, own in OWN.items():
            client.consume(queue, 0)
            self.driver.ask("configure", queue, own)
        self.work_on_all(client)
        self.driver.step()

    # -- following

    def follow(self, turn: Cycle) -> None:
        """Follow a commit, before its results are sent."""
        self.model.take(turn)
        assert_rows_agree(self.model, self.driver)
        assert_memory_agrees(self.model, self.driver)

    def go_on(self, how: str) -> None:
        self.is_at_rest = how == "step"
        if how == "turn":
            self.driver.turn()
        elif how == "step":
            self.driver.step()

    @invariant()
    def nothing_is_left_undone_at_rest(self) -> None:
        if self.is_at_rest:
            assert list(self.model.left_undone()) == []
            assert list(unserved(self.model, self.driver)) == []
            self.model.acts.assert_at_rest()
            assert Counter(self.driver.core.ignored) == self.model.ignored

    def wait_for_a_deadline(self, is_wanted: bool) -> None:
        """Advance the clock to the next deadline, if there is one."""
        clock = self.driver.clock
        deadlines = [m.deadline_ms for m in self.model.alive.values() if m.deadline_ms is not None]
        if is_wanted:
            coming = [at for at in deadlines if clock.steady_ms < at < clock.steady_ms + 20_000]
            clock.steady_ms = min(coming, default=clock.steady_ms)

    def client(self, pick: int) -> Client:
        return self.driver.clients[pick % len(self.driver.clients)]

    def has_clients(self) -> bool:
        return bool(self.driver.clients)

    def body(self, size: int) -> bytes:
        self.bodies += 1
        return b"%d:" % self.bodies + b"x" * size

    # -- clients

    @precondition(lambda self: len(self.driver.clients) < 4)
    @rule(queue=queues, count=st.integers(1, 5), how=then)
    def come(self, queue: str, count: int, how: str) -> None:
        self.driver.connect().consume(queue, count)
        self.go_on(how)

    @precondition(has_clients)
    @rule(
        pick=picks,
        queue=queues,
        ttl_s=ttls,
        key=st.sampled_from([None, None, b"k1", b"k2"]),
        size=sizes,
        how=then,
    )
    def publish(
        self, pick: int, queue: str, ttl_s: int | None, key: bytes | None, size: int, how: str
    ) -> None:
        self.client(pick).publish(queue, self.body(size), ttl_s, key)
        self.go_on(how)

    @precondition(has_clients)
    @rule(pick=picks, key=st.sampled_from([b"k1", b"k2"]), is_lost=st.booleans())
    def confirm(self, pick: int, key: bytes, is_lost: bool) -> None:
        """Publish under a key; perhaps the answer is lost with the broker."""
        self.client(pick).publish("orders", self.body(0), None, key)
        if is_lost:
            self.driver.record()
            self.kill()
            self.client(0).publish("orders", self.body(0), None, key)
        self.go_on("turn")

    @precondition(has_clients)
    @rule(pick=picks, queue=queues, ttl_s=ttls, count=st.integers(2, 8), size=sizes, how=then)
    def publish_many(
        self, pick: int, queue: str, ttl_s: int | None, count: int, size: int, how: str
    ) -> None:
        for _ in range(count):
            self.client(pick).publish(queue, self.body(size), ttl_s)
        self.go_on(how)

    @precondition(has_clients)
    @rule(pick=picks, queue=queues, ttl_s=ttls, count=st.integers(2, 8), credit=st.integers(1, 3))
    def publish_and_consume(
        self, pick: int, queue: str, ttl_s: int | None, count: int, credit: int
    ) -> None:
        for n in range(count):
            self.client(pick).publish(queue, self.body(n), ttl_s)
        self.client(pick + 1).consume(queue, credit)
        self.go_on("turn")

    @precondition(has_clients)
    @rule(pick=picks, queue=queues, count=st.sampled_from([0, 1, 2, 4, 10**18]), how=then)
    def consume(self, pick: int, queue: str, count: int, how: str) -> None:
        self.client(pick).consume(queue, count)
        self.go_on(how)

    def act(self, client: Client, m: Copy, verb: str, ttl_s: int) -> None:
        if verb == "requeue":
            client.requeue(m.queue, m.message_id, ttl_s)
        elif verb == "dead_letter":
            client.dead_letter(m.queue, m.message_id)
        else:
            client.acknowledge(m.queue, m.message_id)

    @precondition(lambda self: any(m.holder for m in self.model.alive.values()))
    @rule(
        pick=picks,
        count=st.integers(1, 4),
        verb=st.sampled_from(VERBS),
        ttl_s=st.sampled_from([0, 1, 5]),
        is_due=st.booleans(),
        how=then,
    )
    def settle_what_it_holds(
        self, pick: int, count: int, verb: str, ttl_s: int, is_due: bool, how: str
    ) -> None:
        held = [m for m in self.model.alive.values() if m.holder]
        for m in [*held, *held][pick % len(held) :][:count]:
            assert m.holder is not None
            self.act(m.holder, m, verb, ttl_s)
        self.wait_for_a_deadline(is_due)
        self.go_on(how)

    @precondition(lambda self: self.driver.clients and self.model.alive)
    @rule(
        whom=picks,
        what=st.lists(st.tuples(picks, st.sampled_from(VERBS)), min_size=1, max_size=4),
        is_purged=st.booleans(),
        is_due=st.booleans(),
        how=then,
    )
    def crowd_round_one(
        self, whom: int, what: list[tuple[int, str]], is_purged: bool, is_due: bool, how: str
    ) -> None:
        """Several clients act on the same message, perhaps just when it expires."""
        m = list(self.model.alive.values())[whom % len(self.model.alive)]
        if is_purged:
            self.driver.ask("purge", m.queue, with_dispatched=True)
        self.wait_for_a_deadline(is_due)
        for pick, verb in what:
            self.act(self.client(pick), m, verb, 3)
        self.go_on(how)

    @precondition(lambda self: self.driver.clients and self.model.history)
    @rule(pick=picks, whom=picks, queue=queues, token=st.integers(0, 2), how=then)
    def acknowledge_what_is_gone(
        self, pick: int, whom: int, queue: str, token: int, how: str
    ) -> None:
        seqs = [*self.model.history, *self.model.alive]
        message_id = b"%016x%016x" % (seqs[whom % len(seqs)], token)
        self.client(pick).acknowledge(queue, message_id)
        self.go_on(how)

    @precondition(has_clients)
    @rule(pick=picks, how=then)
    def leave(self, pick: int, how: str) -> None:
        client = self.client(pick)
        client.disconnect()
        self.driver.clients.remove(client)
        self.go_on(how)

    @precondition(has_clients)
    @rule(pick=picks, is_choked=st.booleans(), how=then)
    def choke(self, pick: int, is_choked: bool, how: str) -> None:
        self.client(pick).choke(is_blocked=is_choked)
        self.go_on(how)

    # -- operators

    @rule(queue=queues, with_dispatched=st.booleans(), how=then)
    def purge(self, queue: str, with_dispatched: bool, how: str) -> None:
        self.driver.ask("purge", queue, with_dispatched=with_dispatched)
        self.go_on(how)

    @rule(
        queue=st.sampled_from(["orders.dlq", "mails.dlq", "mails.dlq", "late"]),
        goal=st.sampled_from([None, None, "late", "orders"]),
        ttl_s=st.sampled_from([None, 0, 2]),
        limit=st.sampled_from([None, 1, 3]),
        how=then,
    )
    def redrive(
        self, queue: str, goal: str | None, ttl_s: int | None, limit: int | None, how: str
    ) -> None:
        self.driver.ask("redrive", queue, target=goal, ttl_s=ttl_s, limit=limit)
        self.go_on(how)

    @rule(
        queue=queues,
        side=st.sampled_from(["delivery", "publishing"]),
        is_paused=st.sampled_from([True, False, False]),
        how=then,
    )
    def pause(self, queue: str, side: str, is_paused: bool, how: str) -> None:
        self.driver.ask("pause", queue, side, is_paused)
        self.go_on(how)

    @rule(queue=queues, seconds=st.sampled_from([3, 5]))
    def shorten_the_timeout(self, queue: str, seconds: int) -> None:
        """Messages already held for that long return."""
        self.driver.clock.advance(3)
        self.driver.ask("configure", queue, {"ack_timeout_s": seconds})
        self.go_on("step")

    @rule(
        queue=queues,
        own=st.sampled_from([
            {"max_deliveries": 1}, {"max_deliveries": None}, {"ack_timeout_s": 5},
            {"ack_timeout_s": None}, {"max_messages": 0}, {"max_messages": 3},
        ]),
        how=then,
    )  # fmt: skip
    def configure(self, queue: str, own: dict[str, int | None], how: str) -> None:
        self.driver.ask("configure", queue, own)
        self.go_on(how)

    def some(self, action: Action, picks: list[int]) -> list[int]:
        """Pick live, settled and unknown messages, preferring those that the action allows."""
        model = self.model
        seqs = [*model.alive, *model.history, 999_999]
        if action is Action.REDRIVE:
            seqs += [m.seq for m in model.alive.values() if m.source] * 5
        elif action is Action.RESTORE:
            seqs += [seq for seq, row in model.history.items() if row[2] is State.DELETED] * 3
        elif action is Action.TAKE_BACK:
            seqs += [*model.acts.made] * 5
        elif action is not Action.ERASE:
            seqs += [*model.alive] * 2
        return [seqs[-1 - pick % len(seqs)] for pick in picks]

    @rule(
        action=st.sampled_from([*Action, Action.RESTORE, Action.DELETE]),
        whom=st.lists(picks, min_size=1, max_size=6),
        ttl_s=st.sampled_from([None, None, 0, 2]),
        goal=st.sampled_from([None, "late", "orders", "new"]),
        create=st.booleans(),
        with_dispatched=st.booleans(),
        only=st.sampled_from([None, None, None, frozenset({1, 2})]),
        how=then,
    )
    def act_on_some(
        self,
        action: Action,
        whom: list[int],
        ttl_s: int | None,
        goal: str | None,
        create: bool,
        with_dispatched: bool,
        only: frozenset[int] | None,
        how: str,
    ) -> None:
        seqs = self.some(action, whom)
        places = self.model.acts.places
        if action is Action.PLACE:
            seqs = [*seqs, *places][-6:]
        made = dict(self.model.acts.made) if action is Action.TAKE_BACK else {}
        options = ActionOptions(ttl_s, goal, create, with_dispatched, only, dict(places), made)
        self.driver.ask("act_on_messages", action, seqs, options, audit=f"message.{action}")
        self.go_on(how)

    @rule(
        queue=queues,
        count=st.integers(1, 6),
        ttl_s=st.sampled_from([None, 5]),
        seconds=st.sampled_from([0, 0, 2]),
        how=then,
    )
    def delete_by_mistake(
        self, queue: str, count: int, ttl_s: int | None, seconds: int, how: str
    ) -> None:
        seqs = [m.seq for m in self.model.of_queue(queue)][:count]
        options = ActionOptions(ttl_s, with_dispatched=True)
        self.driver.ask("act_on_messages", Action.DELETE, seqs, options, audit="message.delete")
        self.go_on(how)
        self.driver.clock.advance(seconds)
        self.driver.ask("act_on_messages", Action.RESTORE, seqs, options, audit="message.restore")
        self.go_on(how)

    @rule(
        queue=queues,
        count=st.integers(1, 4),
        ttl_s=ttls,
        key=st.sampled_from([None, b"k1", b"k2"]),
        is_repeated=st.booleans(),
        how=then,
    )
    def publish_by_hand(
        self,
        queue: str,
        count: int,
        ttl_s: int | None,
        key: bytes | None,
        is_repeated: bool,
        how: str,
    ) -> None:
        messages = [(self.body(n), ttl_s) for n in range(count)]
        self.driver.ask("publish", queue, messages, key=key)
        self.go_on(how)
        if is_repeated:
            self.driver.ask("publish", queue, messages, key=key)
            self.go_on(how)

    @rule(queue=st.sampled_from(["late", "mails.dlq", "orders.dlq", "new"]), how=then)
    def remove_queue(self, queue: str, how: str) -> None:
        self.driver.ask("remove_queue", queue)
        self.go_on(how)

    # -- time, damage and crashes

    @precondition(lambda self: self.model.alive)
    @rule(whom=picks, how=then)
    def damage(self, whom: int, how: str) -> None:
        """Overwrite a body on disk with zeros; memory keeps the original."""
        m = list(self.model.alive.values())[whom % len(self.model.alive)]
        self.driver.set_body(m.seq, bytes(len(m.body)))
        m.is_damaged = True
        self.go_on(how)

    @rule(seconds=st.sampled_from([0.5, 1, 3, 9, 70]), how=then)
    def pass_time(self, seconds: float, how: str) -> None:
        self.driver.clock.advance(seconds)
        self.go_on(how)

    @precondition(has_clients)
    @rule(pick=picks, queue=queues, seconds=st.sampled_from([0.5, 2]))
    def commit_slowly(self, pick: int, queue: str, seconds: float) -> None:
        """A message dispatched in time may have expired when the dispatch is stored."""
        self.client(pick).publish(queue, self.body(1), 1)
        self.driver.commit_takes_s = seconds
        self.go_on("turn")
        self.driver.commit_takes_s = 0.0

    @rule()
    def come_to_rest(self) -> None:
        self.go_on("step")

    @rule(when=st.sampled_from(["at once", "while it decides", "after the commit"]), how=then)
    def kill_and_restart(self, when: str, how: str) -> None:
        if when == "while it decides":
            self.driver.decide()
        elif when == "after the commit":
            self.driver.record()
        self.kill()
        self.go_on(how)

    def kill(self) -> None:
        self.driver.kill_and_restart()
        self.model.restart()
        self.work_on_all(self.driver.connect())

    def work_on_all(self, client: Client) -> None:
        client.consume("orders", 2)
        client.consume("mails", 1)
        client.consume("orders.retry", 1)


class BrokerAtLength(BrokerAgainstModel):
    """The same with more examples."""


TestBroker = BrokerAgainstModel.TestCase
TestBroker.settings = settings(stateful_step_count=settings().stateful_step_count * 2)
TestBrokerAtLength = pytest.mark.slow(pytest.mark.timeout(400)(BrokerAtLength.TestCase))
TestBrokerAtLength.settings = settings(
    max_examples=min(3 * settings().max_examples, max(180, settings().max_examples)),
    stateful_step_count=settings().stateful_step_count * 2,
)
