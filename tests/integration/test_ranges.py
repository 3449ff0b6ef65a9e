"""Ranges of the history on a real SQLite file, through ADBC and row by row."""

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from phpmq_lite.errors import RefusedError, StorageError
from phpmq_lite.model import checksum
from phpmq_lite.storage import arrow as module
from phpmq_lite.storage.arrow import (
    BODY,
    CLAIM_COLUMNS,
    COLUMNS,
    EVENT_COLUMNS,
    ArrowDriver,
    HistoryRanges,
    RangeError,
    RowFilters,
    RowSelection,
    arrow_schema,
    columns_of,
)
from phpmq_lite.storage.read.messages import wire_id
from phpmq_lite.storage.statements import load, parts
from tests.support.settled_folder import (
    HISTORY_ID,
    NOW_MS,
    QUEUES,
    STEP_MS,
    execute_in_process,
    remove_history_upto,
    settled_folder,
)
from tests.support.stores import empty_database

ROWS = 300
ALL = RowSelection(0, ROWS)
OUTCOMES = ("acked", "expired", "dead", "deleted")


@pytest.fixture(params=["adbc", "python"])
def ranges(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[HistoryRanges]:
    with HistoryRanges(settled_folder(tmp_path / "data", ROWS), driver=request.param) as made:
        yield made


def table_of(rows: module.RangeRows) -> Any:
    return pa.Table.from_batches(list(rows), rows.schema)


def offsets(rows: module.RangeRows) -> list[int]:
    found: list[int] = table_of(rows)["offset"].to_pylist()
    return found


def test_row_has_what_the_history_has(ranges: HistoryRanges) -> None:
    rows = ranges.history(RowSelection(0, ROWS, body=True))
    table = table_of(rows)
    assert table.schema == arrow_schema((*COLUMNS, BODY))
    assert (rows.count, table.num_rows) == (ROWS, ROWS)
    found = table.set_column(7, "published_at", table["published_at"].cast(pa.int64()))
    for name in (
        "first_dispatched_at", "last_dispatched_at", "settled_at", "deadline", "ready_at",
        "deliver_at",
    ):  # fmt: skip
        at = found.schema.get_field_index(name)
        found = found.set_column(at, name, found[name].cast(pa.int64()))
    for i, row in enumerate(found.to_pylist(), 1):
        is_envelope = i > 5 and i % 3 > 0
        assert row == {
            "offset": i,
            "seq": i + 10,
            "message_id": wire_id(i + 10, i * 7919),
            "queue": QUEUES[i % 3],
            "position": i + 20 + ({2: 127, 3: -125}.get(i % 6, 0) << 48),
            "outcome": OUTCOMES[i % 4],
            "reason": "client" if i % 4 else None,
            "published_at": NOW_MS + i,
            "first_dispatched_at": NOW_MS + i + 1 if i % 5 else None,
            "last_dispatched_at": NOW_MS + i + 2 if i % 5 else None,
            "settled_at": NOW_MS + i * 1_000,
            "deadline": NOW_MS + i + STEP_MS if i % 2 else None,  # on the wall clock
            "ttl_s": 60 if i % 2 else None,
            "deliveries": i % 5,
            "size": 40,
            "publisher": 1 if i % 7 else None,
            "consumer": 2 if i % 5 else None,
            "urn": f"urn:orders:{i % 4}" if is_envelope else None,
            "trace_id": f"{i:08x}-0000" if is_envelope else None,
            "meta_id": f"m-{i}" if is_envelope else None,
            "attempts": 0 if is_envelope else None,
            "ready_at": None if i % 6 == 5 else NOW_MS + i + 5 * (i % 6),
            "deliver_at": NOW_MS + 9 if i % 6 == 4 else None,
            "priority": 255 if i % 6 == 2 else 3 if i % 6 == 3 else 128,
            "retries": i % 6,
            "group": f"g{i}" if i % 6 else None,
            "unique_key": f"k{i}" if i % 6 else None,
            "charged": i % 3 if i % 6 else 0,
            "source_seq": i if i % 6 == 4 else None,
            "source_queue": "mail" if i % 6 == 4 else None,
            "source_reason": "poison" if i % 6 == 4 else None,
            "erased_at": None,
            "history_id": HISTORY_ID,
            "history_offset": i,
            "body": f"{i + 10:040}".encode(),
        }


def test_slices_make_no_difference(ranges: HistoryRanges, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first slices have only nulls from which to infer the types."""
    whole = table_of(ranges.history(RowSelection(0, ROWS, body=True)))
    monkeypatch.setattr(module, "RANGE_SLICE", 3)
    monkeypatch.setattr(module, "PART_BYTES", 50)
    rows = ranges.history(RowSelection(0, ROWS, body=True))
    batches = list(rows)
    assert len(batches) > 100
    assert pa.Table.from_batches(batches, rows.schema) == whole
    assert rows.count == ROWS


def test_empty_body_is_kept_and_missing_one_is_null(ranges: HistoryRanges) -> None:
    contents = {11: b"", 13: b"\x00\xff\x00"}
    execute_in_process(
        ranges.path,
        "DELETE FROM body WHERE seq = 12",
        *(f"UPDATE body SET content = x'{c.hex()}' WHERE seq = {n}" for n, c in contents.items()),
        *(
            f"UPDATE history SET crc = {checksum(n, c)} WHERE seq = {n}"
            for n, c in contents.items()
        ),
    )
    table = table_of(ranges.history(RowSelection(0, 4, columns=("offset",), body=True)))
    assert table["body"].to_pylist() == [b"", None, b"\x00\xff\x00", b"%040d" % 14]


def test_damaged_body_is_null(ranges: HistoryRanges) -> None:
    execute_in_process(
        ranges.path, f"UPDATE body SET content = x'{(b'%040d' % 13).hex()}' WHERE seq = 12"
    )
    table = table_of(ranges.history(RowSelection(0, 3, columns=("seq",), body=True)))
    assert table["seq"].to_pylist() == [11, 12, 13]
    assert table["body"].to_pylist() == [b"%040d" % 11, None, b"%040d" % 13]


def test_batch_exceeds_the_part_size_by_at_most_one_body(
    ranges: HistoryRanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 400)
    batches = list(ranges.history(RowSelection(0, ROWS, columns=("size",), body=True)))
    sizes = [pc.sum(batch["size"]).as_py() for batch in batches]
    assert sum(sizes) == ROWS * 40
    assert max(sizes) <= 440
    assert len(sizes) == ROWS * 40 // 400 + 1


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (RowSelection(10, 13), lambda i: 10 < i <= 13),
        (RowSelection(10, 10), lambda i: False),
        (RowSelection(290, 9_999), lambda i: i > 290),
        (RowSelection(0, ROWS, queues=("mail",)), lambda i: i % 3 == 1),
        (RowSelection(0, ROWS, queues=("mail", "orders")), lambda i: i % 3 < 2),
        (RowSelection(0, ROWS, pattern="orders*"), lambda i: i % 3 != 1),
        (RowSelection(0, ROWS, pattern="ORDERS*"), lambda i: False),
        (RowSelection(0, ROWS, allowed=("m*", "x")), lambda i: i % 3 == 1),
        (RowSelection(0, ROWS, queues=("mail",), pattern="o*"), lambda i: False),
        (RowSelection(0, ROWS, outcomes=("acked", "dead")), lambda i: i % 4 in (0, 2)),
        (RowSelection(0, ROWS, outcomes=("dead", "deleted")), lambda i: i % 4 > 1),
        (
            RowSelection(0, ROWS, queues=("mail",), outcomes=("dead",)),
            lambda i: i % 3 == 1 and i % 4 == 2,
        ),
        (
            RowSelection(3, 290, filters=RowFilters(urns=("urn:orders:1", "x"))),
            lambda i: 5 < i <= 290 and i % 3 > 0 and i % 4 == 1,
        ),
        (
            RowSelection(0, ROWS, filters=RowFilters(traces=("0000000a-0000", "0000012b-0000"))),
            lambda i: i in (10, 299),
        ),
        (RowSelection(11, ROWS, filters=RowFilters(traces=("0000000a-0000",))), lambda i: False),
        (
            RowSelection(
                0,
                ROWS,
                filters=RowFilters(settled_from=NOW_MS + 9_001, settled_until=NOW_MS + 280_000),
            ),
            lambda i: 9 < i < 280,
        ),
        (
            RowSelection(0, ROWS, ("mail",), filters=RowFilters(settled_until=NOW_MS + 50_001)),
            lambda i: i <= 50 and i % 3 == 1,
        ),
        (
            RowSelection(
                0, ROWS, filters=RowFilters(published_from=NOW_MS + 8, published_until=NOW_MS + 11)
            ),
            lambda i: i in (8, 9, 10),
        ),
        (
            RowSelection(5, 100, pattern="o*", allowed=("*.eu",)),
            lambda i: 5 < i <= 100 and i % 3 == 2,
        ),
    ],
)
def test_selection_holds_all_conditions(
    ranges: HistoryRanges, asked: RowSelection, expected: Callable[[int], bool]
) -> None:
    rows = ranges.history(asked)
    found = offsets(rows)
    assert found == [i for i in range(1, ROWS + 1) if expected(i)]
    assert rows.count == len(found)


@pytest.mark.parametrize(
    ("asked", "indexes"),
    [
        (ALL, ["USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"]),
        (RowSelection(0, ROWS, queues=("mail",)), ["history_run USING PRIMARY KEY (block=? AND"]),
        (
            RowSelection(0, ROWS, outcomes=("dead", "expired")),
            ["history_unusual (outcome=? AND offset>? AND offset<?)"],
        ),
        (
            RowSelection(0, ROWS, filters=RowFilters(traces=("0000000a-0000",))),
            [
                "trace_place USING PRIMARY KEY (block=? AND trace_id=?)",
                "history_seq (seq=?",
                "USING INTEGER PRIMARY KEY (rowid=?)",
            ],
        ),
    ],
)
def test_selection_is_found_by_an_index(
    tmp_path: Path, asked: RowSelection, indexes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = HistoryRanges(settled_folder(tmp_path / "data", ROWS), driver="python")
    plans: list[str] = []
    fetch = module._PythonDatabase._fetch

    def explain(database: Any, text: str, values: dict[str, Any]) -> Any:
        if "history AS m" in text:
            steps = database.connection.execute(f"EXPLAIN QUERY PLAN {text}", values)
            plans.extend(step[-1] for step in steps)
        return fetch(database, text, values)

    monkeypatch.setattr(module._PythonDatabase, "_fetch", explain)
    with ranges:
        assert len(offsets(ranges.history(asked))) > 0
    for index in indexes:
        assert any(index in plan for plan in plans), plans
    assert not any(plan.startswith(("SCAN m", "SCAN history ")) for plan in plans), plans


COUNTED = """
import sys
from phpmq_lite.storage.arrow import HistoryRanges, RowFilters, RowSelection
begin, until = map(int, sys.argv[2:])

def bytes_read():
    return int(open("/proc/self/io").read().split()[1])

for filters in (RowFilters(), RowFilters(settled_from=begin, settled_until=until)):
    for body in (False, True):
        with HistoryRanges(sys.argv[1], driver="python") as ranges:
            steps = []
            ranges._database.connection.set_progress_handler(lambda: steps.append(1) and 0, 100)
            before = bytes_read()
            found = ranges.history(RowSelection(0, 60_000, body=body, filters=filters))
            rows = sum(batch.num_rows for batch in found)
            print(rows, bytes_read() - before, len(steps))
"""


def test_one_day_of_sixty_is_read_with_a_fortieth_of_the_bytes(tmp_path: Path) -> None:
    path, day_ms = settled_folder(tmp_path / "data", 60_000), 86_400_000
    execute_in_process(path, f'UPDATE history SET settled_at = {NOW_MS} + "offset" * 86400')
    days = (NOW_MS + n * day_ms for n in (31, 32))
    command = [sys.executable, "-c", COUNTED, str(path), *map(str, days)]
    read = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    whole, whole_bodies, day, day_bodies = (
        [int(n) for n in line.split()] for line in read.splitlines()
    )
    for (rows, size, steps), (day_rows, day_size, day_steps) in (
        (whole, day),
        (whole_bodies, day_bodies),
    ):
        assert (rows, day_rows) == (60_000, 1_000)
        assert day_size * 40 <= size
        assert day_steps * 40 <= steps  # of SQLite's machine


EVENTS = (
    "DELETE FROM event",
    "INSERT INTO event (seq, at_ms, kind, detail, count, last_at)"
    f' SELECT seq, {NOW_MS} + "offset", \'return\', NULL, 3, {NOW_MS} + 2 * "offset" FROM history'
    ' WHERE "offset" % 10 = 0',
    "INSERT INTO event (seq, at_ms, kind, detail)"
    f" SELECT seq, {NOW_MS}, 'requeue', 'mail' FROM history WHERE \"offset\" % 20 = 0",
    "INSERT INTO event (seq, at_ms, kind) VALUES (9999, 5, 'requeue')",  # of a live message
)


def test_events_are_those_of_the_selected_messages(
    ranges: HistoryRanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute_in_process(ranges.path, *EVENTS)
    monkeypatch.setattr(module, "RANGE_SLICE", 7)
    rows = ranges.events(RowSelection(10, 200, queues=("orders", "mail"), allowed=("*",)))
    table = table_of(rows)
    assert table.schema == arrow_schema(EVENT_COLUMNS)
    for name in ("settled_at", "event_at", "last_at"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table[name].cast(pa.int64()))
    expected = []
    for i in (i for i in range(20, 201, 10) if i % 3 < 2):
        message = {
            "history_offset": i,
            "seq": i + 10,
            "message_id": wire_id(i + 10, i * 7919),
            "queue": QUEUES[i % 3],
            "settled_at": NOW_MS + i * 1_000,
        }
        again = {"event_at": NOW_MS + i, "kind": "return", "detail": None, "count": 3}
        expected.append(message | again | {"last_at": NOW_MS + 2 * i})
        if i % 20 == 0:
            moved = {"event_at": NOW_MS, "kind": "requeue", "detail": "mail", "count": 1}
            expected.append(message | moved | {"last_at": None})
    numbers = table["event_id"].to_pylist()
    assert len(set(numbers)) == len(numbers)
    assert table.drop_columns("event_id").to_pylist() == expected
    assert rows.count == len(expected)
    assert ranges.events(RowSelection(0, 9)).count == 0
    with pytest.raises(RefusedError, match="there is no queue"):
        ranges.events(RowSelection(0, 9, queues=("nowhere",)))


def test_events_that_are_added_during_the_read_are_left_to_the_next(ranges: HistoryRanges) -> None:
    execute_in_process(ranges.path, *EVENTS)
    rows = ranges.events(ALL)
    execute_in_process(
        ranges.path,
        f"INSERT INTO event (seq, at_ms, kind) SELECT seq, {NOW_MS}, 'restore' FROM history",
    )
    assert table_of(rows).num_rows == rows.count == ROWS // 10 + ROWS // 20
    assert ranges.events(ALL).count == rows.count + ROWS


def test_columns_keep_the_schema_order(ranges: HistoryRanges) -> None:
    rows = ranges.history(RowSelection(0, 3, columns=("size", "offset"), body=True))
    assert rows.schema.names == ["offset", "size", "body"]
    assert table_of(rows)["size"].to_pylist() == [40, 40, 40]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (RowSelection(3, 2), "bad_value"),
        (RowSelection(-1, 2), "bad_value"),
        (RowSelection(0, 2, columns=("sice",)), "bad_value"),
        (RowSelection(0, 2, columns=("body",)), "bad_value"),
        (RowSelection(0, 2, queues=("nowhere",)), "unknown_queue"),
        (RowSelection(ROWS + 1, ROWS + 2), "gap"),
        (RowSelection(0, 2, history_id="another"), "other_history"),
        (RowSelection(0, 2, outcomes=("lost",)), "bad_value"),
    ],
)
def test_invalid_range_is_refused(ranges: HistoryRanges, asked: RowSelection, code: str) -> None:
    with pytest.raises(RefusedError) as refused:
        ranges.history(asked)
    assert refused.value.code == code


def test_bounds_follow_retention_and_outlive_the_rows(ranges: HistoryRanges) -> None:
    assert ranges.bounds() == module.HistoryOffsets(HISTORY_ID, 0, ROWS, 0)
    remove_history_upto(ranges.path, 100)
    assert ranges.bounds() == module.HistoryOffsets(HISTORY_ID, 100, ROWS, 100)
    remove_history_upto(ranges.path, ROWS - 1)  # the newest row stays
    assert ranges.bounds() == module.HistoryOffsets(HISTORY_ID, ROWS - 1, ROWS, ROWS - 1)
    assert list(ranges.history(RowSelection(ROWS, ROWS))) == []


def test_range_of_removed_rows_is_a_gap_or_clipped(ranges: HistoryRanges) -> None:
    remove_history_upto(ranges.path, 100)
    with pytest.raises(RefusedError, match="rows up to 100 were removed") as refused:
        ranges.history(RowSelection(99, 200))
    assert refused.value.code == "gap"
    assert offsets(ranges.history(RowSelection(100, 200))) == list(range(101, 201))
    rows = ranges.history(RowSelection(0, 200), is_gap_ok=True)
    assert (rows.lo, rows.hi, rows.count) == (100, 200, 100)
    assert offsets(rows) == list(range(101, 201))
    assert list(ranges.history(RowSelection(0, 50), is_gap_ok=True)) == []
    assert list(ranges.history(RowSelection(900, 950), is_gap_ok=True)) == []


def remove_deleted_upto(path: Path, upto: int) -> None:
    execute_in_process(
        path,
        f'DELETE FROM history WHERE outcome = 5 AND "offset" <= {upto}',
        f"INSERT OR REPLACE INTO counter VALUES ('deleted_lo', {upto + 1})",
    )


def test_removed_deleted_rows_are_a_gap_if_requested(ranges: HistoryRanges) -> None:
    remove_deleted_upto(ranges.path, 100)
    bounds = ranges.bounds()
    assert (bounds.lo, bounds.lo_deleted) == (0, 100)
    with pytest.raises(RefusedError, match="deleted messages up to 100 were removed") as refused:
        ranges.history(ALL)
    assert refused.value.code == "gap"
    with pytest.raises(RefusedError, match="begins above 99"):
        ranges.history(RowSelection(99, ROWS, outcomes=("acked", "deleted")))
    assert ranges.history(RowSelection(100, ROWS)).count == ROWS - 100
    rows = ranges.history(ALL, is_gap_ok=True)
    assert (rows.lo, rows.count) == (0, ROWS - 25)
    assert len(offsets(rows)) == ROWS - 25
    others = ranges.history(RowSelection(0, ROWS, outcomes=("acked", "expired", "dead")))
    assert others.count == len(offsets(others)) == ROWS - 75


def test_rows_removed_during_the_read_are_an_error(
    ranges: HistoryRanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RANGE_SLICE", 50)
    rows = ranges.history(ALL)
    batches = iter(rows)
    next(batches)
    remove_history_upto(ranges.path, 120)
    with pytest.raises(RangeError, match=r"\(0, 300\] should contain 300 rows, but 230 were"):
        list(batches)


@pytest.mark.parametrize("is_gap_ok", [False, True])
@pytest.mark.parametrize(
    ("remove", "lo", "count", "message"),
    [
        (remove_history_upto, 100, 200, "were removed"),
        (remove_deleted_upto, 0, ROWS - 25, "of deleted messages"),
    ],
)
def test_rows_removed_before_the_count_are_a_gap(
    ranges: HistoryRanges,
    remove: Callable[[Path, int], None],
    lo: int,
    count: int,
    message: str,
    is_gap_ok: bool,
) -> None:
    statements = []

    def note() -> None:
        statements.append(1)
        if len(statements) == 2:  # after the bounds, before the count
            remove(ranges.path, 100)

    ranges.on_statement = note
    if not is_gap_ok:
        with pytest.raises(RefusedError, match=message) as refused:
            ranges.history(ALL)
        assert refused.value.code == "gap"
        return
    rows = ranges.history(ALL, is_gap_ok=True)
    assert (rows.lo, rows.count) == (lo, count)
    assert len(offsets(rows)) == count


def test_no_transaction_is_open_between_batches(
    ranges: HistoryRanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open read transaction would block checkpoints of the write-ahead log."""
    monkeypatch.setattr(module, "RANGE_SLICE", 50)
    batches = iter(ranges.history(RowSelection(0, ROWS, body=True)))
    for _ in range(3):
        next(batches)
        answer = execute_in_process(
            ranges.path,
            "PRAGMA busy_timeout = 0",
            "INSERT OR REPLACE INTO counter VALUES ('x', random())",
            "PRAGMA wal_checkpoint(TRUNCATE)",
        )
        assert answer == "[(0, 0, 0)]"  # not busy; the log is empty


def test_lock_is_waited_for(ranges: HistoryRanges) -> None:
    """ADBC sets no busy timeout by itself."""
    program = (
        "import sqlite3, sys, time\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('PRAGMA locking_mode = EXCLUSIVE'); c.execute('PRAGMA journal_mode = DELETE')\n"
        "c.execute('BEGIN EXCLUSIVE'); print(flush=True); time.sleep(0.3); c.execute('COMMIT')\n"
        "c.close()"
    )
    path = ranges.path.with_name("other.db")
    execute_in_process(path, "CREATE TABLE x (a)", "INSERT INTO x VALUES (1)")
    command = [sys.executable, "-c", program, str(path)]
    is_adbc = isinstance(ranges._database, module._AdbcDatabase)
    driver: ArrowDriver = "adbc" if is_adbc else "python"
    with (
        HistoryRanges(path, driver=driver) as other,
        subprocess.Popen(command, stdout=subprocess.PIPE) as holder,
    ):
        assert holder.stdout is not None
        holder.stdout.readline()
        assert other.read_rows("SELECT a FROM x") == [{"a": 1}]
        assert holder.wait() == 0


def test_offset_is_found_by_time(ranges: HistoryRanges) -> None:
    remove_history_upto(ranges.path, 10)
    times = {0: 10, 11: 10, 12: 11, 150: 149, 300: 299, 301: 300, 9_999: 300}
    assert {at: ranges.offset_at(NOW_MS + at * 1_000) for at in times} == times


def set_clock(path: Path, *steps: tuple[int, int]) -> None:
    """Record that the wall clock was set: from an offset on, it is ahead by a step in ms."""
    execute_in_process(
        path,
        "DELETE FROM clock_step",
        *(
            "INSERT INTO clock_step (from_offset, at_ms, step_ms)"
            f" VALUES ({offset}, {NOW_MS + offset * 1_000}, {step})"
            for offset, step in steps
        ),
    )


def test_deadline_has_the_clock_step_of_its_row(ranges: HistoryRanges) -> None:
    set_clock(ranges.path, (5, 1_000), (101, -60_000), (201, 7_000))
    rows = table_of(ranges.history(ALL))
    found = dict(zip(rows["offset"].to_pylist(), rows["deadline"].cast(pa.int64()).to_pylist()))  # noqa: B905
    for offset, step_ms in (
        *((1, 1_000), (5, 1_000), (99, 1_000)),  # the oldest known step also counts before it
        *((101, -60_000), (199, -60_000), (201, 7_000), (299, 7_000)),
    ):
        assert found[offset] == NOW_MS + offset + step_ms
    assert found[100] is None


def test_equal_reads_are_equal_byte_for_byte_over_clock_changes(ranges: HistoryRanges) -> None:
    """The clocks drift by some ms, which is stored each minute, and the wall clock is set."""
    set_clock(ranges.path, (1, 1_000))
    selection = RowSelection(0, ROWS, body=True)

    def content() -> bytes:
        sink = pa.BufferOutputStream()
        rows = ranges.history(selection)
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            for batch in rows:
                stream.write_batch(batch)
        return bytes(sink.getvalue().to_pybytes())

    before = content()
    for step_ms in (1_001, -3_600_000):
        execute_in_process(
            ranges.path, f"UPDATE counter SET value = {step_ms} WHERE name = 'clock_step_ms'"
        )
        assert content() == before
    execute_in_process(
        ranges.path,
        "INSERT INTO clock_step (from_offset, at_ms, step_ms)"
        f" VALUES ({ROWS + 1}, {NOW_MS}, -3600000)",
    )
    assert content() == before


def test_range_of_a_time_has_each_segment_of_the_clock(
    ranges: HistoryRanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day in which the clock was far ahead does not widen what is read of the others."""
    execute_in_process(
        ranges.path,
        'UPDATE history SET settled_at = settled_at + 9000000 WHERE "offset" BETWEEN 51 AND 60',
        'UPDATE history SET settled_at = settled_at - 100000 WHERE "offset" > 250',
    )
    set_clock(ranges.path, (1, 0), (51, 9_000_000), (61, 0), (251, -100_000))
    filters = RowFilters(settled_from=NOW_MS + 180_000, settled_until=NOW_MS + 190_000)
    monkeypatch.setattr(module, "RANGE_SLICE", 5)
    read: list[int] = []
    read_rows = ranges._database.read_rows

    def note(text: str, values: dict[str, Any]) -> Any:
        if "count(*)" in text:
            read.extend(range(values["lo"] + 1, values["hi"] + 1))
        return read_rows(text, values)

    monkeypatch.setattr(ranges._database, "read_rows", note)
    assert offsets(ranges.history(RowSelection(0, ROWS, filters=filters))) == [
        *range(180, 190),
        *range(280, 290),
    ]
    assert len(read) <= 2 * (10 + 16)  # the clock may be 8 s off at each end
    lo, hi = ranges.settled_range(filters.settled_from, filters.settled_until)
    assert 171 <= lo < 180
    assert 289 <= hi < 298
    none = ranges.settled_range(NOW_MS + 10**8, None)
    assert none[0] == none[1]


def test_bounds_are_read_without_pyarrow(tmp_path: Path) -> None:
    """A run with nothing new asks for nothing else; importing pyarrow takes longer than it."""
    path = settled_folder(tmp_path / "data", 5)
    code = (
        "import sys; from phpmq_lite.storage.arrow import HistoryRanges\n"
        "print(HistoryRanges(sys.argv[1], driver='python').bounds().hi, 'pyarrow' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["5", "False"]


@pytest.mark.parametrize("shift_s", [0, -30, 40])
def test_time_is_found_in_each_segment_when_the_clock_was_set(
    ranges: HistoryRanges, shift_s: int
) -> None:
    """As in the issue of a broker whose clock was set back: no row at or after it is skipped."""
    shifts = [(101, -80 + shift_s), (201, 30), (250, -1)]  # seconds, added to all later rows
    execute_in_process(
        ranges.path,
        *(
            f'UPDATE history SET settled_at = settled_at + {by * 1_000} WHERE "offset" >= {offset}'
            for offset, by in shifts
        ),
    )
    steps, step_ms = [(1, STEP_MS)], STEP_MS
    for offset, by in shifts[:2]:  # a step of one second is not recorded
        step_ms += by * 1_000
        steps.append((offset, step_ms))
    set_clock(ranges.path, *steps)
    remove_history_upto(ranges.path, 3)
    execute_in_process(ranges.path, 'DELETE FROM history WHERE "offset" IN (100, 101, 102, 200)')
    rows = table_of(ranges.history(RowSelection(3, ROWS, columns=("offset", "settled_at"))))
    times = dict(zip(rows["offset"].to_pylist(), rows["settled_at"].cast(pa.int64()).to_pylist()))  # noqa: B905
    for at in range(-5, 310):
        at_ms = NOW_MS + at * 1_000
        expected = min((offset for offset in times if times[offset] >= at_ms), default=ROWS + 1)
        assert ranges.offset_at(at_ms) in range(
            max((offset for offset in times if offset < expected), default=3), expected
        ), at


def test_all_queues_are_listed(ranges: HistoryRanges) -> None:
    assert ranges.queues() == sorted(QUEUES)


def test_missing_or_invalid_database_is_an_error(tmp_path: Path) -> None:
    for driver in ("adbc", "python"):
        with pytest.raises(StorageError, match="does not exist"):
            HistoryRanges(tmp_path / "no.db", driver=driver)
        (tmp_path / "bad.db").write_bytes(b"x" * 5_000)
        with pytest.raises(StorageError, match="cannot"), HistoryRanges(tmp_path / "bad.db") as bad:
            bad.bounds()


def test_column_names_are_case_sensitive() -> None:
    assert [c.name for c in columns_of(body=True)][-1] == "body"
    with pytest.raises(RefusedError, match="column 'Offset' does not exist"):
        columns_of(["Offset"])


def test_module_imports_optional_libraries_lazily() -> None:
    """Spark's workers and the broker import it; neither needs the libraries of the other."""
    program = (
        "import sys, phpmq_lite.storage.arrow as r; r.columns_of();"
        "print({'pyarrow', 'aiohttp', 'aiosqlite', 'adbc_driver_sqlite'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


# -- claims


@pytest.fixture
def claimed(ranges: HistoryRanges) -> HistoryRanges:
    """Add five claims of ``nightly`` on ``orders``: 1 is acknowledged, 4 was withdrawn."""
    rows = [
        "INSERT INTO message (seq, token, queue_id, position, state, published_at, deliveries,"
        f" size, crc, urn) VALUES ({900 + n}, {n}, 1, {n}, 1, {NOW_MS + n}, 1, 3,"
        f" {checksum(900 + n, b'%d' % (900 + n))}, 'urn:a')"
        for n in (2, 3, 5)
    ]
    execute_in_process(
        ranges.path,
        *rows,
        "INSERT INTO body SELECT seq, CAST(seq AS BLOB) FROM message",
        "INSERT INTO subscription VALUES (7, 'nightly', 1, 6, 1, 0)",
        "INSERT INTO subscription VALUES (8, 'other', 1, 1, 0, 0)",
        "INSERT INTO claim SELECT 7, seq - 900, seq, 0 FROM message",
    )
    return ranges


def test_claims_are_ordered_by_number(claimed: HistoryRanges) -> None:
    rows = claimed.claims("nightly", 1, 5)
    table = table_of(rows)
    assert table.schema == arrow_schema(CLAIM_COLUMNS)
    assert (rows.count, rows.queue) == (3, "orders")
    assert table["claim"].to_pylist() == [2, 3, 5]
    assert table["body"].to_pylist() == [b"902", b"903", b"905"]
    assert table["message_id"][0].as_py() == wire_id(902, 2)
    assert table["queue"].to_pylist() == ["orders"] * 3
    assert table["urn"].to_pylist() == ["urn:a"] * 3
    assert table_of(claimed.claims("nightly", 1, 5)) == table
    assert table_of(claimed.claims("nightly", 2, 4))["claim"].to_pylist() == [3]
    assert claimed.claims("other", 0, 0).count == 0


@pytest.mark.parametrize("change", ["UPDATE body SET content = x'00'", "DELETE FROM body"])
def test_claim_whose_body_is_damaged_breaks_the_range(claimed: HistoryRanges, change: str) -> None:
    """Otherwise the query would acknowledge a message that it never saw."""
    execute_in_process(claimed.path, f"{change} WHERE seq = 903")
    with pytest.raises(StorageError, match=f"message {wire_id(903, 3)} is damaged"):
        table_of(claimed.claims("nightly", 1, 5))
    assert table_of(claimed.claims("nightly", 3, 5))["claim"].to_pylist() == [5]


@pytest.mark.parametrize(
    ("name", "lo", "hi", "allowed", "code"),
    [
        ("nightly", 0, 5, (), "gap"),
        ("nightly", 1, 6, (), "bad_value"),
        ("nightly", 3, 2, (), "bad_value"),
        ("weekly", 0, 5, (), "unknown_subscription"),
        ("nightly", 1, 5, ("mail*",), "foreign_queue"),
    ],
)
def test_invalid_claim_range_is_refused(
    claimed: HistoryRanges, name: str, lo: int, hi: int, allowed: tuple[str, ...], code: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        claimed.claims(name, lo, hi, allowed)
    assert refused.value.code == code


# -- statements


def test_ranges_are_read_by_number() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.deserialize(empty_database())
        known = {
            name: text.replace("{join}", "").replace("{size}", "m.size")
            for name, text in parts("arrow", "sqlite").items()
        }
        ends = known["part_ends"].replace("{number}", 'm."offset"')
        texts = {
            f'SELECT * {known["history_range"]} {known["only_queues"]} ORDER BY m."offset"': "m",
            ends.replace("{range}", known["history_range"]): "m",
            f"SELECT m.size {known['claim_range']} ORDER BY c.claim": "m",
            load("arrow", "sqlite")["offset_at"]: "history",
        }
        for text, table in texts.items():
            given = dict.fromkeys(re.findall(r"(?<![:\w]):(\w+)", text))
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", given)]
            assert any(f"SEARCH {table} USING INTEGER PRIMARY KEY" in step for step in plan), plan
            is_sorted = any("TEMP B-TREE FOR ORDER BY" in step for step in plan)
            assert is_sorted == ("GROUP BY" in text), plan  # of a few cuts, never of rows
