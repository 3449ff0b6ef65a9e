"""HTTP to the broker, without a JVM: retries, refusals and short responses."""

import socket
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from phpmq_lite.admin.urls import decode_name, encode_name
from phpmq_lite.errors import BrokerError, DataLossError, OptionError, ShortReadError
from phpmq_lite.http_client import BUSY_TIMEOUT_S, RETRY_DELAYS_S
from phpmq_lite.spark import reader
from phpmq_lite.spark.columns import history_columns
from phpmq_lite.spark.history import HistoryRequest, open_history, resolve_position
from phpmq_lite.spark.pipeline_client import PipelineClient, check_row_count, queue_segment
from phpmq_lite.spark.reader import HistoryStreamReader, OffsetRange, byte_cuts, cut_range
from phpmq_lite.spark.source_options import HistoryOptions, HistoryPosition, SourceConnection
from tests.spark.fake_broker import START_MS, FakeBroker


def request(broker: FakeBroker, **changes: object) -> HistoryRequest:
    given: dict[str, object] = {"lo": 0, "hi": broker.hi, "columns": ("offset",)} | changes
    return HistoryRequest(history_id=broker.history_id, **given)  # type: ignore[arg-type]


def offsets(broker: FakeBroker, **changes: object) -> list[int]:
    history = open_history(SourceConnection(broker.url))
    batches = history.rows(request(broker, **changes))
    return [value for batch in batches for value in batch.column("offset").to_pylist()]


def test_range_comes_in_order_and_whole(broker: FakeBroker) -> None:
    broker.settle(1_200)
    assert offsets(broker, lo=100, hi=1_150) == list(range(101, 1_151))


