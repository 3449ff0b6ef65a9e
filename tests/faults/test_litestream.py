"""A broker with a standby loses its machine; docs/operate/standby.md."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults import litestream
from tests.support.postgres_nodes import mount_memory
from tests.support.seed import SEED

pytestmark = [pytest.mark.faults, pytest.mark.slow]


async def test_promotion_loses_at_most_what_was_reported(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    losses = await litestream.lose(tmp_path, SEED, 2)
    figure(losses.figures())
    assert losses.offences == []


async def test_write_ahead_log_stays_within_twice_its_limit(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    loaded = await litestream.load(tmp_path, SEED, 15)
    figure(loaded.figures())
    assert loaded.offences == []
    assert all(not sample.state.problem for sample in loaded.samples[5:])


@pytest.fixture
def full_target(tmp_path: Path) -> Iterator[Path]:
    """A disk on which little more than the first copy of the database fits."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    target = tmp_path / "full"
    target.mkdir()
    mount_memory(target, 2 << 20)
    yield target
    subprocess.run(["umount", "--lazy", target], check=True)


async def test_full_target_shows_and_stops_nothing(full_target: Path, tmp_path: Path) -> None:
    loaded = await litestream.load(tmp_path, SEED, 20, full_target)
    assert loaded.offences == []
    middle, last = loaded.samples[len(loaded.samples) // 2], loaded.samples[-1]
    assert middle.state.problem
    assert last.state.lag_messages > middle.state.lag_messages
    assert last.confirmed > middle.confirmed
