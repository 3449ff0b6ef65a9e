"""What the broker's HTTP answers mean for a command."""

import json

import pytest

from phpmq_lite.cli.admin_client import read_response
from phpmq_lite.cli.errors import CommandError


def test_document_is_given() -> None:
    assert read_response(200, b'{"settled": 3}') == {"settled": 3}


def test_answer_without_content_is_none() -> None:
    assert read_response(204, b"") is None


@pytest.mark.parametrize(
    ("status", "code"), [(404, 3), (410, 3), (409, 4), (413, 4), (507, 4), (504, 5), (500, 1)]
)
def test_problem_becomes_its_exit_code(status: int, code: int) -> None:
    with pytest.raises(CommandError, match=r"^no queue \\x1b$") as caught:
        read_response(status, b'{"title": "Not found", "detail": "no queue \\u001b"}')
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ({"detail": "It has 5.", "field": "password", "bound": "12 to 1024 characters"},
         "It has 5. (password: 12 to 1024 characters)"),
        ({"detail": "'a b' is none.", "bound": "1 to 64 letters"},
         "'a b' is none. (1 to 64 letters)"),
        ({"detail": "It begins with /.", "field": "link"}, "It begins with /. (link)"),
        ({"detail": "n: Must be less than 20.", "field": "n", "bound": "lt 20"},
         "n: Must be less than 20."),
        ({"detail": "at: 'x' is no time.", "field": "at", "bound": "Unix milliseconds"},
         "at: 'x' is no time. (Unix milliseconds)"),
        ({"detail": "No."}, "No."),
    ],
)  # fmt: skip
def test_problem_names_its_field_and_what_would_be_right(
    problem: dict[str, str], said: str
) -> None:
    with pytest.raises(CommandError) as caught:
        read_response(422, json.dumps(problem).encode())
    assert str(caught.value) == said


@pytest.mark.parametrize("content", [b"", b"<html>", b"[1]", b'{"detail": null}'])
def test_answer_that_is_no_problem_is_told_by_its_status(content: bytes) -> None:
    with pytest.raises(CommandError, match=r"^HTTP 502 without a reason: "):
        read_response(502, content)


def test_page_in_place_of_a_document_is_an_error() -> None:
    with pytest.raises(CommandError, match=r"^the broker answered 200 without JSON$"):
        read_response(200, b"<html>")
