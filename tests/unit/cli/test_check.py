"""The levels of monitoring checks, and what stands for a broker that does not answer."""

import pytest
from click.testing import CliRunner

from phpmq_lite.cli import check
from phpmq_lite.cli.main import commands


@pytest.mark.parametrize(
    ("value", "level"),
    [(0, check.OK), (9, check.OK), (10, check.WARNING), (99, check.WARNING), (100, check.CRITICAL)],
)
def test_level_rises_at_each_bound(value: int, level: int) -> None:
    assert check.level_of(value, 10, 100) == level


def test_check_of_a_broker_that_does_not_answer_is_unknown() -> None:
    result = CliRunner().invoke(commands, ["check", "ready", "--data", "/no/such/folder"])
    assert result.exit_code == check.UNKNOWN
    assert result.stdout.startswith("UNKNOWN: no broker answers on /no/such/folder/control.sock")
