"""Publishing by page, API or command line: atomic, and once per key."""

from itertools import chain
from typing import Any

import pytest

from phpmq_lite.broker import commands
from phpmq_lite.broker.operator.publishing import NewMessage, Published, publish
from phpmq_lite.errors import RefusedError
from phpmq_lite.frame_options import PublishOptions
from phpmq_lite.model import NO_OPTIONS, Batch, Limits, LoadedPage, LoadedRows, Message
from phpmq_lite.writes import AdvanceAudit, InsertAudit, LinkMessages
from tests.support.core_rig import CoreRig, bodies, event_kinds, sent_messages


def publish_as_operator(
    rig: CoreRig, *content: bytes, name: str = "orders", **options: Any
) -> Batch:
    entry = rig.entry("message.publish")
    pieces = [(body, None) for body in content]
    return rig.run(lambda: publish(rig.core, rig.answers.append, entry, name, pieces, **options))


def ids(messages: list[Message]) -> list[str]:
    return [message.message_id.decode() for message in messages]


def test_operator_publishes_and_learns_the_ids(rig: CoreRig) -> None:
    worker = rig.consumer()
    batch = rig.run(
        lambda: publish(rig.core, rig.answers.append, rig.entry(), "orders", [(b"a", 5), (b"b", 0)])
    )
    born = sent_messages(batch, worker)
    assert (bodies(born), [m.ttl_s for m in born]) == ([b"a", b"b"], [5, None])
    assert rig.answers == [Published(ids(born))]
    [audited] = batch.writes
    assert isinstance(audited, InsertAudit)
    assert audited.number == 2
    totals = rig.queue().counters
    assert (totals.published, totals.published_ui, totals.published_http) == (2, 2, 0)


def test_message_that_waits_for_its_body_is_not_replaced(rig: CoreRig) -> None:
    """It is about to be dead-lettered; until then, its unique key is taken."""
    [message] = rig.publish(b"a").created
    message.options = NO_OPTIONS._replace(unique_key="k")
    rig.core.messages[message.seq] = message
    rig.core.pending.add(message, "expired")
    new = NewMessage(b"b", None, PublishOptions(unique_key="k", replaces=True))

    def replace() -> None:
        rig.core.unique[message.queue_id, "k"] = message.seq
        publish(rig.core, rig.answers.append, rig.entry(), "orders", [new])

    with pytest.raises(RefusedError) as caught:
        rig.run(replace)
    assert caught.value.code == "unique_key_held"


@pytest.mark.parametrize("replaces", [False, True])
def test_unique_key_is_found_although_its_message_leaves_the_memory(replaces: bool) -> None:
    """What else is stored is more urgent, and fills the window."""
    rig = CoreRig(Limits(window=2))
    rig.consumer(credit=1)
    rig.publish(b"held")
    urgent = [NewMessage(b"%d" % n, None, PublishOptions(priority=0)) for n in range(5)]
    new = NewMessage(b"new", None, PublishOptions(unique_key="k", replaces=replaces))

    def store(seq: int | None, *messages: NewMessage) -> None:
        rig.core.unique[1, "k"] = seq  # as if it was looked up
        publish(rig.core, rig.answers.append, rig.entry(), "orders", messages)

    [old] = rig.run(lambda: store(None, new)).created
    assert old.seq in rig.core.messages
    batch = rig.run(lambda: store(old.seq, *urgent, new))
    assert old.seq not in rig.core.messages
    assert [m.options.unique_key for m in batch.created] == [None] * 5 + ["k"] * replaces
    assert [*chain.from_iterable(batch.settled.values())] == [old.seq] * replaces


def test_each_user_has_one_client_number(rig: CoreRig) -> None:
    worker = rig.connect()
    first = publish_as_operator(rig, b"a")
    assert first.opened_clients == [2, "ui", "anna (10.0.0.5)", first.wall_ms]
    assert first.counters["next_client"] == 3
    second = publish_as_operator(rig, b"b")
    assert second.opened_clients == []
    assert [m.publisher for m in (*first.created, *second.created)] == [2, 2]
    entry = rig.entry()
    entry.source = "cli"
    batch = rig.run(lambda: publish(rig.core, rig.answers.append, entry, "orders", [(b"c", None)]))
    assert (batch.created[0].publisher, worker.number) == (3, 1)
    assert rig.queue().counters.published_cli == 1


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        ({"publishing_paused": True}, "paused", "paused"),
        ({"max_messages": 2}, "queue_full", "queue full: messages"),
        ({"max_bytes": 2}, "queue_full", "queue full: bytes"),
    ],
)
def test_list_is_stored_completely_or_not_at_all(
    rig: CoreRig, changes: dict[str, Any], code: str, reason: str
) -> None:
    rig.publish(b"x")
    rig.run(lambda: rig.configure("orders", changes))
    with pytest.raises(RefusedError) as caught:
        publish_as_operator(rig, b"a", b"b")
    assert caught.value.code == code
    assert not rig.finish().stores
    assert (rig.core.refused, rig.queue().counters.refused) == ({reason: 1}, 1)


