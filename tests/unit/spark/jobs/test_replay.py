"""Pieces and names of a replay; ``tests/spark/test_jobs_replay.py`` has the rest."""

from typing import Any

import pyarrow as pa
import pytest

from phpmq_lite.spark.jobs.options import ReplayOptions
from phpmq_lite.spark.jobs.replay import redriven_rows
from phpmq_lite.spark.jobs.replay_plans import cut_pieces, plan_name


def options(**given: Any) -> ReplayOptions:
    return ReplayOptions(connection=None, out="out", **given)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], []),
        ([(5, 1)], [[5, 5, 1]]),
        ([(n, 1) for n in range(1, 8)], [[1, 3, 3], [4, 6, 3], [7, 7, 1]]),
        ([(1, 60), (2, 40), (3, 1)], [[1, 2, 2], [3, 3, 1]]),  # 100 bytes fit
        ([(1, 60), (2, 41), (3, 1)], [[1, 1, 1], [2, 3, 2]]),
        ([(1, 500), (2, 500)], [[1, 1, 1], [2, 2, 1]]),  # larger than a piece may be
        ([(1, 1), (1, 1), (1, 1), (1, 1), (2, 1)], [[1, 1, 4], [2, 2, 1]]),  # the same offset
    ],
)
def test_pieces_are_within_the_limits_of_rows_and_bytes(
    rows: list[tuple[int, int]], expected: list[list[int]]
) -> None:
    assert cut_pieces(rows, max_rows=3, max_bytes=100) == expected


def test_name_of_a_plan_is_given_or_derived_from_its_selection() -> None:
    assert plan_name(options(name="night", queues=("a",))) == "night"
    assert plan_name(options(queues=("a",))) == plan_name(options(queues=("a",), rate=3.0))
    assert plan_name(options(queues=("a",))) != plan_name(options(queues=("b",)))


def test_redriven_bodies_lose_only_dead_letter() -> None:
    body = (
        b'{"job":"urn:a","trace_id":"t","data":{"x":1.0},"meta":{"id":"m","schema_version":1},'
        b'"attempts":3,"dead_letter":{"reason":"failed"}}'
    )
    piece = pa.table({"queue": ["a", "b"], "body": [body, b"\xff opaque"], "ttl_s": [1, None]})
    result = redriven_rows(piece)
    assert result.column_names == ["queue", "body", "ttl_s"]
    assert result["body"].to_pylist() == [
        b'{"job":"urn:a","trace_id":"t","data":{"x":1.0},"meta":{"id":"m","schema_version":1},'
        b'"attempts":0}',
        b"\xff opaque",
    ]
    assert result["ttl_s"].to_pylist() == [1, None]
