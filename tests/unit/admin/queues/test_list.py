"""Lists of queues: filter, order and pages, and their other formats."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.output import list_response
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.queues.list import (
    QueuePage,
    QueueQuery,
    QueueSort,
    common_prefixes,
    make_queue_page,
    matches_name,
)
from phpmq_lite.admin.queues.view import QueueView, overview_tiles, queue_cells
from phpmq_lite.text_files import csv_cell
from tests.unit.admin.cases import NOW_MS, broker_status, queue_status


def names(page: QueuePage) -> list[str]:
    return [queue.status.name for queue in page.queues]


def query(**values: object) -> QueueQuery:
    return QueueQuery.model_validate(values)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("mail", True), ("MAIL", True), ("mail*", True), ("*.retry", True), ("m?il*", True),
     ("orders", False), ("[m]ail*", False), ("il.*x", False)],
)  # fmt: skip
def test_name_matches_a_part_or_a_glob(pattern: str, expected: bool) -> None:
    assert matches_name("mail.retry", pattern) is expected


def test_filter_keeps_matching_queues() -> None:
    queues = [
        queue_status("idle", 1, consumers=1),
        queue_status("full", 2, ready=5, consumers=1),
        queue_status("lonely", 3),
        queue_status("stopped", 4, consumers=1, publishing_paused=True),
        queue_status("sad", 5, dead=1, consumers=1),
    ]
    found = {
        has: names(make_queue_page(queues, {}, query(has=has)))
        for has in ("backlog", "no-consumer", "paused", "dead")
    }
    assert found == {
        "backlog": ["full"],
        "no-consumer": ["lonely"],
        "paused": ["stopped"],
        "dead": ["sad"],
    }


def test_age_puts_the_longest_waiting_first() -> None:
    queues = [queue_status(name, at) for at, name in enumerate(("none", "young", "old"))]
    ages = {1: NOW_MS - 5, 2: NOW_MS - 500}
    assert names(make_queue_page(queues, ages, query(sort="-age"))) == ["old", "young", "none"]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=25),
    st.sampled_from(get_args(QueueSort)),
    st.integers(1, 7),
)
def test_pages_have_every_queue_once(values: list[tuple[int, int]], sort: str, limit: int) -> None:
    queues = [
        queue_status(f"q{at % 5}{at}", at, ready=ready, dead=dead, published_per_s=ready / 2)
        for at, (ready, dead) in enumerate(values)
    ]
    ages = {at: NOW_MS - ready for at, (ready, _) in enumerate(values) if ready}
    whole = names(make_queue_page(queues, ages, query(sort=sort, limit=200)))
    page = make_queue_page(queues, ages, query(sort=sort, limit=limit))
    there = names(page)
    while page.next:
        page = make_queue_page(queues, ages, query(sort=sort, limit=limit, cursor=page.next))
        there += names(page)
    back = names(page)
    while page.previous:
        page = make_queue_page(queues, ages, query(sort=sort, limit=limit, cursor=page.previous))
        back = names(page) + back
    assert there == back == whole


def test_cursor_continues_after_a_removed_queue_but_not_in_another_order() -> None:
    queues = [queue_status(name, at) for at, name in enumerate("abcd")]
    cursor = make_queue_page(queues, {}, query(limit=2)).next
    assert names(make_queue_page(queues[2:], {}, query(limit=2, cursor=cursor))) == ["c", "d"]
    with pytest.raises(Problem):
        make_queue_page(queues, {}, query(limit=2, cursor=cursor, sort="-ready"))


@pytest.mark.parametrize(
    ("value", "cell"),
    [("=1+1", "'=1+1"), ("@x", "'@x"), ("\tx", "'\tx"), ("\n=x", "'\n=x"),
     ("\uff1d1", "'\uff1d1"), ("plain", "plain"), (-5, "-5"),
     (None, ""), (True, "true"), ({"a": 1}, '{"a": 1}')],
)  # fmt: skip
def test_cell_is_never_a_formula(value: object, cell: str) -> None:
    assert csv_cell(value) == cell


def test_lines_end_with_complete() -> None:
    items = [QueueView.of_status(queue_status("=a"), None, NOW_MS)]
    text = list_response("jsonl", QueueView, items, "next").text
    assert text is not None
    assert text.splitlines()[-1] == '{"complete": true, "count": 1, "next": "next"}'


def test_empty_csv_has_its_head() -> None:
    text = list_response("csv", QueueView, []).text
    assert text is not None
    assert text.startswith("queue_id,name,ready")


def test_tiles_count_dead_letter_records_once() -> None:
    status = broker_status(
        queue_status("orders", 1, ready=5, dead=2, published_per_s=1.5),
        queue_status("orders.dlq", 2, ready=3),
        queue_status("orders.retry", 3, dead_letter_queue="orders.dlq"),
        queue_status("returns", 4, dead=1, dead_letter_queue="orders.dlq"),
    )
    shown = overview_tiles(status, {1: NOW_MS - 60_000, 2: NOW_MS - 9_000_000}, NOW_MS)
    picked = {key: shown[f"total.{key}"] for key in ("ready", "dead", "age", "in", "queues")}
    assert picked == {"ready": "5", "dead": "3", "age": "1 min", "in": "1.5", "queues": "4"}


def test_cells_of_a_queue_have_a_dash_where_nothing_waits() -> None:
    cells = queue_cells(queue_status(ready=1_204), None, NOW_MS)
    assert (cells["ready"], cells["age"]) == ("1,204", "–")


def test_names_are_grouped_at_the_dot() -> None:
    names = ["a.b", "a.b.c", "a.x", "ab", "orders", "orders.dlq", "orders.dlq.x", "..", "..."]
    assert common_prefixes(names) == {
        "a.b.c": "a.b.",
        "a.x": "a.",
        "orders.dlq": "orders.",
        "orders.dlq.x": "orders.dlq.",
    }
    assert common_prefixes(["orders.eu"]) == {}


def test_client_name_has_what_is_known() -> None:
    assert formats.client_name(None, None, None) == "nobody"
    assert formats.client_name(0, None, None) == "the admin page or API"
    assert formats.client_name(5, None, None) == "client 5"
    assert formats.client_name(5, "tcp", "h:1") == "client 5 · tcp h:1"
