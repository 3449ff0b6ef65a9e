"""Progress of a job: a bar on a terminal, JSON lines elsewhere."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.progress import Progress

from phpmq_lite.cli.progress import JobProgress, progress_line, progress_text, show_progress

Report = tuple[float, str, int, int | None]  # when, phase, done, total
State = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def state() -> State:
    """Return a function that returns the JSON line and the text after some reports."""

    def after(*reports: Report, at_s: float) -> tuple[dict[str, Any], str]:
        now_s = [0.0]
        bars = Progress(disable=True, get_time=lambda: now_s[0], speed_estimate_period=30)
        progress = JobProgress(bars, lambda _: None)
        for now_s[0], phase, done, total in reports:
            progress(phase, done, total)
        now_s[0] = at_s
        return json.loads(progress_line(bars.tasks[0])), progress_text(bars.tasks[0])

    return after


@pytest.mark.parametrize(
    ("reports", "at_s", "figures", "text"),
    [
        pytest.param(
            [(0, "a", 0, 5_000), (10, "a", 1_000, 5_000), (20, "a", 2_000, 5_000)],
            20.0, (2_000, 5_000, 100.0, 30, 20.0), "2,000 of 5,000  100/s", id="rate",
        ),
        pytest.param(
            [(0, "a", 10, None), (10, "a", 20, None), (100, "a", 1_000, None),
             (110, "a", 1_020, None)],
            110.0, (1_020, None, 2.0, None, 110.0), "1,020  2.0/s", id="only the last seconds",
        ),
        pytest.param(
            [(0, "starting", 0, None), (9, "archive", 0, 500)],
            10.0, (0, 500, None, None, 1.0), "0 of 500", id="another phase",
        ),
        pytest.param(
            [(0, "a", 0, None), (1, "a", 900, None), (2, "a", 100, None), (3, "a", 200, None),
             (4, "a", 300, None)],
            4.0, (300, None, 100.0, None, 2.0), "300  100/s", id="a round that begins again",
        ),
        pytest.param(
            [(0, "archive", 0, None), (1, "archive", 5_000_000, 6_000_000),
             (11, "archive", 5_500_000, 6_100_000)],
            11.0, (5_500_000, 6_100_000, 50_000.0, 12, 11.0), "5,500,000 of 6,100,000  50,000/s",
            id="the first offset is no progress",
        ),
        pytest.param([(0, "starting", 0, None)], 75.2, (0, None, None, None, 75.2), "", id="none"),
    ],
)  # fmt: skip
def test_figures_of_a_phase(
    state: State, reports: list[Report], at_s: float, figures: tuple[object, ...], text: str
) -> None:
    line, shown = state(*reports, at_s=at_s)
    names = ("done", "total", "per_s", "remaining_s", "elapsed_s")
    assert tuple(line[name] for name in names) == figures
    assert shown == text


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
