"""Metrics as Prometheus parses them."""

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from phpmq_lite.admin.accounts.services import SERVICES
from phpmq_lite.admin.messages.arrow_export import EXPORTS
from phpmq_lite.admin.pipeline.history_readers import ReaderView
from phpmq_lite.admin.system import metrics
from phpmq_lite.admin.system.metric_labels import OTHER, MetricLabels
from phpmq_lite.admin.system.metrics import HTTP_COUNTERS, HttpCounters, MetricReadings
from phpmq_lite.histogram import BUCKETS, bucket
from phpmq_lite.installation import build_kind
from phpmq_lite.server.counters import CommitCounters, ConnectionCounters
from phpmq_lite.server.status import BrokerStatus, QueueStatus
from phpmq_lite.storage.backend import Replica, StoreStatus
from phpmq_lite.storage.sqlite.integrity.scrub import ScrubState
from phpmq_lite.storage.sqlite.standby_lag import StandbyState
from tests.unit.admin.cases import (
    HOSTILE,
    NOW_MS,
    broker_status,
    client_status,
    postgres_store,
    queue_status,
)

ON_POSTGRES = {each.full_name for each in metrics.METRICS["PostgreSQL"]}
ON_SQLITE = {
    "phpmq_disk_free_bytes",
    "phpmq_ballast",
    "phpmq_backup_last_success_timestamp_seconds",
    "phpmq_backup_failed",
    "phpmq_scrub_last_success_timestamp_seconds",
    "phpmq_damage_found",
}
Samples = dict[tuple[str, str], float]


def labels_of(queues: Sequence[QueueStatus]) -> MetricLabels:
    labels = MetricLabels()
    labels.begin()
    labels.add(queues, 200)
    labels.end()
    return labels


def context_with(http: HttpCounters, standby: StandbyState | None = None) -> Any:
    services = SimpleNamespace(refused_logins=SimpleNamespace(total=1))
    return SimpleNamespace(
        app={
            HTTP_COUNTERS: http,
            SERVICES: services,
            EXPORTS: SimpleNamespace(running=0, ends={}),
        },
        version="0.1.0",
        live=SimpleNamespace(streams=2),
        maintenance=SimpleNamespace(
            backups=SimpleNamespace(last_manifest=None, error=None),
            scrub=SimpleNamespace(state=ScrubState()),
            standby=None if standby is None else SimpleNamespace(state=standby),
        ),
    )


