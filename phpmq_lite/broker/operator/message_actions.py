"""Operator actions on messages selected by number or queue, processed one slice per batch.

The rows are loaded after a commit.  In the next batch, each message is changed, or skipped with a
reason, and the audit row counts the changes in the same transaction.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from phpmq_lite.broker import dead_letters, reasons, transitions, validation
from phpmq_lite.broker.broker import Broker, deadline_of
from phpmq_lite.broker.queue import Queue
from phpmq_lite.broker.transitions import MessagePlace
from phpmq_lite.broker.unique_keys import KeyState, look_up
from phpmq_lite.errors import RefusedError
from phpmq_lite.frame_options import NOW, DeliveryTime, PublishOptions
from phpmq_lite.model import (
    ALIVE,
    BEFORE_ALL,
    AuditEntry,
    EnvelopeInspection,
    Message,
    PageRequest,
    Reply,
    RowsRequest,
    State,
    ValidatedPublish,
    number_of,
)
from phpmq_lite.operator_actions import ACTIONS, Action, SkipReason
from phpmq_lite.queue_settings import home_of
from phpmq_lite.writes import AUDIT_BYTES, EraseMessage, bounded_text

ACTION_SLICE: Final = 1_000  # maximum number of messages per call
PAGE_ROWS: Final = 1_000  # number of rows that a queue action processes per batch


@dataclass(slots=True, frozen=True)
class ActionOptions:
    """Options for an operator action."""

    # 0 means no expiry; None keeps the deadline (requeue) or uses the queue default (redrive).
    # Restore uses ttl_s only for messages whose deadline has passed.
    ttl_s: int | None = None
    time: DeliveryTime = NOW  # when a requeued, released, redriven or rescheduled one is ready
    target: str | None = None  # target of a move or redrive; None redrives to the original queue
    create: bool = False  # whether a move creates a missing target queue
    with_dispatched: bool = False  # whether a delete includes messages held by consumers
    # Act only on messages in these queue_ids, and redrive only to these queues; None allows all.
    # The caller must check that the operator may use ``target``.
    queues: frozenset[int] | None = None
    # for the action ``place``, by seq
    places: Mapping[int, MessagePlace] = field(default_factory=dict)
    # for the action ``take_back``: seq of the record -> seq of its message
    redriven: Mapping[int, int] = field(default_factory=dict)
    delete_reason: str = reasons.DELETED  # in the history
    is_dry_run: bool = False  # whether a redrive only reports what would happen


@dataclass(slots=True)
class ActionOutcome:
    """The outcome of an action for each of its messages."""

    changed: list[int] = field(default_factory=list)  # seqs of changed messages, in order
    new_ids: dict[int, str] = field(default_factory=dict)  # seq -> id of the new message
    skipped: Counter[SkipReason] = field(default_factory=Counter)  # number of messages, by reason
    places: dict[int, MessagePlace] = field(default_factory=dict)  # where they were, by seq
    targets: Counter[str] = field(default_factory=Counter)  # number redriven, by target queue
    poisoned: Counter[str] = field(default_factory=Counter)  # number invalid (redrive), by reason


_WITH_BODIES: Final = frozenset(action for action, row in ACTIONS.items() if row.needs_body)
_REGROUPING: Final = (Action.MOVE, Action.PLACE)  # for which a group is computed again
_SETTLED: Final = frozenset(action for action, row in ACTIONS.items() if not row.takes & ALIVE)


# -- what a redrive republishes, and to which queue


@dataclass(slots=True, frozen=True)
class RedriveContent:
    """The content of a dead-letter record; large records are read in a thread."""

    origin: str | None  # the queue that the record names
    content: bytes  # the content to republish
    validated: ValidatedPublish | None  # None if the queue did not validate messages at that time


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


def _is_record(core: Broker, message: Message) -> bool:
    """Return whether a message is one of the broker's dead-letter records, or may be a client's."""
    if message.source.queue_id is not None:
        return True
    return core.inspector is not None and core.queues_by_id[message.queue_id].is_dead_letter_queue


def _find_destination(
    work: "PagedAction", record: Message, body: bytes | None, target: Queue | None
) -> RedriveDestination | SkipReason | None:
    """Return a record's destination, the reason to skip it, or None if a thread must read it first.

    Without a target, the record goes to the queue where its message died, or else to the queue that
    it names, which must be one of the options' ``queues``.  A dry run does not create the
    dead-letter queue.
    """
    core, queues = work.core, work.options.queues
    if target is None and not _is_record(core, record):
        return SkipReason.NOT_A_RECORD
    if record.state == State.DISPATCHED:
        return SkipReason.DISPATCHED
    if body is None:
        return SkipReason.DAMAGED
    read = work.contents.get(record.seq)
    if read is None:
        if not core.can_inspect_inline(len(body)):
            return None
        read = _content_reader(core, record, body, target)()
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
    if inspection.reason is not None and not work.options.is_dry_run:
        full = core.registry.dead_letter_refusal(core.batch, origin)
        if full is not None:
            return full.refusal.skip_reason
    return RedriveDestination(origin, read.content, inspection)


def _content_reader(
    core: Broker, record: Message, body: bytes, target: Queue | None
) -> Callable[[], RedriveContent]:
    """Return a function that reads a record, to be called directly or in a thread.

    The thread may see a queue before or after a change; _find_destination compares the settings.
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


