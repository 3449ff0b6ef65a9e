"""Claims and staged rows on a real SQLite file against a naive model, at rest and after a kill.

One queue, one consumer, two subscriptions.  Each run has its limits of the queue; claims follow
priorities and groups, and take fewer messages rather than exceed a limit.  Pages and windows are
tiny, so that each command takes several batches, and a kill falls in between.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from phpmq_lite.broker.operator import message_actions
from phpmq_lite.broker.operator.message_actions import ActionOptions
from phpmq_lite.broker.pipeline import claims
from phpmq_lite.broker.pipeline.staging import StagedPublishResult, StagingStatus
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import Limits
from phpmq_lite.operator_actions import Action
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.storage import retention
from tests.support.core_and_store import Client, Driver, OperatorCommand

pytestmark = pytest.mark.timeout(1_800)

IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
LIMITS = Limits(window=3, window_bytes=60, bodies_bytes=100)
CREDIT = 2
ALIVE = """
SELECT content, state = 1, seq, name, claim, head_since FROM message JOIN body USING (seq)
LEFT JOIN claim USING (seq) LEFT JOIN subscription USING (subscription_id) ORDER BY position"""

names = st.sampled_from(["s", "t"])
counts = st.integers(1, 6)
limits_of_a_queue: st.SearchStrategy[dict[str, Any]] = st.sampled_from([
    {}, {"max_in_flight": 3}, {"max_rate": 2.0, "max_burst": 3}, {"group_by": "group"},
    {"group_by": "group", "max_in_flight": 2}, {"group_by": "group", "max_rate": 1.0},
])  # fmt: skip
priorities = st.sampled_from([128, 128, 0, 255])
groups = st.sampled_from([None, "a", "b"])
picks = st.integers(0, 1_000)
turns = st.sampled_from([None, None, 0, 1, 2, 3])  # then it is killed; None: it is not


@dataclass(eq=False)
class Copy:
    body: bytes
    deadline_ms: int | None
    priority: int = 128
    group: str | None = None
    place: tuple[str, int] | str = "ready"  # (subscription, claim), "ready" or "worker"
    is_head: bool = False  # of its group: it was dispatched


class ClaimsAgainstModel(RuleBasedStateMachine):
    """``alive`` is the queue in order; messages that leave it must be where a command put them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.patches = [
            patch.object(claims, "CLAIM_SLICE", 2),
            patch.object(message_actions, "PAGE_ROWS", 2),
        ]
        for each in self.patches:
            each.start()
        self.driver = Driver(
            Path(self.folder.name), LIMITS, QueueSettings(max_deliveries=0, ack_timeout_s=0)
        )
        self.alive: list[Copy] = []
        self.hi = {"s": 0, "t": 0}
        self.done = {"s": 0, "t": 0}  # acknowledged or released up to
        self.staged: dict[str, list[Copy]] = {}
        self.version = -1
        self.bodies = 0
        self.born: set[bytes] = set()  # all that were ever published
        self.worker: Client | None = None

    def teardown(self) -> None:
        problems = self.driver.database.problems(self.driver.store)
        self.driver.close()
        for each in self.patches:
            each.stop()
        self.folder.cleanup()
        assert not any(problems.values()), problems

    @initialize(limits=limits_of_a_queue)
    def make_queue(self, limits: dict[str, Any]) -> None:
        self.limits = limits
        self.driver.ask("create_queue", "orders")
        self.driver.ask("configure", "orders", limits)
        self.driver.step()
        self.empty_bucket()

    # -- the model

    def ready(self) -> list[Copy]:
        return [m for m in self.alive if m.place == "ready"]

    def empty_bucket(self) -> None:
        self.tokens, self.filled_ms = 0.0, self.driver.clock.steady_ms

    def room(self) -> int:
        """Return how many messages the limits allow to be dispatched."""
        room = 1_000
        if most := self.limits.get("max_in_flight"):
            room = most - sum(m.place != "ready" for m in self.alive)
        if rate := self.limits.get("max_rate"):
            now_ms = self.driver.clock.steady_ms
            gained = (now_ms - self.filled_ms) * rate / 1_000
            burst = self.limits.get("max_burst", max(1, int(rate)))
            self.tokens, self.filled_ms = min(burst, self.tokens + gained), now_ms
            room = min(room, int(self.tokens))
        return room

    def is_first(self, m: Copy) -> bool:
        """Return whether no other message of its group keeps a ready one from being dispatched."""
        if m.group is None or "group_by" not in self.limits:
            return True
        group = [other for other in self.alive if other.group == m.group]
        head = next((other for other in group if other.is_head), None)
        first = next(other for other in group if other.place == "ready")
        return m is (first if head is None else head)

    def dispatch(self, m: Copy, place: tuple[str, int] | str) -> None:
        m.place, m.is_head = place, m.group is not None and "group_by" in self.limits
        self.tokens -= 1

    def add(self, messages: list[Copy]) -> None:
        self.alive += messages
        self.alive.sort(key=lambda m: m.priority)

    def claimed(self, name: str) -> dict[int, Copy]:
        return {m.place[1]: m for m in self.alive
                if isinstance(m.place, tuple) and m.place[0] == name}  # fmt: skip

    def copies(self, count: int, ttl_s: int = 0, *options: Any) -> list[Copy]:
        deadline_ms = self.driver.clock.steady_ms + ttl_s * 1_000 if ttl_s else None
        made = [Copy(b"%d" % (self.bodies + n), deadline_ms, *options) for n in range(count)]
        self.bodies += count
        return made

    def expire(self) -> None:
        now_ms = self.driver.clock.steady_ms
        self.alive = [m for m in self.alive if m.place != "ready" or m.deadline_ms is None
                      or m.deadline_ms > now_ms]  # fmt: skip

    def absorb(self) -> None:
        """Take over the consumer's messages: any ready ones, as many as its credit allows."""
        self.expire()
        if self.worker is None:
            return
        by_body = {m.body: m for m in self.alive}
        for delivery in self.worker.take():
            assert by_body[delivery.body].place == "ready"
            assert self.room() > 0
            self.dispatch(by_body[delivery.body], "worker")
        held = [m for m in self.alive if m.place == "worker"]
        assert len(held) <= CREDIT
        assert len(held) == CREDIT or not self.first(1)

    def ask(self, verb: str, *arguments: Any, **options: Any) -> Any:
        question = self.driver.ask(verb, *arguments, **options)
        self.driver.step()
        answer = question.answer
        return answer.code if isinstance(answer, RefusedError) else answer

    def rows(self) -> dict[bytes, tuple[int, str | None, int | None]]:
        """Return state, subscription and claim on disk, in the order of the queue."""
        return {row[0]: (row[1], row[3], row[4]) for row in self.driver.rows(ALIVE)}

    def heads(self) -> set[bytes]:
        return {row[0] for row in self.driver.rows(ALIVE) if row[5] is not None}

    def learn_limits(self) -> None:
        """Take over the heads on disk and the bucket, after commands whose order is not known."""
        heads = self.heads()
        for m in self.alive:
            m.is_head = m.body in heads
        rate = self.driver.core.queues["orders"].rate
        if rate is not None:
            self.tokens = rate.available(self.driver.clock.steady_ms) + rate._tokens % 1
            self.filled_ms = self.driver.clock.steady_ms

    def seq(self, copy: Copy) -> int:
        return next(int(row[2]) for row in self.driver.rows(ALIVE) if row[0] == copy.body)

    def on_disk(self, m: Copy) -> tuple[int, str | None, int | None]:
        if isinstance(m.place, tuple):
            return (1, *m.place)
        return (int(m.place != "ready"), None, None)

    @invariant()
    def disk_and_memory_agree_with_the_model(self) -> None:
        expected = {m.body: self.on_disk(m) for m in self.alive}
        rows = self.rows()
        assert list(rows.items()) == list(expected.items())
        held = sum(state for state, _, _ in rows.values())
        queue = self.driver.core.queues.get("orders")
        if queue is None:
            return
        assert (queue.row.live_count, queue.dispatched) == (len(rows), held)
        assert held <= self.limits.get("max_in_flight", held)
        heads = [m.group for m in self.alive if m.is_head]
        assert len(heads) == len(set(heads))
        stored = self.heads()
        assert heads == [m.group for m in self.alive if m.body in stored]
        assert queue.held_bytes == sum(len(m.body) for m in self.alive if m.place == "worker")
        assert self.driver.core.held == sum(m.place == "worker" for m in self.alive)
        [(behind,)] = self.driver.rows(
            "SELECT count(*) FROM message WHERE state = 0 AND position <= ?", queue.claimed_to
        )
        assert behind == 0
        for name, subscription in self.driver.core.subscriptions.items():
            assert (subscription.last_claim, subscription.acked_upto) == (
                self.hi[name],
                self.done[name],
            )
            assert not subscription.is_busy
        assert self.driver.core.staging.stages.keys() == self.staged.keys()
        settled = self.settled()
        assert len(set(settled)) == len(settled)
        assert {*settled, *rows} == self.born
        assert len(settled) + len(rows) == len(self.born)
        orphans = "SELECT count(*) FROM claim WHERE seq NOT IN (SELECT seq FROM message)"
        assert self.driver.rows(orphans) == [(0,)]

    def settled(self) -> list[bytes]:
        rows = self.driver.rows("SELECT content FROM history JOIN body USING (seq)")
        return [body for (body,) in rows]

    # -- messages come and go

    @rule(
        count=counts,
        ttl_s=st.sampled_from([0, 0, 0, 5]),
        priority=priorities,
        group=groups,
    )
    def publish(self, count: int, ttl_s: int, priority: int, group: str | None) -> None:
        made, client = self.copies(count, ttl_s, priority, group), self.driver.connect()
        for m in made:
            client.publish_with("orders", m.body, ttl_s=ttl_s, priority=priority, group=group)
        self.driver.step()
        self.add(made)
        self.born.update(m.body for m in made)
        self.absorb()

    @rule(seconds=st.sampled_from([1, 4, 6]))
    def pass_time(self, seconds: int) -> None:
        self.driver.clock.advance(seconds)
        self.driver.step()
        self.absorb()

    @rule()
    def consume(self) -> None:
        if self.worker is None:
            self.worker = self.driver.consume(CREDIT)
            self.absorb()

    @rule()
    def acknowledge(self) -> None:
        held = {m.body: m for m in self.alive if m.place == "worker"}
        if self.worker is not None and held:
            for body, m in held.items():
                [(seq, token)] = self.driver.rows(
                    "SELECT seq, token FROM message JOIN body USING (seq) WHERE content = ?", body
                )
                self.worker.acknowledge("orders", b"%016x%016x" % (seq, token))
                self.alive.remove(m)
            self.driver.step()
            self.absorb()

    @rule()
    def leave(self) -> None:
        if self.worker is not None:
            self.worker.disconnect()
            self.driver.step()
            self.driver.clients.remove(self.worker)
            self.lose_worker()

    def lose_worker(self) -> None:
        self.worker = None
        for m in self.alive:
            if m.place == "worker":
                m.place = "ready"
        self.expire()

    @rule(pick=picks, action=st.sampled_from([Action.DELETE, Action.REQUEUE, Action.RELEASE]))
    def operate(self, pick: int, action: Action) -> None:
        if not self.alive:
            return
        m = self.alive[pick % len(self.alive)]
        options = ActionOptions(with_dispatched=True)
        outcome = self.ask("act_on_messages", action, (self.seq(m),), options)
        if action is Action.RELEASE and m.place == "ready":
            assert outcome.skipped == {"not dispatched": 1}
            return
        assert len(outcome.changed) == 1
        if action is not Action.RELEASE:
            self.alive.remove(m)
        if action is not Action.DELETE:
            m.place = "ready"
        if action is Action.REQUEUE:
            self.add([m])
        self.absorb()

    @rule(with_dispatched=st.booleans())
    def purge(self, with_dispatched: bool) -> None:
        self.ask("purge", "orders", with_dispatched=with_dispatched)
        self.alive = [m for m in self.alive if not (with_dispatched or m.place == "ready")]
        if self.worker is not None and with_dispatched:
            self.worker.take()  # between two pages it got more, which went too
            self.learn_limits()

    # -- claims

    def expected_claim(self, name: str, count: int, size: int, after: int | None) -> list[Copy]:
        if after is not None and self.hi[name] > max(after, self.done[name]):
            return []
        return self.first(count, size)

    def first(self, count: int, size: int = 1_000) -> list[Copy]:
        """Return the messages that may be dispatched next, at most of this size."""
        taken: list[Copy] = []
        for m in [m for m in self.ready() if self.is_first(m)][: min(count, self.room())]:
            if taken and sum(len(t.body) for t in [*taken, m]) > size:
                break
            taken.append(m)
        return taken

    def note_claims(self, name: str, taken: list[Copy]) -> None:
        for m in taken:
            self.hi[name] += 1
            self.dispatch(m, (name, self.hi[name]))

    @rule(name=names, count=counts, size=st.sampled_from([3, 100]), back=st.integers(-1, 3))
    def claim(self, name: str, count: int, size: int, back: int) -> None:
        """``back`` is how far behind the last claim the reader stands; -1: it does not say."""
        after = None if back < 0 else max(0, self.hi[name] - back)
        taken = self.expected_claim(name, count, size, after)
        answer = self.ask("claim", name, "orders", count, size, after=after)
        self.note_claims(name, taken)
        assert answer == self.hi[name]

    @rule(
        name=names,
        items=st.lists(st.tuples(priorities, groups), min_size=2, max_size=5),
        count=counts,
        is_waiting=st.booleans(),
    )
    def publish_and_claim(
        self, name: str, items: list[tuple[int, str | None]], count: int, is_waiting: bool
    ) -> None:
        for priority, group in items:
            self.publish(1, 0, priority, group)
        if is_waiting:
            self.pass_time(1)
        self.claim(name, count, 100, -1)

    @rule(name=names, back=st.integers(0, 4))
    def acknowledge_claims(self, name: str, back: int) -> None:
        upto = max(0, self.hi[name] - back)
        answer = self.ask("ack_claims", name, upto)
        if name not in self.driver.core.subscriptions:
            assert answer == "unknown_subscription"
            return
        gone = [m for number, m in self.claimed(name).items() if number <= upto]
        assert answer == len(gone)
        self.alive = [m for m in self.alive if m not in gone]
        self.done[name] = max(self.done[name], upto)
        self.absorb()  # fewer are in flight, and other messages of their groups are ready

    @rule(name=names)
    def release_claims(self, name: str) -> None:
        if name in self.driver.core.subscriptions:
            back = self.claimed(name).values()
            assert self.ask("release_claims", name) == len(back)
            for m in back:
                m.place = "ready"
            self.done[name] = self.hi[name]
            self.absorb()

    @rule(verb=st.sampled_from(["claim", "ack_claims", "release_claims"]), name=names, count=turns)
    def kill_within(self, verb: str, name: str, count: int | None) -> None:
        """Cut a command off: it has been applied to a prefix."""
        if name not in self.driver.core.subscriptions:
            return
        given: dict[str, tuple[Any, ...]] = {
            "claim": (name, "orders", 5, 100), "ack_claims": (name, self.hi[name]),
            "release_claims": (name,),
        }  # fmt: skip
        before = [m for _, m in sorted(self.claimed(name).items())]
        expected = self.expected_claim(name, 5, 100, None)
        self.driver.ask(verb, *given[verb])
        for _ in range(count or 0):
            self.driver.turn()
        self.kill()
        rows = self.rows()
        held = [m for m in before if m.body in rows and rows[m.body][1] == name]
        self.lose_worker()
        if verb == "claim":
            new = [m for m in expected if m.body in rows and rows[m.body][1] == name]
            assert new == expected[: len(new)]
            self.note_claims(name, new)
            self.empty_bucket()
        else:
            ended = before[: len(before) - len(held)]
            assert held == before[len(ended) :]
            for m in ended:
                m.place = "ready"
                if verb == "ack_claims":
                    self.alive.remove(m)
            subscription = self.driver.core.subscriptions[name]
            if subscription.acked_upto != self.done[name]:
                assert (held, subscription.acked_upto) == ([], self.hi[name])
                self.done[name] = self.hi[name]
        self.driver.step()
        self.absorb()

    @rule(
        what=st.lists(
            st.tuples(
                st.sampled_from(["claim", "claim", "ack", "release", "purge", *Action]),
                names,
                picks,
            ),
            min_size=2,
            max_size=6,
        ),
        is_turned=st.lists(st.booleans(), min_size=6, max_size=6),
    )
    def crowd(self, what: list[tuple[str, str, int]], is_turned: list[bool]) -> None:
        """Several at once, perhaps some turns apart: nothing is lost, doubled or misnumbered."""
        questions = []
        for (verb, name, pick), is_next in zip(what, is_turned, strict=False):
            if verb in ("ack", "release") and name not in self.driver.core.subscriptions:
                continue
            questions.append(self.give(verb, name, pick))
            if is_next:
                self.driver.turn()
        self.driver.step()
        assert all(question.is_answered for question in questions)
        self.learn()
        self.learn_limits()

    def give(self, verb: str, name: str, pick: int) -> OperatorCommand:
        match verb:
            case "claim":
                return self.driver.ask("claim", name, "orders", pick % 5 + 1, 100)
            case "ack":
                upto = self.driver.core.subscriptions[name].last_claim - pick % 3
                return self.driver.ask("ack_claims", name, max(0, upto))
            case "release":
                return self.driver.ask("release_claims", name)
            case "purge":
                return self.driver.ask("purge", "orders", with_dispatched=pick % 2 == 0)
        picked = [row[2] for row in self.driver.rows(ALIVE)][pick % 3 :: 2]
        action = Action(verb) if verb in (Action.REQUEUE, Action.RELEASE) else Action.DELETE
        return self.driver.ask(
            "act_on_messages", action, picked, ActionOptions(with_dispatched=True)
        )

    def learn(self) -> None:
        """Take over the state on disk, and check that it can follow from the previous state."""
        known = {m.body: m for m in self.alive}
        got = {m.body for m in self.alive if m.place == "worker"}
        if self.worker is not None:
            got.update(delivery.body for delivery in self.worker.take())
        before, self.alive = dict(self.hi), []
        for name, subscription in self.driver.core.subscriptions.items():
            assert subscription.last_claim >= self.hi[name]
            self.hi[name], self.done[name] = subscription.last_claim, subscription.acked_upto
        for body, (state, holder, number) in self.rows().items():
            m = known[body]
            if holder is not None and number is not None:
                assert (holder, number) == m.place or before[holder] < number <= self.hi[holder]
                m.place = (holder, number)
            elif state:
                assert body in got
                m.place = "worker"
            else:
                m.place = "ready"
            self.alive.append(m)

    def kill(self) -> None:
        self.driver.kill_and_restart()
        self.worker = None
        self.empty_bucket()
        heads = self.heads()
        for m in self.alive:
            m.is_head = m.body in heads

    @rule()
    def restart(self) -> None:
        self.kill()
        self.lose_worker()
        self.driver.step()

    # -- staging

    @rule(token=st.sampled_from(["a", "b"]), count=st.integers(0, 4), chunks=st.integers(1, 2))
    def stage(self, token: str, count: int, chunks: int) -> None:
        rows = self.copies(count * chunks)
        for n in range(chunks):
            part = [("orders", m.body, None) for m in rows[n * count : (n + 1) * count]]
            answer = self.ask("stage", token, part, after=n * count, is_whole=n == chunks - 1)
            if token in self.staged or (n and not count):
                assert answer == "token_staged"
            else:
                assert answer == StagingStatus((n + 1) * count, sum(len(m.body) for m in
                                                             rows[: (n + 1) * count]))  # fmt: skip
        if not count and chunks > 1 and token not in self.staged:
            assert self.ask("unstage", [token]) == 1
        else:
            self.staged.setdefault(token, rows)

    @rule(
        given=st.lists(st.sampled_from(["a", "b"]), unique=True), is_new=st.booleans(), kill=turns
    )
    def publish_staged(self, given: list[str], is_new: bool, kill: int | None) -> None:
        self.publish_version(given, max(self.version + is_new, 0), kill)
        self.absorb()

    def publish_version(self, given: list[str], version: int, kill: int | None) -> None:
        """Publish; ``kill``: the process ends before the batch is stored (0), or right after."""
        question = self.driver.ask("publish_staged", "app", version, given)
        is_known = all(token in self.staged for token in given)
        rows = [m for token in given for m in self.staged.get(token, [])]
        if kill is None:
            self.driver.step()
            answer = question.answer
            if version <= self.version:
                assert answer == StagedPublishResult(0, True, 0)
            elif not is_known:
                assert answer.code == "unknown_token"
                return
            else:
                assert answer == StagedPublishResult(len(rows), False, 0)
        else:
            if kill:
                self.driver.record()
            self.kill()
            if not kill or (version > self.version and not is_known):
                self.lose_worker()
                self.driver.step()
                return
            self.lose_worker()
        if version > self.version:
            self.version = version
            self.add(rows)
            self.born.update(m.body for m in rows)
        for token in given:
            self.staged.pop(token, None)
        self.driver.step()

    @rule()
    def sweep(self) -> None:
        while retention.remove_dropped_stages(self.driver.store):
            pass
        rows = sum(map(len, self.staged.values()))
        assert self.driver.rows("SELECT count(*) FROM stage_row") == [(rows,)]


