"""Operator actions on messages selected by number or queue, processed one slice per batch.

The rows are loaded after a commit.  In the next batch, each message is changed, or skipped with a
reason, and the audit row counts the changes in the same transaction.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from phpmq_lite.broker import dead_letters, transitions, ttl
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator import audit, redrive
from phpmq_lite.broker.queue import Queue
from phpmq_lite.broker.state import BrokerState
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import ALIVE, AuditEntry, Message, PageRequest, Reply, RowsRequest, State
from phpmq_lite.operator_actions import ACTIONS, Action
from phpmq_lite.writes import AUDIT_BYTES, bounded_text

ACTION_SLICE: Final = 1_000  # maximum number of messages per call
PAGE_ROWS: Final = 1_000  # number of rows that a queue action processes per batch


@dataclass(slots=True, frozen=True)
class ActionOptions:
    """Options for an operator action."""

    # 0 means no expiry; None keeps the deadline (requeue) or uses the queue default (redrive).
    # Restore uses ttl_s only for messages whose deadline has passed.
    ttl_s: int | None = None
    target: str | None = None  # target of a move or redrive; None redrives to the original queue
    create: bool = False  # whether a move creates a missing target queue
    with_dispatched: bool = False  # whether a delete includes messages held by consumers
    # Act only on messages in these queue_ids, and redrive only to these queues; None allows all.
    # The caller must check that the operator may use ``target``.
    queues: frozenset[int] | None = None
    # for the action ``place``: seq -> (queue_id, position)
    places: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    # for the action ``take_back``: seq of the record -> seq of its message
    made: Mapping[int, int] = field(default_factory=dict)
    is_dry_run: bool = False  # whether a redrive only reports what would happen


@dataclass(slots=True)
class ActionOutcome:
    """The outcome of an action for each of its messages."""

    done: list[int] = field(default_factory=list)  # seqs of changed messages, in order
    new_ids: dict[int, str] = field(default_factory=dict)  # seq -> id of the new message
    skipped: Counter[str] = field(default_factory=Counter)  # number of skipped messages by reason
    places: dict[int, tuple[int, int]] = field(default_factory=dict)  # seq -> (queue_id, position)
    targets: Counter[str] = field(default_factory=Counter)  # number redriven, by target queue
    poisoned: Counter[str] = field(default_factory=Counter)  # number invalid (redrive), by reason


_WITH_BODIES: Final = frozenset(action for action, row in ACTIONS.items() if row.needs_body)
_READ_AHEAD: Final = "read ahead"  # not done yet, because a thread must read the large content
_SETTLED: Final = frozenset(action for action, row in ACTIONS.items() if not row.takes & ALIVE)


class PagedAction:
    """An action on messages that are loaded page by page."""

    def __init__(
        self, core: Broker, entry: AuditEntry, action: Action, options: ActionOptions, reply: Reply
    ) -> None:
        self._core = core
        self._state = core.state
        self._entry = entry
        self._action = action
        self._options = options
        self._reply = reply
        self._detail = bounded_text(f"by {entry.actor}", AUDIT_BYTES["actor"])
        self._changed_queues: dict[int, Queue] = {}  # queues whose windows received messages
        self._do: Callable[[Message, bytes | None], str | None] = getattr(self, f"_{action}")
        self._reads: dict[int, redrive.RedriveContent] = {}
        self._made: dict[int, Message] = {}  # live messages made by a redrive
        self._left: int | None = None  # messages left to act on; None means no limit
        self._done = 0
        self.outcome = ActionOutcome()

    def _request_rest(self, row: Message, *, with_row: bool) -> None:
        """Request the next page, starting after ``row``, or with ``row`` if ``with_row`` is set."""
        raise NotImplementedError

    def process_page(self, page: list[Message], is_last: bool) -> None:
        """Act on a page of rows; rows with large bodies arrive in several pages."""
        outcome, before = self.outcome, len(self.outcome.done)
        again: Sequence[Message] = ()
        for at, row in enumerate(page):
            if self._left == 0:
                break
            reason = self._apply(row)
            if reason == _READ_AHEAD:
                again = page[at:]
                break
            if reason is None:
                if not self._options.is_dry_run:
                    self._state.transitioned.add(row.seq)
                outcome.done.append(row.seq)
                if self._left is not None:
                    self._left -= 1
            else:
                outcome.skipped[reason] += 1
        for queue in self._changed_queues.values():
            self._state.trim_window(queue)
        self._changed_queues.clear()
        done = len(outcome.done) - before
        if again:
            self._count(done, is_last=False)
            target = self._target(self._options.target or "")
            resume = partial(self._request_rest, again[0], with_row=True)
            redrive.read_in_background(self._state, again, target, self._reads, resume)
        elif is_last or not page or self._left == 0:
            self._end(done)
        else:
            self._count(done, is_last=False)
            self._request_rest(page[-1], with_row=False)

    def _end(self, done: int) -> None:
        raise NotImplementedError

    def _count(self, done: int, *, is_last: bool = True) -> None:
        self._done += done
        if not self._options.is_dry_run:
            audit.record(self._core, self._entry, done, is_last=is_last)

    def _apply(self, row: Message) -> str | None:
        """Act on one message; return the reason if it was skipped, otherwise None."""
        state, seq = self._state, row.seq
        if seq in state.pending or seq in state.transitioned:
            return "gone"
        message = row if self._action in _SETTLED else state.messages.get(seq, row)
        queues = self._options.queues
        if queues is not None and message.queue_id not in queues:
            return "foreign queue"
        return self._do(message, row.body)

    def _is_held(self, message: Message) -> bool:
        return message.state == State.DISPATCHED

    def _record_position(self, message: Message) -> None:
        self.outcome.places[message.seq] = (message.queue_id, message.position)

    # -- one method per action; each returns the reason if it skipped the message, otherwise None

    def _requeue(self, message: Message, _body: bytes | None) -> str | None:
        self._record_position(message)
        transitions.requeue_uncharged(self._state, message, self._options.ttl_s, self._detail)
        return None

    def _release(self, message: Message, _body: bytes | None) -> str | None:
        if not self._is_held(message):
            return "not dispatched"
        queue = self._state.by_id[message.queue_id]
        transitions.release(self._state, message, self._detail)
        self._changed_queues[queue.queue_id] = queue
        return None

    def _move(self, message: Message, _body: bytes | None) -> str | None:
        if self._is_held(message):
            return "dispatched"
        target = self._target(self._options.target or "", create=self._options.create)
        if target is None:
            return "queue gone"
        if target.queue_id == message.queue_id:
            return "there already"
        if (reason := target.refusal()) is not None:
            return redrive.refusal_code(reason)
        self._record_position(message)
        transitions.move(self._state, message, target)
        return None

    def _place(self, message: Message, _body: bytes | None) -> str | None:
        if self._is_held(message):
            return "dispatched"
        place = self._options.places.get(message.seq)
        if place is None or not 0 < place[1] < self._state.next_number:
            return "no place"
        if place == (message.queue_id, message.position):
            return "there already"
        if self._options.queues is not None and place[0] not in self._options.queues:
            return "foreign queue"
        target = self._state.by_id.get(place[0])
        if target is None:
            return "queue gone"
        transitions.move_back(self._state, message, target, place[1])
        self._changed_queues[target.queue_id] = target
        return None

    def _delete(self, message: Message, _body: bytes | None) -> str | None:
        if self._is_held(message) and not self._options.with_dispatched:
            return "dispatched"
        transitions.delete(self._state, message, self._entry.action.rpartition(".")[2] or "delete")
        return None

    def _redrive(self, record: Message, body: bytes | None) -> str | None:
        state, options = self._state, self._options
        target = None
        if options.target is not None and (target := self._target(options.target)) is None:
            return "queue gone"
        destination = redrive.find_destination(
            state, record, body, target, options.queues,
            reads=self._reads, is_dry_run=options.is_dry_run,
        )  # fmt: skip
        if destination is None:
            return _READ_AHEAD
        if isinstance(destination, str):
            return destination
        if destination.poison is not None:
            self.outcome.poisoned[destination.poison] += 1
        self.outcome.targets[destination.queue.name] += 1
        if options.is_dry_run:
            return None
        message = redrive.redrive_record(state, record, destination, options.ttl_s)
        destination.queue.counters.count_source(self._entry.source)
        self.outcome.new_ids[record.seq] = message.message_id.decode()
        return None

    def _restore(self, old: Message, body: bytes | None) -> str | None:
        state = self._state
        if old.state == State.READY:  # see settled_by_seq in batch.sql
            return "restored already"
        if old.state != State.DELETED:
            return "not deleted"
        if body is None:
            return "body gone"
        queue = state.by_id.get(old.queue_id) or state.registry.recreate(
            old.queue_id, self._entry.actor
        )
        if queue is None:
            return "queue gone"
        if (reason := queue.refusal()) is not None and reason != "paused":
            return redrive.refusal_code(reason)
        ttl_s, deadline_ms = old.ttl_s, old.deadline_ms
        if deadline_ms is not None and deadline_ms <= state.now.steady_ms:
            if self._options.ttl_s is None:
                return "deadline passed"
            ttl_s, deadline_ms = ttl.deadline_of(self._options.ttl_s, state.now.steady_ms)
        made = transitions.restore(state, old, body, queue, ttl_s, deadline_ms)
        self._changed_queues[queue.queue_id] = queue
        self.outcome.new_ids[old.seq] = made.message_id.decode()
        return None

    def _take_back(self, record: Message, body: bytes | None) -> str | None:
        state, seq = self._state, self._options.made.get(record.seq, 0)
        message = state.messages.get(seq, self._made.get(seq))
        if message is None or seq in state.pending or seq in state.transitioned:
            return "consumed"
        if self._is_held(message):
            return "dispatched"
        if (reason := self._restore(record, body)) is not None:
            return reason
        # As if it had been restored as the record, so that the trash does not offer it, too.
        state.record_event(message, "restore", self.outcome.new_ids[record.seq])
        transitions.delete(state, message, "taken back")
        state.transitioned.add(seq)
        return None

    def _erase(self, message: Message, _body: bytes | None) -> str | None:
        transitions.erase(self._state, message, self._detail)
        return None

    def _target(self, name: str, *, create: bool = False) -> Queue | None:
        state = self._state
        if create:
            return state.registry.get_or_create(name, self._entry.actor)
        return state.queues.get(name)


class MessageAction(PagedAction):
    """An action on one slice of messages, which replies with an ``ActionOutcome``."""

    def __init__(
        self,
        core: Broker,
        entry: AuditEntry,
        action: Action,
        seqs: Sequence[int],
        options: ActionOptions,
        reply: Reply,
    ) -> None:
        super().__init__(core, entry, action, options, reply)
        self._all = dict.fromkeys(seqs)  # in order, without duplicates
        self._request_page([seq for seq in self._all if 0 < seq < self._state.next_number])

    def _request_page(self, seqs: Sequence[int]) -> None:
        self._asked = seqs
        if not seqs:
            self._end(0)
            return
        if made := tuple(filter(None, map(self._options.made.get, seqs))):
            self._state.batch.rows.append(RowsRequest(self._note_made, made))
        self._state.batch.rows.append(
            RowsRequest(
                self.process_page,
                tuple(seqs),
                bodies=self._action in _WITH_BODIES,
                settled=self._action in _SETTLED,
            )
        )

    def _note_made(self, page: list[Message], _is_last: bool) -> None:
        self._made = {message.seq: message for message in page}

    def _request_rest(self, row: Message, *, with_row: bool) -> None:
        at = self._asked.index(row.seq)
        self._request_page(self._asked[at if with_row else at + 1 :])

    def _end(self, done: int) -> None:
        outcome = self.outcome
        if gone := len(self._all) - len(outcome.done) - outcome.skipped.total():
            outcome.skipped["gone"] += gone
        self._count(done)
        self._state.batch.replies.append((self._reply, outcome))

    def _redrive(self, record: Message, body: bytes | None) -> str | None:
        if not redrive.is_record(self._state, record):
            return "not a record"
        return super()._redrive(record, body)


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
    last, and then to the result of the job.

    Raises:
        RefusedError: ``too_many``, ``unknown_queue`` or ``too_many_queues``.
    """
    check_action(core, entry, action, seqs, options)
    MessageAction(core, entry, action, seqs, options, reply)


