"""Operator actions in the naive model, which checks that each result was allowed.

An action happens at the beginning of a turn, when its rows have come.  What it did is read from
the core's own outcome; here is checked that each was allowed, and each that was not, not.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from phpmq_lite.broker.operator.message_actions import ActionOptions, ActionOutcome, MessageAction
from phpmq_lite.broker.operator.publishing import NewMessage, Published
from phpmq_lite.broker.transitions import MessagePlace
from phpmq_lite.errors import RefusedError
from phpmq_lite.frame_options import DeliveryTime, PublishOptions
from phpmq_lite.model import State, number_of, priority_of
from phpmq_lite.operator_actions import Action
from tests.properties.broker_copies import Copy
from tests.properties.broker_model import Model
from tests.support.core_and_store import Cycle, OperatorCommand

SETTLED = (Action.RESTORE, Action.ERASE, Action.TAKE_BACK)


@dataclass(eq=False)
class UnderWay:
    question: OperatorCommand
    act: MessageAction
    asked: list[int]
    seen: int = 0  # of outcome.changed
    expected: Counter[str] = field(default_factory=Counter)  # reasons
    unclear: int = 0  # skipped or not, for a reason that depends on the order within a turn


@dataclass
class Acts:
    """Follows the actions of all operators; part of a ``Model``."""

    model: Model
    under_way: list[UnderWay] = field(default_factory=list)
    settled: dict[int, Copy] = field(default_factory=dict)  # as they were
    restored: set[int] = field(default_factory=set)
    erased: set[int] = field(default_factory=set)
    made: dict[int, int] = field(default_factory=dict)  # by redrives, by record
    touched: set[int] = field(default_factory=set)  # at the beginning of this turn
    places: dict[int, MessagePlace] = field(default_factory=dict)  # all that were left
    waiting: list[OperatorCommand] = field(default_factory=list)  # publishes that look keys up
    accepted: list[OperatorCommand] = field(default_factory=list)  # since the start
    audited_before: int = 0  # rows

    def restart(self) -> None:
        """Forget running actions after a restart; their audit rows show it."""
        self.under_way.clear()
        self.waiting.clear()
        self.accepted.clear()
        rows = self.model.rows("SELECT result, count(*) FROM audit GROUP BY result")
        results = dict(rows)
        assert results.keys() <= {"done", "interrupted", "key_conflict"}
        self.audited_before = sum(results.values())

    # -- commands

    def ask(self, question: OperatorCommand, turn: Cycle) -> bool:
        """Record a command; return False if it was refused."""
        if isinstance(question.answer, RefusedError):
            self._check_refusal(question, question.answer)
            return False
        if question.verb == "publish" and isinstance(question.arguments[1][0], NewMessage):
            self.waiting.append(question)
            self.follow_publishes(turn)
            return False
        self.accepted.append(question)
        match question.verb:
            case "act_on_messages":
                found = (getattr(r.on_rows, "__self__", None) for r in turn.batch.rows)
                for act in dict.fromkeys(found):  # each once: a take back has two requests
                    if isinstance(act, MessageAction) and act.entry is question.entry:
                        self.under_way.append(UnderWay(question, act, list(act._requested)))
            case "publish":
                self._publish(question)
            case "remove_queue":
                [queue] = question.arguments
                for m in self.model.of_queue(
                    queue
                ):  # the remaining messages were dead-lettered just before
                    assert m.dying is not None
                    assert m.seq in turn.finished.settled
                assert not any(queue in credits_of for credits_of in self.model.credit.values())
                self.model.own.pop(queue, None)
                self.model.ever_removed.add(queue)
        return True

    def _check_refusal(self, question: OperatorCommand, refusal: RefusedError) -> None:
        model, queue = self.model, question.arguments[0]
        match refusal.code:
            case "unknown_queue":
                name = question.options.get("target") or queue
                if question.verb == "act_on_messages":
                    name = question.arguments[2].target
                gone = {name, queue} - model.present
                assert gone or model.ever_removed & {name, queue}
            case "queue_not_empty":
                assert model.of_queue(queue)
            case "queue_consumed":
                assert any(queue in credits_of for credits_of in model.credit.values())
            case "paused":
                assert model.settings(queue).publishing_paused
            case "unique_key_held":
                keys = [m.options.unique_key for m in question.arguments[1] if m.options.replaces]
                home = model.home(queue, question.arguments[1])
                others = [model.with_key(home, key) for key in keys]
                deleted = [self.settled[seq] for seq in self.touched if seq in self.settled]
                assert any(m and (m.holder or m.dying) for m in others) or any(
                    m.unique_key in keys
                    for m in deleted  # by an action, after this
                )
            case "queue_full":
                count = len(model.of_queue(queue)) + len(question.arguments[1])
                assert 0 < model.settings(queue).max_messages < count
            case other:
                raise AssertionError(other)

    def _publish(self, question: OperatorCommand) -> None:
        model = self.model
        queue, messages = question.arguments
        key = question.options["key"]
        if key is not None:
            added_ms = model.keys.get((queue, key))
            if added_ms is not None and model.now_ms - added_ms < model.window_ms:
                is_same = [body for body, _ in messages] == model.keyed[queue, key]
                ids = model.ids.get((queue, key))
                question.options["expected"] = ids if is_same else "key_conflict"
                if not is_same and model.may_be_rewritten(queue, key):
                    question.options["expected"] = None  # perhaps
                return
            model.keys[queue, key] = model.now_ms
            model.keyed[queue, key] = [body for body, _ in messages]
        ids = []
        for n, (body, ttl_s) in enumerate(messages):
            m = self._store(question.number + n, queue, body, PublishOptions(ttl_s))
            ids.append(m.message_id.decode())
        question.options["expected"] = ids
        model.ids[queue, key] = ids
        if key is not None:
            model.seqs[queue, key] = question.number

    def _store(self, seq: int, queue: str, body: bytes, options: PublishOptions) -> Copy:
        model = self.model
        [(publisher,)] = model.rows(
            "SELECT publisher FROM message WHERE seq = ?1 UNION "
            "SELECT publisher FROM history WHERE seq = ?1", seq,
        )  # fmt: skip
        publishers = model.rows("SELECT kind, address FROM client WHERE client = ?", publisher)
        assert publishers == [("ui", "anna (10.0.0.5)")]
        return model.store(seq, queue, body, options, publisher)

    def follow_publishes(self, turn: Cycle) -> None:
        """Follow publishes with options that are answered in this turn."""
        for question in list(self.waiting):
            for reply, value in turn.batch.replies:
                if reply is question.reply:
                    self.waiting.remove(question)
                    if isinstance(value, RefusedError):
                        self._check_refusal(question, value)
                    else:
                        self.accepted.append(question)
                        self._follow_publish(question, value)

    def _follow_publish(self, question: OperatorCommand, published: Published) -> None:
        """Each message is stored, or there is another one with its unique key."""
        model = self.model
        queue, messages = question.arguments
        home = model.home(queue, messages)
        stored = set()
        question.options["expected"] = None
        for message_id, (body, _, options) in zip(published.ids, messages, strict=True):
            old = model.with_key(home, options.unique_key)
            seq = int(message_id[:16], 16)
            if message_id in published.existing or message_id in stored:
                assert not options.replaces
                known = model.alive.get(seq) or self.settled[seq]
                assert known.unique_key == options.unique_key
                assert old is known or seq in self.touched  # by an action, after this
                continue
            assert old is None or options.replaces
            if old is not None:
                assert old.holder is None
                assert old.dying is None
                model._settle(old, State.DELETED, "replaced")
            stored.add(message_id)
            m = self._store(seq, queue, body, options)
            assert m.message_id.decode() == message_id
        assert stored == set(published.stored)

    # -- results

    def follow(self, turn: Cycle) -> None:
        """Apply the results from the beginning of a turn."""
        begun = turn.begun
        touched = {*begun.settled, *begun.moved, *begun.dying}
        for under_way in self.under_way:
            touched.update(under_way.act.outcome.changed[under_way.seen :])
        self.touched = touched
        answered = [value for _, value in turn.batch.replies]
        for under_way in list(self.under_way):
            is_over = any(value is under_way.act.outcome for value in answered)
            self._follow(under_way, turn, touched, is_over=is_over)
            if is_over:
                self.under_way.remove(under_way)

    def _follow(
        self, under_way: UnderWay, turn: Cycle, touched: set[int], *, is_over: bool
    ) -> None:
        outcome = under_way.act.outcome
        left = [] if is_over else list(under_way.act._requested)
        handled = [seq for seq in under_way.asked if seq not in left]
        done = outcome.changed[under_way.seen :]
        under_way.asked, under_way.seen = left, len(outcome.changed)
        _, seqs, options = under_way.question.arguments
        action = under_way.act._action
        assert [seq for seq in handled if seq in done] == done
        for seq in handled:
            reason, is_clear = self._reason(action, seq, options)
            if seq in done:
                assert reason is None or not is_clear, f"{action} of {seq} although {reason}"
                self._do(action, seq, options, outcome, turn)
            elif not is_clear or (seq in touched and reason != "gone"):
                under_way.unclear += 1
            else:
                assert reason is not None, f"no {action} of {seq}: {outcome.skipped}"
                under_way.expected[reason] += 1
        if is_over:
            unknown = len(set(seqs)) - len(outcome.changed) - outcome.skipped.total()
            assert unknown == 0
            self._check_skipped(under_way, set(seqs), outcome)
            self.places |= outcome.places

    def _check_skipped(self, under_way: UnderWay, seqs: set[int], outcome: ActionOutcome) -> None:
        """Compare the reasons, except those that depend on the order."""
        known = under_way.expected.total() + under_way.unclear + len(outcome.changed)
        under_way.expected["gone"] += len(seqs) - known  # never asked for
        skipped = Counter[str](outcome.skipped)
        assert +(under_way.expected - skipped) == Counter()
        assert (skipped - under_way.expected).total() == under_way.unclear

    def _reason(self, action: Action, seq: int, options: ActionOptions) -> tuple[str | None, bool]:
        """Return the reason to skip, or None to act; and whether that is certain."""
        model = self.model
        if action in SETTLED:
            return self._reason_of_settled(action, seq, options)
        m = model.alive.get(seq)
        if m is None or m.dying is not None:
            return "gone", True
        if options.queues is not None and model.queue_id(m.queue) not in options.queues:
            return "foreign queue", True
        is_held = m.holder is not None
        match action:
            case Action.RELEASE:
                return (None if is_held else "not dispatched"), True
            case Action.DELIVER:
                return (None if m.is_scheduled else "not scheduled"), True
            case Action.RESCHEDULE:
                return ("dispatched" if is_held else None), True
            case Action.DELETE:
                return ("dispatched" if is_held and not options.with_dispatched else None), True
            case Action.MOVE if is_held:
                return "dispatched", True
            case Action.MOVE:
                return self._reason_of_goal(m, options.target or "", can_make=options.create)
            case Action.PLACE:
                return self._reason_of_place(m, options), m.key_place is None
            case Action.REDRIVE:
                target = options.target or (m.source and m.source[1].removesuffix(".retry"))
                if target is None or (m.source is None and not m.queue.endswith(".dlq")):
                    is_in_dlq = m.queue.endswith(".dlq")  # looks like a client's, but it names none
                    return "not a record", not (is_in_dlq and (is_held or m.is_damaged))
                if is_held:
                    return "dispatched", True
                if m.is_damaged:  # perhaps only since its row was loaded
                    return "damaged", False
                return self._reason_of_goal(m, target, can_make=False)
        return None, True

    def _reason_of_goal(self, m: Copy, goal: str, *, can_make: bool) -> tuple[str | None, bool]:
        model = self.model
        if model.is_gone(goal) and not can_make:
            return "queue gone", False  # perhaps only in the turn that is stored by now
        if goal == m.queue:
            return "there already", True
        if m.unique_key is not None:  # perhaps taken, or free since
            return None, False
        settings = model.settings(goal)
        if settings.publishing_paused:
            return "paused", goal not in model.ever_removed
        return None, not settings.max_messages and goal not in model.ever_removed

    def _reason_of_place(self, m: Copy, options: ActionOptions) -> str | None:
        if m.holder is not None:
            return "dispatched"
        place = options.places.get(m.seq)
        if place is None:
            return "no place"
        if place == (self.model.queue_id(m.queue), m.position, m.due_ms, place.deliver_at):
            return "there already"
        if options.queues is not None and place[0] not in options.queues:
            return "foreign queue"
        name = self.model.queue_names.get(place[0])
        return "queue gone" if name is None or self.model.is_gone(name) else None

    def _reason_of_settled(
        self, action: Action, seq: int, options: ActionOptions
    ) -> tuple[str | None, bool]:
        model, old = self.model, self.settled.get(seq)
        if old is None:
            return "gone", True
        if options.queues is not None and model.queue_id(old.queue) not in options.queues:
            return "foreign queue", True
        if action is Action.ERASE:
            return None, True
        if action is Action.TAKE_BACK:
            made = options.redriven.get(seq, 0)
            message = model.alive.get(made)
            if message is None:
                return "consumed", True
            if message.dying is not None or made in self.touched:
                return "consumed", False
            if message.holder is not None:
                return "dispatched", True
        if seq in self.restored:
            return "restored already", True
        if model.history[seq][2] is not State.DELETED:
            return "not deleted", True
        if old.is_damaged or seq in self.erased:
            return "body gone", not old.is_damaged
        is_bounded = bool(model.settings(old.queue).max_messages) or old.unique_key is not None
        is_late = self._is_late(old)
        if is_late and options.ttl_s is None:
            return "deadline passed", not is_bounded
        return None, not is_bounded

    def _is_late(self, old: Copy) -> bool:
        """Return whether a message is past its deadline, which a scheduled one cannot be."""
        is_due = old.deadline_ms is not None and old.deadline_ms <= self.model.now_ms
        return is_due and not old.is_scheduled

    def _do(
        self, action: Action, seq: int, options: ActionOptions, outcome: ActionOutcome, turn: Cycle
    ) -> None:
        model = self.model
        if action in SETTLED:
            getattr(self, f"_{action}")(seq, options, outcome)
            return
        m = model.alive[seq]
        place = MessagePlace(model.queue_id(m.queue), m.position, m.due_ms, m.deliver_at)
        for sweep in model.sweeps:
            sweep.is_untouched.discard(m)
        model.let_go(m)
        match action:
            case Action.DELETE:
                model._settle(m, State.DELETED, "delete")
                return
            case Action.REDRIVE:
                self._redrive(m, options, outcome)
                return
            case Action.PLACE:
                self._put_back(m, options.places[seq])
                model.events["place"] += 1
                return
            case Action.MOVE:
                assert model.with_key(options.target or "", m.key_place and m.unique_key) is None
                model.change_queue(m, options.target or "")
        is_scheduling = action in (Action.DELIVER, Action.RESCHEDULE)
        model.events["schedule" if is_scheduling else str(action)] += 1
        if action is Action.RELEASE and options.time == DeliveryTime():
            m.moved_at = model.turns
            return
        if action is not Action.RELEASE:
            assert outcome.places[seq] == place
        position = turn.begun.moved[seq][1]
        assert number_of(position) >= model.number
        assert priority_of(position) == m.priority
        model._move(m, position)
        m.is_placed = True
        if action is not Action.MOVE:
            time = DeliveryTime() if action is Action.DELIVER else options.time
            if not model._schedule_if_future(m, *time) and m.is_scheduled:
                model._end_schedule(m)
        if action is Action.REQUEUE and options.ttl_s is not None:
            model._set_ttl(m, options.ttl_s)
            if m.due_ms is not None and m.deadline_ms is not None:
                m.deadline_ms += m.due_ms - model.now_ms  # it begins when the message is ready

    def _put_back(self, m: Copy, place: MessagePlace) -> None:
        model = self.model
        queue = model.queue_names[place.queue_id]
        if queue != m.queue:
            assert model.with_key(queue, m.key_place and m.unique_key) is None
            model.change_queue(m, queue)
        model._move(m, place.position)
        m.is_placed = True
        due_ms = place.due_ms
        if due_ms is not None and place.deliver_at is not None:
            due_ms = model.now_ms + place.deliver_at - model.now.wall_ms
        if due_ms is not None and model.is_future(due_ms, place.deliver_at):
            model.schedule(m, due_ms, place.deliver_at)
        elif m.is_scheduled:
            model._end_schedule(m)

    def _redrive(self, m: Copy, options: ActionOptions, outcome: ActionOutcome) -> None:
        model = self.model
        target = options.target or (m.source and m.source[1].removesuffix(".retry")) or ""
        assert model.with_key(target, m.unique_key) is None
        again = model._learn(int(outcome.new_ids[m.seq][:16], 16), priority=m.kept_priority)
        model.events["redrive"] += 2
        model.check_redriven(m, again)
        assert (again.body, again.source) == (model.redriven_body(m), None)
        assert again.queue == target
        due_ms, deliver_at = again.due_ms, again.deliver_at
        again.due_ms = again.deliver_at = None
        expected = (model._deadline(again.queue, options.ttl_s), again.deadline_ms)
        again.deadline_ms = expected[0]
        model._schedule_if_future(again, *options.time)
        assert (again.due_ms, again.deliver_at, again.deadline_ms) == (
            due_ms,
            deliver_at,
            expected[1],
        )
        model._settle(m, State.DELETED, "redriven")
        self.made[m.seq] = again.seq

    def _restore(self, seq: int, options: ActionOptions, outcome: ActionOutcome) -> None:
        model, old = self.model, self.settled[seq]
        again = model._learn(int(outcome.new_ids[seq][:16], 16), is_restored=True)
        assert again.message_id.decode() == outcome.new_ids[seq]
        assert (again.queue, again.position, again.body, again.publisher, again.source) == (
            old.queue, old.position, old.body, old.publisher, old.source,
        )  # fmt: skip
        deadline_ms = old.deadline_ms
        if self._is_late(old):
            deadline_ms = model._deadline(old.queue, options.ttl_s)
        ready_at, due_ms = old.ready_at, old.due_ms
        date_ms = old.deliver_at
        is_waiting = old.is_scheduled and model.is_future(
            (due_ms or 0) if date_ms is None else model.now_ms + date_ms - model.now.wall_ms,
            date_ms,
        )
        if old.is_scheduled and not is_waiting:
            if deadline_ms is not None:
                deadline_ms += model.now_ms - (due_ms or 0)
            ready_at, due_ms, date_ms = model.now.wall_ms, None, None
        group = old.group if old.source else model.group_in(old.queue, old.body, old.group)
        times = (ready_at, due_ms, date_ms)
        assert (again.ready_at, again.due_ms, again.deliver_at) == times
        assert (again.deadline_ms, again.group) == (deadline_ms, group)
        kept = (again.unique_key, again.kept_priority)
        assert kept == (old.unique_key, old.kept_priority)
        self.restored.add(seq)
        model.events["restore"] += 2

    def _take_back(self, seq: int, options: ActionOptions, outcome: ActionOutcome) -> None:
        message = self.model.alive[options.redriven[seq]]
        assert message.holder is None
        self._restore(seq, options, outcome)
        self.model._settle(message, State.DELETED, "taken back")
        self.model.events["restore"] += 1
        self.restored.add(message.seq)  # as the record

    def _erase(self, seq: int, _options: ActionOptions, _outcome: ActionOutcome) -> None:
        assert self.model.rows("SELECT 1 FROM body WHERE seq = ?", seq) == []
        self.erased.add(seq)
        *row, _group, _key = self.model.history[seq]
        self.model.history[seq] = (*row, None, None)
        self.model.events["erase"] += 1

    # -- at rest

    def assert_at_rest(self) -> None:
        """Check that each command is answered and has one row in the audit."""
        assert self.under_way == []
        rows: dict[int, tuple[Any, ...]] = {
            row[0]: row[1:]
            for row in self.model.rows("SELECT audit_id, action, count, result FROM audit")
        }
        assert len(rows) == self.audited_before + len(self.accepted)
        for question in self.accepted:
            entry, answer = question.entry, question.answer
            assert rows[entry.audit_id or 0] == (entry.action, entry.count, entry.result)
            if question.verb == "act_on_messages":
                assert entry.count == len(answer.changed)
            elif question.verb in ("purge", "redrive"):
                assert entry.count == answer
            elif question.verb == "publish" and question.options["expected"] is not None:
                given = answer.code if isinstance(answer, RefusedError) else answer.ids
                assert given == question.options["expected"]
