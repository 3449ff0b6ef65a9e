"""The decision about a clock that was far ahead at a start: was the broker away for so long?

Until somebody decides, the time away does not count, so nothing expires by it.  Where the clock is
found to be right it counts afterwards, for what was there before that start.
"""

import json

from phpmq_lite.broker import audit
from phpmq_lite.broker.core import Broker
from phpmq_lite.broker.sweeps import Answer
from phpmq_lite.model import AuditEntry, Message


def decide(
    core: Broker, entry: AuditEntry, away_ms: int, number: int, *, is_right: bool, answer: Answer
) -> None:
    """Settle it; ``number`` is the first that was given after that start.  Answers None.

    Whatever got a new place since then, by a requeue or a forward, got its deadline with it.
    """
    lives = core.lives
    if is_right:
        changed = list(lives.batch.changed)  # they are stored as they are in memory
        for message in {**lives.known, **lives.batch.changed}.values():
            if message.deadline_ms is not None and _was_there(message, number):
                message.deadline_ms -= away_ms
        given = (away_ms, number, number, json.dumps(changed))
        lives.batch.rare.append(("clock", "count_away", given))
        lives.note_deadline(lives.now.steady_ms)  # look at what is due
        # What changes later in this batch would be counted in memory and on disk: nothing does.
        lives.batch.commands = core.limits.batch_commands
    lives.batch.counters["clock_doubt_ms"] = 0
    audit.count(core, entry, 1)
    lives.batch.answers.append((answer, None))


def _was_there(message: Message, number: int) -> bool:
    return message.seq < number and message.position < number
