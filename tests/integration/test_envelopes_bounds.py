"""The work of one batch on contents is bounded, whatever clients publish."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.broker import batches, commands
from phpmq_lite.broker.broker import INLINE_BYTES
from phpmq_lite.broker.commands import CommandResult
from phpmq_lite.broker.operator.message_actions import ActionOptions
from phpmq_lite.broker.pending import PENDING_BYTES_MAX, PENDING_MAX
from phpmq_lite.envelopes.inspector import BabelQueueInspector
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import DeadLetterCause, EnvelopeInspection, Limits
from phpmq_lite.operator_actions import Action
from phpmq_lite.queue_settings import QueueSettings
from tests.support.core_and_store import Client, Delivery, Driver
from tests.support.envelope_cases import body

Make = Callable[..., Driver]


class Counting(BabelQueueInspector):
    """Counts the bytes that are validated or made into records."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def validate(self, content: bytes, settings: QueueSettings) -> EnvelopeInspection:
        self.bytes += len(content)
        return super().validate(content, settings)

    def make_record(self, content: bytes, settings: QueueSettings, death: DeadLetterCause) -> bytes:
        self.bytes += len(content)
        return super().make_record(content, settings, death)

    def redrive_content(self, content: bytes) -> bytes:
        self.bytes += len(content)
        return super().redrive_content(content)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Driver] = []

    def make(limits: Limits | None = None, **settings: Any) -> Driver:
        made.append(Driver(tmp_path, limits, QueueSettings(**settings), Counting()))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


def padded(size: int) -> bytes:
    return body(x='"%s"' % ("x" * size))


def counted(driver: Driver) -> int:
    assert isinstance(driver.envelopes, Counting)
    return driver.envelopes.bytes


def most_in_a_turn(driver: Driver) -> int:
    """Run until idle; return the largest number of bytes that one turn inspected."""
    most = 0
    while driver.is_busy:
        aside, driver._aside = driver._aside, []
        results = [(work(), give) for work, give in aside]  # in their thread
        driver._aside = [(lambda made=made: made, give) for made, give in results]  # type: ignore[misc]
        before = counted(driver)
        driver.turn()
        most = max(most, counted(driver) - before)
    return most


def live(driver: Driver) -> dict[str, int]:
    """Return the number of live messages per queue, without empty queues."""
    queues = driver.core.queues.values()
    return {queue.name: queue.row.live_count for queue in queues if queue.row.live_count}


def create(driver: Driver, queue: str, **settings: Any) -> None:
    driver.ask("create_queue", queue)
    driver.step()
    driver.ask("configure", queue, settings)


# -- the allowance of a batch


def test_records_of_many_that_expire_are_bounded_in_a_batch(make: Make) -> None:
    driver = make(on_expire="dead_letter")
    driver.ask("publish", "orders", [(padded(60_000), 5)] * 60)
    driver.step()
    driver.clock.advance(10)
    assert most_in_a_turn(driver) <= INLINE_BYTES
    assert live(driver) == {"orders.dlq": 60}


@pytest.mark.parametrize("is_good", [True, False])
def test_verdicts_on_many_of_a_connection_are_bounded_in_a_batch(make: Make, is_good: bool) -> None:
    driver = make(payload_policy="envelope")
    client = driver.connect()
    content = padded(60_000) if is_good else body(data=None, x='"%s"' % ("x" * 60_000))
    for _ in range(20):
        client.publish("orders", content)
    assert most_in_a_turn(driver) <= INLINE_BYTES + 120_000  # the last one, and its record
    assert sum(live(driver).values()) == 20


def test_verdicts_on_a_list_are_bounded_in_a_batch(make: Make) -> None:
    driver = make(payload_policy="envelope")
    asked = driver.ask("publish", "orders", [(padded(60_000), None)] * 20)
    assert most_in_a_turn(driver) <= INLINE_BYTES
    assert len(asked.answer.ids) == 20
    assert live(driver) == {"orders": 20}