def _origin_queue(core: Broker, record: Message, name: str | None) -> Queue | None:
    """Return a record's original queue or, if that is a ``.retry`` queue, its home queue."""
    if record.source.queue_id is not None:
        died_in = core.queues_by_id.get(record.source.queue_id)
        name = None if died_in is None else died_in.name
    if name is None:
        return None
    return core.queues.get(home_of(name) or name)


# -- pages


class Step(Enum):
    """What a transition did with a message that it did not skip."""

    DONE = 1
    READ_AHEAD = 2  # nothing yet: a thread must read the large content first
    LOOK_UP = 3  # nothing yet: its unique key is looked up


class PagedAction:
    """An action on messages that are loaded page by page."""

    def __init__(
        self, core: Broker, entry: AuditEntry, action: Action, options: ActionOptions, reply: Reply
    ) -> None:
        self.core = core
        self.entry = entry
        self.options = options
        self.detail = bounded_text(f"by {entry.actor}", AUDIT_BYTES["actor"])
        self.changed_queues: dict[int, Queue] = {}  # queues whose windows received messages
        self.contents: dict[int, RedriveContent] = {}  # read ahead, by seq
        self.redriven: dict[int, Message] = {}  # live messages made by a redrive
        self.needs_record = False  # whether a redrive to a target takes nothing but records
        self.outcome = ActionOutcome()
        self._action = action
        self._reply = reply
        self._transition = ACT[action]
        self._has_bodies = False  # whether the rows have bodies, unless these are damaged
        self._remaining: int | None = None  # messages left to act on; None means no limit
        self._changed = 0

    def _request_next(self, row: Message, *, with_row: bool) -> None:
        """Request the next page, starting after ``row``, or with ``row`` if ``with_row`` is set."""
        raise NotImplementedError

    def _needs_bodies(self) -> bool:
        """Return whether the next page needs bodies, from which a target's groups are computed."""
        core, options = self.core, self.options
        targets = [core.queues_by_id.get(place.queue_id) for place in options.places.values()]
        targets.append(core.queues.get(options.target or ""))
        self._has_bodies = self._action in _WITH_BODIES or (
            self._action in _REGROUPING and any(queue and queue.needs_body for queue in targets)
        )
        return self._has_bodies

    def process_page(self, page: list[Message], is_last: bool) -> None:
        """Act on a page of rows; rows with large bodies arrive in several pages."""
        core, outcome, changed_before = self.core, self.outcome, len(self.outcome.changed)
        unread: Sequence[Message] = ()
        undone: Sequence[Message] = ()
        for at, row in enumerate(page):
            if self._remaining == 0:
                break
            result = self._apply(row)
            if result is Step.READ_AHEAD:
                unread = page[at:]
                break
            if result is Step.LOOK_UP:
                undone = page[at:]
                break
            if isinstance(result, SkipReason):
                outcome.skipped[result] += 1
                continue
            if not self.options.is_dry_run:
                core.note_transition(row.seq)
            outcome.changed.append(row.seq)
            if self._remaining is not None:
                self._remaining -= 1
        for queue in self.changed_queues.values():
            core.trim_window(queue)
        self.changed_queues.clear()
        count = len(outcome.changed) - changed_before
        if unread:
            self._count(count, is_last=False)
            self._read_in_background(unread)
        elif undone:
            self._count(count, is_last=False)
            for row in undone:
                self._look_up(row)
            self._request_next(undone[0], with_row=True)
        elif is_last or not page or self._remaining == 0:
            self._end(count)
        else:
            self._count(count, is_last=False)
            self._request_next(page[-1], with_row=False)

    def _read_in_background(self, page: Sequence[Message]) -> None:
        """Read records in a thread, then request the page again."""
        core, target = self.core, self.core.queues.get(self.options.target or "")
        works = {
            row.seq: _content_reader(core, row, row.body, target)
            for row in page
            if row.body is not None
        }

        def resume(contents: dict[int, RedriveContent]) -> None:
            self.contents = contents
            self._request_next(page[0], with_row=True)

        core.batch.background.append((lambda: {seq: work() for seq, work in works.items()}, resume))

    def _end(self, count: int) -> None:
        raise NotImplementedError

    def _count(self, count: int, *, is_last: bool = True) -> None:
        self._changed += count
        if not self.options.is_dry_run:
            self.core.record_audit(self.entry, count, is_last=is_last)

    def _apply(self, row: Message) -> SkipReason | Step:
        core, seq = self.core, row.seq
        if core.has_changed(seq):
            return SkipReason.GONE
        message = row if self._action in _SETTLED else core.messages.get(seq, row)
        queues = self.options.queues
        if queues is not None and message.queue_id not in queues:
            return SkipReason.FOREIGN_QUEUE
        return self._transition(self, message, row.body)

    def _look_up(self, row: Message) -> None:
        """Request the unique key of a message in the queue that it would enter."""
        key, core = row.options.unique_key, self.core
        died_in = core.queues_by_id.get(row.source.queue_id or row.queue_id)
        queue = core.queues.get(self.options.target or "") or died_in
        if key is not None and queue is not None:
            look_up(core, queue, key)

    def key_refusal(
        self, message: Message, queue: Queue, *, is_redrive: bool = False
    ) -> SkipReason | Step | None:
        """Return why a message cannot enter a queue with its unique key, or None if it can."""
        key = message.options.unique_key
        if key is None or (message.is_record and not is_redrive):
            return None
        state = look_up(self.core, queue, key)
        if state is KeyState.UNKNOWN:
            return Step.LOOK_UP
        return None if state is KeyState.FREE else SkipReason.UNIQUE_KEY_TAKEN

    def entry_problem(
        self, message: Message, target: Queue, body: bytes | None
    ) -> SkipReason | Step | None:
        """Return why a message cannot enter another queue, perhaps without its body for a group."""
        if target.queue_id == message.queue_id:
            return None
        lacks_body = target.needs_body and body is None and not self._has_bodies
        return Step.LOOK_UP if lacks_body else self.key_refusal(message, target)

    def record_position(self, message: Message) -> None:
        """Record where a message is, so that the action can be undone."""
        options = message.options
        place = MessagePlace(message.queue_id, message.position, options.due_ms, options.deliver_at)
        self.outcome.places[message.seq] = place


