"""The soak for half a minute, with the faults of ``python -m tests.soak``."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.mutants import program_of
from tests.soak.report import problems_of, report
from tests.soak.run import Plan, soak
from tests.support.seed import SEED

pytestmark = pytest.mark.faults


@pytest.mark.slow
async def test_broker_loses_nothing_under_faults(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    plan = Plan(35, SEED, (0.2, 0.6), rate=150, scale=0.15)
    result = await soak(plan, tmp_path)
    counts = result.ledger.counts
    figure(
        f"soak: {result.took_s:.0f} s, {result.nemesis.done.total()} faults of "
        f"{len(result.nemesis.done)} kinds, seed {SEED}: {counts['confirmed']:,} "
        f"confirmed, {counts['lost']} lost; {counts['ended']:,} ends stored, {counts['again']} "
        f"dispatched again; {counts['duplicates']:,} duplicates of {counts['dispatched']:,}"
    )
    assert problems_of(result) == [], report(result)
    assert counts["confirmed"] > 100
    assert counts["ended"] > 100
    assert len(result.nemesis.done) >= 5


async def test_soak_detects_a_broker_that_forgets_acknowledgements(tmp_path: Path) -> None:
    program = program_of("ForgetsAcknowledgements")
    plan = Plan(
        60, SEED, (0.3, 1.0), ("kill -9",), rate=150, program=program, stops_at_problem=True
    )
    result = await soak(plan, tmp_path)
    assert result.ledger.counts["again"] > 0
    assert problems_of(result)
