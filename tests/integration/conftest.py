"""A broker on a real file, driven by hand."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.core_and_store import MakeDriver, drivers_in


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeDriver]:
    """Make a driver by what ``Driver`` takes beside its folder; one after the other shares it."""
    with drivers_in(tmp_path) as make:
        yield make
