"""Fixtures of the unit tests."""

import pytest

from tests.support.core_rig import CoreRig


@pytest.fixture
def rig() -> CoreRig:
    """Return a broker core with the default limits and settings."""
    return CoreRig()
