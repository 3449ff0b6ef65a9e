"""Responses: cursors, and large ones, which are sent in pieces."""

from contextlib import suppress
from unittest.mock import AsyncMock

import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Response
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.admin.http import output
from phpmq_lite.admin.http.body import HOLD
from phpmq_lite.admin.http.memory import FREE_BYTES, HttpMemory, MemoryReservation
from phpmq_lite.admin.http.problems import Problem


def test_cursor_is_decoded_for_its_own_list_only() -> None:
    text = output.encode_cursor("queues a", "after", [3.5, "orders"])
    assert output.decode_cursor("queues a", text) == ("after", [3.5, "orders"])
    with pytest.raises(Problem, match="another list"):
        output.decode_cursor("queues b", text)


def test_missing_cursor_is_none() -> None:
    assert output.decode_cursor("queues", None) is None
    assert output.position_in(None) == {}


@given(st.text(min_size=1))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(Problem) as caught:
        output.decode_cursor("x", text)
    assert (caught.value.status, caught.value.code) == (422, "bad_cursor")


def test_numbered_list_takes_numbers_only() -> None:
    assert output.position_in(output.ListCursor("before", 7)) == {"before": 7}
    for place in ([1, "a"], -1, 1 << 63):
        with pytest.raises(Problem):
            output.position_in(output.ListCursor("after", place))  # type: ignore[arg-type]


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