def test_large_message_in_memory_is_dead_lettered_in_the_thread(make: Make) -> None:
    driver = make(on_expire="dead_letter")
    worker = driver.connect()
    worker.consume("orders", 1)
    driver.step()
    client = driver.connect()
    client.publish("orders", b"first")
    client.publish("orders", padded(2_000_000), 5)
    driver.step()
    driver.clock.advance(10)
    assert most_in_a_turn(driver) == 0
    assert live(driver) == {"orders": 1, "orders.dlq": 1}


def test_forced_publish_of_a_large_message_is_validated_first(make: Make) -> None:
    driver = make(payload_policy="envelope", max_messages=1)
    client = driver.connect()
    client.publish("orders", body())
    driver.step()
    large, connection = padded(100_000), client.connection
    core = driver.core
    batches.begin(core, driver.clock.now())
    assert commands.publish(core, connection, "orders", large, None, None) is CommandResult.PARK
    assert (
        commands.publish(core, connection, "orders", large, None, None, is_forced=True)
        is CommandResult.VALIDATE
    )
    judged: list[Any] = []
    commands.validate_in_background(core, "orders", large, judged.append)
    [(work, give)] = batches.finish(core).background
    give(work())
    batches.begin(core, driver.clock.now())
    assert (
        commands.publish(core, connection, "orders", large, None, None, judged[0], is_forced=True)
        is CommandResult.DONE
    )
    assert len(batches.finish(core).created) == 1


# -- pending dead letters


@pytest.mark.slow
@pytest.mark.parametrize(("number", "size"), [(1_100, 66_000), (80, 1_000_000)])
def test_batches_stop_while_dead_letters_are_pending(make: Make, number: int, size: int) -> None:
    driver = make(Limits(batch_bytes=1 << 30), on_expire="dead_letter")
    for at in range(0, number, 10):
        driver.ask("publish", "orders", [(b"x" * size, 5)] * min(10, number - at))
    driver.step()
    driver.clock.advance(10)
    held: list[Any] = []
    turns = 0
    while driver.core.next_wake_ms is not None or driver._loaded is not None:
        if not driver.is_busy:
            break
        driver.turn()
        held += driver._aside
        driver._aside = []
        turns += 1
        assert turns < 10, "batch follows batch"
        dying = driver.core.pending
        assert len(dying) <= PENDING_MAX
        assert dying.size <= PENDING_BYTES_MAX + size
    driver._aside = held
    driver.step()
    assert live(driver) == {"orders.dlq": number}
    assert (driver.core.pending, driver.core.pending.size) == ({}, 0)


# -- the order of a connection


def test_receipt_after_a_large_dead_letter_waits_until_that_is_stored(driver: Driver) -> None:
    worker = driver.connect()
    worker.consume("orders", 2)
    driver.publish(padded(100_000), padded(100_000))
    first, second = worker.got
    worker.dead_letter("orders", first.message_id)
    worker.dead_letter("orders", second.message_id)
    worker.publish("other", b"barrier", key=b"k")
    held: list[Any] = []
    for _ in range(5):
        driver.turn()
        held += driver._aside
        driver._aside = []
    assert worker.receipts == []
    driver._aside = held
    driver.step()
    assert [receipt.key for receipt in worker.receipts] == [b"k"]
    assert live(driver) == {"orders.dlq": 2, "other": 1}


# -- records from clients


def record_about(message_id: bytes, padding: int = 0) -> bytes:
    block = {"reason": "r", "original_queue": "orders", "message_id": message_id.decode()}
    return json.dumps({"pad": "x" * padding, "dead_letter": block}).encode()


def taken(driver: Driver) -> tuple[Client, Delivery]:
    """Publish a message to ``orders`` and dispatch it to a worker."""
    worker = driver.connect()
    worker.consume("orders", 1)
    driver.publish(body())
    [delivery] = worker.got
    return worker, delivery


@pytest.mark.parametrize(("number", "size", "loaded"), [(100, 200_000, 8), (8, 3_000_000, 5)])
def test_records_that_name_a_message_are_loaded_within_bounds(
    driver: Driver, number: int, size: int, loaded: int
) -> None:
    worker, delivery = taken(driver)
    fake = record_about(delivery.message_id[:16] + b"f" * 16, size)
    client = driver.connect()
    for _ in range(number):
        client.publish("orders.dlq", fake)
    driver.step()
    worker.dead_letter("orders", delivery.message_id)
    driver.record()
    found = driver._loaded
    assert found is not None
    assert [len(records) for records in found.records.values()] == [loaded]


