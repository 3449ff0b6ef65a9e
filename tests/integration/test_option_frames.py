"""Frames with options over real sockets: hello, refusals, settlements and dispatches with info."""

import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.protocol.frames import DispatchWithInfo
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.socket_client import WAIT_S, AdminApi, SocketClient, new_key, to_json

INVALID_CONSUME = "invalid options of a 012"


@pytest.fixture
def api(broker: BrokerProcess) -> AdminApi:
    return AdminApi(broker.admin[0])


@pytest.fixture
def peer(broker: BrokerProcess) -> Iterator[SocketClient]:
    with SocketClient(broker.port) as peer:
        yield peer


@pytest.fixture
def worker(broker: BrokerProcess) -> Iterator[SocketClient]:
    with SocketClient(broker.port) as worker:
        yield worker


def eventually(what: Callable[[], Any]) -> Any:
    """Return the first result that is true."""
    ends_at = time.monotonic() + WAIT_S
    while not (result := what()):
        assert time.monotonic() < ends_at
        time.sleep(0.01)
    return result


def message(api: AdminApi, dispatch: Any) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/api/v1/messages/{dispatch.message_id.decode()}")
    return found


def events(api: AdminApi, dispatch: Any, kind: str) -> list[str]:
    found = api.get(f"/api/v1/messages/{dispatch.message_id.decode()}/events")["items"]
    return [event["detail"] for event in found if event["kind"] == kind]


def configure(api: AdminApi, queue: str, settings: dict[str, int]) -> None:
    api.post(f"/api/v1/queues/{queue}", settings, method="PATCH")


def ignored(api: AdminApi, reason: str) -> float:
    return api.metrics().get(f'phpmq_acks_ignored_total{{reason="{reason}"}}', 0)


def log_lines(broker: BrokerProcess, *words: str) -> list[str]:
    lines = broker.log.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if all(word in line for word in words)]


# -- hello


def test_welcome_comes_before_what_the_same_write_asks_for(peer: SocketClient, queue: str) -> None:
    peer.store(queue, b"waiting")
    hello = peer.side.hello(b"me", to_json({"name": "test"}))
    peer.send(hello + peer.side.consume_with_options(queue, 5, to_json({"info": True})))
    while not peer.informed:
        assert peer.take()
        assert peer.welcomes
    key, welcome = peer.welcome()
    assert key == b"me"
    assert welcome["frames"] == [7, 10, 11, 12, 13, 14, 15]
    assert welcome["max_content"] == 8 << 20
    assert welcome["max_hold_s"] == 86_400
    assert welcome["version"]


@pytest.mark.parametrize("options", [b"{}", b"", b"\xff", b'{"name":5,"later":[1]}', b"[" * 9_000])
def test_every_hello_is_answered(peer: SocketClient, options: bytes) -> None:
    """A later client may say what this broker does not know."""
    for _ in range(3):
        key = new_key()
        peer.send(peer.side.hello(key, options))
        assert peer.welcome()[0] == key
    peer.barrier()


def test_welcome_mirrors_the_style_of_the_connection(broker: BrokerProcess) -> None:
    with SocketClient(broker.port) as peer:
        peer.send(b"H0101402\r\nP03%033d\r\nk\r\nP06%033d\r\n{}\r\n" % (1, 2))
        data = b""
        while not data.endswith(b"}\r\n"):
            data += peer.socket.recv(1 << 16)
    head, options = data.split(b"\r\n")[:-2], data.split(b"\r\n")[-2]
    assert head == [b"H0101502", b"P03%033d" % 1, b"k", b"P06%033d" % len(options)]


def test_client_that_reads_no_welcomes_is_not_read_either(
    broker: BrokerProcess, peer: SocketClient, api: AdminApi
) -> None:
    peer.read_nothing()
    peer.socket.settimeout(2)
    hello = peer.side.hello(b"k" * 64, b"{}")
    with pytest.raises(TimeoutError):
        peer.send(hello * 200_000)  # 28 MB, with answers of 60 MB
    [listed] = [c for c in api.get("/api/v1/clients")["items"] if c["paused_reason"]]
    assert listed["paused_reason"] == "receipts"


