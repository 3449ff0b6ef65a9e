"""Rates of the command line."""

import click
import pytest

from phpmq_lite.cli.parameters import parse_rate


@pytest.mark.parametrize(("text", "number"), [(None, None), ("20", 20), ("20/s", 20)])
def test_rate_is_a_number_a_second(text: str | None, number: int | None) -> None:
    assert parse_rate(text) == number


@pytest.mark.parametrize("text", ["0", "", "fast", "-1", "20/m", "1.5"])
def test_anything_else_is_no_rate(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no rate"):
        parse_rate(text)
