"""Redriving of dead-letter records: what is republished, and to which queue."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from phpmq_lite.broker import transitions, validation
from phpmq_lite.broker.queue import Queue
from phpmq_lite.broker.state import BrokerState
from phpmq_lite.model import EnvelopeInspection, Message, State, ValidatedPublish
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


def is_record(state: BrokerState, message: Message) -> bool:
    """Return whether a message is one of the broker's dead-letter records, or may be a client's."""
    if message.source.queue_id is not None:
        return True
    return state.inspector is not None and state.by_id[message.queue_id].is_dead_letter_queue


def find_destination(
    state: BrokerState,
    record: Message,
    body: bytes | None,
    target: Queue | None,
    queues: frozenset[int] | None = None,
    *,
    reads: Mapping[int, RedriveContent] = NO_CONTENTS,
    is_dry_run: bool = False,
) -> RedriveDestination | str | None:
    """Return a record's destination, the reason to skip it, or None if a thread must read it first.

    Without a target, the record goes to the queue where its message died, or else to the queue that
    it names.  Without a target, it may return only to ``queues`` (queue_ids); None allows all.  A
    dry run does not create the dead-letter queue.  ``reads`` holds contents read ahead, by seq.
    """
    if target is None and not is_record(state, record):
        return "not a record"
    if record.state == State.DISPATCHED:
        return "dispatched"
    if body is None:
        return "damaged"
    read = reads.get(record.seq)
    if read is None:
        if not state.can_inspect_inline(len(body)):
            return None
        read = content_reader(state, record, body, target)()
    origin = _origin_queue(state, record, read.origin) if target is None else target
    if origin is None:
        names_one = record.source.queue_id is not None or read.origin is not None
        return "queue gone" if names_one else "not a record"
    if origin.queue_id == record.queue_id:
        return "there already"
    if target is None and queues is not None and origin.queue_id not in queues:
        return "foreign queue"
    if (reason := origin.refusal()) is not None:
        return refusal_code(reason)
    if not origin.validates:
        return RedriveDestination(origin, read.content, None)
    if read.validated is None or read.validated.settings is not origin.settings:
        return None  # the queue's settings have changed since the read
    inspection = read.validated.inspection
    if inspection.reason is not None and not is_dry_run:
        full = state.registry.dead_letter_refusal(origin)
        if full is not None:
            return refusal_code(full[1])
    return RedriveDestination(origin, read.content, inspection)


def content_reader(
    state: BrokerState, record: Message, body: bytes, target: Queue | None
) -> Callable[[], RedriveContent]:
    """Return a function that reads a record, to be called directly or in a thread.

    The thread may see a queue before or after a change; ``find_destination`` compares the settings.
    """
    envelopes, at_ms = state.inspector, state.now.wall_ms
    placeholder = validation.placeholder_id(state)
    died_in = state.by_id.get(record.source.queue_id or 0)
    is_whole = died_in is not None and not died_in.inspects  # such records hold the original bytes

    def read() -> RedriveContent:
        if envelopes is None:
            return RedriveContent(None, body, None)
        name = None
        if target is None and record.source.queue_id is None:
            name = envelopes.origin_queue(body)
        content = body if is_whole else envelopes.redrive_content(body)
        destination = _origin_queue(state, record, name) if target is None else target
        validated = None
        if destination is not None and destination.validates:
            validated = validation.validate_with(
                envelopes, destination.name, destination.settings, content, at_ms, placeholder
            )
        return RedriveContent(name, content, validated)

    return read


def read_in_background(
    state: BrokerState,
    page: Sequence[Message],
    target: Queue | None,
    reads: dict[int, RedriveContent],
    resume: Callable[[], None],
) -> None:
    """Read records in a thread, replace ``reads`` with their contents, then call ``resume``."""
    works = {
        row.seq: content_reader(state, row, row.body, target)
        for row in page
        if row.body is not None
    }

    def take(made: dict[int, RedriveContent]) -> None:
        reads.clear()
        reads.update(made)
        resume()

    state.batch.background.append((lambda: {seq: work() for seq, work in works.items()}, take))


def redrive_record(
    state: BrokerState, record: Message, to: RedriveDestination, ttl_s: int | None
) -> Message:
    """Store the content of a dead-letter record as a new message; settle the record."""
    message = transitions.publish(
        state, to.queue, to.content, ttl_s, record.publisher, to.inspection
    )
    state.record_event(message, "redrive", record.message_id.decode())
    state.record_event(record, "redrive", message.message_id.decode())
    transitions.delete(state, record, "redriven")
    return message


def _origin_queue(state: BrokerState, record: Message, name: str | None) -> Queue | None:
    """Return a record's original queue or, if that is a ``.retry`` queue, its home queue."""
    if record.source.queue_id is not None:
        died_in = state.by_id.get(record.source.queue_id)
        name = None if died_in is None else died_in.name
    if name is None:
        return None
    return state.queues.get(home_of(name) or name)


def refusal_code(refusal: str) -> str:
    """Return a refusal reason without the part after the colon, for example ``queue full``."""
    return refusal.partition(":")[0]