def test_page_and_api_show_what_a_client_says_of_itself(
    peer: SocketClient, api: AdminApi, queue: str
) -> None:
    peer.consume(queue, 1)
    hello = {"name": "<b>worker\u202e", "version": "1.2", "pid": 4_711, "host": "web-1"}
    peer.send(peer.side.hello(b"k", to_json(hello)))
    peer.welcome()
    peer.barrier()
    [listed] = eventually(lambda: [
        client for client in api.get("/api/v1/clients")["items"] if client["pid"] == 4_711
    ])  # fmt: skip
    assert {name: listed[name] for name in hello} == hello
    detail = api.get(f"/api/v1/clients/{listed['client']}")
    assert {name: detail[name] for name in hello} == hello
    program = "&lt;b&gt;worker\\u202e 1.2, process 4711 on web-1"
    for path in ("/clients", f"/clients/{listed['client']}"):
        assert program in api.html(path)


# -- 010


BAD_PUBLISHES = [
    ({"priority": 256}, "bad_option: priority: must be a whole number from 0 to 255, not 256"),
    ({"priority": "1"}, 'bad_option: priority: must be a whole number from 0 to 255, not "1"'),
    ({"colour": 1}, "bad_option: colour: is not an option here; the options are ttl_s, "),
    ({"delay_s": float("nan")}, "bad_option: delay_s: must be a number from 0 to 315360000, not N"),
    ({"delay_s": 10**400}, "bad_option: delay_s: must be a number"),
    ({"delay_s": 1, "deliver_at": 5}, "bad_option: deliver_at: excludes delay_s"),
    ({"deliver_at": "9" * 5_000}, "bad_option: deliver_at: must be a date up to 2100"),
    ({"group": "\0"}, "bad_option: group: must be a text without NUL of 1 to 255 bytes"),
    ({"\ud800": 1}, "bad_option: ?: is not an option here"),
    ({"if_exists": "replace"}, "bad_option: if_exists: replace needs a unique_key"),
    ({"unique_key": [[[]]]}, "bad_option: unique_key: must be a text without NUL of 1 to 64 bytes"),
]


@pytest.mark.parametrize(("options", "reason"), BAD_PUBLISHES)
def test_invalid_publish_is_refused_and_the_connection_stays(
    peer: SocketClient, api: AdminApi, queue: str, options: dict[str, Any], reason: str
) -> None:
    refused = 'phpmq_publishes_refused_total{reason="bad_option"}'
    before = api.metrics().get(refused, 0)
    peer.publish_with(queue, b"refused", b"key", **options)
    receipt = peer.receipt_for(b"key")
    assert (receipt.reason or "").startswith(reason)
    peer.publish_with(queue, b"refused too", **options)
    assert api.queue(queue) == {}  # it was not created either
    peer.publish_with(queue, b"stored", b"key", priority=0)
    assert peer.receipt_for(b"key").reason is None
    assert api.metrics()[refused] == before + 2
    peer.consume(queue, 5)
    assert peer.bodies(1) == [b"stored"]


def test_options_that_are_no_json_are_refused_and_logged(
    broker: BrokerProcess, peer: SocketClient, queue: str
) -> None:
    peer.send(peer.side.publish_with_options(queue, b"x", b"[" * 16_000, b"key"))
    assert "the options are not valid JSON" in (peer.receipt_for(b"key").reason or "")
    assert log_lines(broker, "invalid_publish")


# -- 011


def test_too_long_texts_of_a_retry_are_cut(worker: SocketClient, api: AdminApi, queue: str) -> None:
    worker.store(queue, b"job")
    worker.consume(queue, 1)
    [job] = worker.dispatches(1)
    worker.settle(
        job, "retry", attempt=1, error="\u00e4" * 700, exception="\0" * 400, traceback="x" * 9_000
    )
    worker.dispatches(1)
    [detail] = map(json.loads, events(api, job, "retry"))
    assert (detail["error"], detail["traceback"]) == ("\u00e4" * 500, "x" * 8_192)
    assert detail["exception"] == "\ufffd" * 333


def test_invalid_settlement_of_the_holder_returns_its_message(
    worker: SocketClient, api: AdminApi, queue: str
) -> None:
    """As a charged 005, keeping the TTL: the worker believes that it is settled."""
    worker.store(queue, b"job", ttl_s=1_000)
    worker.consume_with(queue, 1, info=True)
    job, info = worker.dispatch_with_info()
    invalid: list[tuple[bytes, bytes | None, str]] = [
        (b'{"action":"retry","delay_s":-1}', None, "delay_s: must be a number"),
        (b'{"action":"retry","attempt":NaN}', None, "attempt: must be a whole number"),
        (b'{"action":"retry","later":1}', None, "later: is not an option here"),
        (b'{"action":"dead_letter","delay_s":1}', None, "delay_s: is not an option here"),
        (b'{"action":"dead_letter"}', b"new", "action: dead_letter takes no content"),
        (b'{"action":"bury"}', None, 'action: must be "retry" or "dead_letter" or "extend", not'),
        (b'{"action":["retry"]}', None, "action: must be"),
        (b"{}", None, "action: must be"),
        (b"[]", None, "the options must be a JSON object"),
        (b"\xff", None, "the options are not valid JSON"),
        (b'{"action":"dead_letter","reason":"a","reason":"b"}', None, "occurs more than once"),
    ]
    for attempt, (options, content, problem) in enumerate(invalid, start=2):
        worker.send(worker.side.settle(queue, job.message_id, options, content))
        again, info = worker.dispatch_with_info()
        assert (again.message_id, again.content) == (job.message_id, b"job")
        assert (info["attempt"], info["deliveries"]) == (attempt, attempt)
        assert 900 < again.ttl_s <= 1_000
        assert problem in events(api, job, "requeue")[-1]


