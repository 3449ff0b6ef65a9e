"""Commands that are handled in a row do what they do one by one."""

from collections import deque
from dataclasses import asdict
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.broker import commands
from phpmq_lite.broker.flow_control import PublishQuota
from phpmq_lite.broker.publish_keys import expand_run
from phpmq_lite.broker.queue import Connection
from phpmq_lite.model import Batch, Limits, LoadedRows, LoadedWindow
from phpmq_lite.protocol.frames import Acknowledge, ClientFrame, Publish
from phpmq_lite.server.frame_processing import apply_frame, apply_frames
from tests.support.core_rig import CoreRig

QUEUES = ("plain", "other", "bounded")
UNLIMITED = 1 << 30
publishes = st.builds(
    Publish,
    st.sampled_from(QUEUES),
    st.sampled_from([b"", b"x", b"four", b'{"job":"urn:a:b:c"}']),
    st.sampled_from([None, 0, 5]),
    st.none() | st.sampled_from([b"1", b"2", b"3", b"4"]),
)
# Consumer, which of its queues, the how oldest it holds.
acknowledged = st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 5))
batches = st.lists(st.lists(publishes | acknowledged, max_size=12), min_size=1, max_size=5)


class Twin:
    """A core with two consumers and a publisher, whose commands come in runs or one by one."""

    def __init__(self, *, in_runs: bool) -> None:
        self.in_runs = in_runs
        # All keys are remembered: above the limit a run remembers its own until its end, which only
        # makes it recognize more of what was stored before.
        limits = Limits(window=6, window_bytes=20, credit=4, credit_bytes=12, receipts=8)
        self.rig = CoreRig(limits)
        self.publisher, self.one, self.two = (self.rig.connect() for _ in range(3))
        core = self.rig.core
        for name in QUEUES:
            self.rig.run(partial(commands.publish, core, self.publisher, name, b"first", 0, None))
        core.queues["bounded"].settings.max_messages = 3
        self.rig.run(lambda: commands.consume(core, self.one, "plain", 4))
        self.rig.run(lambda: commands.consume(core, self.two, "plain", 2))
        self.rig.run(lambda: commands.consume(core, self.two, "other", 3))
        self.rig.run(
            loaded=LoadedRows(windows=[LoadedWindow(1, [], True), LoadedWindow(2, [], True)])
        )

    def frames_of(self, steps: list[Any]) -> list[tuple[Connection, ClientFrame]]:
        """Return the frames; an acknowledgement names a held message, or none."""
        found: list[tuple[Connection, ClientFrame]] = []
        for command in steps:
            if isinstance(command, Publish):
                found.append((self.publisher, command))
                continue
            connection = (self.one, self.two)[command[0]]
            consumers = [*connection.consumers.values()]
            consumer = consumers[command[1] % len(consumers)]
            ids = [*consumer.held][command[2] :]
            end = Acknowledge(consumer.queue.name, ids[0] if ids else b"0" * 32)
            found.append((connection, end))
        return found

    def run(self, steps: list[Any]) -> Batch:
        """Run a batch; consecutive commands of a connection are applied together."""
        given = self.frames_of(steps)
        core, batch = self.rig.core, self.rig.begin()
        while given:
            connection = given[0][0]
            frames: deque[ClientFrame] = deque()
            while given and given[0][0] is connection:
                frames.append(given.pop(0)[1])
            while frames:
                rooms = PublishQuota(lambda _: UNLIMITED)
                if self.in_runs and apply_frames(core, connection, frames, len(frames), rooms)[0]:
                    continue
                apply_frame(core, connection, frames.popleft())
        self.rig.finish()
        return batch

    def seen(self, batch: Batch) -> dict[str, Any]:
        """Return the rows, frames and counts of a batch; tokens are random."""
        core = self.rig.core
        return {
            "born": [
                (m.seq, m.position, m.queue_id, m.state, m.ttl_s, m.deadline_ms, m.size, m.crc,
                 m.deliveries, m.consumer, m.publisher, m.body)
                for m in batch.created
            ],
            "bodies": batch.bodies,
            "keys": [
                key for run in zip(*[iter(batch.keys)] * 6, strict=True) for key in expand_run(run)
            ],
            "settled": batch.settled,
            "dispatched": [(m.seq, m.consumer) for m in batch.dispatched],
            "sums": (batch.created_bytes, batch.counters, core.held_bytes),
            "rows": [(key, r.live_count, r.live_bytes) for key, r in batch.queue_rows.items()],
            "sent": {
                c.number: (
                    [m.seq for m in outbox.dispatches],
                    [(r.queue, key, r.reason) for r in outbox.receipts for key in r.keys],
                )
                for c, outbox in batch.sends.items()
            },
            "totals": [asdict(queue.counters) for queue in core.queues.values()],
            "clients": [(c.published, c.acked) for c in self.rig.core.connections.values()],
            "known": sorted(core.messages),
            "due": core.next_deadline_ms,
        }  # fmt: skip


@given(batches)
def test_runs_do_what_their_commands_do_one_by_one(given: list[list[Any]]) -> None:
    runs, ones = Twin(in_runs=True), Twin(in_runs=False)
    for steps in given:
        assert runs.seen(runs.run(steps)) == ones.seen(ones.run(steps))
