"""The soak, for half a minute: everything befalls the broker that ``python -m tests.soak`` has."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.mutants import program_of
from tests.soak.report import offences_of, report
from tests.soak.run import Plan, soak
from tests.support.seed import SEED

pytestmark = pytest.mark.faults


@pytest.mark.slow
async def test_broker_loses_nothing_whatever_befalls_it(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    plan = Plan(35, SEED, (0.2, 0.6), rate=150, scale=0.15)
    result = await soak(plan, tmp_path)
    counts = result.books.counts
    figure(
        f"soak: {result.took_s:.0f} s, {result.nemesis.done.total()} things of "
        f"{len(result.nemesis.done)} kinds befell it, seed {SEED}: {counts['confirmed']:,} "
        f"confirmed, {counts['lost']} lost; {counts['ended']:,} ends stored, {counts['again']} "
        f"dispatched again; {counts['duplicates']:,} duplicates of {counts['dispatched']:,}"
    )
    assert offences_of(result) == [], report(result)
    assert counts["confirmed"] > 100
    assert counts["ended"] > 100
    assert len(result.nemesis.done) >= 5


async def test_soak_finds_a_broker_that_forgets(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """A fault test that cannot fail is worth nothing."""
    program = program_of("ForgetsAcknowledgements")
    plan = Plan(5, SEED, (0.5, 1.0), ("kill -9",), rate=150, program=program)
    result = await soak(plan, tmp_path)
    figure(f"soak, mutant ForgetsAcknowledgements: {len(result.books.offences):,} offences")
    assert result.books.counts["again"] > 0
    assert offences_of(result)
