"""What the broker's HTTP answers mean for a command."""

import pytest

from phpmq_lite.cli.main import CommandError
from phpmq_lite.cli.node import read_answer


def test_document_is_given() -> None:
    assert read_answer(200, b'{"settled": 3}') == {"settled": 3}


def test_answer_without_content_is_none() -> None:
    assert read_answer(204, b"") is None


@pytest.mark.parametrize(
    ("status", "code"), [(404, 3), (410, 3), (409, 4), (413, 4), (507, 4), (504, 5), (500, 1)]
)
def test_problem_becomes_its_exit_code(status: int, code: int) -> None:
    with pytest.raises(CommandError, match=r"^no queue \\x1b$") as caught:
        read_answer(status, b'{"title": "Not found", "detail": "no queue \\u001b"}')
    assert caught.value.code == code


@pytest.mark.parametrize("content", [b"", b"<html>", b"[1]", b'{"detail": null}'])
def test_answer_that_is_no_problem_is_told_by_its_status(content: bytes) -> None:
    with pytest.raises(CommandError, match=r"^the broker answered 502$"):
        read_answer(502, content)


def test_page_in_place_of_a_document_is_an_error() -> None:
    with pytest.raises(CommandError, match=r"^the broker answered 200 without JSON$"):
        read_answer(200, b"<html>")
