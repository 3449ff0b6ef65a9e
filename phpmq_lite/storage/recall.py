"""The pipeline's tables in the writer's thread: at a start, and what is removed behind."""

import sqlite3
import time
from collections.abc import Callable
from typing import Final

from phpmq_lite.pipeline_rows import ROW_BITS, PipelineRows
from phpmq_lite.storage.statements import load

# Removing for 20 ms delayed the next batch by up to 66 ms: COMMIT writes every page that was freed.
STEP_S: Final = 0.002
_ROWS_AT_ONCE: Final = 20  # between two looks at the time; SQLite reads all pages of what it frees


def tidy(connection: sqlite3.Connection) -> None:
    """Give up what was being staged when the broker went down; inside the start's transaction."""
    execute, sql = connection.execute, load("staging")
    execute(load("claims")["make_history_id"])
    execute(sql["drop_open"])
    execute(sql["drop_parts_of_dropped"])


def recall(connection: sqlite3.Connection) -> PipelineRows:
    """Read what the core keeps in memory."""
    execute, claims, staging = connection.execute, load("claims"), load("staging")
    return PipelineRows(
        subscriptions=execute(claims["subscriptions"]).fetchall(),
        held=execute(claims["held"]).fetchall(),
        staged=execute(staging["stages"]).fetchall(),
        parts=execute(staging["parts"]).fetchall(),
        published=execute(staging["versions"]).fetchall(),
        next_stage_id=execute(staging["next_stage"]).fetchone()[0],
    )


def renew_history_id(connection: sqlite3.Connection) -> None:
    """Make another identity: for a database that was copied back, before its first start.

    Offsets that readers remember are of another history then.
    """
    connection.execute(load("claims")["renew_history_id"])


def sweep(connection: sqlite3.Connection, *, timer: Callable[[], float] = time.monotonic) -> bool:
    """Remove staged rows that were published or dropped, for 2 ms; True: there are more.

    Runs in the writer's thread, outside of a batch.
    """
    execute, sql = connection.execute, load("staging")
    if execute(sql["next_dropped"]).fetchone()[0] is None:
        return False
    ends_at = timer() + STEP_S
    execute("BEGIN IMMEDIATE")
    while (stage_id := execute(sql["next_dropped"]).fetchone()[0]) is not None:
        span = (stage_id << ROW_BITS, stage_id + 1 << ROW_BITS)
        removed = execute(sql["remove_rows"], (*span, _ROWS_AT_ONCE)).rowcount
        if removed < _ROWS_AT_ONCE:
            execute(sql["remove_stage"], (stage_id,))
        if timer() >= ends_at:
            break
    execute("COMMIT")
    return stage_id is not None