class ClaimsAtLength(ClaimsAgainstModel):
    """The same with more examples."""


TestClaims = ClaimsAgainstModel.TestCase
TestClaims.settings = settings(max_examples=30)
TestClaimsAtLength = pytest.mark.slow(ClaimsAtLength.TestCase)
TestClaimsAtLength.settings = settings(
    max_examples=max(150, settings().max_examples),
    stateful_step_count=settings().stateful_step_count * 2,
)


def test_claims_go_back_to_a_message_of_a_group_that_became_ready() -> None:
    """It is unblocked on disk in the batch in which the claim looks further ahead."""
    state = ClaimsAgainstModel()
    state.make_queue(limits={"group_by": "group"})
    state.publish(count=3, group="a", priority=128, ttl_s=0)
    state.publish(count=1, group=None, priority=128, ttl_s=0)
    state.crowd(is_turned=[True, False], what=[("delete", "s", 0), ("claim", "s", 0)])
    state.disk_and_memory_agree_with_the_model()
    state.teardown()


def test_staged_messages_come_before_an_empty_window_of_a_lower_priority() -> None:
    state = ClaimsAgainstModel()
    state.make_queue(limits={})
    state.stage(chunks=1, count=2, token="a")
    state.consume()
    state.publish(count=1, group=None, priority=255, ttl_s=0)
    state.acknowledge()
    state.publish_staged(given=["a"], is_new=True, kill=None)
    state.disk_and_memory_agree_with_the_model()
    state.teardown()
