"""Checkpoints of a real database: when the WAL is truncated and when it is only restarted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.sqlite.backend import WriterMaintenance
from phpmq_lite.storage.sqlite.store import LONG_WAL_BYTES
from tests.support.core_and_store import Driver

LIMIT = 100_000  # bytes


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path)
    yield driver
    driver.close()


def size_after(driver: Driver, body: int, *, is_idle: bool) -> int:
    """Publish until the log has this size, run maintenance, and return the remaining size."""
    driver.publish(bytes(body))
    driver.store.wal_bytes = LONG_WAL_BYTES
    upkeep = WriterMaintenance(
        driver.path, RetentionBounds(age_ms=1 << 60), LIMIT, driver.clock.counters
    )
    while upkeep(driver.store, driver.clock.now(), is_idle):
        pass
    return driver.path.with_name(driver.path.name + "-wal").stat().st_size


def test_a_log_below_its_limit_is_begun_again(driver: Driver) -> None:
    assert 0 < size_after(driver, 1, is_idle=True) <= LIMIT
    first = size_after(driver, 1, is_idle=True)
    assert size_after(driver, 1, is_idle=True) == first


def test_a_large_log_is_cut_off_where_no_batch_waits_for_it(driver: Driver) -> None:
    assert LIMIT < size_after(driver, LIMIT, is_idle=False) < 2 * LIMIT
    assert size_after(driver, 1, is_idle=True) < LIMIT


def test_a_log_twice_as_large_is_cut_off_while_batches_wait(driver: Driver) -> None:
    assert size_after(driver, 2 * LIMIT, is_idle=False) < LIMIT


@pytest.mark.parametrize(("bodies", "is_due"), [([1 << 20], True), ([1 << 10] * 1_024, False)])
def test_large_message_is_copied_into_the_database_before_the_log_is_long(
    driver: Driver, bodies: list[int], is_due: bool
) -> None:
    driver.publish(*map(bytes, bodies))
    assert (driver.store.wal_bytes >= LONG_WAL_BYTES) == is_due
