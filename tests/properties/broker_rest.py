"""Checks after each commit that the model, the rows on disk and the core's memory agree."""

from collections import Counter
from collections.abc import Iterator

from phpmq_lite.broker.queue import Queue
from phpmq_lite.model import State, number_of
from tests.properties.broker_model import Model
from tests.support.core_and_store import Command, Driver

ALIVE = """
SELECT seq, token, name, position, state, deadline_ms, deliveries, charged, publisher, size,
  content, ready_at, due_ms, deliver_at, retries, failed_attempt, head_since IS NOT NULL,
  group_name, unique_key
FROM message JOIN queue USING (queue_id) JOIN body USING (seq) ORDER BY seq"""
SETTLED = """
SELECT "offset", seq, name, position, outcome, reason, deliveries, charged, ready_at, due_ms,
  deliver_at, retries, group_name, unique_key
FROM history JOIN queue USING (queue_id) ORDER BY "offset" """


def assert_rows_agree(model: Model, driver: Driver) -> None:
    rows = {row[0]: row[1:] for row in driver.rows(ALIVE)}
    assert rows.keys() == model.alive.keys()
    for m in model.alive.values():
        state = State.READY if m.holder is None else State.DISPATCHED
        if m.is_scheduled:
            state = State.SCHEDULED
        m.is_blocked = rows[m.seq][3] == State.BLOCKED
        if m.dying is not None or (m.is_blocked and m.is_ready):
            state = rows[m.seq][3]  # as it was; or perhaps another one of its group is before it
        expected = (
            m.token, m.queue, m.position, state, m.deadline_ms, m.deliveries, m.charged,
            m.publisher, len(m.body), bytes(len(m.body)) if m.is_damaged else m.body,
            m.ready_at, m.due_ms, m.deliver_at, m.retries or None, m.failed_attempt or None,
            m.is_head, m.group, m.unique_key,
        )  # fmt: skip
        assert rows[m.seq] == expected, f"{m.seq}: {rows[m.seq]}, not {expected}"
    places = [(m.queue, m.position) for m in model.alive.values()]
    assert len(set(places)) == len(places)
    keys = [m.key_place for m in model.alive.values() if m.key_place is not None]
    assert len(set(keys)) == len(keys)
    _assert_history_agrees(model, driver)
    kinds = Counter(dict(driver.rows("SELECT kind, sum(count) FROM event GROUP BY kind")))
    more = kinds.pop("more", 0)  # of any kind
    assert kinds <= model.events
    assert kinds.total() + more == model.events.total()
    assert max(driver.rows("SELECT count(*) FROM event GROUP BY seq"), default=(0,))[0] <= 16
    [(number,)] = driver.rows("SELECT next_number FROM line")
    assert all(max(m.seq, number_of(m.position)) < number for m in model.alive.values())


def _assert_history_agrees(model: Model, driver: Driver) -> None:
    rows = driver.rows(SETTLED)
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))  # no gap
    settled = {row[1]: (*row[2:4], State(row[4]), *row[5:]) for row in rows}
    assert len(settled) == len(rows)
    assert settled == model.history
    sizes = {
        is_deleted: (count, size)
        for is_deleted, count, size in driver.rows(
            "SELECT outcome = 5, count(*), sum(size) FROM history GROUP BY 1"
        )
    }
    [totals] = driver.rows(driver.store.sql("database_size")["totals"])
    assert totals == (*sizes.get(0, (0, 0)), *sizes.get(1, (0, 0)))


