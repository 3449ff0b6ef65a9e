"""The history keeps the order of a batch's settled messages."""

import tempfile
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.model import Batch, Message, State
from phpmq_lite.storage.batch_sql import batch_statements
from tests.support.batch_builders import batch_of_new
from tests.support.stores import new_database

MESSAGES = 40


@given(
    st.lists(
        # (whether it was dispatched in the same batch, consumer, time of the dispatch)
        st.tuples(st.booleans(), st.integers(1, 3), st.integers(5, 6)),
        min_size=1,
        max_size=MESSAGES,
    ),
    st.randoms(),
)
def test_messages_settled_in_a_batch_are_in_the_history_in_seq_order(
    dispatches: list[tuple[bool, int, int]], random: Random
) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(new_database(Path(folder) / "messages.db")) as database,
    ):
        store: Any = database.open_store()
        with closing(store.connection):
            created = batch_of_new(*range(1, len(dispatches) + 1))
            store.begin(batch_statements(created))
            store.end(created)
            batch = Batch(9, first_number=len(dispatches) + 1)
            earlier: list[int] = []
            now: list[int] = []
            for message, (is_now, consumer, at_ms) in zip(created.created, dispatches, strict=True):
                if is_now:
                    message.consumer, message.last_dispatched_at = consumer, at_ms
                    batch.dispatched.append(message)
                (now if is_now else earlier).append(message.seq)
            settled = earlier + now
            random.shuffle(settled)
            batch.settled[int(State.ACKED), None] = settled
            store.begin(batch_statements(batch))
            store.end(batch)
            found = store.execute(
                'SELECT seq, consumer, last_dispatched_at FROM history ORDER BY "offset"'
            ).fetchall()
    assert [seq for seq, _, _ in found] == earlier + now
    known: dict[int, Message] = {message.seq: message for message in created.created}
    for seq, consumer, at_ms in found:
        assert (consumer, at_ms) == (known[seq].consumer, known[seq].last_dispatched_at)