# -- one transition per action


def _requeue(work: PagedAction, message: Message, _body: bytes | None) -> SkipReason | Step:
    work.record_position(message)
    options = work.options
    transitions.requeue_uncharged(work.core, message, options.ttl_s, work.detail, options.time)
    return Step.DONE


def _deliver(work: PagedAction, message: Message, _body: bytes | None) -> SkipReason | Step:
    if message.state != State.SCHEDULED:
        return SkipReason.NOT_SCHEDULED
    work.record_position(message)
    transitions.reschedule(work.core, message, work.detail, NOW)
    return Step.DONE


def _reschedule(work: PagedAction, message: Message, _body: bytes | None) -> SkipReason | Step:
    if message.state == State.DISPATCHED:
        return SkipReason.DISPATCHED
    work.record_position(message)
    transitions.reschedule(work.core, message, work.detail, work.options.time)
    return Step.DONE


def _release(work: PagedAction, message: Message, _body: bytes | None) -> SkipReason | Step:
    if message.state != State.DISPATCHED:
        return SkipReason.NOT_DISPATCHED
    queue = work.core.queues_by_id[message.queue_id]
    transitions.release(work.core, message, work.detail, work.options.time)
    work.changed_queues[queue.queue_id] = queue
    return Step.DONE


def _move(work: PagedAction, message: Message, body: bytes | None) -> SkipReason | Step:
    core, name = work.core, work.options.target or ""
    if message.state == State.DISPATCHED:
        return SkipReason.DISPATCHED
    target = core.queues.get(name)
    if target is None and work.options.create:
        target = core.registry.get_or_create(core.batch, name, work.entry.actor)
    if target is None:
        return SkipReason.QUEUE_GONE
    if target.queue_id == message.queue_id:
        return SkipReason.THERE_ALREADY
    if (refusal := target.refusal()) is not None:
        return refusal.skip_reason
    body = message.body if body is None else body
    if (problem := work.entry_problem(message, target, body)) is not None:
        return problem
    work.record_position(message)
    transitions.move(core, message, target, body)
    return Step.DONE


