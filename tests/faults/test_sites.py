"""What brokers must keep to over stops, kills, failovers and clock changes, in short runs."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import inf

import pytest

from tests.faults import dates
from tests.faults.clock import HOUR_MS, TimesToLive
from tests.faults.dates import Dates
from tests.faults.schedules import Schedules
from tests.faults.shimmed_broker import NEEDS_SHIM
from tests.faults.sites import Site, Trial, cluster_site, file_site
from tests.faults.unique_keys import UniqueKeys
from tests.support.postgres_nodes import needs_postgres
from tests.support.seed import SEED

pytestmark = [pytest.mark.faults, NEEDS_SHIM]


@pytest.mark.parametrize(
    "open_site", [file_site, pytest.param(cluster_site, marks=needs_postgres)], ids=["file", "two"]
)
@pytest.mark.parametrize("kind", [Dates, Schedules, TimesToLive, UniqueKeys])
def test_nothing_is_wrong_after_a_short_run_of(
    kind: type[Trial],
    open_site: Callable[[int], AbstractContextManager[Site]],
    figure: Callable[[str], None],
) -> None:
    """docs/operate/reliability.md."""
    with open_site(SEED) as site:
        trial = kind(site)
        if isinstance(trial, Dates):
            trial.limit_s = inf  # the machine may be busy
        began = time.monotonic()
        trial.run(trial.short)
        for line in trial.figures(time.monotonic() - began):
            figure(line)
    assert trial.wrong == []


@pytest.mark.parametrize(
    ("kind", "mutant", "finds"),
    [
        (Dates, "LiveWallClock", "early"),
        (Dates, "MakesDatesDelays", "early"),
        (Schedules, "ForgetsTicks", "ran twice"),
        (UniqueKeys, "LooksUpNoUniqueKeys", "live at once"),
    ],
)
def test_trial_finds_a_broker_with_a(
    kind: type[Trial], mutant: str, finds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dates, "END_S", 1.0)
    with file_site(42, mutant) as site:
        trial = kind(site)
        trial.run(trial.short)
    assert any(finds in text for text in trial.wrong)


@pytest.mark.parametrize(
    ("mutant", "way"), [("LiveWallClock", "live"), ("BelievesAtTheStart", "kill")]
)
def test_trial_of_times_to_live_finds_a_broker_with_a(mutant: str, way: str) -> None:
    with file_site(0, mutant) as site:
        trial = TimesToLive(site)
        trial.cases = ((way, HOUR_MS),)
        trial.run(1)
    assert trial.early
