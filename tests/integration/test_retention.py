"""Retention on a real SQLite file, compared with a naive list."""

import tempfile
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.errors import OutcomeUnknownError, StorageFullError
from phpmq_lite.storage import retention
from phpmq_lite.storage.retention import KEYS_AT_ONCE, ROWS_PER_SLICE, RetentionBounds
from phpmq_lite.storage.sqlite.history_index import HistoryIndexer
from tests.support.retention_database import FOREVER, NOW, RetentionDatabase, step, take
from tests.support.stores import ON_POSTGRES

ACKED, DELETED = 2, 5


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RetentionDatabase]:
    made = RetentionDatabase(tmp_path / "phpmq.db")
    yield made
    made.close()


# -- bounds


def test_nothing_goes_within_the_bounds(store: RetentionDatabase) -> None:
    assert step(store, RetentionBounds(), NOW) == 0
    store.fill(5)
    assert step(store, RetentionBounds(), NOW) == 0
    assert store.offsets() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("bound", [{"rows": 5}, {"bytes": 550}])
def test_oldest_rows_go_first(store: RetentionDatabase, bound: dict[str, int]) -> None:
    store.fill(8, size=100)
    bounds = RetentionBounds(**bound, deleted_share=0)
    assert step(store, bounds, NOW) == 3
    assert store.offsets() == [4, 5, 6, 7, 8]
    store.check()


def test_rows_go_when_they_are_older_than_the_age(store: RetentionDatabase) -> None:
    for at in (10, 20, 30, 40):
        store.fill(1, at=at)
    assert step(store, RetentionBounds(age_ms=70), now_ms=100) == 2
    assert store.offsets() == [3, 4]  # 30 is exactly as old as allowed


def test_runs_go_once_their_block_is_older_than_the_history(store: RetentionDatabase) -> None:
    block = 1 << 16
    store.fill(1)
    store.execute('UPDATE history SET "offset" = ?', (block - 5,))  # the next rows follow
    store.fill(2, outcome=DELETED)
    store.fill(2)
    store.fill(3)
    store.count_settled()
    runs = "SELECT first_offset, first_offset + length - 1 FROM history_run ORDER BY 1"
    whole = [
        (block - 5, block - 5),
        (block - 4, block - 3),
        (block - 2, block - 1),
        (block, block + 2),
    ]
    assert store.execute(runs).fetchall() == whole
    for rows, kept in ((4, whole), (2, whole[3:])):
        step(store, RetentionBounds(rows=rows, deleted_share=0), NOW)
        assert len(store.offsets()) == rows
        assert store.execute(runs).fetchall() == kept


def test_rows_without_a_place_stay(store: RetentionDatabase) -> None:
    store.fill(3)
    bounds = RetentionBounds(rows=1, deleted_share=0)
    assert retention.remove_expired(store.store, bounds, NOW).rows == 0
    assert step(store, bounds, NOW) == 2


def test_newest_row_stays_so_that_offsets_have_no_gap(store: RetentionDatabase) -> None:
    store.fill(3)
    store.keep(RetentionBounds(rows=1, deleted_share=1))
    assert store.offsets() == [3]
    store.fill(2)
    store.keep(RetentionBounds(rows=1, deleted_share=1))
    assert store.offsets() == [5]


def test_newest_row_stays_without_its_body_if_too_old(store: RetentionDatabase) -> None:
    store.fill(2, at=10)
    assert step(store, RetentionBounds(age_ms=70), now_ms=80) == 0
    assert store.number("SELECT count(*) FROM body") == 2
    assert step(store, RetentionBounds(age_ms=70), now_ms=81) == 1
    assert (store.offsets(), store.number("SELECT count(*) FROM body")) == ([2], 0)
    assert store.number("SELECT next_number FROM line") == 3
    assert step(store, RetentionBounds(age_ms=70), now_ms=81) == 0


def test_numbers_have_no_gap_after_a_rollback(store: RetentionDatabase) -> None:
    store.fill(2)
    store.execute("BEGIN")
    store.settle(store.publish())
    store.execute("ROLLBACK")
    store.fill(1)
    assert store.offsets() == [1, 2, 3]


# -- two fronts


def test_large_purge_evicts_no_other_history(store: RetentionDatabase) -> None:
    store.fill(9)
    store.fill(50, outcome=DELETED)
    store.fill(9)
    store.keep(RetentionBounds(rows=20, deleted_share=0.1))
    assert store.offsets() == [*range(1, 10), 58, 59, *range(60, 69)]