def test_record_in_another_queue_than_its_own_does_not_count(driver: Driver) -> None:
    worker, delivery = taken(driver)
    driver.publish(record_about(delivery.message_id), queue="foreign.dlq")
    worker.dead_letter("orders", delivery.message_id)
    driver.step()
    assert live(driver) == {"foreign.dlq": 1, "orders.dlq": 1}


def test_record_in_its_own_queue_counts_among_many(driver: Driver) -> None:
    worker, delivery = taken(driver)
    fake = record_about(delivery.message_id[:16] + b"f" * 16)
    driver.publish(*[fake] * 20, record_about(delivery.message_id), fake, queue="orders.dlq")
    worker.dead_letter("orders", delivery.message_id)
    driver.step()
    assert live(driver) == {"orders.dlq": 22}


# -- redrive


def quarantined(driver: Driver, *contents: bytes) -> None:
    """Dead-letter contents by their verdict, and then accept everything."""
    create(driver, "orders", payload_policy="envelope")
    driver.ask("publish", "orders", [(content, None) for content in contents])
    driver.step()
    assert live(driver) == {"orders.dlq": len(contents)}


BAD = [body(data="null", x='"%s"' % ("x" * size)) for size in (10, 900_000, 60_000, 20, 100_000)]


@pytest.mark.parametrize("policy", ["observe", "envelope"])
@pytest.mark.parametrize("is_sweep", [True, False])
def test_records_of_any_size_are_redriven_in_order(
    driver: Driver, policy: str, is_sweep: bool
) -> None:
    contents = [*BAD, *[body(data="null", x='"%s"' % ("y" * 60_000))] * 10]
    quarantined(driver, *contents)
    driver.ask("configure", "orders", {"payload_policy": policy})
    seqs = [seq for (seq,) in driver.rows("SELECT seq FROM message ORDER BY seq")]
    if is_sweep:
        asked = driver.ask("redrive", "orders.dlq")
    else:
        asked = driver.ask(
            "act_on_messages", Action.REDRIVE, seqs, ActionOptions(), audit="dead.redrive"
        )
    assert most_in_a_turn(driver) <= 3 * INLINE_BYTES  # read, validated and made a record
    if is_sweep:
        assert asked.answer == len(contents)
    else:
        assert asked.answer.changed == seqs
        assert sum(asked.answer.poisoned.values()) == (policy == "envelope") * len(contents)
    if policy == "observe":
        assert live(driver) == {"orders": len(contents)}
        found = driver.rows("SELECT content FROM body JOIN message USING (seq) ORDER BY position")
        assert [json.loads(row[0])["x"] for row in found] == [json.loads(c)["x"] for c in contents]
    else:
        assert live(driver) == {"orders.dlq": len(contents)}


def test_queue_configured_while_records_are_read_applies_its_new_settings(driver: Driver) -> None:
    quarantined(driver, BAD[1])
    driver.ask("configure", "orders", {"payload_policy": "observe"})
    driver.ask("redrive", "orders.dlq")
    while not driver._aside:
        driver.turn()
    held, driver._aside = [(work(), give) for work, give in driver._aside], []
    driver.ask("configure", "orders", {"payload_policy": "envelope"})
    driver.turn()
    driver._aside = [(lambda made=made: made, give) for made, give in held]  # type: ignore[misc]
    driver.step()
    assert live(driver) == {"orders.dlq": 1}


# -- retries


def dead_in_retry(driver: Driver) -> None:
    driver.publish(body(), queue="orders.retry")
    worker = driver.consume(1, "orders.retry")
    [delivery] = worker.got
    worker.dead_letter("orders.retry", delivery.message_id)
    worker.consume("orders.retry", 0)
    driver.step()