async def samples(status: BrokerStatus, ages: dict[int, int] | None = None, **more: Any) -> Samples:
    labels = labels_of(status.queues)
    labels.set_oldest(ages or {})
    http = HttpCounters()
    http.add("overview", "GET", 200, 0.02)
    http.add("events", "GET", 200, None)
    http.add("other", "BREW", 405, 0.0)
    readings = MetricReadings(status, context_with(http), NOW_MS, **more)
    text = (await metrics.render_metrics(readings, labels.groups())).decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, ",".join(value for _, value in sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


async def test_metrics_have_the_figures_of_a_queue() -> None:
    wait = [0] * BUCKETS
    wait[bucket(900)] = 2
    wait[bucket(5_000)] = 1
    queue = queue_status(
        ready=5, dispatched=2, dead=1, consumers=3, publishing_paused=True, wait=wait,
        totals={"published": 9, "published_ui": 2, "acked": 2, "requeued": 5,
                "requeued_operator": 1, "expired": 4, "expired_never": 3, "deduplicated": 6,
                "restored": 1},
        deaths={"client": 2, "crc": 1, "poison": 4},
    )  # fmt: skip
    found = await samples(broker_status(queue), {1: NOW_MS - 1_500})
    expected = {
        ("phpmq_messages_published_total", "orders,tcp"): 7,
        ("phpmq_messages_published_total", "orders,ui"): 2,
        ("phpmq_messages_published_total", "orders,cli"): 0,
        ("phpmq_publishes_deduplicated_total", "orders"): 6,
        ("phpmq_messages_acked_total", "orders"): 2,
        ("phpmq_messages_requeued_total", "client,orders"): 4,
        ("phpmq_messages_requeued_total", "operator,orders"): 1,
        ("phpmq_messages_expired_total", "yes,orders"): 1,
        ("phpmq_messages_expired_total", "never,orders"): 3,
        ("phpmq_messages_restored_total", "orders"): 1,
        ("phpmq_messages_dead_total", "orders,client"): 2,
        ("phpmq_messages_dead_total", "orders,crc"): 1,
        ("phpmq_messages_dead_total", "orders,poison"): 4,
        ("phpmq_messages_quarantined_total", "orders,poison"): 4,
        ("phpmq_queue_messages", "orders,ready"): 5,
        ("phpmq_queue_messages", "orders,dispatched"): 2,
        ("phpmq_queue_dead_letters", "orders"): 1,
        ("phpmq_queue_paused", "orders,publishing"): 1,
        ("phpmq_queue_oldest_deliverable_age_seconds", "orders"): 1.5,
        ("phpmq_wait_seconds_bucket", "1.024,orders"): 2,
        ("phpmq_wait_seconds_bucket", "0.256,orders"): 0,
        ("phpmq_wait_seconds_bucket", "16.384,orders"): 3,
        ("phpmq_wait_seconds_count", "orders"): 3,
    }
    assert {key: found[key] for key in expected} == expected
    assert ("phpmq_hold_seconds_count", "orders") not in found


async def test_reasons_that_every_queue_may_have_are_shown_before_the_first_death() -> None:
    """Without a zero, Prometheus would not see the first one as an increase."""
    found = await samples(broker_status(queue_status(deaths={"client": 1, "poison": 2})))
    dead = {key[1]: n for key, n in found.items() if key[0] == "phpmq_messages_dead_total"}
    assert dead == {
        "orders,client": 1, "orders,crc": 0, "orders,expired": 0, "orders,max_deliveries": 0,
        "orders,not_forwarded": 0, "orders,poison": 2,
    }  # fmt: skip


async def test_dead_letter_queues_are_marked_whatever_their_name() -> None:
    other = queue_status("graveyard", 2, is_dead_letter_queue=True)
    found = await samples(broker_status(queue_status(), other))
    marked = {key[1]: n for key, n in found.items() if key[0] == "phpmq_queue_for_dead_letters"}
    assert marked == {"graveyard": 1}


async def test_shared_label_is_not_marked_as_a_dead_letter_queue() -> None:
    queues = [queue_status(f"q{n}", n, is_dead_letter_queue=True) for n in range(1, 202)]
    found = await samples(broker_status(*queues))
    marked = [key[1] for key in found if key[0] == "phpmq_queue_for_dead_letters"]
    assert (len(marked), OTHER in marked) == (200, False)


async def test_metrics_have_the_figures_of_the_process() -> None:
    commits = CommitCounters()
    commits.seconds_counts[3], commits.seconds_counts[-1], commits.seconds_sum = 4, 1, 8.5
    closed = {"eof": 3, "protocol error: bad-framing": 1, "protocol error: too-long": 1}
    counters = ConnectionCounters(4, 10, 20, Counter({"bad-framing": 2}), Counter(closed))
    status = broker_status(
        clients=(client_status(paused_reasons=("memory", "queue")),), audited={"queue.purge": 2},
        counters=counters, commits=commits, acks_ignored={"unknown": 1},
        refused={"paused": 5, "queue full: bytes": 1, "queue full: messages": 1},
    )  # fmt: skip
    found = await samples(
        status, files={"database": 4_096, "wal": 0}, disk_free=7, history_rows=3,
        history_offset=9, removed=6,
    )  # fmt: skip
    expected = {
        ("phpmq_clients", ""): 1,
        ("phpmq_clients_opened_total", ""): 4,
        ("phpmq_clients_closed_total", "eof"): 3,
        ("phpmq_clients_closed_total", "protocol error"): 2,
        ("phpmq_readers_paused", "memory"): 1,
        ("phpmq_readers_paused", "queue"): 1,
        ("phpmq_protocol_errors_total", "bad-framing"): 2,
        ("phpmq_acks_ignored_total", "unknown"): 1,
        ("phpmq_publishes_refused_total", "paused"): 5,
        ("phpmq_publishes_refused_total", "queue_full"): 2,
        ("phpmq_publishes_refused_total", "disk_full"): 0,
        ("phpmq_network_bytes_total", "in"): 10,
        ("phpmq_commit_seconds_bucket", "0.005"): 4,
        ("phpmq_commit_seconds_bucket", "+Inf"): 5,
        ("phpmq_commit_seconds_sum", ""): 8.5,
        ("phpmq_db_bytes", "database"): 4_096,
        ("phpmq_disk_free_bytes", ""): 7,
        ("phpmq_history_rows", ""): 3,
        ("phpmq_history_offset", ""): 9,
        ("phpmq_retention_removed_total", ""): 6,
        ("phpmq_http_requests_total", "GET,overview,200"): 1,
        ("phpmq_http_requests_total", "other,other,405"): 1,
        ("phpmq_http_request_seconds_bucket", "0.025,overview"): 1,
        ("phpmq_sse_streams", ""): 2,
        ("phpmq_login_failures_total", ""): 1,
        ("phpmq_audit_rows_total", "queue.purge"): 2,
        ("phpmq_ready", ""): 1,
    }
    assert {key: found[key] for key in expected} == expected
    assert ("phpmq_http_request_seconds_count", "events") not in found
    build = next(label for name, label in found if name == "phpmq_build_info")
    assert "0.1.0" in build
    assert build_kind() in build


@pytest.mark.parametrize(
    ("store", "absent"), [(StoreStatus(), ON_POSTGRES), (postgres_store(), ON_SQLITE)]
)
def test_scrape_has_every_metric_of_the_engine_with_its_labels(
    store: StoreStatus, absent: set[str]
) -> None:
    labels = labels_of([queue_status(wait=[1] * BUCKETS, hold=[1] * BUCKETS)])
    readings = MetricReadings(
        broker_status(store=store), context_with(HttpCounters(), StandbyState(True)), NOW_MS,
        files={"database": 1}, disk_free=0, history_rows=0, history_offset=0, removed=0,
        readers=[ReaderView(reader="a", offset=0, behind=1, lag_s=1, seen_at=0, is_reached=False,
                            reached_at=1, reached_in_s=1, bound="days", owner=None)],
    )  # fmt: skip
    defined = {each.full_name: each for some in metrics.METRICS.values() for each in some}
    suffixes = {"counter": "_total", "info": "_info"}
    found = set()
    for family in metrics.metric_families(readings, labels.groups()):
        name = family.name + suffixes.get(family.type, "")
        found.add(name)
        assert family.type == defined[name].kind
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == {*defined[name].labels}, name
    assert found == defined.keys() - absent


async def test_metrics_show_the_lag_of_each_replica_that_the_broker_may_see() -> None:
    replicas = (
        Replica("n2", "", "streaming", True, 300, 0.25),
        Replica("n2", "", "catchup", True, 4_000, 3.0),
        Replica("n3"),
    )
    found = await samples(broker_status(store=postgres_store(*replicas)))
    names = [key for key in found if key[0].startswith("phpmq_store_replica_lag")]
    assert {key: found[key] for key in names} == {
        ("phpmq_store_replica_lag_bytes", "n2"): 4_000,
        ("phpmq_store_replica_lag_seconds", "n2"): 3.0,
    }
    assert found["phpmq_store_replicas", ""] == 2


async def test_metrics_show_the_lag_of_each_reader_of_the_history() -> None:
    given: dict[str, Any] = {"offset": 3, "seen_at": NOW_MS - 9_000, "bound": None, "owner": None}
    given |= {"is_reached": False, "reached_at": None}
    late = ReaderView(
        reader="archive-1", behind=7, behind_bytes=80, lag_s=5, reached_in_s=60, **given
    )
    done = ReaderView(reader="done", behind=0, **given)
    found = await samples(broker_status(), readers=[late, done])
    names = [key for key in found if key[0].startswith("phpmq_history_reader_")]
    assert {(name.removeprefix("phpmq_history_reader_"), label): found[name, label]
            for name, label in names} == {
        ("behind_rows", "archive-1"): 7, ("behind_rows", "done"): 0,
        ("behind_bytes", "archive-1"): 80, ("behind_bytes", "done"): 0,
        ("lag_seconds", "archive-1"): 5,
        ("retention_seconds", "archive-1"): 60,
        ("report_age_seconds", "archive-1"): 9, ("report_age_seconds", "done"): 9,
    }  # fmt: skip


async def test_metrics_never_name_a_client_or_confuse_a_queue_with_the_rest() -> None:
    queues = [queue_status(name, at) for at, name in enumerate([*HOSTILE, "~other"], 1)]
    found = await samples(broker_status(*queues, clients=(client_status(address="10.9.9.9:1"),)))
    assert ("phpmq_queue_bytes", "~~other") in found
    assert not [key for key in found if "10.9.9.9" in key[1]]


async def test_metrics_come_before_the_broker_is_ready() -> None:
    found = await samples(BrokerStatus())
    assert found["phpmq_ready", ""] == 0
    assert found["phpmq_commit_seconds_count", ""] == 0
    assert ("phpmq_disk_free_bytes", "") not in found