def check_action(
    core: Broker, entry: AuditEntry, action: Action, seqs: Sequence[int], options: ActionOptions
) -> None:
    """Check that an action may start.

    Raises:
        RefusedError: ``too_many``, ``unknown_queue`` or ``too_many_queues``.
    """
    if len(seqs) > ACTION_SLICE:
        raise RefusedError("too_many", f"{len(seqs)} messages given; the limit is {ACTION_SLICE}")
    name = options.target
    if action is Action.MOVE and not name:
        raise RefusedError("unknown_queue", "a move requires a target queue")
    if name is None or action not in (Action.MOVE, Action.REDRIVE):
        return
    may_create = options.create and action is Action.MOVE
    core.destination(name, entry.actor, create=may_create)


class QueueAction(PagedAction):
    """An action on a queue's messages, or its ``limit`` oldest; replies with the number changed."""

    def __init__(
        self,
        core: Broker,
        entry: AuditEntry,
        action: Action,
        queue: Queue,
        options: ActionOptions,
        reply: Reply,
        limit: int | None,
    ) -> None:
        super().__init__(core, entry, action, options, reply)
        self._queue_id = queue.queue_id
        self._left = limit
        self._upto = self._state.next_number - 1
        self._request_page(after=0)

    def _request_page(self, after: int) -> None:
        page = PageRequest(
            self.process_page, self._queue_id, after, self._upto, PAGE_ROWS,
            bodies=self._action in _WITH_BODIES,
        )  # fmt: skip
        self._state.batch.pages.append(page)

    def _request_rest(self, row: Message, *, with_row: bool) -> None:
        self._request_page(row.position - 1 if with_row else row.position)

    def process_page(self, page: list[Message], is_last: bool) -> None:
        """Act on one page, then either request the next page or send the reply."""
        self.outcome = ActionOutcome()  # saves memory: a queue may have millions of messages
        super().process_page(page, is_last)

    def _apply(self, row: Message) -> str | None:
        if row.seq > self._upto:
            return "restored meanwhile"  # the restored message is at its old position
        return super()._apply(row)

    def _end(self, done: int) -> None:
        self._count(done)
        self._state.batch.replies.append((self._reply, self._done))


def dead_letter_damaged(core: Broker, reply: Callable[[int], None], seqs: Sequence[int]) -> None:
    """Dead-letter ready messages that are still damaged when read again, with reason ``crc``.

    Their bodies are read again.  Dispatched messages, which have been sent already, and
    messages whose body is in memory are skipped; they are checked at their next dispatch.  Replies
    with the number of settled messages.
    """
    state, left, done = core.state, list(seqs), 0

    def request_page() -> None:
        state.batch.rows.append(RowsRequest(process_page, tuple(left), bodies=True))

    def process_page(page: list[Message], is_last: bool) -> None:
        nonlocal left, done
        for row in page:
            done += _dead_letter_if_damaged(state, row)
        if is_last or not page:
            state.batch.replies.append((reply, done))
            return
        left = left[left.index(page[-1].seq) + 1 :]
        request_page()

    request_page()


def _dead_letter_if_damaged(state: BrokerState, row: Message) -> bool:
    seq = row.seq
    if row.body is not None or seq in state.pending or seq in state.transitioned:
        return False
    message = state.messages.get(seq, row)
    if message.state == State.DISPATCHED or message.body is not None:
        return False
    dead_letters.settle_dead(state, message, "crc", None)
    state.transitioned.add(seq)
    return True
