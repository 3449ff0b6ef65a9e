"""A broker with a standby loses its machine; docs/operate/standby.md.

``python -m tests.faults.litestream --times 20 --load-s 3600`` does it for long.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import litestream
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
