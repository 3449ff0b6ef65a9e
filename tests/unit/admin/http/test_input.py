"""Form fields and their limits."""

import pytest

from phpmq_lite.admin.http.fields import NewTtl, StrictInput
from phpmq_lite.admin.http.input import Form
from phpmq_lite.admin.http.problems import Problem


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"ttl": ""}, None),
        ({"ttl": "0", "ttl_unit": "s"}, 0),
        ({"ttl": "5", "ttl_unit": "min"}, 300),
        ({"ttl": "2", "ttl_unit": "d"}, 172_800),
        ({"ttl": "7", "ttl_unit": "never"}, 0),
        ({"ttl": "7"}, 7),
        ({"ttl_s": "60"}, 60),
        ({"ttl": "", "ttl_unit": "h", "ttl_s": "60"}, 60),
    ],
)
def test_time_to_live(fields: dict[str, str], expected: int | None) -> None:
    assert Form(fields.items()).seconds("ttl") == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"ttl": "-1", "ttl_unit": "s"},
        {"ttl": "1.5", "ttl_unit": "s"},
        {"ttl": "x"},
        {"ttl": "99999999999", "ttl_unit": "d"},
        {"ttl": "1", "ttl_unit": "weeks"},
        {"ttl_s": "99999999999999"},
    ],
)
def test_invalid_time_to_live_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(Problem) as caught:
        Form(fields.items()).seconds("ttl")
    assert caught.value.status == 422


def test_number_has_bounds() -> None:
    form = Form([("n", "1,000"), ("empty", " "), ("big", "1001"), ("arabic", "\u0661")])
    assert form.number("n", 1, 1_000) == 1_000
    assert form.number("empty", 1, 5) is None
    for name in ("big", "arabic"):
        with pytest.raises(Problem):
            form.number(name, 1, 1_000)


def test_several_values_of_a_field() -> None:
    form = Form([("id", "a"), ("id", "b"), ("x", "c")])
    assert form.texts("id", 2) == ["a", "b"]
    with pytest.raises(Problem, match="id has too many values: 2"):
        form.texts("id", 1)


def test_text_is_trimmed_and_bounded() -> None:
    form = Form([("reason", "  because ")])
    assert form.reason() == "because"
    assert form.raw("reason") == "  because "
    with pytest.raises(Problem, match="reason is too long: 7 characters"):
        form.text("reason", 3)


def test_name_of_a_queue_keeps_its_blanks() -> None:
    form = Form([("target", " a ")])
    assert (form.queue("target"), form.queue("none")) == (" a ", "")


def test_checkbox_is_true_or_false() -> None:
    form = Form([("a", "yes"), ("b", "no")])
    assert (form.flag("a"), form.flag("b"), form.flag("c")) == (True, False, False)


def test_line_breaks_of_names_are_normalized() -> None:
    form = Form([("queue", "a\r\nb"), ("queue", "\r\n")])
    assert (form.queue("queue"), form.texts("queue", 2)) == ("a\nb", ["a\nb", "\n"])


@pytest.mark.parametrize("name", ["a\x00b", "a\rb", "a\tb", "\x7f", "\ud800", "x" * 256])
def test_name_that_is_invalid_on_the_wire_is_refused(name: str) -> None:
    with pytest.raises(Problem, match="The queue name"):
        Form([("queue", name)]).queue("queue")


def test_time_of_a_form_is_named_with_its_unit() -> None:
    with pytest.raises(TypeError, match=r"\.delay is InUnits but is not named delay_s"):

        class _DelayInput(StrictInput):
            delay: NewTtl = None
