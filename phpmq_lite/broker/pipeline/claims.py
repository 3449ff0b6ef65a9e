"""Claims: a subscription takes messages from a queue, then acknowledges or releases them.

A claimed message is dispatched but held by no connection: it does not expire, has no
acknowledgement timeout, and stays claimed after a restart.  A command is processed over several
batches, one page of rows in each; a subscription's commands run one after another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from phpmq_lite.broker import delivery_limits, transitions
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.pipeline.state import Subscription
from phpmq_lite.broker.queue import SUBSCRIPTION, Queue
from phpmq_lite.broker.state_table import DISPATCHED
from phpmq_lite.errors import RefusedError
from phpmq_lite.histogram import BUCKETS, bucket
from phpmq_lite.model import AuditEntry, Message, PageKind, PageRequest, Reply
from phpmq_lite.queue_settings import name_problem
from phpmq_lite.writes import AUDIT_BYTES, bounded_text

CLAIM_SLICE: Final = 1_000  # number of rows processed per batch
CLAIM_MAX: Final = 100_000  # maximum number of messages per claim


def claim(
    core: Broker,
    reply: Callable[[int], None],
    entry: AuditEntry,
    name: str,
    queue_name: str,
    max_messages: int,
    max_bytes: int,
    *,
    after: int | None = None,
) -> None:
    """Claim ready messages in order.  Reply with the last claim number.

    If unacknowledged claims above ``after`` exist, claim nothing and reply with the last of them;
    if ``after`` is None, always claim.  A single message may exceed ``max_bytes``.  Nothing is
    claimed while delivery on the queue is paused or the broker is stopping, and no more than the
    limits of the queue allow.  The first claim
    creates the subscription, with an audit row.  Raises RefusedError: ``bad_name``,
    ``unknown_queue``, ``too_many``, ``too_many_subscriptions``, ``other_queue``, or
    ``unknown_claims`` if there is no claim ``after``.
    """
    if (problem := name_problem(name)) is not None:
        raise RefusedError("bad_name", f"the subscription name {problem}")
    if not 0 < max_messages <= CLAIM_MAX:
        raise RefusedError(
            "too_many", f"max_messages is {max_messages}; it must be 1 to {CLAIM_MAX}"
        )
    queue_id = core.find_queue(queue_name).queue_id
    subscription = core.subscriptions.get(name)
    if subscription is None:
        if after:
            raise _unknown_claim(name, after, 0)
        subscription = core.subscriptions.create(core.batch, name, queue_id)
        core.record_audit(entry, 0)

    def begin() -> None:
        queue = core.find_queue(queue_name)
        if subscription.queue_id != queue.queue_id:
            if (other := core.queues_by_id.get(subscription.queue_id)) is not None:
                detail = f"subscription {name!r} belongs to queue {other.name!r}"
                raise RefusedError("other_queue", detail)
            subscription.queue_id = queue.queue_id  # the old queue was removed: nothing is claimed
            subscription.store(core.batch)
        if after is not None and after > subscription.last_claim:
            raise _unknown_claim(name, after, subscription.last_claim)
        if after is not None and subscription.last_claim > max(after, subscription.acked_upto):
            _finish(core, subscription, reply, subscription.last_claim)
        else:
            client = core.client_number_of(entry)
            _PagedClaim(core, subscription, queue, client, max_messages, max_bytes, reply).begin()

    _run_in_turn(core, subscription, begin, reply)


def ack_claims(
    core: Broker, reply: Callable[[int], None], _entry: AuditEntry, name: str, upto: int
) -> None:
    """Settle all claims up to and including ``upto`` as acked.  Reply with the number of claims.

    Repeating the call changes nothing.  Like a 004, it has no audit row.  Raises RefusedError:
    ``unknown_subscription``; ``unknown_claims`` if there is no claim ``upto``.
    """
    subscription = _find_subscription(core, name)
    if upto > subscription.last_claim:
        raise _unknown_claim(name, upto, subscription.last_claim)

    def end(count: int) -> None:
        if upto > subscription.acked_upto:
            subscription.acked_upto = upto
            subscription.store(core.batch)
        _finish(core, subscription, reply, count)

    settle = partial(transitions.acknowledge, core)
    begin = partial(_settle_claims, core, subscription, upto, settle, end)
    _run_in_turn(core, subscription, begin, reply)


def release_claims(
    core: Broker,
    reply: Callable[[int], None],
    entry: AuditEntry,
    name: str,
    *,
    forget: bool = False,
) -> None:
    """Return all claimed messages to their positions.  Reply with the number of messages.

    With ``forget``, also remove the subscription.  Raises RefusedError: ``unknown_subscription``.
    """
    subscription = _find_subscription(core, name)
    detail = bounded_text(f"by {entry.actor}", AUDIT_BYTES["actor"])

    def release(message: Message) -> None:
        transitions.release(core, message, detail)
        core.trim_window(core.queues_by_id[message.queue_id])

    def end(count: int) -> None:
        subscription.acked_upto = subscription.last_claim
        subscription.store(core.batch)
        if forget and core.subscriptions.get(name) is subscription:
            core.subscriptions.remove(core.batch, subscription)
        core.record_audit(entry, count)
        _finish(core, subscription, reply, count)

    def begin() -> None:
        _settle_claims(core, subscription, subscription.last_claim, release, end)

    _run_in_turn(core, subscription, begin, reply)


def _run_in_turn(
    core: Broker, subscription: Subscription, begin: Callable[[], None], reply: Reply
) -> None:
    """Run a command after all earlier ones; if it has to wait, a refusal is sent as the reply."""
    if not subscription.is_busy:
        subscription.run(begin)
        return

    def begin_late() -> None:
        if core.subscriptions.get(subscription.name) is not subscription:  # removed since then
            _finish(core, subscription, reply, _unknown_subscription(subscription.name))
        elif not core.run_late(begin, reply):
            subscription.finish()

    subscription.run(begin_late)


def _finish(core: Broker, subscription: Subscription, reply: Reply, value: object) -> None:
    core.reply(reply, value)
    subscription.finish()


def _find_subscription(core: Broker, name: str) -> Subscription:
    subscription = core.subscriptions.get(name)
    if subscription is None:
        raise _unknown_subscription(name)
    return subscription


def _unknown_subscription(name: str) -> RefusedError:
    return RefusedError("unknown_subscription", f"there is no subscription {name!r}")


def _unknown_claim(name: str, claim: int, hi: int) -> RefusedError:
    return RefusedError(
        "unknown_claims", f"claim {claim} was never assigned to {name!r}; its last claim is {hi}"
    )


@dataclass(slots=True)
class _PagedClaim:
    """One call to ``claim``, processed page by page."""

    core: Broker
    subscription: Subscription
    queue: Queue
    client: int
    remaining: int
    remaining_bytes: int
    reply: Reply
    first: int = 0
    upto: int = 0
    claimed_to: int | None = None  # None if earlier ready messages remain

    def begin(self) -> None:
        self.first, self.upto = self.subscription.next_claim, self.core.next_number - 1
        self.claimed_to = self.queue.claimed_to
        self._request_page(self.queue.claimed_to)

    def _request_page(self, after: int) -> None:
        room = delivery_limits.free_dispatches(self.core, self.queue)
        if self.queue.settings.delivery_paused or self.core.is_draining or not room:
            self._end()
            return
        limit = min(CLAIM_SLICE, self.remaining, room)
        page = PageRequest(
            self.process_page, self.queue.queue_id, after, self.upto, limit, kind=PageKind.READY
        )
        self.core.batch.pages.append(page)

    def process_page(self, page: list[Message], is_last: bool) -> None:
        """Claim the free rows on a page, then either request the next page or send the reply."""
        core, is_full = self.core, False
        queue = self.queue = core.queues_by_id.get(self.queue.queue_id, self.queue)
        if queue.settings.delivery_paused:
            self._end()
            return
        batch, queue_id = core.batch, queue.queue_id
        changed, is_admitted = [batch.changed], False
        if batch.delivery is not None:
            changed += (batch.delivery.admitted, batch.delivery.came_due)
            is_admitted = bool(batch.delivery.admitted_on_disk)  # perhaps in this queue
        has_returned = any(m.queue_id == queue_id for ms in changed for m in ms.values()) or any(
            m.queue_id == queue_id and m.position != m.seq for m in batch.created
        )  # to its position, since the page was loaded
        if self.claimed_to != queue.claimed_to or has_returned or is_admitted:
            self.claimed_to = None
        room = delivery_limits.free_dispatches(core, queue)
        claimed_before = queue.counters.dispatched
        for row in page:
            if queue.counters.dispatched - claimed_before >= room:
                is_full = True
                break
            is_due = row.deadline_ms is not None and row.deadline_ms <= core.now.steady_ms
            if is_due or core.has_changed(row.seq):
                self.claimed_to = None
                continue
            if row.size > self.remaining_bytes and self.subscription.next_claim > self.first:
                is_full = True
                break
            message = core.messages.get(row.seq, row)
            if delivery_limits.may_dispatch(core, queue, message):
                self._claim(message)
        delivery_limits.use_rate(core, queue, queue.counters.dispatched - claimed_before)
        self.subscription.store(core.batch)
        if is_full or is_last or not self.remaining or self.remaining_bytes <= 0:
            self._end()
        else:
            self._request_page(page[-1].position)

    def _claim(self, message: Message) -> None:
        """Claim one message; ``Broker.dispatch_in_turn`` is the counterpart for connections."""
        core, queue, subscription = self.core, self.queue, self.subscription
        wall_ms = core.now.wall_ms
        delivery_limits.note_dispatched(core, queue, message)
        core.detach(message)
        core.messages.pop(message.seq, None)
        core.note_transition(message.seq)
        message.state = DISPATCHED
        message.holder = SUBSCRIPTION
        message.consumer = self.client
        message.deliveries += 1
        message.last_dispatched_at = wall_ms
        if message.first_dispatched_at is None:
            message.first_dispatched_at = wall_ms
            wait = queue.wait_histogram = queue.wait_histogram or [0] * BUCKETS
            wait[bucket(wall_ms - (message.options.ready_at or message.published_at))] += 1
        else:
            queue.counters.redelivered += 1
        queue.claimed += 1
        queue.counters.dispatched += 1
        core.batch.dispatched.append(message)
        core.batch.claims_added.extend(
            (subscription.subscription_id, subscription.next_claim, message.seq, wall_ms)
        )
        subscription.next_claim += 1
        self.remaining -= 1
        self.remaining_bytes -= message.size
        if self.claimed_to is not None:
            self.claimed_to = queue.claimed_to = message.position

    def _end(self) -> None:
        _finish(self.core, self.subscription, self.reply, self.subscription.last_claim)


def _settle_claims(
    core: Broker,
    subscription: Subscription,
    upto: int,
    act: Callable[[Message], None],
    end: Callable[[int], None],
) -> None:
    """Settle claims page by page in ascending order; each claim row is removed with its message.

    Calls ``end`` with the number settled.  Messages that an operator changed in the same batch are
    skipped, because they are no longer claimed.
    """
    count = 0

    def process_page(page: list[Message], is_last: bool) -> None:
        nonlocal count
        for message in page:
            if not core.has_changed(message.seq):
                core.note_transition(message.seq)
                act(message)
                count += 1
        if is_last:
            end(count)
        else:
            request_page()

    def request_page() -> None:
        page = PageRequest(
            process_page, subscription.subscription_id, 0, upto, CLAIM_SLICE, kind=PageKind.CLAIMED
        )
        core.batch.pages.append(page)

    request_page()
