"""The pipeline summary: what is accepted, what is refused, and what a user may see."""

from typing import Any

import pytest

from phpmq_lite.admin.pipeline.summary import read_summary, visible_to
from phpmq_lite.insights_document import OTHER_QUEUES, PipelineSummary
from tests.unit.admin.pipeline.cases import as_bytes, step, summary

NOW = 1_790_000_000_000


def test_summary_is_read_with_all_its_lists() -> None:
    made = summary(NOW)
    found = read_summary(as_bytes(made))
    assert len(found.last24h) == len(made["last24h"])
    assert (found.last24h[0].at_ms, found.last30d[0].at_ms) == (
        made["last24h"][0]["minute"], made["last30d"][0]["hour"],
    )  # fmt: skip
    assert found.urns[0].total == 51_210 + 312
    assert (found.deaths[0].total, found.expiries[0].total) == (310, 816)
    assert found.queues()[-1] == OTHER_QUEUES


def test_least_summary_has_empty_lists_and_unknown_members_are_passed_over() -> None:
    found = read_summary(b'{"version": 1, "finished_at": 5, "later": {"x": 1}}')
    assert found == PipelineSummary(version=1, finished_at=5)
    assert found.queues() == []


def test_unknown_figures_are_null() -> None:
    """No broker was queried, or nothing is archived yet (``spark/insights_summary.py``)."""
    lag, archive = {"offset": None, "rows": None}, {"offset": None, "rows": 0}
    found = read_summary(as_bytes(summary(NOW, lag=lag, archive=archive)))
    assert (found.lag.offset, found.lag.rows, found.archive.offset) == (None, None, None)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not valid JSON"),
        (b"[]", "must be an object"),
        (b"{}", "version"),
        (b'{"version": 2, "finished_at": 5}', "version must be 1"),
        (b'{"version": 1, "finished_at": -1}', "finished_at must be at least 0"),
        (b'{"version": 1, "finished_at": 253370764800000}', "finished_at must be below"),
        (b'{"version": 1, "finished_at": 5, "x": NaN}', "NaN is not allowed"),
        (b'{"version": 1, "finished_at": 5, "last24h": [{"minute": 1}]}', "last24h.0.queue"),
        (b'{"version": 1, "finished_at": 5, "jobs": {}}', "jobs"),
        (b"\xff\xfe", "not valid UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_invalid_summary_is_refused_with_the_reason(raw: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_summary(raw)


def test_infinite_time_is_refused() -> None:
    raw = as_bytes(summary(NOW, last24h=[{"minute": 1} | step("q", 1)]))
    with pytest.raises(ValueError, match="wait_p50"):
        read_summary(raw.replace(b'"queue": "q"', b'"queue": "q", "wait_p50": 1e999'))


def _paths(*paths: list[str]) -> list[dict[str, Any]]:
    return [{"path": path, "traces": 1} for path in paths]


def test_user_limited_to_some_queues_sees_nothing_of_others() -> None:
    made = summary(
        NOW, paths=_paths(["orders:urn:a"], ["orders:urn:a", "vault:urn:b"], ["unknown:urn:c"], [])
    )
    found = visible_to(read_summary(as_bytes(made)), lambda name: name == "orders", ["vault"])
    text = found.model_dump_json()
    assert found.queues() == ["orders"]
    assert [path.path for path in found.paths] == [("orders:urn:a",), ()]
    assert "vault" not in text
    assert "shop.cart" not in text
    assert "No space left" not in text  # the error of a job may name anything


def test_step_of_a_path_belongs_to_the_longest_queue_it_may_name() -> None:
    """``orders:urn`` is also a queue, which a user limited to ``orders`` may not see."""
    made = summary(NOW, paths=_paths(["orders:urn:x"]))
    found = read_summary(as_bytes(made))
    assert visible_to(found, lambda name: name == "orders", ["orders:urn"]).paths == ()
