"""The history chart: slices with edges and gaps, columns, links that keep the filter."""

import re
from xml.etree import ElementTree

import jinja2
import pytest

from phpmq_lite.admin import history_chart
from phpmq_lite.admin.history_chart import ChosenPeriod, HistorySlice
from phpmq_lite.admin.page_environment import page_environment
from phpmq_lite.admin.urls import Urls
from phpmq_lite.installation import templates_folder
from phpmq_lite.model import OUTCOMES
from phpmq_lite.storage.read.activity import Point, UptimeSpan

NOW_S = 1_767_326_400 + 1_234  # 2026-01-02 04:20:34 UTC
HOUR_S = 1_767_326_400  # start of the slice that contains now, with slices of an hour
DAY = history_chart.SPANS["24h"]
ROUTE = {"history": "/history"}


def beat(at_s: int, span_s: int = 60, *, has_rest: bool = False) -> UptimeSpan:
    return UptimeSpan(at_s, span_s, has_rest)


def cut(
    *points: Point, beats: tuple[UptimeSpan, ...] = (), span: str = "24h"
) -> list[HistorySlice]:
    ran = beats or tuple(beat(point.at_s, point.span_s) for point in points)
    return history_chart.count_slices(points, ran, history_chart.SPANS[span], NOW_S)


def drawn(
    *points: Point,
    chosen: ChosenPeriod | None = None,
    outcome: str | None = None,
    span: str = "24h",
) -> history_chart.HistoryChart:
    return history_chart.draw_history(
        cut(*points, span=span), history_chart.SPANS[span], NOW_S, chosen or ChosenPeriod(), outcome
    )


def rendered(made: history_chart.HistoryChart, **kept: str) -> str:
    templates: jinja2.Environment = page_environment(templates_folder())
    head = '{% from "_partials/history_chart.html" import brush_chart with context %}'
    text = templates.from_string(head + "<div>{{ brush_chart(made, kept) }}</div>")
    return text.render(made=made, kept=kept, url=Urls("", ROUTE).to)


@pytest.mark.parametrize("key", history_chart.SPANS)
def test_slices_are_about_24_round_and_end_after_now(key: str) -> None:
    found, step_s = cut(span=key), history_chart.SPANS[key].step_s
    assert 20 <= len(found) <= 30
    assert all(one.start_s % step_s == 0 and one.end_s == one.start_s + step_s for one in found)
    assert [one.end_s for one in found[:-1]] == [one.start_s for one in found[1:]]
    assert found[-1].start_s <= NOW_S < found[-1].end_s


def test_point_counts_in_the_slice_that_it_begins_in_and_not_in_the_next() -> None:
    later = Point(HOUR_S, 60, acked=7, expired=2, deleted=4)
    found = cut(Point(HOUR_S - 60, 60, acked=3, dead=1), later)
    assert [one.counts for one in found[-2:]] == [(3, 0, 1, 0), (7, 2, 0, 4)]


def test_point_over_an_edge_is_shared_by_its_seconds() -> None:
    found = cut(Point(HOUR_S - 15, 60, acked=40))
    assert [one.counts for one in found[-2:]] == [(10, 0, 0, 0), (30, 0, 0, 0)]


def test_points_before_the_first_slice_or_in_the_future_are_left_out() -> None:
    start_s = cut()[0].start_s
    found = cut(Point(start_s - 60, 60, acked=1), Point(HOUR_S + 3_600, 60, acked=1))
    assert {one.counts for one in found} == {None}


def test_time_without_the_broker_is_a_gap_and_idle_time_is_zero() -> None:
    found = cut(beats=(beat(HOUR_S - 7_200), beat(HOUR_S)))
    assert [one.counts for one in found[-3:]] == [(0, 0, 0, 0), None, (0, 0, 0, 0)]


