"""Fake selections, ids and a fake broker for tests of operator actions."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

from phpmq_lite.broker.operator.message_actions import ActionOptions, ActionOutcome
from phpmq_lite.broker.transitions import MessagePlace
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import AuditEntry
from phpmq_lite.operator_actions import Action, SkipReason
from phpmq_lite.storage.search.reader import FrozenSelection


def frozen(count: int = 3) -> FrozenSelection:
    made = FrozenSelection(array("Q", range(1, count + 1)))
    made.by_queue, made.by_state = {"orders": count}, {"ready": count}
    return made


def entry(actor: str = "anna") -> AuditEntry:
    return AuditEntry(actor, "ui", "127.0.0.1", "message.delete")


def new_id(seq: int) -> str:
    return f"{seq + 1_000:016x}{0:016x}"


class Broker:
    """Records each slice and succeeds for all messages except those in ``gone``."""

    def __init__(self, gone: Iterable[int] = ()) -> None:
        self.gone = set(gone)
        self.slices: list[list[int]] = []
        self.results: list[str] = []
        self.options: list[ActionOptions] = []
        self.refuses_from: int | None = None  # the slice that is refused first

    async def act(
        self, entry: AuditEntry, action: Action, seqs: Sequence[int], options: ActionOptions
    ) -> ActionOutcome:
        is_refused = self.refuses_from is not None and len(self.slices) >= self.refuses_from
        if is_refused and len(seqs):
            raise RefusedError("paused", "publishing is paused")
        self.slices.append(list(seqs))
        self.results.append(entry.result)
        self.options.append(options)
        done = [seq for seq in seqs if seq not in self.gone]
        entry.audit_id = entry.audit_id or 7
        entry.count += len(done)
        makes = action in (Action.REDRIVE, Action.RESTORE)
        moves = action in (Action.REQUEUE, Action.MOVE)
        skipped = Counter({SkipReason.GONE: len(seqs) - len(done)})
        return ActionOutcome(
            done,
            {seq: new_id(seq) for seq in done} if makes else {},
            +skipped,
            {seq: MessagePlace(1, seq * 10) for seq in done} if moves else {},
        )
