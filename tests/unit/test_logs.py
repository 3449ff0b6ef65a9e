"""The log: formats, escapes, rate limits, and the lines kept for the admin page."""

import io
import json
import logging
from typing import Any

import pytest

from phpmq_lite import logs


@pytest.fixture
def stream(log_stream: io.StringIO) -> io.StringIO:
    logs.configure(stream=log_stream)
    return log_stream


class Terminal(io.StringIO):
    """A stream that pretends to be a terminal."""

    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_line_has_event_level_time_and_area(stream: io.StringIO) -> None:
    logs.get_logger("phpmq_lite.server.session").info("opened", client=7)
    (line,) = lines(stream)
    assert line.pop("ts").endswith("Z")
    assert line == {"event": "opened", "level": "info", "area": "server.session", "client": 7}


def test_lines_of_libraries_have_the_same_format(stream: io.StringIO) -> None:
    logging.getLogger("asyncio").error("slow %s", "x\x1b[31m")
    (line,) = lines(stream)
    assert (line["event"], line["level"]) == ("slow x\\x1b[31m", "error")


@pytest.mark.parametrize("style", ["json", "console"])
def test_hostile_text_is_escaped_everywhere(stream: io.StringIO, style: Any) -> None:
    logs.configure(style=style, stream=stream)
    hostile = "a\x1b[2J\n\u202eb\x9b"
    logs.get_logger("x").info(
        hostile, text=hostile, raw=hostile.encode(), deep=[{hostile: (hostile,)}], other=Exception
    )
    written = stream.getvalue()
    assert not set(written[:-1]) & set("\x1b\n\u202e\x9b")


def test_plain_text_of_any_script_is_not_escaped() -> None:
    assert logs.escape("Größe 注文 🙂") == "Größe 注文 🙂"


def test_format_is_console_on_a_terminal_only(stream: io.StringIO) -> None:
    logs.get_logger("x").info("hello")
    assert stream.getvalue().startswith("{")
    terminal = Terminal()
    logs.configure(stream=terminal)
    logs.get_logger("x").info("hello")
    assert not terminal.getvalue().startswith("{")


def test_console_has_no_colours_with_no_color(
    log_stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    logs.configure(stream=terminal)
    logs.get_logger("x").info("hello")
    assert "\x1b" not in terminal.getvalue()


def test_ten_lines_of_a_kind_are_written_in_a_minute() -> None:
    limit = logs.RateLimit(10, 60)
    assert [limit.count("a", 0.0)[0] for _ in range(12)] == [True] * 10 + [False] * 2
    assert limit.count("b", 0.0) == (True, 0)
    assert limit.count("a", 59.9) == (False, 0)


def test_next_minute_reports_the_suppressed_lines() -> None:
    limit = logs.RateLimit(10, 60)
    for _ in range(13):
        limit.count("a", 0.0)
    assert limit.count("a", 60.0) == (True, 3)
    assert limit.count("a", 60.0) == (True, 0)


def test_suppressed_lines_are_logged_before_the_next_line(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = logs.RateLimit(1, window_s=0)  # every call begins a new window
    monkeypatch.setattr(logs, "_peers", limit)
    limit._kinds["x"] = (0.0, 3)
    assert not logs.is_quiet("x")
    (line,) = lines(stream)
    assert (line["event"], line["kind"], line["count"]) == ("lines_not_shown", "x", 2)


def test_peer_is_quiet_after_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_peers", logs.RateLimit(1, window_s=1e9))
    assert [logs.is_quiet("x") for _ in range(3)] == [False, True, True]


@pytest.fixture
def recent(monkeypatch: pytest.MonkeyPatch) -> logs.RecentLogLines:
    made = logs.RecentLogLines(lines=5, size=4_000)
    monkeypatch.setattr(logs, "recent", made)
    return made


def test_newest_lines_are_kept_escaped_with_their_members(
    stream: io.StringIO, recent: logs.RecentLogLines
) -> None:
    logs.get_logger("phpmq_lite.server.session").warning("bad\x1b", client=7, code="a\nb", ids=[1])
    logging.getLogger("asyncio").error("slow")
    lines = recent.lines()
    assert [(line.level, line.area, line.event, line.fields) for line in lines] == [
        ("error", "asyncio", "slow", ""),
        ("warning", "server.session", "bad\\x1b", "client=7 code=a\\nb ids=[1]"),
    ]


def test_lines_are_kept_up_to_a_number_and_a_size(
    stream: io.StringIO, recent: logs.RecentLogLines
) -> None:
    log = logs.get_logger("x")
    for number in range(8):
        log.info("line", n=number)
    assert [line.fields for line in recent.lines()] == [f"n={n}" for n in (7, 6, 5, 4, 3)]
    for _ in range(4):
        log.info("long", text="x" * 1_500)
    assert len(recent.lines()) == 2


def test_line_that_is_too_long_is_truncated() -> None:
    recent = logs.RecentLogLines()
    recent.add({"event": "x" * 100_000, "level": "info"})
    (line,) = recent.lines()
    assert len(line.event) == logs.LINE_BYTES + 1


def test_lines_are_filtered_by_level(stream: io.StringIO, recent: logs.RecentLogLines) -> None:
    logs.configure("debug", stream=stream)
    log = logs.get_logger("x")
    for level in ("debug", "info", "warning", "error"):
        getattr(log, level)(level)
    assert [line.event for line in recent.lines("warning")] == ["error", "warning"]


def test_traceback_keeps_its_lines_and_is_kept_separately(
    stream: io.StringIO, recent: logs.RecentLogLines
) -> None:
    try:
        raise ValueError("bad \x1b")
    except ValueError:
        logs.get_logger("x").exception("failed")
    (line,), (kept,) = lines(stream), recent.lines()
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("ValueError: bad \\x1b")
    assert (kept.detail, kept.fields) == (line["exception"], "")


def test_access_log_is_written_and_not_kept(
    stream: io.StringIO, recent: logs.RecentLogLines
) -> None:
    logs.get_logger("phpmq_lite.access").info("request", path="/")
    assert lines(stream)[0]["area"] == "access"
    assert recent.lines() == []


def test_level_can_change_while_loggers_are_in_use(stream: io.StringIO) -> None:
    logs.configure("warning", stream=stream)
    log = logs.get_logger("x")
    log.info("no")
    log.warning("yes")
    logs.set_level("info")
    log.info("now too")
    logs.set_level("error")
    log.warning("no")
    assert [line["event"] for line in lines(stream)] == ["yes", "now too"]


def test_set_up_token_is_not_kept(stream: io.StringIO, recent: logs.RecentLogLines) -> None:
    """Until there is a user, every account of this machine can read the kept lines."""
    logs.get_logger("x").info("no_users", token="secret", setup="/setup")
    assert "secret" in stream.getvalue()
    assert recent.lines()[0].fields == "setup=/setup"
