"""Metrics as Prometheus reads them."""

from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from phpmq_lite.admin import metrics
from phpmq_lite.server.status import Status
from tests.unit.admin.cases import HOSTILE, NOW_MS, broker_status, client_status, queue_status

Samples = dict[tuple[str, str], float]


def samples(status: Status, ages: dict[int, int] | None = None) -> Samples:
    requests = Counter({("overview", "GET", 200): 3})
    text = metrics.render(status, ages or {}, requests, "0.1.0", NOW_MS).decode()
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_have_the_figures_of_a_queue() -> None:
    queue = queue_status(
        ready=5, dispatched=2, dead=1, consumers=3, publishing_paused=True,
        totals={"published": 9, "acked": 2},
    )  # fmt: skip
    found = samples(broker_status(queue), {1: NOW_MS - 1_500})
    expected = {
        ("phpmq_messages_published_total", "orders"): 9,
        ("phpmq_messages_acked_total", "orders"): 2,
        ("phpmq_queue_messages", "orders,ready"): 5,
        ("phpmq_queue_messages", "orders,dispatched"): 2,
        ("phpmq_queue_dead_letters", "orders"): 1,
        ("phpmq_queue_paused", "orders,publishing"): 1,
        ("phpmq_queue_oldest_deliverable_age_seconds", "orders"): 1.5,
        ("phpmq_http_requests_total", "GET,overview,200"): 3,
    }
    assert {key: found[key] for key in expected} == expected


def test_metrics_have_the_figures_of_the_process() -> None:
    status = broker_status(
        clients=(client_status(paused_reason="disk"),),
        clients_opened=4, protocol_errors={"bad-framing": 2}, closed={"eof": 3},
        acks_ignored={"unknown": 1}, refused={"paused": 5}, bytes_in=10, bytes_out=20,
    )  # fmt: skip
    found = samples(status)
    expected = {
        ("phpmq_clients", ""): 1,
        ("phpmq_clients_opened_total", ""): 4,
        ("phpmq_clients_closed_total", "eof"): 3,
        ("phpmq_readers_paused", "disk"): 1,
        ("phpmq_protocol_errors_total", "bad-framing"): 2,
        ("phpmq_acks_ignored_total", "unknown"): 1,
        ("phpmq_publishes_refused_total", "paused"): 5,
        ("phpmq_network_bytes_total", "in"): 10,
        ("phpmq_ready", ""): 1,
    }
    assert {key: found[key] for key in expected} == expected
    assert next(label for name, label in found if name == "phpmq_build_info").endswith(",0.1.0")


def test_queues_past_the_limit_share_a_label() -> None:
    queues = [
        queue_status(f"q{at}", at, ready=1, totals={"published": 2})
        for at in range(metrics.QUEUES_MAX + 30)
    ]
    found = samples(broker_status(*reversed(queues)))
    labels = [label for name, label in found if name == "phpmq_messages_published_total"]
    assert len(labels) == metrics.QUEUES_MAX + 1
    assert found["phpmq_messages_published_total", metrics.OTHER] == 60
    assert "q0" in labels


def test_metrics_never_name_a_client_or_confuse_a_queue_with_the_rest() -> None:
    queues = [queue_status(name, at) for at, name in enumerate([*HOSTILE, "~other"])]
    found = samples(broker_status(*queues, clients=(client_status(address="10.9.9.9:1"),)))
    assert ("phpmq_queue_bytes", "~~other") in found
    assert not [key for key in found if "10.9.9.9" in key[1]]


def test_metrics_come_before_the_broker_is_ready() -> None:
    assert samples(Status())["phpmq_ready", ""] == 0
