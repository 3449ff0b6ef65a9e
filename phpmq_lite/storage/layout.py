"""From a batch to what its transaction executes: statements and their values, in order.

A batch is laid out before the writer's thread has it: the messages and counters that it names
change with the next batch, which is decided on while this one is stored.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from phpmq_lite.model import Batch, Message, QueueRow, State
from phpmq_lite.storage import rows
from phpmq_lite.storage.statements import MultiRow, load, many

# A statement with one row of values, or one over many rows: the flat values of all of them, and
# those that stand ahead of the rows.
Step = tuple[str | MultiRow, Sequence[Any], tuple[Any, ...]]

OWN_COLUMNS: Final = (
    "payload_policy", "on_expire", "max_deliveries", "ack_timeout_s", "max_messages", "max_bytes",
)  # fmt: skip


def lay_out(batch: Batch) -> list[Step]:
    """Give the steps of a batch, in the order of ``model.Batch``."""
    sql = load("live")
    steps: list[Step] = [
        (sql["insert_queue"], (row.queue_id, row.name, row.created_at), ())
        for row in batch.new_queues
    ]
    if batch.born:
        steps += _born(batch)
    if batch.dispatched:
        first = batch.first_number
        flat = [
            value
            for m in batch.dispatched
            if m.seq < first
            for value in (m.seq, m.consumer, m.last_dispatched_at)
        ]
        steps.append((many("live", "dispatch"), flat, ()))
    if batch.changed:
        steps.append((many("live", "change"), rows.flat_changed(batch.changed.values()), ()))
    if batch.settled:
        steps += _settled(batch)
    for name, flat in (
        ("insert_event", batch.events),
        ("insert_receipt", batch.keys),
        ("insert_client", batch.opened_clients),
    ):
        if flat:
            steps.append((many("live", name), flat, ()))
    steps += [(sql["close_client"], closed, ()) for closed in batch.closed_clients]
    steps += [
        (sql["update_queue"], (row.live_count, row.live_bytes, row.queue_id), ())
        for row in batch.queue_rows.values()
    ]
    steps += [
        (sql["configure_queue"], (*_own_values(row), row.queue_id), ()) for row in batch.configured
    ]
    steps += [(sql["set_counter"], counter, ()) for counter in batch.counters.items()]
    steps += [(many(file, name), flat, ()) for (file, name), flat in batch.several.items()]
    steps += [(load(file)[name], parameters, ()) for file, name, parameters in batch.rare]
    return steps


def _born(batch: Batch) -> list[Step]:
    """New rows; records, which have all columns, are the rare ones."""
    whole = [m for m in batch.born if _is_record(m)]
    born = [m for m in batch.born if not _is_record(m)] if whole else batch.born
    steps: list[Step] = []
    if batch.has_envelopes:  # plain ones among them have NULL there
        steps.append((many("live", "insert_enveloped"), rows.flat_enveloped(born), ()))
    else:
        steps.append((many("live", "insert_plain"), rows.flat_plain(born), ()))
    if whole:
        steps.append((many("live", "insert_whole"), rows.flat_whole(whole), ()))
    steps.append((many("live", "insert_body"), batch.bodies, ()))
    return steps


def _is_record(message: Message) -> bool:
    return message.source_seq is not None or message.source_reason is not None


def _settled(batch: Batch) -> list[Step]:
    steps: list[Step] = []
    counts = [0, 0]
    for (outcome, reason), seqs in batch.settled.items():
        steps.append((many("live", "settle"), seqs, (outcome, reason, batch.wall_ms)))
        steps.append((many("live", "remove"), seqs, ()))
        counts[outcome == State.DELETED] += len(seqs)
    add_counter = load("live")["add_counter"]
    for name, number in (
        ("history_rows", counts[0]),
        ("history_bytes", batch.settled_bytes),
        ("deleted_rows", counts[1]),
        ("deleted_bytes", batch.deleted_bytes),
    ):
        if number:
            steps.append((add_counter, (name, number), ()))
    return steps


def _own_values(row: QueueRow) -> tuple[Any, ...]:
    rare = {name: value for name, value in row.own.items() if name not in OWN_COLUMNS}
    return (*(row.own.get(name) for name in OWN_COLUMNS), json.dumps(rare, sort_keys=True))
