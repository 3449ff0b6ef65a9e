"""A summary as the pipeline jobs write it, with entries in each list."""

import json
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
HISTORY = "0123456789abcdef0123456789abcdef"
QUEUES = ("orders", "mail.outgoing", "shop.cart", "(others)")


def step(queue: str, count: int, **times: float | None) -> dict[str, Any]:
    """Return the figures of a queue and step in which most messages are acked."""
    dead, expired = count // 40, count // 60
    made: dict[str, Any] = {
        "queue": queue, "published": count, "dispatched": count, "acked": count - dead - expired,
        "expired": expired, "dead": dead, "deleted": 0, "redelivered": count // 20,
        "bytes": count * 300,
    }  # fmt: skip
    return made | times


def _times(base: float) -> dict[str, float]:
    return {
        f"{what}_{which}": round(base * times * by, 1)
        for what, times in (("wait", 1), ("hold", 6))
        for which, by in (("p50", 1.0), ("p95", 4.5), ("p99", 9.0), ("max", 40.0))
    }


def _steps(key: str, end_ms: int, length_ms: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield steps from now backwards, in waves; one queue is silent for a while."""
    for at in range(count):
        at_ms = (end_ms // length_ms - at) * length_ms
        wave = 1 + math.sin(at / count * 12)
        for number, queue in enumerate(QUEUES):
            if queue == "mail.outgoing" and count // 3 < at < count // 2:
                continue
            messages = round(wave * 90 / (number + 1))
            if messages:
                yield {key: at_ms} | step(queue, messages, **_times(12 * wave + number))


def summary(now_ms: int, history_id: str | None = HISTORY, **changes: Any) -> dict[str, Any]:
    """Return a summary computed now; ``changes`` replace its members."""
    made: dict[str, Any] = {
        "version": 1,
        "finished_at": now_ms,
        "history_id": history_id,
        "archive": {"offset": 10, "rows": 1_204_331, "dates": 34, "bytes": 81_234_567,
                    "gaps": 2, "missing": 65},
        "lag": {"offset": 8, "rows": 3},
        "jobs": [
            {"name": "archive", "state": "done", "started_at": now_ms - 40_000,
             "finished_at": now_ms - 25_000, "offset": 10, "error": None},
            {"name": "metrics", "state": "done", "started_at": now_ms - 25_000,
             "finished_at": now_ms - 3_000, "offset": 10, "error": None},
            {"name": "compact", "state": "failed", "started_at": now_ms - 3_000,
             "finished_at": now_ms - 1_000, "offset": 4, "error": "No space left: <part>"},
        ],
        "gaps": [
            {"at_ms": now_ms - 90_000, "lo": 10, "hi": 70, "rows": 60, "batch": "b-00000001"},
            {"at_ms": now_ms - 99_000_000, "lo": 4, "hi": 9, "rows": None, "batch": "b-00000000"},
        ],
        "last24h": list(islice(_steps("minute", now_ms, MINUTE_MS, 1_440), 1_600)),
        "last30d": list(islice(_steps("hour", now_ms, HOUR_MS, 720), 1_300)),
        "urns": [
            {"queue": "orders", "urn": "urn:babel:orders:created", "acked": 51_210,
             "failed": {"failed": 310, "unknown_urn": 2}, "attempts": {"0": 50_100, "1": 1_422},
             "retried": 1_112},
            {"queue": "shop.cart", "urn": "urn:babel:cart:checked-out", "acked": 420,
             "failed": {}, "attempts": {"0": 420}, "retried": 0},
        ],
        "deaths": [
            {"queue": "orders", "urn": "urn:babel:orders:created", "reason": "failed",
             "count": 310},
            {"queue": "orders", "urn": None, "reason": "max_deliveries", "count": 12},
            {"queue": "<script>alert(1)</script>", "urn": "urn:\u202eevil", "reason": None,
             "count": 1},
        ],
        "paths": [
            {"path": ["orders:urn:babel:orders:created", "shop.cart:urn:babel:cart:checked-out",
                      "mail.outgoing:urn:babel:mail:send"], "traces": 9_100, "p50_ms": 840,
             "p95_ms": 4_200},
            {"path": ["orders:urn:babel:orders:created"], "traces": 310, "p50_ms": 12,
             "p95_ms": None},
        ],
        "expiries": [{"queue": "mail.outgoing", "dispatched": 4, "never": 812}],
    }  # fmt: skip
    return made | changes


def as_bytes(made: dict[str, Any]) -> bytes:
    return json.dumps(made).encode()