def test_invalid_settlements_end_a_message_that_may_be_delivered_twice(
    worker: SocketClient, api: AdminApi, queue: str
) -> None:
    worker.store(queue, b"poison")
    configure(api, queue, {"max_deliveries": 2})
    worker.consume(queue, 1)
    for _ in range(2):
        [job] = worker.dispatches(1)
        worker.send(worker.side.settle(queue, job.message_id, b"{}", None))
    assert eventually(lambda: message(api, job)["state"] == "dead")


def test_invalid_extend_is_ignored_and_counted(
    worker: SocketClient, api: AdminApi, queue: str
) -> None:
    worker.store(queue, b"job", b"next")
    worker.consume(queue, 1)
    [job] = worker.dispatches(1)
    before = ignored(api, "invalid")
    for options in ({}, {"hold_s": "1"}, {"hold_s": -1}, {"hold_s": 5, "error": ""}):
        worker.settle(job, "extend", **options)
    worker.settle(job, "extend", b"content", hold_s=5)
    worker.barrier()
    assert ignored(api, "invalid") == before + 5
    assert message(api, job)["state"] == "dispatched"
    worker.ack(job)
    assert worker.bodies(1) == [b"next"]


def test_invalid_settlement_of_another_changes_nothing(
    broker: BrokerProcess, worker: SocketClient, api: AdminApi, queue: str
) -> None:
    worker.store(queue, b"job")
    worker.consume(queue, 1)
    [job] = worker.dispatches(1)
    before = ignored(api, "foreign"), ignored(api, "invalid"), ignored(api, "unknown")
    with SocketClient(broker.port) as other:
        other.send(other.side.settle(queue, job.message_id, b"{}", None))
        other.send(other.side.settle(queue, b"no id", b"{}", None))
        other.barrier()
        worker.requeue(job)
        worker.consume(queue, 0)
        worker.barrier()
        other.send(other.side.settle(queue, job.message_id, b"{}", None))
        other.barrier()
    after = ignored(api, "foreign"), ignored(api, "invalid"), ignored(api, "unknown")
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 1]
    assert len(events(api, job, "requeue")) == 1


# -- 012


@pytest.mark.parametrize(
    "options",
    [
        b"",
        b"[]",
        b'{"info":1}',
        b'{"keep":null,"hold_s":1}',
        b'{"\\ud800":1}',
        b"\xff",
        b"9" * 5_000,
    ],
    ids=count(),
)
def test_invalid_consume_closes_the_connection_with_the_reason(
    broker: BrokerProcess, peer: SocketClient, api: AdminApi, queue: str, options: bytes
) -> None:
    """The client would wait, and no message would come."""
    peer.store(queue, b"held")
    peer.consume(queue, 1)
    [held] = peer.dispatches(1)
    closed = f'phpmq_clients_closed_total{{reason="{INVALID_CONSUME}"}}'
    before = api.metrics().get(closed, 0)
    peer.publish(queue, b"before", 0, b"key")
    peer.send(peer.side.consume_with_options(queue, 1, options))
    peer.publish(queue, b"after")
    assert b"key" in peer.rest()  # what was sent before it is done
    [newest, *_] = eventually(lambda: [
        row for row in api.get("/api/v1/clients?state=closed")["items"]
        if row["reason"].startswith(INVALID_CONSUME)
    ])  # fmt: skip
    assert newest["reason"].removeprefix(f"{INVALID_CONSUME}: ")
    assert INVALID_CONSUME in api.html(f"/clients/{newest['client']}")
    assert api.metrics()[closed] == before + 1
    assert log_lines(broker, "invalid_consume")
    assert message(api, held)["state"] == "ready"
    assert api.queue(queue)["ready"] == 2  # not what came after it


