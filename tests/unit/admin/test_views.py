"""What templates show of rows and figures."""

from phpmq_lite.admin.base import formats
from phpmq_lite.admin.views import queue_list
from phpmq_lite.admin.views.queue_list import ListedQueue
from tests.unit.admin.cases import NOW_MS, broker_status, queue_status


def test_tiles_count_dead_letter_records_once() -> None:
    status = broker_status(
        queue_status("orders", 1, ready=5, dead=3, published_per_s=1.5),
        queue_status("orders.dlq", 2, ready=3),
        queue_status("orders.retry", 3, dead=3, dead_letter_queue="orders.dlq"),
        queue_status("returns", 4, dead=3, dead_letter_queue="orders.dlq"),
    )
    shown = queue_list.overview_tiles(status, {1: NOW_MS - 60_000, 2: NOW_MS - 9_000_000}, NOW_MS)
    picked = {key: shown[f"total.{key}"] for key in ("ready", "dead", "age", "in", "queues")}
    assert picked == {"ready": "5", "dead": "3", "age": "1 min", "in": "1.5", "queues": "4"}


def test_figures_of_a_queue_have_a_dash_where_nothing_waits() -> None:
    shown = queue_list.queue_figures(ListedQueue(queue_status(ready=1_204), None), NOW_MS)
    assert (shown["ready"], shown["age"]) == ("1,204", "–")


def test_names_are_grouped_at_the_dot() -> None:
    names = ["a.b", "a.b.c", "a.x", "ab", "orders", "orders.dlq", "orders.dlq.x", "..", "..."]
    assert queue_list.common_prefixes(names) == {
        "a.b.c": "a.b.",
        "a.x": "a.",
        "orders.dlq": "orders.",
        "orders.dlq.x": "orders.dlq.",
    }


def test_first_name_of_a_group_is_whole() -> None:
    assert queue_list.common_prefixes(["orders.eu"]) == {}


def test_client_is_named_as_far_as_it_is_known() -> None:
    assert formats.client_name(None, None, None) == "nobody"
    assert formats.client_name(0, None, None) == "this page or API"
    assert formats.client_name(5, None, None) == "client 5"
    assert formats.client_name(5, "tcp", "h:1") == "client 5 · tcp h:1"