def test_short_stream_raises(broker: FakeBroker) -> None:
    broker.settle(100)
    broker.faults.short = 1
    with pytest.raises(ShortReadError, match="received 50 rows but expected 100"):
        offsets(broker)
    assert len(offsets(broker)) == 100


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return how long clients would have waited; they do not wait.

    ``time.sleep`` stays: a thread of py4j, left by other tests, calls it too.
    """
    waits: list[float] = []
    monkeypatch.setattr(PipelineClient.__init__, "__defaults__", (waits.append,))
    return waits


@pytest.mark.parametrize("changes", [{}, {"columns": ("body",)}, {"columns": ("body",), "lo": 700}])
def test_reader_continues_after_the_last_row_when_the_connection_breaks(
    broker: FakeBroker, waits: list[float], changes: dict[str, object]
) -> None:
    """A broker that restarts breaks it; each answer ends in the middle, after some MiB."""
    broker.settle(3_000, body=b"x" * 2_000)
    broker.faults.broken = 3
    history = open_history(SourceConnection(broker.url))
    batches = list(history.rows(request(broker, **changes)))
    found = [value for batch in batches for value in batch.column("offset").to_pylist()]
    assert found == list(range(int(str(changes.get("lo", 0))) + 1, 3_001))
    assert broker.faults.broken == 0
    assert len(waits) == 3
    starts = [int(line.partition("lo=")[2].partition("&")[0]) for line in broker.asked]
    assert (starts == sorted(starts), len(set(starts)) > 1) == (True, "columns" in changes)


def test_claims_continue_after_the_last_one_when_the_connection_breaks(
    broker: FakeBroker, waits: list[float]
) -> None:
    expected = [b"%02000d" % n for n in range(2_000)]
    broker.ready = [*expected]
    client = PipelineClient(SourceConnection(broker.url))
    assert client.claim("s", "work", 2_000, 1 << 30, 0) == 2_000
    broker.faults.broken = 2
    bodies = [body for batch in client.claims("s", 0, 2_000) for body in batch["body"].to_pylist()]
    assert bodies == expected
    assert len(waits) == 2


def test_reader_gives_up_when_the_connection_breaks_before_each_row(
    broker: FakeBroker, waits: list[float]
) -> None:
    broker.settle(1)
    broker.faults.broken = 1_000
    with pytest.raises(ShortReadError, match="ended early"):
        offsets(broker)
    assert waits == list(RETRY_DELAYS_S)


@pytest.mark.parametrize("allows_gaps", [False, True])
def test_another_history_after_the_first_row_is_never_passed_over(
    broker: FakeBroker, waits: list[float], allows_gaps: bool
) -> None:
    broker.settle(3_000, body=b"x" * 2_000)
    broker.faults.broken = 1
    asked = request(broker, allows_gaps=allows_gaps, columns=("body",))
    batches = open_history(SourceConnection(broker.url)).rows(asked)
    assert next(batches).num_rows
    broker.history_id = "b" * 32
    with pytest.raises(ShortReadError, match="was interrupted, then: the history id is b"):
        list(batches)
    assert len(waits) == 1


@pytest.mark.parametrize("now", [[], ["mails"], ["mails", "orders", "x"]])
def test_range_is_refused_when_the_token_has_other_queues_than_planned(
    broker: FakeBroker, now: list[str]
) -> None:
    broker.settle(5, "orders")
    broker.settle(5, "mails")
    broker.allowed = ["orders", "mails"]
    assert offsets(broker, allowed=("mails", "orders")) == list(range(1, 11))  # in any order
    broker.allowed = now
    with pytest.raises(OptionError, match="a token for the queues mails, orders, but") as refused:
        offsets(broker, allowed=("orders", "mails"))
    assert (f"the queues {', '.join(now)}" if now else "all queues") in str(refused.value)


def test_range_with_bodies_is_cut_by_bytes(broker: FakeBroker) -> None:
    """A body that is larger than the limit is a part of its own; queues that are not read are 0."""
    for size in (10, 60, 30, 100, 150, 1, 1, 1):
        broker.settle(1, body=b"x" * size)
        broker.settle(1, "others", body=b"x" * 1_000)
    options = HistoryOptions(
        connection=SourceConnection(broker.url), queues=("orders",), has_body=True
    )
    history = open_history(options.connection)
    whole = OffsetRange(0, broker.hi, broker.history_id, "here", ("orders",))
    cuts = list(byte_cuts(history, options, whole, 100))
    assert cuts == [5, 7, 9]
    parts = cut_range(whole, 2, cuts)
    assert [(part.lo, part.hi) for part in parts] == [(0, 5), (5, 7), (7, 8), (8, 9), (9, 16)]
    assert list(byte_cuts(history, options, replace(whole, lo=10), 100)) == []


def test_more_rows_than_announced_raise() -> None:
    batch = pa.RecordBatch.from_pydict({"n": [1, 2]})
    with pytest.raises(ShortReadError, match="received 2 rows but expected 1"):
        list(check_row_count(iter([batch]), 1))


def test_gap_and_another_history_are_data_loss(broker: FakeBroker) -> None:
    broker.settle(10)
    broker.lo = 5
    with pytest.raises(DataLossError, match="were removed"):
        offsets(broker)
    assert offsets(broker, allows_gaps=True) == [6, 7, 8, 9, 10]
    asked = request(broker, lo=5)
    broker.history_id = "b" * 32
    with pytest.raises(DataLossError, match="the history id is b"):
        list(open_history(SourceConnection(broker.url)).rows(asked))


@pytest.mark.parametrize(
    "name", ["a", "~til2", "~", "~~", ".", "..", "a.b", "a/b", "ä %", "a,b", ""]
)
def test_name_of_a_queue_stands_in_a_path_as_the_admin_reads_it(name: str) -> None:
    segment = queue_segment(name)
    assert segment == encode_name(name)
    assert decode_name(segment) == name


def test_queue_that_is_not_there_has_nothing_ready_but_a_wrong_address_is_an_error(
    broker: FakeBroker,
) -> None:
    broker.ready = [b"1", b"2"]
    broker.missing = {"til"}
    api = PipelineClient(SourceConnection(broker.url))
    assert (api.ready("~til"), api.ready_or_none("~til")) == (2, 2)  # not those of til
    broker.missing = {"~til"}
    assert (api.ready("~til"), api.ready_or_none("~til")) == (0, None)
    with pytest.raises(BrokerError, match="404 unknown_route"):
        PipelineClient(SourceConnection(f"{broker.url}/elsewhere")).ready("~til")


@pytest.mark.parametrize(
    "names",
    [[f"{n:02d}{'ä' * 98}" for n in range(30)], [f"q{n}" for n in range(1_200)]],
    ids=["30 long ones", "1,200 short ones"],
)
def test_queues_that_are_too_many_for_a_request_are_picked_here(
    broker: FakeBroker, names: list[str]
) -> None:
    for name in [*names, "other", *reversed(names)]:
        broker.settle(1, name)
    assert offsets(broker, queues=tuple(names)) == [
        offset for offset in range(1, broker.hi + 1) if offset != len(names) + 1
    ]
    columns = ("size", "queue")
    found = open_history(SourceConnection(broker.url)).rows(
        request(broker, queues=tuple(names), columns=columns)
    )
    assert {name for batch in found for name in batch.column("queue").to_pylist()} == set(names)
    broker.asked.clear()
    assert offsets(broker, queues=("other",)) == [len(names) + 1]
    assert ["queue=other" in line for line in broker.asked] == [True]  # the broker selects
    with pytest.raises(OptionError, match="queue 'gone' does not exist"):
        offsets(broker, queues=(*names, "gone"))


def test_batch_of_a_stream_with_bodies_is_limited_by_bytes(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BYTES_PER_BATCH", 100)
    monkeypatch.setattr(reader, "BYTES_PER_PARTITION", 50)
    broker.settle(10, body=b"x" * 40)
    broker.settle(1, body=b"x" * 400)
    broker.settle(2, body=b"x" * 40)
    connection = SourceConnection(broker.url)
    earliest = HistoryPosition("earliest")

    def batches(**given: Any) -> list[tuple[int, list[tuple[int, int]]]]:
        options = HistoryOptions(connection=connection, starting=earliest, **given)
        stream = HistoryStreamReader(options, history_columns(body=True))
        start, found = stream.initialOffset(), []
        while (end := stream.latestOffset(start, ReadAllAvailable())) != start:
            parts = [(part.lo, part.hi) for part in stream.partitions(start, end)]  # type: ignore[attr-defined]
            found.append((end["offset"], parts))
            start = end
        return found

    limited = batches(has_body=True)
    assert [end for end, _ in limited] == [2, 4, 6, 8, 10, 11, 13]
    assert limited[0] == (2, [(0, 1), (1, 2)])
    assert limited == batches(columns=("offset", "body"))
    assert batches() == [(13, [(0, 13)])]
    stream = HistoryStreamReader(
        HistoryOptions(connection=connection, has_body=True), history_columns(body=True)
    )
    planned = stream.initialOffset()  # without bodies, then continued with them
    assert len(stream.partitions(planned | {"offset": 0}, planned | {"offset": 13})) == 13


def test_busy_broker_is_left_alone_for_as_long_as_it_says(broker: FakeBroker) -> None:
    waits: list[float] = []
    broker.settle(1)
    broker.faults.busy = 3
    asked: list[tuple[str, str | int]] = [("lo", 0), ("hi", 1), ("columns", "offset")]
    api = PipelineClient(SourceConnection(broker.url), sleep=waits.append)
    assert sum(batch.num_rows for batch in api.history(asked, broker.history_id)) == 1
    assert waits == [1, 1, 1]


def test_busy_broker_is_given_up_after_minutes(broker: FakeBroker) -> None:
    waits: list[float] = []
    broker.faults.busy = 1_000
    asked: list[tuple[str, str | int]] = [("lo", 0), ("hi", 0), ("columns", "offset")]
    api = PipelineClient(SourceConnection(broker.url), sleep=waits.append)
    with pytest.raises(BrokerError, match="503 busy: two exports run"):
        list(api.history(asked, broker.history_id))
    assert sum(waits) == BUSY_TIMEOUT_S


def test_broker_that_does_not_answer_is_waited_for_and_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]  # the port is free once it is closed
    waits: list[float] = []
    api = PipelineClient(SourceConnection(f"http://127.0.0.1:{port}"), sleep=waits.append)
    with pytest.raises(BrokerError, match=f"http://127.0.0.1:{port} did not respond"):
        api.bounds()
    assert waits == list(RETRY_DELAYS_S)


def test_token_goes_along_and_a_wrong_one_is_explained(broker: FakeBroker) -> None:
    broker.token = "right"
    assert open_history(SourceConnection(broker.url, "right")).bounds().hi == 0
    with pytest.raises(
        BrokerError, match="401 unauthorized: no such token; set a valid token"
    ) as caught:
        open_history(SourceConnection(broker.url, "wrong")).bounds()
    assert (caught.value.status, caught.value.code) == (401, "unauthorized")


def test_positions_become_offsets(broker: FakeBroker) -> None:
    broker.settle(10)
    broker.lo = 2
    history = open_history(SourceConnection(broker.url))
    ends = history.bounds()
    found = [
        resolve_position(history, ends, position)
        for position in (
            HistoryPosition("earliest"),
            HistoryPosition("latest"),
            HistoryPosition("offset", 7),
            HistoryPosition("time", START_MS + 5),
        )
    ]
    assert found == [2, 10, 6, 4]  # a range begins after its first number: offset 7 is included


def test_reader_is_noted_with_its_position(broker: FakeBroker) -> None:
    open_history(SourceConnection(broker.url)).bounds("archive", 7)
    assert broker.notes == [("archive", 7)]
