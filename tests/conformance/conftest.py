"""The suite, opened once in each process of pytest."""

import pytest

from tests.conformance.babelqueue_suite import Suite, open_suite


@pytest.fixture(scope="session")
def suite(request: pytest.FixtureRequest) -> Suite:
    """Return BabelQueue's suite; fetch it if no folder is named."""
    return open_suite(request.config.cache.mkdir("babelqueue"))