def test_invalid_publish_is_refused() -> None:
    rig = CoreRig(Limits(queues=1))
    rig.publish(b"x")
    asked: list[tuple[str, dict[str, Any]]] = [
        ("too_many_queues", {"name": "more"}),
        ("bad_name", {"name": "a\0"}),
        ("unknown_queue", {"name": "more", "create": False}),
        ("bad_key", {"key": b""}),
        ("bad_key", {"key": b"x" * 65}),
    ]
    for code, options in asked:
        with pytest.raises(RefusedError) as caught:
            publish_as_operator(rig, b"a", **options)
        assert caught.value.code == code
    with pytest.raises(RefusedError, match="1001") as caught:
        publish_as_operator(rig, *[b"a"] * 1_001)
    assert caught.value.code == "too_many"
    rig.core.drain(rig.answers.append)
    with pytest.raises(RefusedError) as caught:
        publish_as_operator(rig, b"a")
    assert caught.value.code == "draining"


def load_ids(rig: CoreRig, batch: Batch, *rows: Message) -> None:
    """Load both requested pages of rows: some alive, none settled."""
    alive, settled = batch.rows
    assert (alive.settled, settled.settled, alive.seqs) == (False, True, settled.seqs)
    rig.run(
        loaded=LoadedRows(
            pages=[
                LoadedPage(alive.on_rows, list(rows), True),
                LoadedPage(settled.on_rows, [], True),
            ]
        )
    )


def test_repeated_key_returns_the_first_ids(rig: CoreRig) -> None:
    first = publish_as_operator(rig, b"a", b"b", key=b"k")
    assert [first.keys[at + 2] for at in (0, 4)] == [1, 2]
    again = publish_as_operator(rig, b"a", b"b", key=b"k")
    [audited] = again.writes
    assert isinstance(audited, InsertAudit)
    assert (again.created, again.keys, audited.number) == ([], [], 0)
    assert again.rows[0].seqs == (1, 2)
    load_ids(rig, again, *first.created)
    assert rig.answers == [Published(ids(first.created))] * 2
    assert rig.queue().counters.deduplicated == 1


@pytest.mark.parametrize(
    "bodies",
    [[b"b", b"a"], [b"a"], [b"a", b"b", b"c"], [b"a", b"c"], [b"c", b"b"], [b"c"]],
    ids=lambda bodies: b",".join(bodies).decode(),
)
def test_operator_cannot_use_a_key_again_for_another_list(
    rig: CoreRig, bodies: list[bytes]
) -> None:
    first = publish_as_operator(rig, b"a", b"b", key=b"k")
    again = publish_as_operator(rig, *bodies, key=b"k")
    load_ids(rig, again, *first.created)
    [error] = rig.answers[1:]
    assert isinstance(error, RefusedError)
    assert error.code == "key_conflict"
    assert "'k'" in str(error)
    totals = rig.queue().counters
    assert (totals.deduplicated, totals.refused, rig.core.refused) == (0, 1, {"key conflict": 1})
    [changed] = rig.batch.writes
    assert isinstance(changed, AdvanceAudit)
    assert changed.result == "key_conflict"


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_operator_repeats_a_list_of_which_some_rows_are_gone(rig: CoreRig, gone: int) -> None:
    made = publish_as_operator(rig, b"a", b"b", b"c", key=b"k").created
    left = [message for at, message in enumerate(made) if at != gone]
    load_ids(rig, publish_as_operator(rig, b"a", b"b", b"c", key=b"k"), *left)
    assert rig.answers[1] == Published(ids(left))
    load_ids(rig, publish_as_operator(rig, b"c", b"b", b"a", key=b"k"), *left)
    assert isinstance(rig.answers[2], RefusedError)
    load_ids(rig, publish_as_operator(rig, b"x", key=b"k"))  # all are gone
    assert rig.answers[3] == Published([])


def test_repeated_key_omits_messages_removed_from_the_history(rig: CoreRig) -> None:
    first = publish_as_operator(rig, b"a", b"b", key=b"k")
    load_ids(rig, publish_as_operator(rig, b"a", b"b", key=b"k"), first.created[1])
    assert rig.answers[1] == Published(ids(first.created[1:]))


def test_key_is_forgotten_after_its_window(rig: CoreRig) -> None:
    publish_as_operator(rig, b"a", b"b", key=b"k")
    rig.advance(601)
    publish_as_operator(rig, b"c", key=b"k")
    assert publish_as_operator(rig, b"c", key=b"k").rows[0].seqs == (3,)


def test_key_outlives_its_queue(rig: CoreRig) -> None:
    publish_as_operator(rig, b"a", key=b"k")
    rig.core.remove_queue(rig.queue())
    assert publish_as_operator(rig, b"a", key=b"k").rows[0].seqs == (1,)


def test_key_is_shared_with_clients(rig: CoreRig) -> None:
    publish_as_operator(rig, b"a", key=b"k")
    client = rig.connect()
    batch = rig.run(lambda: commands.publish(rig.core, client, "orders", b"b", None, b"k"))
    assert batch.created == []


def test_refused_list_leaves_its_key_free(rig: CoreRig) -> None:
    rig.publish(b"x")
    rig.run(lambda: rig.configure("orders", {"max_messages": 1}))
    with pytest.raises(RefusedError):
        publish_as_operator(rig, b"a", key=b"k")
    rig.run(lambda: rig.configure("orders", {"max_messages": None}))
    assert len(publish_as_operator(rig, b"a", key=b"k").created) == 1


def test_edit_links_the_new_message_to_its_source(rig: CoreRig) -> None:
    rig.publish(b"x")
    batch = publish_as_operator(rig, b"y", source=(1, "edit"))
    assert event_kinds(batch) == [(1, "edit")]
    assert batch.events[3] == batch.created[0].message_id.decode()
    assert batch.writes[0] == LinkMessages(2, batch.wall_ms, "edit", 1)
