"""Validation of content published to ``envelope`` queues, and indexing of message fields.

Validation takes 0.1 s for 1 MiB, so large contents, and contents beyond what one batch may validate
(``Broker.can_inspect_inline``), are validated in the background before their batch.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from phpmq_lite.broker import dead_letters
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.queue import Queue
from phpmq_lite.model import (
    NOT_INDEXED,
    DeadLetterCause,
    EnvelopeInspection,
    EnvelopeInspector,
    Message,
    PreparedRecord,
    ValidatedPublish,
)
from phpmq_lite.queue_settings import QueueSettings

INSPECTED_BYTES_MAX: Final = 1 << 20  # larger content is indexed only if it is validated
NO_ENVELOPE: Final = EnvelopeInspection(NOT_INDEXED)


def validate(
    core: Broker, queue: Queue, body: bytes, validated: ValidatedPublish | None = None
) -> EnvelopeInspection | None:
    """Return the verdict on content, or None if it must be validated in the background.

    ``validated`` is used only if it was made with the queue's current settings.
    """
    if validated is not None and validated.settings is queue.settings:
        return validated.inspection
    if not core.can_inspect_inline(len(body)):
        return None
    inspector = core.inspector
    inspection = NO_ENVELOPE if inspector is None else inspector.validate(body, queue.settings)
    if inspection.reason is not None:
        core.batch.inspected_bytes += len(body)  # counts twice: a record is created as well
    return inspection


def background_validation(
    core: Broker, queue: Queue, body: bytes
) -> Callable[[], ValidatedPublish]:
    """Return a function that validates content in a thread and creates a record if needed."""
    inspector, at_ms, placeholder = core.inspector, core.now.wall_ms, placeholder_id(core)
    return partial(validate_with, inspector, queue.name, queue.settings, body, at_ms, placeholder)


def placeholder_id(core: Broker) -> bytes:
    """Return a random id to use in a record until the message has its own."""
    return b"%016x%016x" % (core.take_token(), core.take_token())


def validate_with(
    inspector: EnvelopeInspector | None,
    name: str,
    settings: QueueSettings,
    body: bytes,
    at_ms: int,
    placeholder: bytes,
) -> ValidatedPublish:
    """Validate content with a queue's settings; create a record if the content is invalid."""
    if inspector is None:
        return ValidatedPublish(settings, NO_ENVELOPE)
    inspection = inspector.validate(body, settings)
    if inspection.reason is not None:
        cause = DeadLetterCause(name, placeholder, inspection.reason, inspection.detail, at_ms)
        record = PreparedRecord(placeholder, inspector.make_record(body, settings, cause))
        inspection = inspection._replace(record=record)
    return ValidatedPublish(settings, inspection)


def index_content(
    core: Broker, message: Message, queue: Queue, body: bytes, inspected: EnvelopeInspection | None
) -> EnvelopeInspection | None:
    """Set a new message's indexed fields; return the verdict on its content, or None.

    ``inspected`` is the result of an earlier inspection of its content.
    """
    inspector = core.inspector
    inspection = inspected
    indexed = None if inspected is None else inspected.indexed
    if inspected is None and inspector is not None:
        if queue.is_dead_letter_queue:
            dead_letters.link_record(core, message, body)
        if queue.validates:
            inspection = inspector.validate(body, queue.settings)
            indexed = inspection.indexed
        elif body.startswith(b"{") and len(body) <= INSPECTED_BYTES_MAX:
            indexed = inspector.index(body)
    if (
        body.endswith(b"}}")  # content with an added block ends this way; little other content does
        and inspector is not None
        and not queue.is_dead_letter_queue
        and len(body) <= INSPECTED_BYTES_MAX
    ):
        dead_letters.link_record_of_consumer(core, message, body)
    if indexed is not None:
        message.indexed = indexed
    return inspection
