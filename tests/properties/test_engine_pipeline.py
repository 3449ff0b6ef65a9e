"""What programs see while batches overlap, with commits that end at any moment.

What leaves is checked in ``steering.Program`` against what is on disk at that moment; here is what
the programs do, and what must be true once nothing is left.
"""

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phpmq_lite.model import Limits, State
from tests.support.engine_driver import EngineClient, EngineDriver, disable_timers

pytestmark = pytest.mark.timeout(1_800)

IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
QUEUES = ["orders", "mails"]
ROW = """
SELECT state, position, deliveries, charged, consumer, first_dispatched_at, last_dispatched_at
FROM message WHERE seq = ?"""

queues = st.sampled_from(["orders", *QUEUES])
picks = st.integers(0, 1_000)
counts = st.integers(0, 4)
ttls = st.sampled_from([0, 0, 1, 2])
# What follows on a command: another one, all that can be done at once, or the end of a commit too.
then = st.sampled_from(["wait", "rest", "rest", "commit"])


class PipelineOfBatches(RuleBasedStateMachine):
    """Programs publish and consume; none of them sees how many batches that takes."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.patch = pytest.MonkeyPatch()
        self.loop = asyncio.new_event_loop()
        self.programs: list[EngineClient] = []
        self.published: Counter[bytes] = Counter()
        self.keys: set[bytes] = set()
        self.mortal: set[bytes] = set()  # contents that may have expired
        self.is_sound = False

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.is_sound = False
        self.loop.run_until_complete(work)
        self.is_sound = True

    @initialize(
        window=st.sampled_from([2, 1_000]),
        commands=st.sampled_from([3, 5_000]),
        linger_s=st.sampled_from([0.0, 1e9]),
    )
    def start(self, window: int, commands: int, linger_s: float) -> None:
        disable_timers(self.patch, linger_s)
        self.house = EngineDriver(
            Path(self.folder.name), Limits(window=window, batch_commands=commands)
        )

        async def start() -> None:
            self.house.start()
            self.programs = [EngineClient(self.house) for _ in range(3)]
            for program in self.programs[1:]:
                program.consume("orders", 2)
            await self.house.settle()

        self.run(start())

    def teardown(self) -> None:
        try:
            if self.is_sound:
                self.run(self.drain())
                self.assert_nothing_is_lost()
                self.run(self.house.stop())
        finally:
            self.house.close()
            self.loop.close()
            self.patch.undo()
            self.folder.cleanup()

    # -- programs

    def program(self, pick: int) -> EngineClient:
        return self.programs[pick % len(self.programs)]

    def go_on(self, how: str) -> None:
        async def go_on() -> None:
            await self.house.run_until_idle()
            if how == "commit" and self.house.writer.batch is not None:
                await self.house.end_commit()

        if how != "wait":
            self.run(go_on())

    @rule(pick=picks, queue=queues, count=st.integers(1, 4), ttl_s=ttls, how=then)
    def publish(self, pick: int, queue: str, count: int, ttl_s: int, how: str) -> None:
        at = self.published.total()
        bodies = [b"%s %d" % (queue.encode(), at + n) for n in range(count)]
        self.published.update(bodies)
        if ttl_s:
            self.mortal.update(bodies)
        self.program(pick).publish(queue, *bodies, ttl_s=ttl_s)
        self.go_on(how)

    @rule(pick=picks, key=st.sampled_from([b"k1", b"k2", b"k3"]), how=then)
    def confirm(self, pick: int, key: bytes, how: str) -> None:
        self.keys.add(key)
        self.published[b"content of " + key] = 1
        self.program(pick).publish("orders", b"content of " + key, key=key)
        self.go_on(how)

    @precondition(lambda self: self.keys)
    @rule(pick=picks, whom=picks, how=then)
    def confirm_a_new_one_and_an_old_one(self, pick: int, whom: int, how: str) -> None:
        """The second answer waits for no commit, but for the first answer."""
        known = sorted(self.keys)
        self.confirm(pick, b"k%d" % (len(known) + 10), "rest")
        self.confirm(pick, known[whom % len(known)], "rest")
        self.go_on(how)

    @rule(pick=picks, queue=queues, count=counts, how=then)
    def consume(self, pick: int, queue: str, count: int, how: str) -> None:
        self.program(pick).consume(queue, count)
        self.go_on(how)

    @precondition(lambda self: any(program.got for program in self.programs))
    @rule(whom=picks, count=st.integers(1, 4), how=then)
    def acknowledge(self, whom: int, count: int, how: str) -> None:
        """Acknowledge its last messages; some may be settled already."""
        busy = [program for program in self.programs if program.got]
        program = busy[whom % len(busy)]
        program.acknowledge(*program.got[-count:])
        self.go_on(how)

    @precondition(lambda self: self.house.got)
    @rule(pick=picks, whom=picks, how=then)
    def acknowledge_any_dispatched_message(self, pick: int, whom: int, how: str) -> None:
        self.program(pick).acknowledge(self.house.got[-1 - whom % len(self.house.got)])
        self.go_on(how)

    @precondition(lambda self: self.house.got)
    @rule(pick=picks, whom=picks, ttl_s=ttls, how=then)
    def requeue(self, pick: int, whom: int, ttl_s: int, how: str) -> None:
        frame = self.house.got[-1 - whom % len(self.house.got)]
        if ttl_s:
            self.mortal.add(frame.content)
        self.program(pick).requeue(frame, ttl_s)
        self.go_on(how)

    @rule(pick=picks, is_choked=st.booleans(), how=then)
    def choke(self, pick: int, is_choked: bool, how: str) -> None:
        session = self.program(pick).session
        if is_choked:
            session.pause_writing()
        else:
            session.resume_writing()
        self.go_on(how)

    @rule(pick=picks, how=then)
    def leave(self, pick: int, how: str) -> None:
        """Replace a program with a new one."""

        async def leave() -> None:
            at = pick % len(self.programs)
            self.programs[at].disconnect()
            self.programs[at] = EngineClient(self.house)

        self.run(leave())
        self.go_on(how)

    @rule(
        whom=picks,
        other=picks,
        queue=queues,
        count=st.integers(1, 3),
        ttl_s=ttls,
        what=st.sampled_from(["again", "to another", "end"]),
        seconds=st.sampled_from([0, 0, 0, 1]),
        how=then,
    )
    def take_back_before_it_left(
        self, whom: int, other: int, queue: str, count: int, ttl_s: int, what: str, seconds: int,
        how: str,
    ) -> None:  # fmt: skip
        """What one batch dispatches the next one takes back, while the first is being stored."""
        worker, another = self.program(whom), self.program(other)
        worker.consume(queue, 50)
        self.end_commits(True)
        self.publish(other, queue, count, ttl_s, "rest")
        if what == "again":
            worker.consume(queue, 50)
        elif what == "to another":
            another.consume(queue, 50)
            worker.consume(queue, 0)
        else:
            self.leave(whom, "wait")
        self.house.advance(seconds)
        self.go_on("commit")
        self.go_on(how)

    @rule(whom=picks, other=picks, queue=queues, how=then)
    def acknowledge_one_after_the_other(self, whom: int, other: int, queue: str, how: str) -> None:
        """The first comes beside the batch that brings the next messages, the second after it."""
        worker = self.program(whom)
        for program in self.programs:
            program.consume(queue, 50 * (program is worker))
        self.end_commits(True)
        worker.acknowledge(*worker.got[-50:])
        worker.consume(queue, 2)
        self.publish(other, queue, 2, 0, "wait")
        self.end_commits(True)
        frames = worker.got[-2:]
        self.publish(other, queue, 3, 0, "rest")
        for frame in frames:
            worker.acknowledge(frame)
            self.go_on("commit")
        self.go_on(how)

    # -- time

    @rule(seconds=st.sampled_from([0.5, 1, 2]), how=then)
    def pass_time(self, seconds: float, how: str) -> None:
        self.house.advance(seconds)
        self.go_on(how)

    @rule(is_all=st.booleans())
    def end_commits(self, is_all: bool) -> None:
        if is_all:
            self.run(self.house.settle())
        else:
            self.go_on("commit")

    @rule(how=then)
    def end_lingering(self, how: str) -> None:
        self.house.end_lingering()
        self.go_on(how)

    # -- what must be true

    @invariant()
    def memory_is_what_is_on_disk_where_nothing_is_open(self) -> None:
        house = self.house
        if house.is_stored:
            for m in house.core.messages.values():
                row = (m.state, m.position, m.deliveries, m.charged, m.consumer,
                       m.first_dispatched_at, m.last_dispatched_at)  # fmt: skip
                assert house.rows(ROW, m.seq) == [row]
                is_sent = m.body is None
                assert m.holder is None or is_sent or house.engine.waiting

    async def drain(self) -> None:
        """Acknowledge all remaining messages through the last program."""
        house = self.house
        await house.settle()
        for program in self.programs:
            assert len(program.receipts) == len(program.keys)
            program.disconnect()
        last = EngineClient(house)
        for queue in QUEUES:
            last.consume(queue, 10)
        await house.settle()
        done = 0
        while len(last.got) > done:
            last.acknowledge(*last.got[done:])
            done = len(last.got)
            await house.settle()

    def assert_nothing_is_lost(self) -> None:
        house, core = self.house, self.house.core
        assert house.rows("SELECT seq FROM message") == []
        assert Counter(row[0] for row in house.rows("SELECT content FROM body")) == self.published
        settled = house.rows("SELECT seq, outcome, content FROM history JOIN body USING (seq)")
        assert len({seq for seq, _, _ in settled}) == len(settled) == self.published.total()
        assert {content for _, outcome, content in settled if outcome == State.ACKED} <= {
            frame.content for frame in house.got
        }
        assert {content for _, outcome, content in settled if outcome != State.ACKED} <= self.mortal
        assert {outcome for _, outcome, _ in settled} <= {State.ACKED, State.EXPIRED}
        assert {key for _, key, _, _ in house.receipts()} == self.keys
        assert (core.held, core.held_bytes, core.messages, core.bodies.total_bytes) == (0, 0, {}, 0)
        for queue in core.queues.values():
            assert (queue.dispatched, queue.held_bytes) == (0, 0)
            assert (queue.row.live_count, queue.row.live_bytes) == (0, 0)
        assert house.rows("SELECT DISTINCT live_count, live_bytes FROM queue") in ([], [(0, 0)])


TestPipeline = PipelineOfBatches.TestCase
