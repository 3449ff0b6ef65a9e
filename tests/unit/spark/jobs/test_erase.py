"""Requests of the erase job, within the bounds of the API."""

from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.admin.pipeline.erase import MESSAGES, TRACES, EraseInput
from phpmq_lite.spark.jobs.erase import _requests

_offsets = st.lists(st.tuples(st.integers(1, 60_000), st.integers(1, 12_000)), max_size=120).map(
    lambda spans: sorted({n for first, count in spans for n in range(first, first + count, 3)})
)


@given(offsets=_offsets, traces=st.integers(0, 250))
def test_requests_name_each_message_once_and_are_accepted(offsets: list[int], traces: int) -> None:
    ids = [f"t{number}" for number in range(traces)]
    requests = [EraseInput(**request) for request in _requests(ids, offsets)]
    named = [
        offset
        for request in requests
        for part in request.offsets
        for offset in range(part.first, part.last + 1)
    ]
    assert named == offsets
    assert [id_ for request in requests for id_ in request.trace_ids] == ids


def test_dense_offsets_take_few_requests() -> None:
    requests = list(_requests((), range(1, 3 * MESSAGES + 1)))
    assert [request["offsets"] for request in requests] == [
        [{"first": at * MESSAGES + 1, "last": (at + 1) * MESSAGES}] for at in range(3)
    ]
    assert len(list(_requests((), range(1, 4 * TRACES, 2)))) == 2
