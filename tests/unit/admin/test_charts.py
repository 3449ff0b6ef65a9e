"""Charts: lines with gaps, axes, descriptions, tables and well-formed SVG."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import jinja2
import pytest

from phpmq_lite.admin import charts
from phpmq_lite.admin.page_environment import page_environment
from phpmq_lite.admin.trends import PERIODS, Trend, TrendBucket
from phpmq_lite.installation import templates_folder
from tests.unit.admin.cases import HOSTILE

START_S = 1_700_002_800  # on the hour
BUSY = TrendBucket(published=20.0, acked=10.0, ready=100, held=5, oldest_age_ms=90_000,
              wait_p50_ms=12, wait_p95_ms=340, hold_p50_ms=2, hold_p95_ms=9)  # fmt: skip


def made(*buckets: TrendBucket | None, span: str = "1h") -> Trend:
    """Return a trend that ends with these buckets and has no data before them."""
    count = PERIODS[span].length_s // PERIODS[span].step_s
    return Trend(PERIODS[span], START_S, [None] * (count - len(buckets)) + list(buckets))


def line(chart: charts.Chart, key: str) -> charts.ChartLine:
    return next(one for one in chart.lines if one.key == key)


def test_gap_cuts_a_line_into_runs() -> None:
    chart = charts.draw_trend("depth", made(BUSY, BUSY, None, BUSY, BUSY))
    ready = line(chart, "ready")
    assert [run.count(",") for run in ready.runs] == [2, 2]
    assert len(ready.areas) == 2


def test_lone_point_is_drawn_as_a_short_line() -> None:
    [run] = line(charts.draw_trend("depth", made(BUSY, None)), "ready").runs
    (left, _), (right, _) = [point.split(",") for point in run.split()]
    assert int(left) < int(right)


def test_line_lies_within_the_plot() -> None:
    chart = charts.draw_trend(
        "rates", made(*(replace(BUSY, published=at * 7.3) for at in range(180)))
    )
    places = [tuple(map(float, point.split(","))) for point in line(chart, "in").runs[0].split()]
    assert all(0 <= x <= chart.width and 0 <= y <= charts.HEIGHT for x, y in places)


@pytest.mark.parametrize(
    ("top", "step"),
    [(0, 1.0), (3, 1.0), (4, 1.0), (7, 2.0), (100, 50.0), (1_204, 500.0), (0.3, 0.1), (9e6, 5e6)],
)
def test_axis_has_round_steps(top: float, step: float) -> None:
    assert charts.round_step(top) == pytest.approx(step)


def test_linear_axis_begins_at_zero_and_reaches_the_highest_value() -> None:
    chart = charts.draw_trend("depth", made(replace(BUSY, ready=1_204)))
    assert [mark.text for mark in chart.scale] == ["1,500", "1,000", "500", "0"]
    assert [mark.at for mark in chart.scale][::3] == [0, 100]


def test_times_from_milliseconds_to_days_fit_one_axis() -> None:
    chart = charts.draw_trend(
        "waits", made(replace(BUSY, wait_p50_ms=3, oldest_age_ms=3 * 86_400_000))
    )
    texts = [mark.text for mark in chart.scale]
    assert texts[0] in ("10 d", "100 d")
    assert texts[-1] in ("1 ms", "10 ms")
    assert len(texts) <= 7


def test_age_is_dashed_and_continues_without_percentiles() -> None:
    stalled = replace(BUSY, wait_p50_ms=None, wait_p95_ms=None)
    chart = charts.draw_trend("waits", made(BUSY, *[stalled] * 10))
    age = line(chart, "age")
    assert age.is_dashed
    assert age.newest == "1 min"
    assert age.runs[0].count(",") == 11
    assert line(chart, "p95").newest == "–"  # too old to count as current


def test_chart_without_data_says_so() -> None:
    chart = charts.draw_trend("holds", made())
    assert chart.is_empty
    assert "Nothing was measured" in chart.about


def test_description_has_range_last_value_and_gaps() -> None:
    chart = charts.draw_trend("depth", made(replace(BUSY, ready=7), replace(BUSY, ready=1_204)))
    assert "Ready: from 7 to 1,204, last 1,204." in chart.about
    assert "No data for 178 of 180 steps." in chart.about


@pytest.mark.parametrize("span", PERIODS)
def test_time_axis_has_a_few_round_times(span: str) -> None:
    marks = charts.time_marks(made(span=span))
    assert 3 <= len(marks) <= 6
    assert all(mark.iso.endswith(":00Z") for mark in marks)


def test_table_has_the_numbers_of_the_lines_newest_first_without_gaps() -> None:
    table = charts.trend_table(charts.TREND_CHARTS, made(BUSY, None, replace(BUSY, ready=3)))
    cells = [dict(zip(table.head, row, strict=True)) for _, _, row in table.rows]
    assert [row["Ready"] for row in cells] == ["3", "100"]
    assert cells[0]["Published/s"] == "20"
    assert cells[0]["Wait, 95 %"] == "340 ms"
    assert table.rows[0][0] == "2023-11-14T23:59:40Z"


def test_dead_letters_are_drawn_only_where_there_are_any() -> None:
    trend = made(BUSY)
    assert len(charts.draw_trend("depth", trend, made(replace(BUSY, ready=0))).lines) == 2
    assert (
        line(charts.draw_trend("depth", trend, made(replace(BUSY, ready=4))), "dead").newest == "4"
    )


def rendered(source: str, **values: object) -> str:
    templates: jinja2.Environment = page_environment(templates_folder())
    head = '{% from "_partials/charts.html" import chart, numbers, spans with context %}'
    return templates.from_string(head + source).render(**values)


@pytest.mark.parametrize("name", [*HOSTILE, "]]></svg><script>"])
def test_svg_is_well_formed_for_any_queue_name(name: str) -> None:
    waits = charts.draw_trend("waits", made(BUSY, None, BUSY))
    chart = replace(waits, title=name, about=f"of {name} & more")
    text = rendered("{{ chart(made, name) }}", made=chart, name=name)
    figure = ElementTree.fromstring(text)
    assert figure.find("svg/title") is not None
    assert figure.find("svg/desc") is not None
    assert figure.find(".//script") is None
    assert len(figure.findall(".//polyline")) == 6


def test_svg_has_no_inline_style_and_is_small() -> None:
    chart = charts.draw_trend("rates", made(*[BUSY] * 180))
    text = rendered("{{ chart(made) }}", made=chart)
    assert re.search(r"\sstyle=|<style|\son\w+=", text) is None
    assert len(text) < 10_000


def test_spans_are_links_and_keep_the_rest_of_the_url() -> None:
    text = rendered(
        '{{ spans("24h", "queue", q="a/b") }}',
        url=lambda route, **given: f"{route}|{given['q']}|{given['span']}",
    )
    assert re.findall(r'href="([^"]*)"', text) == [
        "queue|a/b|", "queue|a/b|24h", "queue|a/b|7d", "queue|a/b|30d"
    ]  # fmt: skip
    assert text.count("aria-current") == 1