def _place(work: PagedAction, message: Message, body: bytes | None) -> SkipReason | Step:
    core, options = work.core, work.options
    if message.state == State.DISPATCHED:
        return SkipReason.DISPATCHED
    place = options.places.get(message.seq)
    if place is None or not 0 < number_of(place.position) < core.next_number:
        return SkipReason.NO_PLACE
    if place[:2] == (message.queue_id, message.position) and (
        place.due_ms == message.options.due_ms
    ):
        return SkipReason.THERE_ALREADY
    if options.queues is not None and place.queue_id not in options.queues:
        return SkipReason.FOREIGN_QUEUE
    target = core.queues_by_id.get(place.queue_id)
    if target is None:
        return SkipReason.QUEUE_GONE
    body = message.body if body is None else body
    if (problem := work.entry_problem(message, target, body)) is not None:
        return problem
    transitions.move_back(core, message, target, place, body)
    work.changed_queues[target.queue_id] = target
    return Step.DONE


def _delete(work: PagedAction, message: Message, _body: bytes | None) -> SkipReason | Step:
    if message.state == State.DISPATCHED and not work.options.with_dispatched:
        return SkipReason.DISPATCHED
    transitions.delete(work.core, message, work.options.delete_reason)
    return Step.DONE


def _redrive(work: PagedAction, record: Message, body: bytes | None) -> SkipReason | Step:
    core, options = work.core, work.options
    if work.needs_record and not _is_record(core, record):
        return SkipReason.NOT_A_RECORD
    target = None
    if options.target is not None and (target := core.queues.get(options.target)) is None:
        return SkipReason.QUEUE_GONE
    destination = _find_destination(work, record, body, target)
    if destination is None:
        return Step.READ_AHEAD
    if isinstance(destination, SkipReason):
        return destination
    if (problem := work.key_refusal(record, destination.queue, is_redrive=True)) is not None:
        return problem
    if destination.poison is not None:
        work.outcome.poisoned[destination.poison] += 1
    work.outcome.targets[destination.queue.name] += 1
    if not options.is_dry_run:
        queue, inspection = destination.queue, destination.inspection
        held = record.options
        message = transitions.publish(
            core, queue, destination.content, options.ttl_s, record.publisher, inspection,
            PublishOptions(
                options.ttl_s, *options.time, held.priority, held.group, held.unique_key
            ),
        )  # fmt: skip
        core.record_event(message, Action.REDRIVE, record.message_id.decode())
        core.record_event(record, Action.REDRIVE, message.message_id.decode())
        transitions.delete(core, record, reasons.REDRIVEN)
        queue.counters.count_source(work.entry.source)
        work.outcome.new_ids[record.seq] = message.message_id.decode()
    return Step.DONE


