"""Redriving of dead-letter records: what is republished, and to which queue."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from phpmq_lite.broker import reasons, transitions, validation
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.queue import Queue
from phpmq_lite.model import EnvelopeInspection, Message, State, ValidatedPublish
from phpmq_lite.operator_actions import Action, SkipReason
from phpmq_lite.queue_settings import home_of


@dataclass(slots=True, frozen=True)
class RedriveContent:
    """The content of a dead-letter record; large records are read in a thread."""

    origin: str | None  # the queue that the record names
    content: bytes  # the content to republish
    validated: ValidatedPublish | None  # None if the queue did not validate messages at that time


NO_CONTENTS: Final[Mapping[int, RedriveContent]] = {}  # no records were read ahead


@dataclass(slots=True, frozen=True)
class RedriveDestination:
    """The destination queue of a redriven record, and the content to publish there."""

    queue: Queue
    content: bytes
    inspection: EnvelopeInspection | None  # None if the content will be inspected when it is stored

    @property
    def poison(self) -> str | None:
        """Return why the message would be quarantined again, or None if it would not."""
        if self.inspection is None or not self.queue.validates:
            return None
        return self.inspection.reason


def is_record(core: Broker, message: Message) -> bool:
    """Return whether a message is one of the broker's dead-letter records, or may be a client's."""
    if message.source.queue_id is not None:
        return True
    return core.inspector is not None and core.queues_by_id[message.queue_id].is_dead_letter_queue


def find_destination(
    core: Broker,
    record: Message,
    body: bytes | None,
    target: Queue | None,
    queues: frozenset[int] | None = None,
    *,
    contents: Mapping[int, RedriveContent] = NO_CONTENTS,
    is_dry_run: bool = False,
) -> RedriveDestination | SkipReason | None:
    """Return a record's destination, the reason to skip it, or None if a thread must read it first.

    Without a target, the record goes to the queue where its message died, or else to the queue that
    it names.  Without a target, it may return only to ``queues`` (queue_ids); None allows all.  A
    dry run does not create the dead-letter queue.  ``contents`` holds those read ahead, by seq.
    """
    if target is None and not is_record(core, record):
        return SkipReason.NOT_A_RECORD
    if record.state == State.DISPATCHED:
        return SkipReason.DISPATCHED
    if body is None:
        return SkipReason.DAMAGED
    read = contents.get(record.seq)
    if read is None:
        if not core.can_inspect_inline(len(body)):
            return None
        read = content_reader(core, record, body, target)()
    origin = _origin_queue(core, record, read.origin) if target is None else target
    if origin is None:
        names_origin = record.source.queue_id is not None or read.origin is not None
        return SkipReason.QUEUE_GONE if names_origin else SkipReason.NOT_A_RECORD
    if origin.queue_id == record.queue_id:
        return SkipReason.THERE_ALREADY
    if target is None and queues is not None and origin.queue_id not in queues:
        return SkipReason.FOREIGN_QUEUE
    if (refusal := origin.refusal()) is not None:
        return refusal.skip_reason
    if not origin.validates:
        return RedriveDestination(origin, read.content, None)
    if read.validated is None or read.validated.settings is not origin.settings:
        return None  # the queue's settings have changed since the read
    inspection = read.validated.inspection
    if inspection.reason is not None and not is_dry_run:
        full = core.registry.dead_letter_refusal(origin)
        if full is not None:
            return full[1].skip_reason
    return RedriveDestination(origin, read.content, inspection)


def content_reader(
    core: Broker, record: Message, body: bytes, target: Queue | None
) -> Callable[[], RedriveContent]:
    """Return a function that reads a record, to be called directly or in a thread.

    The thread may see a queue before or after a change; ``find_destination`` compares the settings.
    """
    envelopes, at_ms = core.inspector, core.now.wall_ms
    placeholder = validation.placeholder_id(core)
    died_in = core.queues_by_id.get(record.source.queue_id or 0)
    is_opaque = died_in is not None and not died_in.inspects  # such records hold the original bytes

    def read() -> RedriveContent:
        if envelopes is None:
            return RedriveContent(None, body, None)
        name = None
        if target is None and record.source.queue_id is None:
            name = envelopes.origin_queue(body)
        content = body if is_opaque else envelopes.redrive_content(body)
        destination = _origin_queue(core, record, name) if target is None else target
        validated = None
        if destination is not None and destination.validates:
            validated = validation.validate_with(
                envelopes, destination.name, destination.settings, content, at_ms, placeholder
            )
        return RedriveContent(name, content, validated)

    return read


def read_in_background(
    core: Broker,
    page: Sequence[Message],
    target: Queue | None,
    contents: dict[int, RedriveContent],
    resume: Callable[[], None],
) -> None:
    """Read records in a thread, replace ``contents`` with what they hold, then call ``resume``."""
    works = {
        row.seq: content_reader(core, row, row.body, target) for row in page if row.body is not None
    }

    def replace_contents(read: dict[int, RedriveContent]) -> None:
        contents.clear()
        contents.update(read)
        resume()

    core.batch.background.append(
        (lambda: {seq: work() for seq, work in works.items()}, replace_contents)
    )


def redrive_record(
    core: Broker, record: Message, to: RedriveDestination, ttl_s: int | None
) -> Message:
    """Store the content of a dead-letter record as a new message; settle the record."""
    message = transitions.publish(
        core, to.queue, to.content, ttl_s, record.publisher, to.inspection
    )
    core.record_event(message, Action.REDRIVE, record.message_id.decode())
    core.record_event(record, Action.REDRIVE, message.message_id.decode())
    transitions.delete(core, record, reasons.REDRIVEN)
    return message


def _origin_queue(core: Broker, record: Message, name: str | None) -> Queue | None:
    """Return a record's original queue or, if that is a ``.retry`` queue, its home queue."""
    if record.source.queue_id is not None:
        died_in = core.queues_by_id.get(record.source.queue_id)
        name = None if died_in is None else died_in.name
    if name is None:
        return None
    return core.queues.get(home_of(name) or name)
