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


def rows(names: str, *values: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [dict(zip(names.split(), row, strict=True)) for row in values]


ORDERS = "urn:babel:orders:created"
FAILED = {"failed": 310, "unknown_urn": 2}
PATH = [
    f"orders:{ORDERS}",
    "shop.cart:urn:babel:cart:checked-out",
    "mail.outgoing:urn:babel:mail:send",
]


def summary(now_ms: int, history_id: str | None = HISTORY, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "version": 1,
        "finished_at": now_ms,
        "history_id": history_id,
        "archive": {"offset": 10, "rows": 1_204_331, "dates": 34}
        | {"bytes": 81_234_567, "gaps": 2, "missing": 65},
        "lag": {"offset": 8, "rows": 3},
        "jobs": rows(
            "name state started_at finished_at offset error",
            ("archive", "done", now_ms - 40_000, now_ms - 25_000, 10, None),
            ("metrics", "done", now_ms - 25_000, now_ms - 3_000, 10, None),
            ("compact", "failed", now_ms - 3_000, now_ms - 1_000, 4, "No space left: <part>"),
        ),
        "gaps": rows(
            "at_ms lo hi rows batch",
            (now_ms - 90_000, 10, 70, 60, "b-00000001"),
            (now_ms - 99_000_000, 4, 9, None, "b-00000000"),
        ),
        "last24h": list(islice(_steps("minute", now_ms, MINUTE_MS, 1_440), 1_600)),
        "last30d": list(islice(_steps("hour", now_ms, HOUR_MS, 720), 1_300)),
        "urns": rows(
            "queue urn acked failed attempts retried",
            ("orders", ORDERS, 51_210, FAILED, {"0": 50_100, "1": 1_422}, 1_112),
            ("shop.cart", "urn:babel:cart:checked-out", 420, {}, {"0": 420}, 0),
        ),
        "deaths": rows(
            "queue urn reason count",
            ("orders", ORDERS, "failed", 310),
            ("orders", None, "max_deliveries", 12),
            ("<script>alert(1)</script>", "urn:\u202eevil", None, 1),
        ),
        "paths": rows(
            "path traces p50_ms p95_ms", (PATH, 9_100, 840, 4_200), (PATH[:1], 310, 12, None)
        ),
        "expiries": [{"queue": "mail.outgoing", "dispatched": 4, "never": 812}],
    }
    return made | changes


def as_bytes(made: dict[str, Any]) -> bytes:
    return json.dumps(made).encode()
