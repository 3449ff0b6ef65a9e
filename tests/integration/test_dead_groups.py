"""Groups of dead letters and the results of their queries."""

import json
from pathlib import Path

import pytest

from phpmq_lite.model import State
from phpmq_lite.storage.read.dead_letter_groups import DeadLetterGroups
from phpmq_lite.storage.search.language import group_search, parse_search
from phpmq_lite.storage.search.reader import Search
from tests.support.copied_readers import readers_of
from tests.unit.admin.cases import NOW_MS, Database

ERRORS = (
    "1042", "1043", "1042", "Order 7 is paid", "Order 1042 is paid", "timeout",
    "timeout after 5 s of it", "", "", '"a" is missing', "\\App\\Job failed", "\nhere", "  blank",
    "blank", ">5", "<3", "true", "a/b", "caf\u00e9", "x" * 300,
)  # fmt: skip


@pytest.mark.parametrize("state", [State.READY, State.SCHEDULED, State.BLOCKED])
async def test_query_of_a_group_finds_its_records(tmp_path: Path, state: State) -> None:
    """Also those that were rescheduled in the dead-letter queue."""
    database = Database(tmp_path / "phpmq.db")
    database.queue("orders.dlq", 3)
    bodies = [json.dumps({"dead_letter": {"reason": "failed", "error": it}}) for it in ERRORS]
    for body in (*bodies, '{"dead_letter": {"reason": "failed"}}'):
        database.message(
            3, body.encode(), source_queue_id=1, source_reason="failed", urn="urn:a", state=state
        )
    readers = readers_of(database.path)
    try:
        groups = (await DeadLetterGroups(readers).groups(NOW_MS)).groups
        for group in groups:
            q = parse_search(str(group_search(group)))
            found = await Search(readers, now_ms=lambda: NOW_MS).freeze(q, queues=None, limit=100)
            assert (group.cause, len(found.seqs)) == (group.cause, group.records)
    finally:
        await readers.close()
    assert sum(group.records for group in groups) == len(bodies) + 1
    assert {group.cause: group.records for group in groups}["Order * is paid"] == 2