@pytest.mark.parametrize(
    ("settings", "retry", "name"),
    [
        ({}, {}, "orders.dlq"),
        ({"dead_letter_queue": "failed"}, {}, "failed"),
        ({"dead_letter_queue": "failed"}, {"dead_letter_queue": "own"}, "own"),
    ],
)
def test_dead_letter_of_a_retry_queue_has_its_record_with_the_main_queue(
    driver: Driver, settings: dict[str, str], retry: dict[str, str], name: str
) -> None:
    create(driver, "orders", **settings)
    create(driver, "orders.retry", **retry)
    dead_in_retry(driver)
    assert live(driver) == {name: 1}
    driver.ask("redrive", name)
    driver.step()
    assert live(driver) == {"orders": 1}


def test_dead_letter_of_a_retry_queue_stays_until_the_main_queue_exists(driver: Driver) -> None:
    dead_in_retry(driver)
    driver.ask("redrive", "orders.dlq")
    driver.step()
    assert live(driver) == {"orders.dlq": 1}
    driver.ask("create_queue", "orders")
    driver.ask("redrive", "orders.dlq")
    driver.step()
    assert live(driver) == {"orders": 1}


# -- waiting for a dead-letter queue


@pytest.mark.parametrize(
    "changes", [{"payload_policy": "observe"}, {"dead_letter_queue": "orders.failed"}]
)
def test_publisher_stops_waiting_for_a_dead_letter_queue_it_no_longer_needs(
    driver: Driver, changes: dict[str, str]
) -> None:
    create(driver, "orders", payload_policy="envelope")
    create(driver, "orders.dlq")
    driver.ask("pause", "orders.dlq", "publishing", True)
    client = driver.connect()
    client.publish("orders", b"bad")
    driver.step()
    assert client.is_parked
    driver.ask("configure", "orders", {"alert_messages": 1})
    driver.step()
    assert client.is_parked
    driver.ask("configure", "orders", changes)
    driver.step()
    assert not driver.inbox
    assert sum(live(driver).values()) == 1


# -- dead-letter queues


def test_dead_letter_queue_validates_nothing(driver: Driver) -> None:
    create(driver, "orders.dlq", payload_policy="envelope")
    driver.publish(padded(1_000), queue="orders.dlq")
    assert counted(driver) == 0
    assert driver.core.queues["orders.dlq"].settings.payload_policy == "observe"


@pytest.mark.parametrize(
    ("limit", "number", "is_taken"),
    [
        ({"max_messages": 2}, 3, False),
        ({"max_messages": 2}, 2, True),
        ({"max_bytes": 100}, 60, False),
        ({"max_bytes": 100}, 1, True),
    ],
)
def test_list_is_rejected_if_the_records_of_its_bad_messages_do_not_fit(
    driver: Driver, limit: dict[str, int], number: int, is_taken: bool
) -> None:
    create(driver, "orders", payload_policy="envelope")
    create(driver, "orders.dlq", **limit)
    asked = driver.ask("publish", "orders", [(b"bad", None)] * number + [(body(), None)])
    driver.step()
    assert isinstance(asked.answer, RefusedError) is not is_taken
    assert live(driver) == ({"orders": 1, "orders.dlq": number} if is_taken else {})


def test_list_validated_in_background_creates_no_queue(make: Make) -> None:
    driver = make(payload_policy="envelope")
    driver.ask("create_queue", "orders")
    driver.step()
    asked = driver.ask("publish", "orders", [(padded(100_000), None)], create=False)
    driver.turn()
    held, driver._aside = driver._aside, []
    driver.ask("remove_queue", "orders")
    driver.step()
    driver._aside = held
    driver.step()
    assert isinstance(asked.answer, RefusedError)
    assert "orders" not in driver.core.queues


def test_reason_of_a_client_has_no_control_characters() -> None:
    block = {"reason": "a\0b\nc\u202ed\x9be", "original_queue": "q", "message_id": "x"}
    content = json.dumps({"dead_letter": block}).encode()
    source = BabelQueueInspector().record_source(content)
    assert source is not None
    assert source.reason == "a\ufffdb\ufffdc\ufffdd\ufffde"
