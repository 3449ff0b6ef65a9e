"""The paths of traces."""

from typing import Any

from phpmq_lite.admin.pipeline.last_day import trace_paths
from phpmq_lite.storage.read.activity import PublishedMessage


def message(
    seq: int, queue: str | None, trace: str | None, at_ms: int = 0, settled_at: int | None = None
) -> PublishedMessage:
    return PublishedMessage(seq, queue, "urn:a", trace, at_ms, settled_at)


def paths(*rows: PublishedMessage, hidden: frozenset[int] = frozenset()) -> list[Any]:
    made = trace_paths(rows, {row.seq for row in rows} - hidden)
    return [(" ".join(path.path), path.traces, path.p50_ms, path.newest) for path in made]


def test_equal_paths_are_one_with_the_times_of_their_settled_traces() -> None:
    rows = [
        message(1, "orders", "a", 100, 150), message(2, "mail", "a", 150, 400),
        message(3, "orders", "b", 200, 250), message(4, "mail", "b", 250),  # still live
        message(5, "orders", "c", 300, 320), message(6, "mail", "c", 310, 320),
        message(7, "orders", None), message(8, "orders", "d", 400, 390),
    ]  # fmt: skip
    assert paths(*rows) == [
        ("orders:urn:a mail:urn:a", 3, 20, "c"),
        ("orders:urn:a", 1, 0, "d"),
    ]


def test_trace_with_a_hidden_message_is_hidden() -> None:
    rows = [message(1, "orders", "a"), message(2, None, "a"), message(3, "orders", "b")]
    assert paths(*rows, hidden=frozenset({2})) == [("orders:urn:a", 1, None, "b")]


def test_long_path_is_cut() -> None:
    [path] = trace_paths([message(n, "q", "a") for n in range(60)], set(range(60)))
    assert len(path.path) == 50
