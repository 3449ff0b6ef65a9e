"""Plan a redrive of dead letters."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from phpmq_lite.admin.base.context import Context
from phpmq_lite.broker.operator.message_actions import (
    ACTION_SLICE,
    Action,
    ActionOptions,
    act_on_messages,
)
from phpmq_lite.model import AuditEntry


@dataclass(slots=True, frozen=True)
class RedrivePlan:
    """The effect of a redrive, before it is made."""

    targets: Counter[str]  # messages that would be published, by queue
    poisoned: Counter[str]  # of them: quarantined again, by reason
    skipped: Counter[str]  # records that would stay, by reason


async def plan_redrive(
    context: Context, entry: AuditEntry, seqs: Sequence[int], options: ActionOptions
) -> RedrivePlan:
    """Return what a redrive of these records would do. Nothing is changed or audited."""
    options = replace(options, is_dry_run=True)
    plan = RedrivePlan(Counter(), Counter(), Counter())
    for at in range(0, len(seqs), ACTION_SLICE):
        some = seqs[at : at + ACTION_SLICE]
        found = await context.engine.run(act_on_messages, entry, Action.REDRIVE, some, options)
        plan.targets.update(found.targets)
        plan.poisoned.update(found.poisoned)
        plan.skipped.update(found.skipped)
    return plan
