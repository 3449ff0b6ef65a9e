"""The options of frames: fields, bounds, and what an invalid one is refused with."""

import json
from typing import Any

import pytest

from phpmq_lite.frame_options import (
    CONSUME,
    HELLO,
    LATEST_DATE_MS,
    LONGEST_DELAY_S,
    PUBLISH,
    SETTLE,
    TEXT_BYTES,
    TRACEBACK_BYTES,
    Fields,
    OptionError,
    PublishOptions,
    check_options,
    facts_of,
    read_date,
    read_options,
    write_options,
)
from phpmq_lite.protocol.frames import WireLimits
from phpmq_lite.queue_settings import LONGEST_TTL_S

RETRY, DEAD_LETTER, EXTEND = SETTLE["retry"], SETTLE["dead_letter"], SETTLE["extend"]


@pytest.mark.parametrize(
    ("fields", "name", "value", "read"),
    [
        (PUBLISH, "ttl_s", 0, 0),
        (PUBLISH, "ttl_s", 1.001, 1.001),
        (PUBLISH, "ttl_s", LONGEST_TTL_S, LONGEST_TTL_S),
        (PUBLISH, "delay_s", 0.001, 0.001),
        (PUBLISH, "delay_s", LONGEST_DELAY_S, LONGEST_DELAY_S),
        (PUBLISH, "deliver_at", 0, 0),
        (PUBLISH, "deliver_at", 1_800_000_000_000, 1_800_000_000_000),
        (PUBLISH, "deliver_at", 1_800_000_000_000.0, 1_800_000_000_000),
        (PUBLISH, "deliver_at", LATEST_DATE_MS, LATEST_DATE_MS),
        (PUBLISH, "deliver_at", "1800000000000", 1_800_000_000_000),
        (PUBLISH, "deliver_at", "2027-01-15T08:00:00Z", 1_800_000_000_000),
        (PUBLISH, "deliver_at", "2027-01-15T09:00:00.001+01:00", 1_800_000_000_001),
        (PUBLISH, "deliver_at", "2027-01-14T22:30:00-09:30", 1_800_000_000_000),
        (PUBLISH, "priority", 0, 0),
        (PUBLISH, "priority", 255, 255),
        (PUBLISH, "priority", 7.0, 7),
        (PUBLISH, "group", "g", "g"),
        (PUBLISH, "group", "x" * 255, "x" * 255),
        (PUBLISH, "unique_key", "\u00e4" * 32, "\u00e4" * 32),
        (PUBLISH, "if_exists", "keep", "keep"),
        (PUBLISH, "if_exists", "replace", "replace"),
        (RETRY, "attempt", 1, 1),
        (RETRY, "attempt", 10**9, 10**9),
        (RETRY, "limit", 0, 0),
        (RETRY, "failed", False, False),
        (RETRY, "error", "", ""),
        (RETRY, "error", "\u00e4" * TEXT_BYTES, "\u00e4" * (TEXT_BYTES // 2)),
        (RETRY, "error", "x" * (TEXT_BYTES - 1) + "\u00e4", "x" * (TEXT_BYTES - 1)),
        (RETRY, "exception", "x" * 5_000, "x" * TEXT_BYTES),
        (RETRY, "error", "a\0b\ud800", "a\ufffdb?"),
        (RETRY, "traceback", "x" * 16_000, "x" * TRACEBACK_BYTES),
        (DEAD_LETTER, "reason", "x" * 5_000, "x" * TEXT_BYTES),
        (DEAD_LETTER, "traceback", "x" * 16_000, "x" * TRACEBACK_BYTES),
        (EXTEND, "hold_s", 0, 0),
        (EXTEND, "hold_s", 0.25, 0.25),
        (CONSUME, "info", True, True),
        (CONSUME, "keep", False, False),
        (HELLO, "name", "x" * 300, "x" * 200),
        (HELLO, "pid", 4_711, 4_711),
    ],
)
def test_valid_value_is_read(fields: Fields, name: str, value: Any, read: Any) -> None:
    got = read_options(json.dumps({name: value}).encode(), fields)
    assert got == {name: read}
    assert type(got[name]) is type(read)


@pytest.mark.parametrize(
    ("fields", "text", "problem"),
    [
        (PUBLISH, '{"ttl_s": -1}', "ttl_s: must be a number from 0 to 3153600000, not -1"),
        (PUBLISH, '{"ttl_s": 3153600001}', "must be a number from 0 to 3153600000, not 3153"),
        (PUBLISH, '{"ttl_s": "60"}', 'ttl_s: must be a number from 0 to 3153600000, not "60"'),
        (PUBLISH, '{"ttl_s": true}', "not true"),
        (PUBLISH, '{"ttl_s": NaN}', "not NaN"),
        (PUBLISH, '{"delay_s": Infinity}', "not Infinity"),
        (PUBLISH, '{"delay_s": -Infinity}', "not -Infinity"),
        (PUBLISH, '{"delay_s": 1e400}', "not Infinity"),
        (PUBLISH, '{"delay_s": 1%s}' % ("0" * 400), "not 1000"),
        (PUBLISH, '{"delay_s": 1%s}' % ("0" * 6_000), "not valid JSON"),
        (PUBLISH, '{"priority": 256}', "priority: must be a whole number from 0 to 255, not 256"),
        (PUBLISH, '{"priority": 1.5}', "not 1.5"),
        (PUBLISH, '{"priority": NaN}', "not NaN"),
        (PUBLISH, '{"priority": [[1]]}', "not a list"),
        (PUBLISH, '{"priority": %s}' % ("[" * 400 + "]" * 400), "not a list"),
        (PUBLISH, '{"group": {"a": {}}}', "not an object"),
        (PUBLISH, '{"group": ""}', "group: must be a text without NUL of 1 to 255"),
        (PUBLISH, '{"group": "%s"}' % ("\u00e4" * 128), "a text without NUL of 1 to 255 bytes"),
        (PUBLISH, '{"group": "\\ud800"}', 'not "?"'),
        (PUBLISH, '{"group": "a\\u0000"}', "without NUL"),
        (PUBLISH, '{"group": 5}', "not 5"),
        (PUBLISH, '{"unique_key": "%s"}' % ("x" * 65), "must be a text without NUL of 1 to 64"),
        (PUBLISH, '{"if_exists": "drop"}', 'if_exists: must be "keep" or "replace", not "drop"'),
        (PUBLISH, '{"if_exists": []}', 'if_exists: must be "keep" or "replace", not a list'),
        (PUBLISH, '{"deliver_at": "2027-01-15"}', "deliver_at: must be a date up to 2100"),
        (PUBLISH, '{"deliver_at": "2027-01-15T08:00:00"}', "with a UTC offset"),
        (PUBLISH, '{"deliver_at": "2101-01-01T00:00:00Z"}', "a date up to 2100"),
        (PUBLISH, '{"deliver_at": "1969-12-31T00:00:00Z"}', "a date up to 2100"),
        (PUBLISH, '{"deliver_at": "0001-01-01T00:00:00+23:59"}', "a date up to 2100"),
        (PUBLISH, '{"deliver_at": "tomorrow"}', 'not "tomorrow"'),
        (PUBLISH, '{"deliver_at": "%s"}' % ("9" * 6_000), "a date up to 2100"),
        (PUBLISH, '{"deliver_at": "\u0661\u0662"}', "a date up to 2100"),
        (PUBLISH, '{"deliver_at": "2027-01-15T08:00:00\\ud800"}', "a date up to 2100"),
        (PUBLISH, '{"deliver_at": 4102444800001}', "a date up to 2100"),
        (PUBLISH, '{"deliver_at": -1}', "a date up to 2100"),
        (PUBLISH, '{"deliver_at": true}', "not true"),
        (PUBLISH, '{"deliver_at": NaN}', "not NaN"),
        (PUBLISH, '{"ttl": 5}', "ttl: is not an option here; the options are ttl_s, delay_s, "),
        (PUBLISH, '{"%s": 5}' % ("x" * 500), "x: is not an option here"),
        (PUBLISH, '{"\\ud800\\u0000": 5}', "?\ufffd: is not an option here"),
        (PUBLISH, '{"info": true}', "info: is not an option here"),
        (PUBLISH, '{"": 5}', "is not an option here"),
        (PUBLISH, '{"priority": 1, "priority": 1}', "a member occurs more than once"),
        (PUBLISH, '{"priority": {"a": 1, "a": 1}}', "a member occurs more than once"),
        (RETRY, '{"attempt": 0}', "attempt: must be a whole number from 1 to 1000000000, not 0"),
        (RETRY, '{"failed": 1}', "failed: must be true or false, not 1"),
        (RETRY, '{"error": 5}', "error: must be a text without NUL of 0 to 1000 bytes"),
        (RETRY, '{"reason": "no"}', "reason: is not an option here"),
        (RETRY, '{"hold_s": 1}', "hold_s: is not an option here"),
        (DEAD_LETTER, '{"delay_s": 1}', "delay_s: is not an option here"),
        (EXTEND, '{"hold_s": -1}', "hold_s: must be a number from 0"),
        (CONSUME, '{"info": null, "keep": "yes"}', 'keep: must be true or false, not "yes"'),
        (CONSUME, '{"keep": 0}', "not 0"),
        (CONSUME, "", "the options are not valid JSON"),
        (CONSUME, "{", "the options are not valid JSON"),
        (CONSUME, "{}{}", "the options are not valid JSON"),
        (CONSUME, "[" * 16_000, "the options are not valid JSON"),
        (CONSUME, "\ufeff{}", "the options are not valid JSON"),
        (CONSUME, "[]", "the options must be a JSON object"),
        (CONSUME, "null", "the options must be a JSON object"),
        (CONSUME, '"{}"', "the options must be a JSON object"),
    ],
)  # fmt: skip
def test_invalid_option_is_refused_with_its_name_and_bound(
    fields: Fields, text: str, problem: str
) -> None:
    with pytest.raises(OptionError) as raised:
        read_options(text.encode(), fields)
    shown = str(raised.value)
    assert problem in shown
    assert len(shown) < 400  # a receipt, a log line and an event contain it
    assert raised.value.code == "bad_option"
    assert "\0" not in shown.encode().decode()


@pytest.mark.parametrize("content", [b"\xff{}", b"\xc3", "{}".encode("utf-16"), b"\xff\xfe"])
def test_options_are_utf_8(content: bytes) -> None:
    with pytest.raises(OptionError, match="not valid JSON"):
        read_options(content, PUBLISH)


def test_null_leaves_an_option_out() -> None:
    assert read_options(b'{"ttl_s": null, "priority": 3}', PUBLISH) == {"priority": 3}
    assert read_options(b" {} ", PUBLISH) == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, PublishOptions()),
        ({"ttl_s": 0, "delay_s": 1.5}, PublishOptions(ttl_s=0, delay_s=1.5)),
        ({"delay_s": 0, "deliver_at": 5}, PublishOptions(deliver_at=5)),
        ({"unique_key": "k"}, PublishOptions(unique_key="k")),
        ({"if_exists": "keep"}, PublishOptions()),
        (
            {"unique_key": "k", "if_exists": "replace", "group": "g", "priority": 0},
            PublishOptions(unique_key="k", replaces=True, group="g", priority=0),
        ),
    ],
)
def test_options_of_a_publish(options: dict[str, Any], expected: PublishOptions) -> None:
    assert PublishOptions.of(check_options(options, PUBLISH)) == expected


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"delay_s": 1, "deliver_at": 5}, "deliver_at: excludes delay_s"),
        ({"if_exists": "replace"}, "if_exists: replace needs a unique_key"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(OptionError, match=problem):
        PublishOptions.of(check_options(options, PUBLISH))


@pytest.mark.parametrize(
    ("hello", "facts"),
    [
        (b'{"name": "worker", "pid": 5}', {"name": "worker", "pid": 5}),
        (b'{"name": "worker", "pid": -5, "host": 7, "since": "1.9"}', {"name": "worker"}),
        (b'{"name": "a\\u0000\\ud800"}', {"name": "a\ufffd?"}),
        (b"{}", {}),
        (b"[]", {}),
        (b"\xff", {}),
    ],
)
def test_facts_of_a_client_are_what_is_valid_in_its_hello(
    hello: bytes, facts: dict[str, Any]
) -> None:
    """A later client may say more, and is answered all the same."""
    assert facts_of(hello) == facts


def test_written_options_are_read_again() -> None:
    options = {"ttl_s": 1.5, "group": "\u00e4", "unique_key": None}
    content = write_options(options)
    assert content == '{"ttl_s":1.5,"group":"\u00e4"}'.encode()
    assert read_options(content, PUBLISH) == {"ttl_s": 1.5, "group": "\u00e4"}
    assert write_options({"name": "\ud800"}) == b'{"name":"?"}'


def test_date_of_a_form_may_be_empty() -> None:
    assert (read_date(None), read_date(""), read_date("5")) == (None, None, 5)
    with pytest.raises(ValueError, match="must be a date"):
        read_date("soon")


def test_longest_texts_of_a_failure_fit_into_the_packet() -> None:
    longest = {
        name: "x" * int(field.highest) for name, field in RETRY.items() if field.kind == "text"
    }
    assert (
        len(write_options({"action": "retry", "attempt": 10**9, **longest}))
        < WireLimits().max_options
    )
