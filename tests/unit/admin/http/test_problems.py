"""Errors as problems: status, code and a sentence for people."""

import pytest

from phpmq_lite.admin.http.problems import problem_of
from phpmq_lite.errors import (
    ReadTooLongError,
    RefusedError,
    SearchError,
    StorageError,
    StorageFullError,
)


@pytest.mark.parametrize(
    ("code", "status"),
    [("unknown_queue", 404), ("paused", 409), ("queue_full_messages", 409), ("not_empty", 409),
     ("bad_setting", 422), ("too_large", 413), ("disk_full", 507), ("draining", 503),
     ("not_ready", 503)],
)  # fmt: skip
def test_refusal_of_the_broker_has_its_status(code: str, status: int) -> None:
    problem = problem_of(RefusedError(code, "the reason"))
    assert problem is not None
    assert (problem.status, problem.code, problem.detail) == (status, code, "The reason.")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ReadTooLongError("it took too long"), 503, "too_slow"),
        (StorageFullError("the disk is full"), 507, "disk_full"),
        (StorageError("it cannot be read"), 503, "storage"),
        (TimeoutError(), 503, "no_answer"),
        (SearchError("there is no state 'x'", "ready"), 422, "bad_query"),
    ],
)
def test_storage_error_has_its_status(error: Exception, status: int, code: str) -> None:
    problem = problem_of(error)
    assert problem is not None
    assert (problem.status, problem.code) == (status, code)


def test_other_error_is_a_defect() -> None:
    assert problem_of(LookupError("a secret")) is None
