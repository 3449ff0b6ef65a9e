"""The broker on a real SQLite file against a naive model, at every commit.

Windows, pages and caches are tiny, so that most operations need the disk.  The commands for many
long runs, on either engine and with SIGKILL, are in ``tests/soak/long_runs.py``.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RULE_MARKER,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from phpmq_lite.broker import batches
from phpmq_lite.broker.operator import message_actions
from phpmq_lite.broker.operator.message_actions import ActionOptions
from phpmq_lite.broker.operator.publishing import NewMessage
from phpmq_lite.envelopes.inspector import BabelQueueInspector
from phpmq_lite.frame_options import PUBLISH, DeliveryTime, PublishOptions, check_options
from phpmq_lite.model import Limits, State
from phpmq_lite.operator_actions import Action
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.storage import store as stores
from tests.properties.broker_acts import Acts
from tests.properties.broker_copies import Copy
from tests.properties.broker_model import Model
from tests.properties.broker_rest import assert_memory_agrees, assert_rows_agree, unserved
from tests.support.core_and_store import Client, Cycle, Driver
from tests.support.stores import rows_of

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
    max_hold_ms=90_000,
)
DEFAULTS = QueueSettings(max_deliveries=3, ack_timeout_s=60, payload_policy="opaque")
OWN: dict[str, dict[str, object]] = {
    "orders": {},
    "orders.retry": {},  # forwards to orders by itself
    "mails": {"on_expire": "dead_letter", "max_deliveries": 2, "default_ttl_s": 8},
    "late": {"on_expire": "forward:pairs", "max_messages": 6, "ack_timeout_s": 0},
    "orders.dlq": {},
    "mails.dlq": {"on_expire": "dead_letter", "group_by": "group"},
    "slow": {"max_rate": 2.0, "max_burst": 2},
    "teams": {"group_by": "group", "on_expire": "forward:mails"},
    "pairs": {"group_by": "/g", "on_expire": "forward:teams", "max_in_flight": 2},
    "jobs": {  # its bodies are envelopes
        "payload_policy": "observe",
        "max_deliveries": 4,
        "max_in_flight": 2,
    },
}

# Each run has a few queues only, in which rare events meet more often.
queues: st.SearchStrategy[str] = st.runner().flatmap(lambda run: st.sampled_from(run.chosen))
picks = st.integers(0, 1_000)
ttls = st.sampled_from([None, 0, 1, 1, 2, 9, 10**18])
sizes = st.sampled_from([0, 1, 5, 20, 40])
VERBS = ["ack", "ack", "requeue", "dead_letter", "retry", "retry", "extend", "invalid"]
groups = st.sampled_from([None, "a", "a", "b"])
keys = st.sampled_from([None, None, "u", "v"])
priorities = st.sampled_from([128, 128, 0, 127, 255])
delays = st.sampled_from([0, 0, 0.5, 1, 2, 10])
# when something is ready: after a delay, or at a date, in seconds from now
times: st.SearchStrategy[tuple[float, int | None]] = st.sampled_from([
    (0, None), (0, None), (0.5, None), (2, None), (10, None), (0, -1), (0, 1), (0, 3), (0, 10),
])  # fmt: skip
then = st.sampled_from(["wait", "turn", "turn", "step"])
# what a message is published with: time, priority, group, unique key, whether it replaces another
Item = tuple[tuple[float, int | None], int, str | None, str | None, bool]
items = st.lists(st.tuples(times, priorities, groups, keys, st.booleans()), min_size=1, max_size=5)


class BrokerAgainstModel(RuleBasedStateMachine):
    """Commands gather; ``then`` selects whether a turn follows, or turns until all is at rest."""

    only: tuple[str, ...] = ()  # the queues of each run; if none, each run chooses some

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
        self.driver = Driver(Path(self.folder.name), LIMITS, DEFAULTS, BabelQueueInspector())
        self.model = Model(
            DEFAULTS,
            self.driver.rows,
            window_ms=LIMITS.receipt_window_ms,
            max_hold_ms=LIMITS.max_hold_ms,
        )
        self.model.acts = Acts(self.model)
        self.driver.on_turn = self.follow
        self.bodies = 0
        self.is_at_rest = True
        self.chosen = list(self.only)
        self.doubted_from = 0  # the next message number at the start with a doubtful clock

    def teardown(self) -> None:
        problems = self.driver.database.problems(self.driver.store)
        self.driver.close()
        for each in self.patches:
            each.stop()
        self.folder.cleanup()
        # All but the bodies, which ``damage`` damages.
        problems.pop("bodies")
        assert not any(problems.values()), problems

    @initialize(some=st.sets(st.sampled_from([*OWN]), min_size=1))
    def make_queues(self, some: set[str]) -> None:
        self.chosen = self.chosen or sorted(some)
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
            undone = list(self.model.left_undone())
            assert undone == [], undone
            assert list(unserved(self.model, self.driver)) == []
            self.model.acts.assert_at_rest()
            assert Counter(self.driver.core.ignored) == self.model.ignored

    def wait_for_a_deadline(self, is_wanted: bool) -> None:
        """Advance the clock to the next deadline, if there is one."""
        clock = self.driver.clock
        alive = self.model.alive.values()
        deadlines = [m.deadline_ms for m in alive if m.deadline_ms is not None]
        deadlines += [m.due_ms for m in alive if m.due_ms is not None]
        deadlines += [m.end_ms for m in alive if m.end_ms is not None]
        if is_wanted:
            coming = [at for at in deadlines if clock.steady_ms < at < clock.steady_ms + 20_000]
            clock.steady_ms = min(coming, default=clock.steady_ms)

    def client(self, pick: int) -> Client:
        return self.driver.clients[pick % len(self.driver.clients)]

    def has_clients(self) -> bool:
        return bool(self.driver.clients)

    def time(self, time: tuple[float, int | None]) -> DeliveryTime:
        delay_s, seconds = time
        if seconds is None:
            return DeliveryTime(delay_s)
        return DeliveryTime(0, self.driver.clock.now().wall_ms + seconds * 1_000)

    def body(self, size: int, queue: str = "") -> bytes:
        self.bodies += 1
        if queue in ("jobs", "jobs.retry"):
            return b'{"job":"u","attempts":%d,"n":%d}' % (size % 2, self.bodies)
        if queue in ("pairs", "late"):
            return b'{"g":%d,"n":%d}' % (size % 2, self.bodies)
        return b"%d:" % self.bodies + b"x" * size

    def options(self, item: Item, ttl_s: float | None) -> dict[str, Any]:
        time, priority, group, unique_key, is_replacing = item
        delay_s, deliver_at = self.time(time)
        is_replacing = is_replacing and unique_key is not None
        return {
            "ttl_s": ttl_s, "delay_s": delay_s, "deliver_at": deliver_at, "priority": priority,
            "group": group, "unique_key": unique_key,
            "if_exists": "replace" if is_replacing else "keep",
        }  # fmt: skip

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
        self.client(pick).publish(queue, self.body(size, queue), ttl_s, key)
        self.go_on(how)

    @precondition(has_clients)
    @rule(
        pick=picks,
        queue=queues,
        key=st.sampled_from([None, None, b"k1", b"k2"]),
        ttl_s=st.sampled_from([None, None, 0, 1, 2.5]),
        items=items,
        is_due=st.booleans(),
        how=then,
    )
    def publish_with(
        self,
        pick: int,
        queue: str,
        key: bytes | None,
        ttl_s: float | None,
        items: list[Item],
        is_due: bool,
        how: str,
    ) -> None:
        for n, item in enumerate(items):
            body, options = self.body(n, queue), self.options(item, ttl_s)
            self.client(pick).publish_with(queue, body, None if n else key, **options)
        self.go_on(how)
        self.wait_for_a_deadline(is_due)
        self.go_on(how)

    @precondition(has_clients)
    @rule(
        pick=picks,
        queue=st.sampled_from(["teams", "pairs"]),
        count=st.integers(2, 5),
        delay_s=delays,
        credit=st.integers(1, 4),
        is_killed=st.booleans(),
        then_off=st.booleans(),
    )
    def work_on_a_group(
        self, pick: int, queue: str, count: int, delay_s: float, credit: int, is_killed: bool,
        then_off: bool,
    ) -> None:  # fmt: skip
        """The others of a group follow, although the broker is killed between two of them."""
        client = self.client(pick)
        client.consume(queue, credit)
        for n in range(count):
            client.publish_with(
                queue, self.body(0, queue), group="a", delay_s=delay_s if n == 1 else 0,
                priority=0 if n == 3 else 128,
            )  # fmt: skip
        self.go_on("step")
        self.driver.clock.advance(delay_s)
        for m in self.model.held(client, queue)[:2]:
            client.acknowledge(queue, m.message_id)
        client.publish_with(queue, self.body(0, queue), group="a", priority=pick % 2 * 128)
        if is_killed:
            self.driver.record()
            self.kill()
        elif then_off:
            self.driver.ask("configure", queue, {"group_by": None})
            self.go_on("step")
            self.driver.ask("configure", queue, {"group_by": "group"})
        self.go_on("step")

    @precondition(lambda self: any(m.holder for m in self.model.alive.values()))
    @rule(
        pick=picks,
        seconds=st.sampled_from([5, 80, 200]),
        wait_s=st.sampled_from([7, 70, 85]),
        how=then,
    )
    def extend_and_leave(self, pick: int, seconds: int, wait_s: int, how: str) -> None:
        """The next holder has the usual time."""
        held = [m for m in self.model.alive.values() if m.holder]
        m = held[pick % len(held)]
        assert m.holder is not None
        m.holder.extend(m.queue, m.message_id, seconds * 2)
        m.holder.extend(m.queue, m.message_id, seconds)
        self.go_on("turn")
        if pick % 2 and m.holder in self.driver.clients:
            m.holder.disconnect()
            self.driver.clients.remove(m.holder)
            self.driver.connect().consume(m.queue, 3)
        self.go_on(how)
        self.driver.clock.advance(wait_s)
        self.go_on("step")

    @precondition(lambda self: any(m.holder for m in self.model.alive.values()))
    @rule(
        pick=picks,
        verb=st.sampled_from(["ack", "dead_letter", "retry"]),
        end=st.sampled_from(["leave", "release", "requeue", "timeout"]),
        how=then,
    )
    def settle_what_another_holds(self, pick: int, verb: str, end: str, how: str) -> None:
        """It counts if the hold ends unsettled, but not for the next holder."""
        held = [m for m in self.model.alive.values() if m.holder]
        m = held[pick % len(held)]
        holder, queue = m.holder, m.queue
        assert holder is not None
        other = self.driver.connect()
        other.consume(queue, 2)
        self.act(other, m, verb, 1)
        if end == "leave" and holder in self.driver.clients:
            holder.disconnect()
            self.driver.clients.remove(holder)
        elif end == "release":
            self.ask_to(Action.RELEASE, [m.seq], ActionOptions())
        elif end == "requeue":
            holder.requeue(queue, m.message_id)
        else:
            self.driver.clock.advance(60)
        self.go_on(how)
        other.disconnect()
        self.driver.clients.remove(other)
        self.go_on(how)

    @precondition(
        lambda self: self.driver.clients and any(m.key_place for m in self.model.alive.values())
    )
    @rule(pick=picks, is_deleted=st.booleans(), how=then)
    def settle_and_publish_again(self, pick: int, is_deleted: bool, how: str) -> None:
        """Use a unique key again in the batch that frees it."""
        keyed = [m for m in self.model.alive.values() if m.key_place is not None]
        m = keyed[pick % len(keyed)]
        client = m.holder or self.client(pick)
        client.publish_with(m.queue, self.body(0, m.queue), unique_key=m.unique_key)
        if is_deleted:
            self.ask_to(Action.DELETE, [m.seq], ActionOptions(with_dispatched=True))
        else:
            client.acknowledge(m.queue, m.message_id)
        client.publish_with(m.queue, self.body(0, m.queue), unique_key=m.unique_key)
        self.go_on(how)

    @precondition(lambda self: any(m.holder for m in self.model.alive.values()))
    @rule(pick=picks, ttl_s=st.sampled_from([1, 2]), is_acked=st.booleans(), how=then)
    def publish_a_copy(self, pick: int, ttl_s: int, is_acked: bool, how: str) -> None:
        """Delay a message as workers do that know no frames with options."""
        held = [m for m in self.model.alive.values() if m.holder]
        m = held[pick % len(held)]
        assert m.holder is not None
        m.holder.publish(
            m.queue + ".retry", self.body(pick % 2, m.queue), ttl_s, m.message_id + b":1"
        )
        if is_acked:
            m.holder.acknowledge(m.queue, m.message_id)
        self.go_on(how)

    @precondition(has_clients)
    @rule(pick=picks, queue=queues, count=st.integers(0, 4), keep=st.booleans(), how=then)
    def consume_with(self, pick: int, queue: str, count: int, keep: bool, how: str) -> None:
        self.client(pick).consume_with(queue, count, keep=keep)
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
            self.client(pick).publish(queue, self.body(size, queue), ttl_s)
        self.go_on(how)

    @precondition(has_clients)
    @rule(pick=picks, queue=queues, ttl_s=ttls, count=st.integers(2, 8), credit=st.integers(1, 3))
    def publish_and_consume(
        self, pick: int, queue: str, ttl_s: int | None, count: int, credit: int
    ) -> None:
        for n in range(count):
            self.client(pick).publish(queue, self.body(n, queue), ttl_s)
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
        elif verb == "extend":
            client.extend(m.queue, m.message_id, ttl_s * 30)
        elif verb == "invalid":
            client.settle_invalidly(m.queue, m.message_id)
        elif verb == "retry":
            content = self.body(ttl_s, m.queue) if ttl_s == 5 else None
            attempt = (None, 1, 2, 1 + m.charged + m.retries)[(m.seq + ttl_s) % 4]
            client.retry(
                m.queue, m.message_id, content, delay_s=ttl_s / 2, attempt=attempt,
                failed=m.seq % 5 != 0,
            )  # fmt: skip
            if not ttl_s:  # repeated, as after a reconnect
                client.retry(m.queue, m.message_id, attempt=attempt)
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
            {"group_by": "group"}, {"group_by": None}, {"max_in_flight": 1},
            {"max_in_flight": None}, {"max_rate": 2.0, "max_burst": 2}, {"max_rate": 1.0},
            {"max_rate": None},
        ]),
        how=then,
    )  # fmt: skip
    def configure(self, queue: str, own: dict[str, object], how: str) -> None:
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
        elif action is Action.DELIVER:
            seqs += [m.seq for m in model.alive.values() if m.is_scheduled] * 5
        elif action is not Action.ERASE:
            seqs += [*model.alive] * 2
        return [seqs[-1 - pick % len(seqs)] for pick in picks]

    @rule(
        action=st.sampled_from([*Action, Action.RESTORE, Action.DELETE]),
        whom=st.lists(picks, min_size=1, max_size=6),
        ttl_s=st.sampled_from([None, None, 0, 2]),
        goal=st.sampled_from([None, "late", "orders", "new", "teams", "pairs"]),
        create=st.booleans(),
        with_dispatched=st.booleans(),
        only=st.sampled_from([None, None, None, frozenset({1, 2})]),
        time=times,
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
        time: tuple[float, int | None],
        how: str,
    ) -> None:
        seqs = self.some(action, whom)
        places = self.model.acts.places
        if action is Action.PLACE:
            seqs = [*seqs, *places][-6:]
        made = dict(self.model.acts.made) if action is Action.TAKE_BACK else {}
        options = ActionOptions(
            ttl_s, self.time(time), goal, create, with_dispatched, only, dict(places), made
        )
        self.ask_to(action, seqs, options)
        self.go_on(how)

    def ask_to(self, action: Action, seqs: list[int], options: ActionOptions) -> None:
        self.driver.ask("act_on_messages", action, seqs, options, audit=f"message.{action}")

    @rule(
        queue=queues,
        key=st.sampled_from(["u", "v"]),
        action=st.sampled_from([Action.DELETE, Action.RESCHEDULE]),
        time=times,
        how=then,
    )
    def act_on_a_key(
        self, queue: str, key: str, action: Action, time: tuple[float, int | None], how: str
    ) -> None:
        """Cancel or reschedule the message with a unique key."""
        statement = self.driver.store.sql("messages")["by_unique_key"]
        m = self.model.with_key(queue, key)
        if queue in self.model.queue_names.values():
            place = (self.model.queue_id(queue), key)
            found = rows_of(self.driver.store.execute(statement, place))
            assert found == ([] if m is None else [(m.seq,)])
        if m is not None:
            self.ask_to(action, [m.seq], ActionOptions(time=self.time(time)))
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
        options = ActionOptions(ttl_s=ttl_s, with_dispatched=True)
        self.ask_to(Action.DELETE, seqs, options)
        self.go_on(how)
        self.driver.clock.advance(seconds)
        self.ask_to(Action.RESTORE, seqs, options)
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
        messages = [(self.body(n, queue), ttl_s) for n in range(count)]
        self.driver.ask("publish", queue, messages, key=key)
        self.go_on(how)
        if is_repeated:
            self.driver.ask("publish", queue, messages, key=key)
            self.go_on(how)

    @rule(
        queue=queues,
        ttl_s=st.sampled_from([None, None, 0, 1, 2.5]),
        items=items,
        is_repeated=st.booleans(),
        how=then,
    )
    def publish_by_hand_with(
        self, queue: str, ttl_s: float | None, items: list[Item], is_repeated: bool, how: str
    ) -> None:
        """Publish with options as the HTTP API does, all or nothing."""
        for _ in range(1 + is_repeated):
            messages = []
            for n, item in enumerate(items):
                options = PublishOptions.of(check_options(self.options(item, ttl_s), PUBLISH))
                messages.append(NewMessage(self.body(n, queue), ttl_s, options))
            self.driver.ask("publish", queue, messages, key=None)
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
    @rule(
        pick=picks,
        queue=queues,
        seconds=st.sampled_from([0.25, 2]),
        late=st.integers(1, 2),
        waits=st.booleans(),
        is_paused=st.booleans(),
        how=then,
    )
    def commit_slowly(
        self, pick: int, queue: str, seconds: float, late: int, waits: bool, is_paused: bool,
        how: str,
    ) -> None:  # fmt: skip
        """A message dispatched in time may have expired when the dispatch is stored."""
        client, group = self.client(pick), str(self.bodies)
        self.driver.clock.advance(waits)
        client.consume(queue, 3)
        self.go_on("turn")
        for n in range(3):
            ttl_s = seconds if n < late else 0
            client.publish_with(queue, self.body(1, queue), ttl_s=ttl_s, group=group)
        if self.model.settings(queue).group_by:
            self.go_on("turn")  # they are stored before one is dispatched
        self.driver.commit_takes_s = seconds
        self.go_on("turn")
        self.driver.commit_takes_s = 0.0
        if is_paused:
            self.driver.ask("pause", queue, "delivery", True)
            self.go_on("turn")
            self.driver.ask("pause", queue, "delivery", False)
        self.go_on(how)

    @rule(seconds=st.sampled_from([-3_600, -5, 5, 3_600]), how=then)
    def set_the_clock(self, seconds: int, how: str) -> None:
        self.driver.clock.set_wall(seconds)
        self.go_on(how)

    @rule(how=then)
    def start_with_a_doubtful_clock(self, how: str) -> None:
        self.go_on("step")
        set_counter = self.driver.store.sql("batch")["set_counter"]
        self.driver.store.execute(set_counter, ("clock_doubt_ms", 1))
        self.model.is_doubtful = True
        self.kill()
        self.go_on(how)

    @precondition(lambda self: self.model.is_doubtful)
    @rule(away_s=st.sampled_from([0, 2, 60]), is_right=st.booleans())
    def decide_the_clock(self, away_s: int, is_right: bool) -> None:
        self.go_on("step")
        number = self.doubted_from
        self.driver.ask("decide_clock", away_s * 1_000, number, is_right=is_right)
        self.go_on("step")

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
        self.begin_again()

    def begin_again(self) -> None:
        self.doubted_from = self.driver.core.next_number
        self.model.restart()
        self.work_on_all(self.driver.connect())

    def work_on_all(self, client: Client) -> None:
        client.consume("orders", 2)
        client.consume("mails", 1)
        client.consume("orders.retry", 1)
        client.consume("teams", 2)
        client.consume("pairs", 2)
        client.consume("slow", 3)
        client.consume("jobs", 2)


class BrokerWithKilledProcess(BrokerAgainstModel):
    """Another process stores some batches, and is killed with SIGKILL at any moment."""

    @rule(tenth_ms=st.integers(0, 60), how=then)
    def kill_what_stores(self, tenth_ms: int, how: str) -> None:
        self.driver.record_and_kill(tenth_ms / 10_000)
        self.begin_again()
        self.go_on(how)


def focused(rules: Collection[str], only: tuple[str, ...]) -> type[BrokerAgainstModel]:
    """Return the machine with some of its rules and queues, which then meet more often."""
    names = {name for name, rule in vars(BrokerAgainstModel).items() if hasattr(rule, RULE_MARKER)}
    assert names >= {*rules}, {*rules} - names
    others = dict.fromkeys(names - {*rules})
    return type("Focused", (BrokerAgainstModel,), {**others, "only": only})


class BrokerAtLength(BrokerAgainstModel):
    """The same with more examples."""


TestKilledProcess = BrokerWithKilledProcess.TestCase
TestKilledProcess.settings = settings(max_examples=15)
TestBroker = BrokerAgainstModel.TestCase
TestBroker.settings = settings(stateful_step_count=settings().stateful_step_count * 2)
TestBrokerAtLength = pytest.mark.slow(pytest.mark.timeout(400)(BrokerAtLength.TestCase))
TestBrokerAtLength.settings = settings(
    max_examples=min(3 * settings().max_examples, max(180, settings().max_examples)),
    stateful_step_count=settings().stateful_step_count * 2,
)