def _restore(work: PagedAction, old: Message, body: bytes | None) -> SkipReason | Step:
    core = work.core
    if old.state == State.READY:  # see settled_by_seq in batch.sql
        return SkipReason.RESTORED_ALREADY
    if old.state != State.DELETED:
        return SkipReason.NOT_DELETED
    if body is None:
        return SkipReason.BODY_GONE
    queue = core.registry.get_or_recreate(core.batch, old.queue_id, work.entry.actor)
    if queue is None:
        return SkipReason.QUEUE_GONE
    if (refusal := queue.refusal()) is not None and refusal is not reasons.PAUSED:
        return refusal.skip_reason
    if (problem := work.key_refusal(old, queue)) is not None:
        return problem
    ttl_s, deadline_ms = old.ttl_s, old.deadline_ms
    due_ms = old.options.due_ms
    if deadline_ms is not None and due_ms is not None:
        if transitions.due_again(core, old.options) is None:
            deadline_ms += core.now.steady_ms - due_ms  # its time to live begins now
    elif deadline_ms is not None and deadline_ms <= core.now.steady_ms:
        if work.options.ttl_s is None:
            return SkipReason.DEADLINE_PASSED
        ttl_s, deadline_ms = deadline_of(work.options.ttl_s, core.now.steady_ms)
    message = transitions.restore(core, old, body, queue, ttl_s, deadline_ms)
    work.changed_queues[queue.queue_id] = queue
    work.outcome.new_ids[old.seq] = message.message_id.decode()
    return Step.DONE


def _take_back(work: PagedAction, record: Message, body: bytes | None) -> SkipReason | Step:
    core, seq = work.core, work.options.redriven.get(record.seq, 0)
    message = core.messages.get(seq, work.redriven.get(seq))
    if message is None or core.has_changed(seq):
        return SkipReason.CONSUMED
    if message.state == State.DISPATCHED:
        return SkipReason.DISPATCHED
    if (result := _restore(work, record, body)) is not Step.DONE:
        return result
    # As if it had been restored as the record, so that the trash does not offer it, too.
    core.record_event(message, Action.RESTORE, work.outcome.new_ids[record.seq])
    transitions.delete(core, message, reasons.TAKEN_BACK)
    core.note_transition(seq)
    return Step.DONE


def _erase(work: PagedAction, message: Message, _body: bytes | None) -> SkipReason | Step:
    work.core.batch.writes.append(EraseMessage(message.seq, work.core.now.wall_ms))
    work.core.record_event(message, Action.ERASE, work.detail)
    return Step.DONE


ACT: Final[Mapping[Action, Callable[[PagedAction, Message, bytes | None], SkipReason | Step]]] = {
    Action.DELIVER: _deliver,
    Action.REQUEUE: _requeue,
    Action.RESCHEDULE: _reschedule,
    Action.RELEASE: _release,
    Action.MOVE: _move,
    Action.REDRIVE: _redrive,
    Action.RESTORE: _restore,
    Action.DELETE: _delete,
    Action.ERASE: _erase,
    Action.PLACE: _place,
    Action.TAKE_BACK: _take_back,
}


class MessageAction(PagedAction):
    """An action on one slice of messages, which replies with an ``ActionOutcome``."""

    def start(self, seqs: Sequence[int]) -> None:
        """Request the messages."""
        self.needs_record = True
        self._seqs = dict.fromkeys(seqs)  # in order, without duplicates
        self._request_page([seq for seq in self._seqs if 0 < seq < self.core.next_number])

    def _request_page(self, seqs: Sequence[int]) -> None:
        self._requested = seqs
        if not seqs:
            self._end(0)
            return
        rows = self.core.batch.rows
        if redriven := tuple(filter(None, map(self.options.redriven.get, seqs))):
            rows.append(RowsRequest(self._note_redriven, redriven))
        bodies, settled = self._needs_bodies(), self._action in _SETTLED
        rows.append(RowsRequest(self.process_page, tuple(seqs), bodies=bodies, settled=settled))

    def _note_redriven(self, page: list[Message], _is_last: bool) -> None:
        self.redriven = {message.seq: message for message in page}

    def _request_next(self, row: Message, *, with_row: bool) -> None:
        at = self._requested.index(row.seq)
        self._request_page(self._requested[at if with_row else at + 1 :])

    def _end(self, count: int) -> None:
        outcome = self.outcome
        if missing := len(self._seqs) - len(outcome.changed) - outcome.skipped.total():
            outcome.skipped[SkipReason.GONE] += missing
        self._count(count)
        self.core.reply(self._reply, outcome)