def test_queue_that_may_have_been_counted_with_others_is_unknown() -> None:
    rest = beat(HOUR_S - 3_600, has_rest=True), beat(HOUR_S, has_rest=True)
    found = cut(Point(HOUR_S, 60, acked=5), beats=rest)
    assert [one.counts for one in found[-2:]] == [None, (5, 0, 0, 0)]


def test_columns_stack_from_the_bottom_and_stay_within_the_plot() -> None:
    made = drawn(Point(HOUR_S, 60, acked=1_000, expired=100, dead=50, deleted=50))
    bars = made.columns[-1].bars
    assert [bar.key for bar in bars] == list(OUTCOMES)
    assert bars[0].y + bars[0].height == pytest.approx(100)
    assert bars[0].y == pytest.approx(bars[1].y + bars[1].height)
    assert all(bar.y >= 0 and bar.x >= 0 and bar.x + bar.width <= 100 for bar in bars)


def test_single_death_among_many_acked_is_seen() -> None:
    bars = drawn(Point(HOUR_S, 60, acked=1_000_000, dead=1)).columns[-1].bars
    assert bars[-1].key == "dead"
    assert bars[-1].height >= 1


@pytest.mark.parametrize(
    ("most", "texts"),
    [(1, ["1", "0"]), (3, ["3", "2", "1", "0"]), (1_204, ["1,500", "1,000", "500", "0"])],
)
def test_axis_has_whole_numbers(most: int, texts: list[str]) -> None:
    assert [mark.text for mark in drawn(Point(HOUR_S, 60, acked=most)).scale] == texts


def test_title_says_time_and_count() -> None:
    made = drawn(Point(HOUR_S - 3_600, 60, acked=1_200, dead=4))
    assert [column.title for column in made.columns[-2:]] == [
        "03:00 to 04:00: 1,204 settled", "04:00 to 05:00: no data",
    ]  # fmt: skip


def test_one_outcome_is_drawn_alone_and_on_its_own_scale() -> None:
    made = drawn(Point(HOUR_S, 60, acked=90_000, dead=4), outcome="dead")
    assert [bar.key for bar in made.columns[-1].bars] == ["dead"]
    assert made.columns[-1].title == "04:00 to 05:00: 4 dead"
    assert (made.scale[0].text, made.sums) == ("4", ["4"])


def test_empty_chart_says_whether_there_is_no_data() -> None:
    idle = drawn(Point(HOUR_S, 60, published=4))
    assert idle.nothing == "No settled messages in this period."
    assert drawn().nothing == "No data for this period."
    assert "<svg" not in rendered(idle)


def test_description_has_sums_peak_and_gaps() -> None:
    about = drawn(Point(HOUR_S, 60, acked=5, dead=1), Point(HOUR_S - 3_600, 60, acked=2)).about
    assert "7 acked, 0 expired, 1 dead, 0 deleted." in about
    assert "Highest count in 04:00 to 05:00: 6 settled." in about
    assert "No data for 22 steps." in about


def test_chosen_slice_is_shaded_as_wide_as_it_is() -> None:
    made = drawn(chosen=ChosenPeriod(HOUR_S * 1_000, (HOUR_S + 3_600) * 1_000))
    column = made.columns[-1]
    assert made.shade == pytest.approx((column.x, column.width))
    assert [one.is_chosen for one in made.columns[-2:]] == [False, True]


def test_chosen_slice_is_marked_in_the_drawing_and_in_the_table() -> None:
    chosen = ChosenPeriod(HOUR_S * 1_000, (HOUR_S + 3_600) * 1_000)
    text = rendered(drawn(Point(HOUR_S, 60, acked=1), chosen=chosen))
    assert '<rect class="chosen"' in text
    assert 'aria-current="true">04:00 to 05:00</a>' in text


def test_open_and_overlapping_times_are_shaded_up_to_the_edge() -> None:
    since = drawn(chosen=ChosenPeriod(since=HOUR_S * 1_000)).shade
    until = drawn(chosen=ChosenPeriod(until=HOUR_S * 1_000)).shade
    width = (100 - history_chart.INSET) / 24
    assert since == pytest.approx((100 - width, width))
    assert until == pytest.approx((history_chart.INSET, 23 * width))


