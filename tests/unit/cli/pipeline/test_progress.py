"""Progress of a job: rates, the time left, lines where nobody sits."""

import io
import json

import pytest

from phpmq_lite.cli.progress import (
    PhaseMeter,
    ProgressState,
    progress_line,
    progress_text,
    show_progress,
)


def test_rate_and_time_left_come_from_the_last_seconds() -> None:
    meter = PhaseMeter()
    meter.report("archive", 0, 10_000, 100.0)
    meter.report("archive", 1_000, 10_000, 110.0)
    assert meter.state(110.0) == ProgressState("archive", 1_000, 10_000, 100.0, 90.0, 10.0)


def test_time_without_progress_lowers_the_rate() -> None:
    meter = PhaseMeter()
    meter.report("archive", 0, 10_000, 100.0)
    meter.report("archive", 1_000, 10_000, 110.0)
    assert meter.state(120.0).per_s == 50.0


def test_what_is_long_past_does_not_count_in_the_rate() -> None:
    meter = PhaseMeter()
    for at_s, done in ((0.0, 0), (10.0, 10), (100.0, 1_000), (110.0, 2_000)):
        meter.report("archive", done, None, at_s)
    assert meter.state(110.0).per_s == 100.0


def test_another_phase_begins_anew() -> None:
    meter = PhaseMeter()
    assert meter.report("starting Spark", 0, None, 0.0)
    assert not meter.report("starting Spark", 0, None, 5.0)
    assert meter.report("archive", 0, 500, 9.0)
    assert meter.state(10.0) == ProgressState("archive", 0, 500, None, None, 1.0)


def test_round_that_begins_again_counts_from_there() -> None:
    meter = PhaseMeter()
    for at_s, done in ((0.0, 0), (1.0, 900), (2.0, 100), (3.0, 200)):
        meter.report("archive", done, None, at_s)
    assert meter.state(3.0).per_s == 100.0


def test_offset_where_a_run_begins_is_no_progress() -> None:
    """The command names the phase before the job knows where it begins."""
    meter = PhaseMeter()
    meter.report("archive", 0, None, 0.0)
    meter.report("archive", 5_000_000, 6_000_000, 1.0)
    assert meter.state(2.0) == ProgressState("archive", 5_000_000, 6_000_000, None, None, 2.0)
    meter.report("archive", 5_500_000, 6_000_000, 11.0)
    assert meter.state(11.0).per_s == 50_000.0


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (ProgressState("x", 0, None, None, None, 75.2), "1:15 gone"),
        (ProgressState("x", 1_200, 5_000, 300.0, 12.7, 4.0), "1,200 of 5,000  300/s  0:13 left"),
        (ProgressState("x", 0, 5_000, None, None, 4.0), "0 of 5,000"),
        (ProgressState("x", 7, None, 2.0, None, 4.0), "7  2.0/s"),
        (ProgressState("x", 1, 9, 0.001, 8_000.0, 4.0), "1 of 9  0.0/s  2:13:20 left"),
    ],
)
def test_figures_are_written_for_people(state: ProgressState, expected: str) -> None:
    assert progress_text(state) == expected


def test_line_has_null_where_nothing_is_known() -> None:
    assert json.loads(
        progress_line(ProgressState("starting Spark", 0, None, None, None, 3.14))
    ) == {
        "phase": "starting Spark",
        "done": 0,
        "total": None,
        "per_s": None,
        "remaining_s": None,
        "elapsed_s": 3.1,
    }


def test_file_gets_a_line_for_each_phase_and_none_for_each_report() -> None:
    stream = io.StringIO()
    with show_progress(stream) as progress:
        progress("starting Spark")
        for done in range(500):
            progress("archive", done, 500)
        progress.note("stopping after this batch")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line.get("phase", line.get("note")) for line in lines] == [
        "starting Spark",
        "archive",
        "stopping after this batch",
    ]


def test_terminal_gets_no_json() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with show_progress(stream) as progress:
        progress("archive", 1, 2)
        progress.note("[bold]as it is[/]")
    assert '{"' not in stream.getvalue()
    assert "[bold]as it is[/]" in stream.getvalue()
