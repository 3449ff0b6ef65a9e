"""A backlog is refused before it fills the disk."""

import pytest

from phpmq_lite.bench.backlog import check_room
from phpmq_lite.bench.workloads import BenchPlan
from phpmq_lite.errors import ClientError


def test_backlog_needs_room_on_the_disk() -> None:
    plan = BenchPlan(size=750, backlog=1_000_000)
    check_room(plan, 2_000_000_000)
    with pytest.raises(ClientError, match=r"1,000,000 messages takes about 2\.0 GB, 1\.9 GB are"):
        check_room(plan, 1_900_000_000)
