"""Any bytes for each parser: the corpus, and some thousands of new inputs."""

import os
from collections.abc import Callable

import pytest

from phpmq_lite.protocol import parser
from tests.fuzz.__main__ import TARGETS
from tests.fuzz.mutants import MUTANTS, Break
from tests.fuzz.run import fuzz
from tests.fuzz.target import CRASH, Target

SEED = int(os.environ.get("PHPMQ_SEED", "1"))
INPUTS = {"parser": 20_000}  # the others: a quarter of it
SAMPLE = 1_000
MUTANT_INPUTS = 20_000  # a mutant must be found within these


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_inputs_have_the_outcomes_of_their_names(name: str) -> None:
    target = TARGETS[name]
    kept = target.kept()
    assert {known: target.check(data) for known, data in kept.items()} == {one: one for one in kept}
    assert kept
    assert not any(known.startswith(CRASH) for known in kept)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_inputs_of_any_kind_are_caught(
    name: str, is_long: bool, figure: Callable[[str], None]
) -> None:
    found = fuzz(TARGETS[name], INPUTS.get(name, 5_000) if is_long else SAMPLE, SEED)
    figure(f"fuzzing, {name}: {found}, seed {SEED}")
    assert found.uncaught == []
    assert len(found.outcomes) >= len(TARGETS[name].kept())


@pytest.mark.parametrize(
    ("target", "defect"), MUTANTS, ids=lambda each: getattr(each, "name", None)
)
def test_fuzzing_finds_a_parser_that(
    target: Target, defect: Break, monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]
) -> None:
    """Fuzzing finds each defect, so it can fail."""
    monkeypatch.setattr(parser, "_NAMES", {})  # so that no defect fills the cache for later tests
    defect(monkeypatch)
    found = fuzz(target, MUTANT_INPUTS, SEED, most_uncaught=1)
    figure(
        f"fuzzing, mutant {defect.__name__}: found after {found.inputs:,} inputs: "
        f"{found.uncaught[:1]}"[:200]
    )
    assert found.uncaught