def test_deleted_rows_stay_while_others_go_past_them(store: RetentionDatabase) -> None:
    for outcome in (ACKED, DELETED, ACKED, DELETED, ACKED, ACKED):
        store.fill(1, outcome=outcome)
    bounds = RetentionBounds(rows=10, deleted_share=0.8)
    store.keep(bounds)
    assert store.offsets() == [2, 4, 5, 6]
    assert store.counters()["history_lo"] == 4  # row 4 is still there


def test_deleted_rows_that_stay_are_not_reported_as_removed(store: RetentionDatabase) -> None:
    bounds = RetentionBounds(rows=10_000, deleted_share=0.5)
    store.fill(2_500, outcome=DELETED)
    store.fill(6_000)
    store.keep(bounds)
    assert len(store.offsets()) == 7_500  # rows 1 to 2,500, and the last 5,000
    assert store.counters()["history_lo"] == 3_501
    store.keep(RetentionBounds(rows=10_000, deleted_share=0.499))
    assert store.counters()["history_lo"] == 3_501


def test_front_passes_deleted_rows_before_anything_is_removed(store: RetentionDatabase) -> None:
    store.fill(2_500, outcome=DELETED)
    store.fill(3)
    store.keep(RetentionBounds())
    assert store.counters().get("history_lo", 0) == 0
    assert store.counters()["history_front"] == 2_501


def test_front_is_found_after_a_long_run_of_deleted_rows(store: RetentionDatabase) -> None:
    store.fill(1)
    store.fill(2_500, outcome=DELETED)
    store.fill(2)
    bounds = RetentionBounds(rows=5_000, deleted_share=0.9998)
    assert bounds.share_of_others()[0] == 1
    store.keep(bounds)
    assert store.offsets() == [*range(2, 2_502), 2_503]
    assert store.counters()["history_lo"] == 2_503


# -- the newest row


def test_newest_row_loses_its_body_if_the_bound_is_zero(store: RetentionDatabase) -> None:
    """The row keeps the offset; a share of 0 keeps no content of deleted messages."""
    store.fill(3, outcome=DELETED)
    bounds = RetentionBounds(deleted_share=0)
    assert step(store, bounds, NOW) == 2
    assert store.offsets() == [3]
    assert store.number("SELECT count(*) FROM body") == 0
    assert store.number("SELECT next_number FROM line") == 4
    store.fill(1)
    assert step(store, bounds, NOW) == 1
    assert store.offsets() == [4]


def test_nothing_is_written_if_nothing_expires(store: RetentionDatabase) -> None:
    bounds = RetentionBounds(rows=5)
    store.fill(2)
    take(store, bounds, NOW)
    before = store.connection.total_changes
    assert retention.remove_expired(store.store, bounds, NOW) == (0, False)
    assert store.connection.total_changes == before


def test_database_that_cannot_grow_frees_room_by_itself(store: RetentionDatabase) -> None:
    """Rows without a place count too: places cannot be written until rows are removed."""
    bounds = RetentionBounds(rows=2_000, deleted_share=0)
    store.fill(2_000)
    store.keep(bounds)
    store.fill(2_000)
    pages = store.number("PRAGMA page_count")
    store.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    for _ in range(20):
        HistoryIndexer().run(store.connection, 0, is_idle=True)
        retention.remove_expired(store.store, bounds, NOW)
    assert store.number("PRAGMA freelist_count") > 0
    store.fill(50)


# -- slices


def test_step_takes_at_most_a_slice(store: RetentionDatabase) -> None:
    store.fill(ROWS_PER_SLICE + 200)
    store.fill(200, outcome=DELETED)
    bounds = RetentionBounds(rows=1, deleted_share=0)
    patient = iter(lambda: 0.0, None)
    assert step(store, bounds, NOW, timer=lambda: next(patient)) == ROWS_PER_SLICE
    store.check()
    assert step(store, bounds, NOW, timer=lambda: next(patient)) == 398
    assert step(store, bounds, NOW, timer=lambda: next(patient)) == 0


