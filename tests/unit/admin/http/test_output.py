"""Large responses, which are sent in pieces."""

from contextlib import suppress
from unittest.mock import AsyncMock

import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Response

from phpmq_lite.admin.http import output
from phpmq_lite.admin.http.body import HOLD
from phpmq_lite.admin.http.memory import FREE_BYTES, HttpMemory, MemoryReservation
from phpmq_lite.admin.http.problems import Problem


@pytest.mark.parametrize(
    ("error", "status"), [(Problem(503, "memory", "Too little memory."), 503), (OSError("gone"), 0)]
)
async def test_body_that_is_not_sent_is_let_go(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error's traceback keeps its frames until the next garbage collection."""
    request, memory = make_mocked_request("GET", "/"), HttpMemory(1 << 20)
    request[HOLD] = memory.hold("anna")
    monkeypatch.setattr(output, "problem_json", lambda _, problem: Response(status=problem.status))
    monkeypatch.setattr(MemoryReservation, "resize", AsyncMock(side_effect=error))
    response = Response(body=bytes(FREE_BYTES + 1), headers={"X-Request-Id": "1"})
    with suppress(OSError):
        assert (await output.send_response(request, response)).status == status
    assert response.body is None