def test_kept_credit_returns_nothing_until_a_002_does(worker: SocketClient, queue: str) -> None:
    worker.store(queue, *(b"%d" % number for number in range(6)))
    worker.consume_with(queue, 3, info=True)
    held = [worker.dispatch_with_info()[0] for _ in range(3)]
    worker.consume_with(queue, 0, info=True, keep=True)
    worker.ack(held[0])
    worker.consume_with(queue, 2, info=True, keep=True)  # as many as are held
    worker.barrier()
    assert not worker.informed
    worker.ack(held[1])
    assert worker.dispatch_with_info()[0].content == b"3"
    worker.consume_with(queue, 3, keep=True)  # without info
    assert worker.bodies(1) == [b"4"]
    worker.consume(queue, 10)
    assert worker.bodies(4) == [b"2", b"3", b"4", b"5"]  # all are returned, and come as 003
    assert not worker.informed


def test_012_without_keep_returns_what_is_held_and_other_queues_are_unchanged(
    worker: SocketClient, queue: str
) -> None:
    other = f"{queue}.other"
    worker.store(queue, b"a", b"b")
    worker.store(other, b"c", b"d")
    worker.consume(other, 1)
    worker.consume_with(queue, 1, info=True)
    assert worker.bodies(1) == [b"c"]
    assert worker.dispatch_with_info()[0].content == b"a"
    worker.consume_with(queue, 2, info=True)
    contents = [worker.dispatch_with_info()[0].content for _ in range(2)]
    assert contents == [b"a", b"b"]
    worker.barrier()
    assert not worker.got


# -- 013


def test_info_follows_a_message_over_its_deliveries(tmp_path: Path) -> None:
    """A killed worker counts as an attempt; a changed credit or a restart do not."""
    with broker_process(tmp_path / "data", "--admin", "127.0.0.1:0") as broker:
        with SocketClient(broker.port) as worker:
            worker.publish_with("orders", b"job", b"key", priority=7, group="g")
            assert worker.receipt_for(b"key").reason is None
            first, info = deliver(worker)
            age_s = info.pop("age_s")
            hold_s = info.pop("hold_s")
            assert info == {"attempt": 1, "deliveries": 1, "priority": 7, "group": "g"}
            assert 0 <= age_s < WAIT_S
            assert 1_700 < hold_s <= 1_800
            _, info = deliver(worker, credit=2)
            assert (info["attempt"], info["deliveries"]) == (1, 2)
            worker.reset()  # as a killed worker's
        with SocketClient(broker.port) as worker:
            _, info = deliver(worker)
            assert (info["attempt"], info["deliveries"]) == (2, 3)
            broker.terminate()
        broker.start()
        with SocketClient(broker.port) as worker:
            again, info = deliver(worker)
            assert again.message_id == first.message_id
            assert (info["attempt"], info["deliveries"]) == (2, 4)
            worker.settle(again, "retry", attempt=2, delay_s=0.05)
            again, info = worker.dispatch_with_info()
            assert (info["attempt"], info["deliveries"]) == (3, 5)
            assert info["age_s"] <= age_s + WAIT_S
            worker.settle(again, "retry", failed=False)
            again, info = worker.dispatch_with_info()
            assert (info["attempt"], info["deliveries"]) == (3, 6)
            worker.requeue(again)
            again, info = worker.dispatch_with_info()
            assert (info["attempt"], info["deliveries"]) == (4, 7)
            worker.settle(again, "extend", hold_s=5)
            worker.consume_with("orders", 1, info=True)
            _, info = worker.dispatch_with_info()
            assert 1_700 < info["hold_s"] <= 1_800  # of the new hold
            assert (info["attempt"], info["deliveries"]) == (4, 8)
        broker.kill()
        broker.start()
        with SocketClient(broker.port) as worker:
            _, info = deliver(worker)
            assert (info["priority"], info["group"]) == (7, "g")
            assert info["deliveries"] in (8, 9)  # the last one may not have been stored


def deliver(
    worker: SocketClient, queue: str = "orders", credit: int = 1
) -> tuple[DispatchWithInfo, dict[str, Any]]:
    worker.consume_with(queue, credit, info=True)
    return worker.dispatch_with_info()


def test_queue_without_a_timeout_has_no_end_of_a_hold(
    worker: SocketClient, api: AdminApi, queue: str
) -> None:
    worker.store(queue, b"job")
    configure(api, queue, {"ack_timeout_s": 0})
    _, info = deliver(worker, queue)
    assert "hold_s" not in info


# -- settlements that are late