@pytest.mark.parametrize(
    ("rows", "size", "tick_s", "removed"),
    [(500, 10, 0.008, 300), (500, 10, 60.0, 100), (3, 3 << 20, 60.0, 1)],
    ids=["time is over", "slowest machine", "large bodies"],
)
def test_step_ends_in_time_after_at_least_one_slice(
    store: RetentionDatabase, rows: int, size: int, tick_s: float, removed: int
) -> None:
    store.fill(rows, size=size)
    ticks = count(0.0, tick_s)  # each reading of the clock takes this long
    bounds = RetentionBounds(rows=1)
    assert step(store, bounds, NOW, timer=lambda: next(ticks)) == removed
    store.check()


def test_events_of_one_message_go_in_slices(store: RetentionDatabase) -> None:
    seq = store.publish()
    store.tell(seq, events=ROWS_PER_SLICE + 5)
    store.settle(seq)
    store.fill(1)
    bounds = RetentionBounds(rows=1, deleted_share=0)
    ticks = count(0.0, 60.0)
    assert take(store, bounds, NOW, timer=lambda: next(ticks)) == (0, True)
    assert store.number("SELECT count(*) FROM event") == 5
    assert store.offsets() == [1, 2]
    assert step(store, bounds, NOW) == 1
    assert store.number("SELECT count(*) FROM event") == 0
    assert store.offsets() == [2]


# -- what is alive


def test_alive_messages_keep_body_and_events(store: RetentionDatabase) -> None:
    alive, settled = store.publish(), store.publish()
    store.tell(alive, 3)
    store.tell(settled, 2)
    store.settle(settled)
    store.fill(1)
    store.keep(RetentionBounds(rows=1, deleted_share=1))
    assert store.execute("SELECT seq FROM body").fetchall() == [(alive,)]
    assert store.execute("SELECT DISTINCT seq FROM event").fetchall() == [(alive,)]


def test_body_of_a_live_message_stays_despite_a_history_row(store: RetentionDatabase) -> None:
    """This never should happen; if it does, the message matters more."""
    seq = store.publish()
    store.tell(seq)
    store.settle(seq)
    store.execute(
        "INSERT INTO message (seq, token, queue_id, position, state, published_at, size, crc)"
        " VALUES (?, 1, 1, 1, 0, 0, 10, 0)",
        (seq,),
    )
    store.fill(1)
    step(store, RetentionBounds(rows=1, deleted_share=1), NOW)
    assert store.offsets() == [2]
    assert store.execute("SELECT seq FROM body").fetchall() == [(seq,)]
    assert store.number("SELECT count(*) FROM event") == 1


# -- receipt keys


def receipts(store: RetentionDatabase, *at_ms: int) -> None:
    sql = (
        "INSERT INTO receipt (n, queue_id, seq, at_ms, key_bytes, keys)"
        " VALUES ((SELECT coalesce(max(n), 0) + 1 FROM receipt), 1, 1, ?, 1, ?)"
    )
    for at in at_ms:
        store.execute(sql, (at, b"\0"))


def kept_receipts(store: RetentionDatabase) -> list[int]:
    return [row[0] for row in store.execute("SELECT at_ms FROM receipt ORDER BY n")]


@pytest.mark.parametrize(
    ("bounds", "removed", "kept"),
    [
        (RetentionBounds(receipt_window_ms=500), [100, 199, 200], [201, 700]),
        (FOREVER, [], [100, 200]),
    ],
    ids=["window before the newest", "not the clock"],
)
def test_expired_keys_go(
    store: RetentionDatabase, bounds: RetentionBounds, removed: list[int], kept: list[int]
) -> None:
    receipts(store, *removed, *kept)
    assert step(store, bounds, 10**15) == len(removed)
    assert kept_receipts(store) == kept
    assert step(store, bounds, 10**15) == 0


def test_keys_go_in_slices(store: RetentionDatabase) -> None:
    store.execute("BEGIN")
    receipts(store, *range(KEYS_AT_ONCE * 2 + 10))
    store.execute("COMMIT")
    bounds = RetentionBounds(receipt_window_ms=1)
    assert take(store, bounds, NOW) == (KEYS_AT_ONCE, True)
    assert take(store, bounds, NOW) == (KEYS_AT_ONCE, True)
    assert take(store, bounds, NOW) == (9, False)
    assert kept_receipts(store) == [KEYS_AT_ONCE * 2 + 9]


def test_rows_that_settle_after_a_step_wait_for_the_next_second(store: RetentionDatabase) -> None:
    """Otherwise each batch would remove a few rows, with a separate COMMIT."""
    store.fill(120)
    receipts(store, *range(20))
    bounds = RetentionBounds(rows=100, deleted_share=0, receipt_window_ms=10)
    assert take(store, bounds, NOW) == (20 + 10, False)


