"""Brokers with one defect each in a rule about deliveries, which the state machine must find."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from phpmq_lite.broker import (
    commands,
    delivery_limits,
    retries,
    retry_queues,
    transitions,
    unique_keys,
)
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator import message_actions, publishing, queue_operations
from phpmq_lite.broker.pending import LateSettlements
from phpmq_lite.broker.queue import AckTimeouts
from phpmq_lite.broker.rate_limit import RateLimit
from phpmq_lite.broker.ready_window import ReadyWindow
from phpmq_lite.broker.unique_keys import KeyState
from phpmq_lite.envelopes.inspector import BabelQueueInspector
from phpmq_lite.frame_options import PLAIN
from phpmq_lite.model import Message, number_of
from phpmq_lite.storage.store import Store
from phpmq_lite.writes import ShiftDeadlines
from tests.properties.test_broker_machine import BrokerAgainstModel, focused

Defect = tuple[Any, str, Any]  # an object, the name of its attribute, and the defective one


def _do_nothing(*_given: Any, **_named: Any) -> None:
    """Leave out what the rule asks for."""


def _always(value: object) -> Callable[..., Any]:
    return lambda *_given, **_named: value


def _after(owner: Any, name: str, then: Callable[..., None]) -> Defect:
    """Return a defect: ``then`` is called with the same arguments, afterwards."""
    original = getattr(owner, name)

    def both(*given: Any, **named: Any) -> Any:
        result = original(*given, **named)
        then(*given, **named)
        return result

    return owner, name, both


def _changed(owner: Any, name: str, change: Callable[[Any], Any]) -> Defect:
    """Return a defect that changes the result of a function."""
    original = getattr(owner, name)
    return owner, name, lambda *given, **named: change(original(*given, **named))


def _without(owner: Any, name: str, *left_out: str) -> Defect:
    """Return a defect: named arguments are ignored."""
    original = getattr(owner, name)

    def called(*given: Any, **named: Any) -> Any:
        return original(*given, **{k: v for k, v in named.items() if k not in left_out})

    return owner, name, called


def _changed_argument(owner: Any, name: str, place: int, value: object) -> Defect:
    """Return a defect: one of the arguments of a function is another one."""
    original = getattr(owner, name)

    def called(*given: Any, **named: Any) -> Any:
        return original(*given[:place], value, *given[place + 1 :], **named)

    return owner, name, called


def _keep_deadline(core: Broker, message: Message, queue: Any, due_ms: int, date: Any) -> None:
    """Count the time to live from the publish."""
    deadline_ms = message.deadline_ms
    _SET_DUE(core, message, queue, due_ms, date)
    message.deadline_ms = deadline_ms


def _forget_date(core: Broker, message: Message, queue: Any, due_ms: int, _date: Any) -> None:
    """Treat a date as a delay, which a change of the clock does not move."""
    _SET_DUE(core, message, queue, due_ms, None)


def _lose_priority(core: Broker, message: Message, queue: Any, event: Any) -> None:
    message.position = number_of(message.position)
    _MAKE_READY_AT_END(core, message, queue, event)


def _charge(_core: Broker, message: Message, **_named: Any) -> None:
    message.charged += 1


def _give_up(core: Broker, message: Message, **_named: Any) -> None:
    place = core.group_place(message, core.queues_by_id[message.queue_id])
    if place is not None and core.heads.get(place) == message.seq:
        delivery_limits.give_up_head(core, message)
        core.batch.change_delivery().groups.add(place)


def _replace_held(core: Broker, queue: Any, unique_key: str) -> KeyState:
    found = unique_keys.find(core, queue, unique_key)
    if isinstance(found, KeyState):
        return found
    if found.seq in core.pending:
        return KeyState.HELD
    core.loaded.pop(found.seq, None)
    transitions.delete(core, found, "replaced")
    return KeyState.FREE


def _leave_without_key(core: Broker, message: Message) -> None:
    """Leave a queue, but keep the unique key until the next batch."""
    kept = dict(core.unique)
    _LEAVE_QUEUE(core, message)
    core.unique = kept


def _keep_extended(self: AckTimeouts, message: Message, end_ms: int) -> None:
    """Never end a hold sooner than before."""
    _EXTEND(self, message, max(end_ms, self._extended.get(message, 0)))


_SET_DUE: Final = Broker.set_due
_MAKE_READY_AT_END: Final = Broker.make_ready_at_end
_LEAVE_QUEUE: Final = Broker.leave_queue
_EXTEND: Final = AckTimeouts.extend


def _by_arrival(scheduled: tuple[list[Message], Any]) -> tuple[list[Message], Any]:
    return sorted(scheduled[0], key=lambda message: message.seq), scheduled[1]


def _recover_without_groups(self: Store, name: str) -> dict[str, str]:
    statements = _SQL(self, name)
    return statements | {"admit_first_of_groups": "UPDATE message SET state = 0 WHERE 1 = 2"}


_SQL: Final = Store.sql


class Mutant(NamedTuple):
    """A defect, and what the machine does to find it: rules beside the usual ones, and queues."""

    defect: Defect
    rules: str
    queues: str = "orders teams"


_USUAL: Final = ("come", "publish_with", "settle_what_it_holds", "pass_time")

_SHIFT: Final = ShiftDeadlines
_REQUEUE: Final = transitions.requeue
_OPEN_BATCH: Final = Broker.open_batch


class _Nothing(set[Any]):
    """A set that stays empty."""

    def add(self, _value: object) -> None:
        """Leave it out."""


def _vacate_nothing(core: Broker, batch: Any, now: Any) -> None:
    """Dispatch another message of a group although the first one is not known."""
    core.vacated = _Nothing()
    _OPEN_BATCH(core, batch, now)


def _sql_with_keys_of_records(self: Store, name: str) -> dict[str, str]:
    statements = _SQL(self, name)
    if name != "messages":
        return statements
    text = statements["by_unique_key"]
    return statements | {"by_unique_key": text.replace("AND source_queue_id IS NULL", "")}


def _requeue_without_charge(
    core: Broker, message: Message, ttl_s: int | None, detail: str | None = None
) -> None:
    message.charged -= message.holder is not None and detail is not None
    _REQUEUE(core, message, ttl_s, detail)


MUTANTS: Final[dict[str, Mutant]] = {
    # delays and dates
    "DeliversEarly": Mutant(_changed(Broker, "due_of", lambda due_ms: due_ms - 500), ""),
    "ForgetsTheOrderOfTimes": Mutant(_changed(Store, "_scheduled", _by_arrival), ""),
    "CountsTimeToLiveFromThePublish": Mutant((Broker, "set_due", _keep_deadline), ""),
    "TreatsDatesAsDelays": Mutant((Broker, "set_due", _forget_date), "set_the_clock"),
    "TrustsADoubtfulClock": Mutant(
        (Broker, "is_future", lambda core, due_ms, _date: due_ms > core.now.steady_ms),
        "start_with_a_doubtful_clock",
    ),
    "MovesNoDelaysWhenTheClockIsDecided": Mutant(
        (queue_operations, "ShiftDeadlines", lambda away_ms, *more: _SHIFT(0, *more)),
        "start_with_a_doubtful_clock decide_the_clock",
    ),
    "RestoresAtOnce": Mutant(
        (transitions, "due_again", _always(None)), "delete_by_mistake"
    ),
    "PutsBackWithoutTime": Mutant(
        _changed(message_actions, "MessagePlace", lambda place: place._replace(due_ms=None)),
        "act_on_some",
    ),
    "ReschedulesByTheKeyOfARecord": Mutant(
        (Store, "sql", _sql_with_keys_of_records), "act_on_a_key", "mails mails.dlq",
    ),
    # NAME.retry
    "WaitsInTheRetryQueue": Mutant(
        (retry_queues, "delayed_name", _always(None)), "publish_a_copy publish"
    ),
    "RefusesByTheLimitsOfTheHome": Mutant(
        (
            retry_queues, "refusal",
            lambda core, name, _home: (home := core.queues[name.removesuffix(".retry")]).refusal()
            and (home, home.refusal()),
        ),
        "publish pause configure", "orders orders.retry",
    ),
    "ScopesKeysByTheHome": Mutant(
        (
            retry_queues, "key_scopes",
            lambda core, name, *, is_delayed: [core.queues[name.removesuffix(".retry")].queue_id],
        ),
        "publish", "orders orders.retry",
    ),
    "TakesNothingOver": Mutant(
        (
            retry_queues, "delayed",
            lambda _core, _connection, _home, _key, ttl_s, given: replace(
                given, ttl_s=None, delay_s=min(ttl_s, 10**9), deliver_at=None
            ),
        ),
        "publish_a_copy",
    ),
    # retries
    "ChargesRetries": Mutant(_after(retries, "retry", _charge), ""),
    "RetriesTwice": Mutant((retries, "is_repeated", _always(False)), ""),
    "KeepsTheChargeOfALateRetry": Mutant(
        (retries, "attempt_of", _always(0)), "leave crowd_round_one"
    ),
    "CountsNoAttemptInTheEnvelope": Mutant(
        (BabelQueueInspector, "with_attempt_added", _always(None)), "", "jobs"
    ),
    "ReturnsTheInvalidWithANewTimeToLive": Mutant(
        _changed_argument(transitions, "requeue", 2, 0), "publish"
    ),
    "ChargesNothingForTheInvalid": Mutant(
        (transitions, "requeue", _requeue_without_charge), ""
    ),
    # priorities
    "LosesPriorities": Mutant((Broker, "make_ready_at_end", _lose_priority), ""),
    "AppendsToTheWindow": Mutant(
        (ReadyWindow, "insert", lambda window, message: window.add((message,)) == 1), ""
    ),
    "PublishesByHandWithoutOptions": Mutant(
        _changed(publishing, "NewMessage", lambda new: new._replace(options=PLAIN)),
        "publish_by_hand_with",
    ),
    # holds
    "HoldsLonger": Mutant((AckTimeouts, "extend", _keep_extended), "extend_and_leave"),
    "ExtendsForTheNextHolder": Mutant(
        (AckTimeouts, "forget", _do_nothing), "extend_and_leave"
    ),
    "ForgetsLateSettlements": Mutant(
        (transitions, "_settle_late", _always(False)), "settle_what_another_holds"
    ),
    "SettlesLateForTheNextHolder": Mutant(
        (LateSettlements, "take", lambda late, seq: late.get(seq, (None,))[0]),
        "settle_what_another_holds",
    ),
    "ReturnsWhatIsKept": Mutant(_without(commands, "consume", "keeps_held"), "consume_with"),
    # limits
    "CountsNoRate": Mutant((RateLimit, "take", _do_nothing), "", "slow"),
    "GivesNoShareBack": Mutant((RateLimit, "give_back", _do_nothing), "commit_slowly", "slow"),
    "CountsNothingInFlight": Mutant(
        (delivery_limits, "free_dispatches", _always(1_000)), "", "jobs"
    ),
    # groups
    "DispatchesSeveralOfAGroup": Mutant((Broker, "group_place", _always(None)), ""),
    "DispatchesWhatWasReadyWithoutGroups": Mutant(
        (delivery_limits, "may_dispatch", _always(True)), "work_on_a_group", "teams"
    ),
    "ForgetsTheNextOfAGroup": Mutant((delivery_limits, "admit_first", _do_nothing), ""),
    "LosesTheHeadInARetry": Mutant(_after(retries, "retry", _give_up), ""),
    "OvertakesItsGroup": Mutant(
        (Broker, "open_batch", _vacate_nothing), "work_on_a_group", "teams"
    ),
    "StartsWithoutTheFirst": Mutant(
        (Store, "sql", _recover_without_groups), "kill_and_restart work_on_a_group", "teams"
    ),
    "KeepsMessagesBlocked": Mutant((delivery_limits, "end_groups", _do_nothing), "configure"),
    "KeepsTheHeadOfNothingSent": Mutant(
        (delivery_limits, "give_up_head", _do_nothing), "commit_slowly", "teams"
    ),
    "BlocksRecords": Mutant(
        (Message, "is_record", property(_always(False))), "", "mails mails.dlq"
    ),
    # unique keys
    "StoresAKeyTwice": Mutant((unique_keys, "look_up", _always(KeyState.FREE)), ""),
    "ReplacesWhatIsHeld": Mutant((unique_keys, "make_free", _replace_held), ""),
    "ReplacesWhatIsHeldByHand": Mutant(
        (unique_keys, "is_held", _always(False)), "publish_by_hand_with"
    ),
    "ForgetsOptionsOfTheSettled": Mutant(
        (Broker, "settle_options", Broker.leave_queue), "act_on_some"
    ),
    "KeepsTheKeyOfTheSettled": Mutant(
        (Broker, "leave_queue", _leave_without_key), "settle_and_publish_again"
    ),
    "ForwardsOntoATakenKey": Mutant(
        (Broker, "unique_place", _always(None)), "", "teams mails"
    ),
    "MovesOntoATakenKey": Mutant(
        (message_actions.PagedAction, "key_refusal", _always(None)), "act_on_some"
    ),
}  # fmt: skip


@contextmanager
def with_defect(name: str) -> Iterator[type[BrokerAgainstModel]]:
    """Patch a defect into the broker, and return the machine that must find it."""
    defect, rules, queues = MUTANTS[name]
    machine = focused((*_USUAL, *rules.split()), tuple(queues.split()))
    with patch.object(*defect):
        yield machine
