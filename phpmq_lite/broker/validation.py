"""The verdict on what is published to an ``envelope`` queue, and what a message is indexed by.

A verdict takes 0.1 s for 1 MiB, so large contents are validated in the background before their
batch, and so is what exceeds the share of a batch (``BrokerState.can_inspect_inline``).
"""

from collections.abc import Callable
from typing import Final

from phpmq_lite.broker import dead_letters
from phpmq_lite.broker.queue import Queue
from phpmq_lite.broker.state import BrokerState
from phpmq_lite.model import (
    DeadLetterCause,
    EnvelopeInspection,
    EnvelopeInspector,
    Message,
    ValidatedPublish,
)
from phpmq_lite.queue_settings import QueueSettings

INSPECTED_BYTES_MAX: Final = 1 << 20  # longer content is not indexed, unless it is validated
NOT_INDEXED: Final = EnvelopeInspection((None, None, None, None))


def validate(
    state: BrokerState, queue: Queue, body: bytes, validated: ValidatedPublish | None = None
) -> EnvelopeInspection | None:
    """Return the verdict on a content; None: it is too large, validate it in the background.

    ``validated`` counts only while the queue has the settings that were applied.
    """
    if validated is not None and validated.settings is queue.settings:
        return validated.inspection
    if not state.can_inspect_inline(len(body)):
        return None
    inspector = state.inspector
    inspection = NOT_INDEXED if inspector is None else inspector.validate(body, queue.settings)
    if inspection.reason is not None:
        state.batch.inspected_bytes += len(body)  # again, for its record
    return inspection


def background_validation(
    state: BrokerState, queue: Queue, body: bytes
) -> Callable[[], ValidatedPublish]:
    """Return a function for a thread that validates a content, and makes its record."""
    name, settings, at_ms = queue.name, queue.settings, state.now.wall_ms
    placeholder = placeholder_id(state)
    return lambda: validate_with(state.inspector, name, settings, body, at_ms, placeholder)


def placeholder_id(state: BrokerState) -> bytes:
    """Return a random id that stands in a record until its message has one."""
    return b"%016x%016x" % (state.take_token(), state.take_token())


def validate_with(
    inspector: EnvelopeInspector | None,
    name: str,
    settings: QueueSettings,
    body: bytes,
    at_ms: int,
    placeholder: bytes,
) -> ValidatedPublish:
    """Validate a content by the settings of a queue; make its record if it is invalid."""
    if inspector is None:
        return ValidatedPublish(settings, NOT_INDEXED)
    inspection = inspector.validate(body, settings)
    if inspection.reason is not None:
        cause = DeadLetterCause(name, placeholder, inspection.reason, inspection.detail, at_ms)
        record = inspector.make_record(body, settings, cause)
        inspection = inspection._replace(record=(placeholder, record))
    return ValidatedPublish(settings, inspection)


def index_content(
    state: BrokerState,
    message: Message,
    queue: Queue,
    body: bytes,
    known: EnvelopeInspection | None,
) -> EnvelopeInspection | None:
    """Set what a new message is found by; return the verdict, if there is one.

    ``known``: its content was inspected already.
    """
    inspector = state.inspector
    inspection = known
    indexed = None if known is None else known.indexed
    if known is None and inspector is not None:
        if queue.is_dead_letter_queue:
            dead_letters.link_record(state, message, body)
        if queue.validates:
            inspection = inspector.validate(body, queue.settings)
            indexed = inspection.indexed
        elif body.startswith(b"{") and len(body) <= INSPECTED_BYTES_MAX:
            indexed = inspector.index(body)
    if (
        body.endswith(b"}}")  # as an added block does; few others need a look
        and inspector is not None
        and not queue.is_dead_letter_queue
        and len(body) <= INSPECTED_BYTES_MAX
    ):
        dead_letters.link_record_of_consumer(state, message, body)
    if indexed is not None:
        message.urn, message.trace_id, message.meta_id, message.attempts = indexed
    return inspection