# -- errors


def test_connections_are_removed_when_no_history_can_name_them(store: RetentionDatabase) -> None:
    """The open ones stay, and number 0, which stands for the admin."""
    store.execute(
        "INSERT INTO client (client, kind, address, opened_at, closed_at)"
        " VALUES (1, 'tcp', '', 0, 10), (2, 'tcp', '', 0, NULL), (3, 'tcp', '', 0, 900)"
    )
    step(store, RetentionBounds(age_ms=500), 1_000)
    assert store.execute("SELECT client FROM client").fetchall() == [(0,), (2,), (3,)]


def test_full_disk_is_reported_and_nothing_is_removed(store: RetentionDatabase) -> None:
    store.fill(300, size=2_000)
    pages = store.number("PRAGMA page_count")
    store.execute("CREATE TRIGGER t AFTER DELETE ON history BEGIN"
                  " INSERT INTO body VALUES (-old.seq, zeroblob(100000)); END")  # fmt: skip
    store.execute(f"PRAGMA max_page_count={pages + 5}").fetchall()
    with pytest.raises(StorageFullError):
        step(store, RetentionBounds(rows=1, deleted_share=0), NOW)
    assert not store.connection.in_transaction
    assert len(store.offsets()) == 300
    store.check()


def test_any_other_error_is_an_unknown_outcome(store: RetentionDatabase) -> None:
    store.fill(3)
    store.execute("CREATE TRIGGER t AFTER DELETE ON history BEGIN SELECT raise(ABORT, 'no'); END")
    with pytest.raises(OutcomeUnknownError, match="SQLITE_CONSTRAINT"):
        step(store, RetentionBounds(rows=1, deleted_share=0), NOW)


# -- a naive list


rows = st.lists(
    st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 30)),  # deleted, size, time passed
    max_size=40,
)


@given(
    st.lists(st.tuples(rows, st.integers(0, 100)), max_size=5),
    st.builds(
        RetentionBounds,
        age_ms=st.integers(1, 300),
        rows=st.integers(1, 60),
        bytes=st.integers(1, 800),
        deleted_share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    ),
)
def test_retention_keeps_what_a_naive_list_keeps(
    turns: list[tuple[list[tuple[bool, int, int]], int]], bounds: RetentionBounds
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = RetentionDatabase(Path(folder) / "phpmq.db")
        with closing(store):
            if not ON_POSTGRES:
                store.execute("PRAGMA synchronous=OFF")  # the disk is not what this tests
            kept: list[tuple[int, bool, int, int]] = []  # offset, deleted, size, settled at
            removed = {False: 0, True: 0}  # offset of the last one, by deleted
            now = offset = 0
            for settled, pause in turns:
                for deleted, size, passed in settled:
                    now, offset = now + passed, offset + 1
                    alive = store.publish(size)
                    store.settle(alive, outcome=DELETED if deleted else ACKED, at=now)
                    kept.append((offset, deleted, size, now))
                now += pause
                history = list(kept)
                store.keep(bounds, now)
                kept = [*kept_of(kept, False, bounds, now), *kept_of(kept, True, bounds, now)]
                newest = [row for row in history if row[0] == offset]
                kept = sorted({*kept, *newest})  # it stays
                assert store.offsets() == [row[0] for row in kept]
                for row in sorted({*history} - {*kept}):
                    removed[row[1]] = row[0]
                counters = store.counters()
                for deleted, name in ((False, "history_lo"), (True, "deleted_lo")):
                    first = counters.get(name, 0)  # no stored row is reported as removed
                    assert max(first, 1) == removed[deleted] + 1


def kept_of(
    history: list[tuple[int, bool, int, int]], deleted: bool, bounds: RetentionBounds, now: int
) -> list[tuple[int, bool, int, int]]:
    """Return the newest rows that are within the bounds."""
    share = int(bounds.rows * bounds.deleted_share), int(bounds.bytes * bounds.deleted_share)
    most = share if deleted else (bounds.rows - share[0], bounds.bytes - share[1])
    rest = [row for row in history if row[1] == deleted]
    while rest and (
        len(rest) > most[0]
        or sum(row[2] for row in rest) > most[1]
        or now - rest[0][3] > bounds.age_ms
    ):
        rest.pop(0)
    return rest