def test_settlements_are_accepted_on_a_new_connection(
    broker: BrokerProcess, api: AdminApi, queue: str
) -> None:
    """They come before its first consume, for messages that no live connection holds."""
    with SocketClient(broker.port) as worker:
        worker.store(queue, b"ack", b"retry", b"dead", b"extend", b"left")
        worker.consume_with(queue, 5, info=True)
        held = {frame.content: frame for frame, _ in (worker.dispatch_with_info() for _ in "12345")}
        worker.reset()
    eventually(lambda: api.queue(queue)["dispatched"] == 0)
    before = ignored(api, "not_held")
    with SocketClient(broker.port) as again:
        again.send(
            again.side.hello(b"k", b"{}")
            + again.side.acknowledge(queue, held[b"ack"].message_id)
            + settled(again, held[b"retry"], action="retry", attempt=1, delay_s=3_600)
            + settled(again, held[b"dead"], action="dead_letter", reason="broken", error="why")
            + settled(again, held[b"extend"], action="extend", hold_s=60)
            + again.side.consume_with_options(queue, 5, b'{"info":true}')
        )
        left = [again.dispatch_with_info()[0].content for _ in range(2)]
        again.barrier()
        assert (left, [*again.informed]) == ([b"extend", b"left"], [])
    assert message(api, held[b"ack"])["state"] == "acked"
    assert message(api, held[b"retry"])["state"] == "scheduled"
    dead = message(api, held[b"dead"])
    assert (dead["state"], dead["reason"]) == ("dead", "broken")
    assert ignored(api, "not_held") == before + 1


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_settlements_are_accepted_after_a_restart(tmp_path: Path, how: str) -> None:
    with broker_process(tmp_path / "data", "--admin", "127.0.0.1:0") as broker:
        with SocketClient(broker.port) as worker:
            worker.store("orders", b"ack", b"retry", b"dead", b"left", ttl_s=3_600)
            worker.consume_with("orders", 4, info=True)
            held = {f.content: f for f, _ in (worker.dispatch_with_info() for _ in "1234")}
            if how == "terminate":
                worker.reset()  # a broker that stops waits for what is held
            getattr(broker, how)()
        broker.start()
        api = AdminApi(broker.admin[0])
        with SocketClient(broker.port) as again:
            again.send(
                again.side.hello(b"k", b"{}")
                + again.side.acknowledge("orders", held[b"ack"].message_id)
                + settled(again, held[b"retry"], action="retry", attempt=1, delay_s=0.01)
                + settled(again, held[b"dead"], action="dead_letter", reason="broken")
                + again.side.consume_with_options("orders", 5, b'{"info":true}')
            )
            got = [again.dispatch_with_info() for _ in range(2)]
            assert sorted(frame.content for frame, _ in got) == [b"left", b"retry"]
            attempts = {frame.content: info["attempt"] for frame, info in got}
            assert attempts == {b"left": 1, b"retry": 2}
            again.ack(*(frame for frame, _ in got))
            again.barrier()
        assert message(api, held[b"ack"])["state"] == "acked"
        assert message(api, held[b"dead"])["reason"] == "broken"
        assert [message(api, frame)["state"] for frame, _ in got] == ["acked", "acked"]


def settled(peer: SocketClient, frame: DispatchWithInfo, **options: Any) -> bytes:
    return peer.side.settle(frame.queue, frame.message_id, to_json(options), None)


# -- the inspector


def test_recorder_shows_frames_of_both_directions(
    worker: SocketClient, api: AdminApi, queue: str
) -> None:
    hello = to_json({"name": queue})
    worker.send(worker.side.hello(b"first", hello))
    worker.welcome()
    worker.consume(queue, 1)
    worker.barrier()
    [me] = eventually(lambda: [
        client["client"] for client in api.get("/api/v1/clients")["items"]
        if client["name"] == queue
    ])  # fmt: skip
    path = f"/api/v1/clients/{me}/frames"
    api.get(path)  # starts the recording
    worker.send(worker.side.hello(b"second", hello))
    worker.welcome()
    worker.publish_with(queue, b"job", delay_s=0)
    [job] = worker.dispatches(1)
    worker.settle(job, "retry", attempt=1)
    worker.consume_with(queue, 1, info=True)
    worker.dispatch_with_info()
    frames = api.get(path)["frames"]
    assert [frame["kind"] for frame in frames if frame["kind"] != "receipt"] == [
        "hello", "welcome", "publish with options", "dispatch", "settle",
        "consume with options", "dispatch with info",
    ]  # fmt: skip
    texts = [piece["meaning"] for frame in frames for piece in frame["pieces"]]
    assert "key second" in texts
    assert 'options {"action": "retry", "attempt": 1}' in texts
    assert any(text.startswith('info {"attempt":2,') for text in texts)