def act_on_messages(
    core: Broker,
    reply: Callable[[ActionOutcome], None],
    entry: AuditEntry,
    action: Action,
    seqs: Sequence[int],
    options: ActionOptions,
) -> None:
    """Apply an action to at most ``ACTION_SLICE`` messages; reply with an ``ActionOutcome``.

    The slices of one bulk job share an entry: the first slice stores the audit row, and later
    slices add their counts.  The caller sets ``entry.result`` to ``running`` for all slices but the
    last, and then to the result of the job.  Raises RefusedError: ``too_many``, ``unknown_queue``
    or ``too_many_queues``.
    """
    if len(seqs) > ACTION_SLICE:
        raise RefusedError("too_many", f"{len(seqs)} messages given; the limit is {ACTION_SLICE}")
    name, takes = options.target, ACTIONS[action].options
    if action is Action.MOVE and not name:
        raise RefusedError("unknown_queue", "a move requires a target queue")
    if name is not None and "target" in takes:
        core.destination(name, entry.actor, create=options.create and "create" in takes)
    MessageAction(core, entry, action, options, reply).start(seqs)


class QueueAction(PagedAction):
    """An action on a queue's messages, or its ``limit`` oldest; replies with the number changed."""

    def start(self, queue: Queue, limit: int | None) -> None:
        """Request the first page of messages."""
        self._queue_id = queue.queue_id
        self._remaining = limit
        self._upto = self.core.next_number - 1
        self._request_page(after=BEFORE_ALL)

    def _request_page(self, after: int) -> None:
        bodies = self._needs_bodies()
        page = PageRequest(
            self.process_page, self._queue_id, after, self._upto, PAGE_ROWS, bodies=bodies
        )
        self.core.batch.pages.append(page)

    def _request_next(self, row: Message, *, with_row: bool) -> None:
        self._request_page(row.position - 1 if with_row else row.position)

    def process_page(self, page: list[Message], is_last: bool) -> None:
        """Act on one page, then either request the next page or send the reply."""
        self.outcome = ActionOutcome()  # saves memory: a queue may have millions of messages
        super().process_page(page, is_last)

    def _apply(self, row: Message) -> SkipReason | Step:
        if row.seq > self._upto:  # restored meanwhile: the message is at its old position
            return SkipReason.RESTORED_ALREADY
        return super()._apply(row)

    def _end(self, count: int) -> None:
        self._count(count)
        self.core.reply(self._reply, self._changed)


def dead_letter_damaged(core: Broker, reply: Callable[[int], None], seqs: Sequence[int]) -> None:
    """Dead-letter ready messages that are still damaged when read again, with reason ``crc``.

    Their bodies are read again.  Dispatched messages, which have been sent already, and
    messages whose body is in memory are skipped; they are checked at their next dispatch.  Replies
    with the number of settled messages.
    """
    remaining, count = list(seqs), 0

    def request_page() -> None:
        core.batch.rows.append(RowsRequest(process_page, tuple(remaining), bodies=True))

    def process_page(page: list[Message], is_last: bool) -> None:
        nonlocal remaining, count
        for row in page:
            count += _dead_letter_if_damaged(core, row)
        if is_last or not page:
            core.reply(reply, count)
            return
        remaining = remaining[remaining.index(page[-1].seq) + 1 :]
        request_page()

    request_page()


def _dead_letter_if_damaged(core: Broker, row: Message) -> bool:
    seq = row.seq
    if row.body is not None or core.has_changed(seq):
        return False
    message = core.messages.get(seq, row)
    if message.state == State.DISPATCHED or message.body is not None:
        return False
    dead_letters.settle_dead(core, message, reasons.DAMAGED, None)
    core.note_transition(seq)
    return True