def assert_memory_agrees(model: Model, driver: Driver) -> None:
    """Compare the core's memory with the model, and its sums with their parts."""
    core = driver.core
    assert core.pending.keys() == {m.seq for m in model.alive.values() if m.dying is not None}
    in_memory = {m.seq for m in model.alive.values() if m.holder is not None}
    for queue in core.queues.values():
        alive = model.of_queue(queue.name)
        on_disk = driver.rows(
            "SELECT live_count, live_bytes, scheduled_count FROM queue WHERE name = ?", queue.name
        )
        scheduled = sum(m.is_scheduled and m.dying is None for m in alive)
        dying = sum(m.is_scheduled for m in alive) - scheduled
        row = queue.row
        assert on_disk == [(row.live_count, row.live_bytes, row.scheduled_count)]
        assert on_disk[0][:2] == (len(alive), sum(len(m.body) for m in alive))
        assert scheduled <= row.scheduled_count <= scheduled + dying
        in_memory |= _assert_window_is_a_prefix(model, queue)
        _assert_consumers_agree(model, queue)
    assert core.messages.keys() == in_memory
    assert core.held == sum(queue.held for queue in core.queues.values())
    assert core.held_bytes == sum(queue.held_bytes for queue in core.queues.values())
    assert core.held <= core.limits.held + core.limits.held // 4
    heads = {model.team(m): m.seq for m in model.alive.values() if m.is_head}
    assert {(core.queues_by_id[number].name, group): seq for (number, group), seq
            in core.heads.items()} == heads  # fmt: skip
    windows = [queue.window for queue in core.queues.values() if queue.window is not None]
    assert core.bodies.total_bytes == sum(window.body_bytes for window in windows)


def _assert_window_is_a_prefix(model: Model, queue: Queue) -> set[int]:
    """Compare the window with the first ready messages; return its messages."""
    window = queue.window
    if window is None:
        assert not queue.consumers
        return set()
    seqs = [message.seq for message in window]
    ready = [m for m in model.ready(queue.name) if not m.is_blocked
             if window.reaches_end or m.position <= window.covered_to]  # fmt: skip
    assert seqs == [m.seq for m in ready]
    here = [message for message in window if message.body is not None]
    assert [message.body for message in here] == [
        m.body for m in ready if m.seq in {message.seq for message in here}
    ]
    assert window.body_bytes == sum(message.size for message in here)
    return set(seqs)


def _assert_consumers_agree(model: Model, queue: Queue) -> None:
    held = [m for m in model.of_queue(queue.name) if m.holder is not None]
    assert (queue.held, queue.held_bytes) == (len(held), sum(len(m.body) for m in held))
    consumers = list(queue.consumers.values())
    assert set(queue.waiting_consumers) == {
        consumer for consumer in consumers if consumer.is_waiting
    }
    assert len(queue.waiting_consumers) == len(set(queue.waiting_consumers))
    for consumer in consumers:
        client = consumer.connection.peer
        mine = [m.seq for m in model.held(client, queue.name)]  # type: ignore[arg-type]
        assert [message.seq for message in consumer.held.values()] == mine
        assert consumer.held_bytes == sum(m.size for m in consumer.held.values())


def unserved(model: Model, driver: Driver) -> Iterator[str]:
    """Yield a sentence for each message that waits at rest without need."""
    limits = driver.core.limits
    for item in driver.inbox:
        assert isinstance(item, Command)
        queue = item.arguments[0]
        parked = [c for c in driver.inbox if isinstance(c, Command) and c.client is item.client]
        if item is parked[0] and not model.refuses(queue, len(model.of_queue(queue))):
            yield f"{item.client.name} waits for {queue}, which takes messages"
    held = sum(m.holder is not None for m in model.alive.values())
    for client, credits_of in model.credit.items():
        for queue, credit in credits_of.items():
            first = model.next(queue)
            mine = model.held(client, queue)
            of_queue = sum(m.holder is not None for m in model.of_queue(queue))
            if (
                first
                and len(mine) < min(credit, limits.credit)
                and held < limits.held + (0 if of_queue else limits.held // 4)
                and client not in model.choked
                and not model.settings(queue).delivery_paused
                and sum(len(m.body) for m in [*mine, first]) <= limits.credit_bytes
                and model.room(queue) >= 1
            ):
                yield f"{client.name} could have {first.seq} of {queue}"