@pytest.mark.parametrize(
    "chosen",
    [ChosenPeriod(), ChosenPeriod(0, 1), ChosenPeriod(5_000, 4_000), ChosenPeriod(1 << 49)],
)
def test_nothing_is_shaded_without_a_choice_or_outside(chosen: ChosenPeriod) -> None:
    assert drawn(chosen=chosen).shade is None


@pytest.mark.parametrize(
    ("since", "until", "text"),
    [
        (HOUR_S, HOUR_S + 3_600, "04:00 to 05:00 UTC"),
        (HOUR_S - 5 * 3_600, HOUR_S - 4 * 3_600, "Jan 1, 23:00 to 24:00 UTC"),
        (HOUR_S - 5 * 3_600, HOUR_S, "Jan 1, 23:00 to Jan 2, 04:00 UTC"),
        (HOUR_S - 28 * 3_600, HOUR_S - 4 * 3_600, "Jan 1 UTC"),
        (HOUR_S - 52 * 3_600, HOUR_S - 28 * 3_600, "Dec 31 2025 UTC"),
        (HOUR_S + 5, HOUR_S + 65, "04:00:05 to 04:01:05 UTC"),
        (HOUR_S, None, "Since 04:00 UTC"),
        (None, HOUR_S - 5 * 3_600, "Before Jan 1, 23:00 UTC"),
        (None, None, ""),
    ],
)
def test_chosen_time_is_formatted(since: int | None, until: int | None, text: str) -> None:
    times = (None if at_s is None else at_s * 1_000 for at_s in (since, until))
    assert history_chart.format_chosen(ChosenPeriod(*times), NOW_S * 1_000) == text


@pytest.mark.parametrize("far_ms", [10**15 - 1, -(10**15), 253_402_300_799_999])
def test_times_beyond_the_calendar_are_formatted(far_ms: int) -> None:
    assert history_chart.format_chosen(ChosenPeriod(0, far_ms), NOW_S * 1_000).endswith(" UTC")
    assert history_chart.format_chosen(ChosenPeriod(far_ms, far_ms), NOW_S * 1_000).endswith(" UTC")
    drawn(chosen=ChosenPeriod(far_ms, None))


def test_links_lead_to_the_time_of_their_slice_and_keep_the_rest() -> None:
    made = drawn(Point(HOUR_S, 60, acked=5))
    root = ElementTree.fromstring(rendered(made, queue="a&b", outcome="acked", span="24h"))
    links = root.findall("figure/svg/a")
    rest = "&queue=a%26b&outcome=acked&span=24h"
    assert len(links) == 24
    time = "since=2026-01-02T04%3A00&until=2026-01-02T05%3A00"
    assert links[-1].get("href") == f"/history?{time}{rest}"
    assert all((link.get("href") or "").endswith(rest) for link in links)


def test_table_has_the_same_links_for_the_keyboard_and_the_drawing_none() -> None:
    root = ElementTree.fromstring(rendered(drawn(Point(HOUR_S, 60, acked=5))))
    [drawing] = root.findall("figure/svg")
    assert drawing.get("aria-hidden") == "true"
    assert {link.get("tabindex") for link in drawing.findall("a")} == {"-1"}
    [link] = root.findall("details//tbody//a")  # without gaps
    assert link.get("href") == drawing.findall("a")[-1].get("href")
    assert link.text == "04:00 to 05:00"


def test_drawing_has_no_inline_style_and_is_small() -> None:
    points = [Point(HOUR_S - at * 3_600, 60, acked=9, expired=3, dead=1, deleted=2)
              for at in range(24)]  # fmt: skip
    text = rendered(drawn(*points), queue="orders", span="24h")
    assert re.search(r"\sstyle=|<style|<script|\son\w+=", text) is None
    assert len(text) < 40_000
