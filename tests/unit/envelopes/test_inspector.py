"""What the broker makes of an envelope: its dead-letter record, and one more attempt."""

import json

import pytest

from phpmq_lite.envelopes.dead_letter_record import read_block
from phpmq_lite.envelopes.inspector import BabelQueueInspector
from phpmq_lite.model import DeadLetterCause
from phpmq_lite.queue_settings import QueueSettings
from tests.support.envelope_cases import body

ID = b"%032x" % 1


def cause(reason: str, exception: str | None) -> DeadLetterCause:
    return DeadLetterCause("orders", ID, reason, "no stock", 5, exception)


@pytest.mark.parametrize(
    ("reason", "exception", "expected"),
    [
        ("failed", "OutOfStock", ("failed", None, 3)),  # a worker's last attempt, which counts
        ("unknown_urn", "UnknownUrnError", ("unknown_urn", None, 3)),
        ("unknown_urn", None, ("unknown_urn", None, 2)),
        ("card_declined", "Declined", ("failed", "card_declined", 3)),
        ("max_deliveries", None, ("failed", "max_deliveries", 2)),
        ("poison", None, ("poison", "poison", 2)),
    ],
)
def test_record_says_what_the_worker_reported(
    reason: str, exception: str | None, expected: tuple[str, str | None, int]
) -> None:
    content = body(attempts="2")
    record = BabelQueueInspector().make_record(content, QueueSettings(), cause(reason, exception))
    block = read_block(record)
    assert block is not None
    assert (block.reason, block.detail, block.attempts) == expected
    assert (block.error, block.exception) == ("no stock", exception)
    counted = content.replace(b'"attempts":2', b'"attempts":%d' % expected[2])
    assert record.startswith(counted[:-1] + b',"dead_letter":')


@pytest.mark.parametrize("is_opaque", [True, False])
def test_record_without_a_count_keeps_its_bytes(is_opaque: bool) -> None:
    """The bodies of an opaque queue, and envelopes of another version, stay as they are."""
    content = body() if is_opaque else body(meta='{"schema_version":2}')
    settings = QueueSettings(payload_policy="opaque" if is_opaque else "observe")
    assert BabelQueueInspector().make_record(content, settings, cause("failed", "X")) == content


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (body(attempts="2", x="1E2"), body(attempts="3", x="1E2")),
        (body(meta='{"schema_version":2}'), None),
        (b"plain", None),
        (json.dumps([1]).encode(), None),
    ],
)
def test_attempt_is_added_to_an_envelope_only(content: bytes, expected: bytes | None) -> None:
    assert BabelQueueInspector().with_attempt_added(content) == expected
