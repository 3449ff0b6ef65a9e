"""Apps on a fake link: how often handlers run, with which arguments, and when a run ends."""

import asyncio
import contextvars
import json
import math
from typing import Any

import pytest
from babelqueue import BabelQueue

from phpmq_lite.envelopes import codec, dead_letter_record, worker
from phpmq_lite.envelopes.handlers import JobContext, NextHandler, takes_envelope
from phpmq_lite.envelopes.transport import RetryDelays, parse_delays
from phpmq_lite.envelopes.worker import WorkerLimits
from phpmq_lite.envelopes.worker_app import App, connect
from phpmq_lite.errors import LocalProtocolError, SettingsError
from tests.support.envelope_cases import VALID, Case, body, with_meta
from tests.unit.envelopes.fake_worker_connection import FakeLink, RecordedEvents, transport_on

URN = "urn:babel:orders:created"
UNTIL_EMPTY = WorkerLimits(stop_when_empty=True)


def app_on(link: FakeLink, recorded: RecordedEvents | None = None, **options: Any) -> App:
    transport = transport_on(link, recorded, delays=RetryDelays((1, 5, 15)))
    settings: dict[str, Any] = {"queue": "orders", "dead_letter": True} | options
    return App(transport, **settings)


def run(
    app: BabelQueue, limits: WorkerLimits = UNTIL_EMPTY, **options: Any
) -> worker.WorkerOutcome:
    return worker.run_worker(app, limits=limits, handle_signals=False, **options)


def handle(
    handler: Any, link: FakeLink, recorded: RecordedEvents | None = None, **options: Any
) -> App:
    app = app_on(link, recorded, **options)
    app.register(URN, handler)
    run(app)
    return app


def fail(*_: Any) -> None:
    raise ValueError("no stock")


@pytest.mark.parametrize(
    ("attempts", "runs"),
    [("0", 3), ("1", 2), ("2", 1), ("3", 1), ("-50", 3), ("9223372036854775807", 1)],
)
def test_failing_job_runs_up_to_max_attempts(attempts: str, runs: int) -> None:
    """The SDK alone would run it 53 times if ``attempts`` is -50."""
    link, recorded = FakeLink(body(attempts=attempts), is_looped=True), RecordedEvents()
    handle(fail, link, recorded)
    assert recorded.names.count("job.retry") == runs - 1
    (dead,) = link.published("orders.dlq")
    block = dead_letter_record.read_block(dead)
    assert block is not None
    assert (block.reason, block.error, block.exception) == ("failed", "no stock", "ValueError")


def test_retries_wait_longer_each_time() -> None:
    link = FakeLink(body(), is_looped=True)
    handle(fail, link, max_attempts=4)
    assert [call[3] for call in link.calls if call[1:2] == ("orders.retry",)] == [1, 5, 15]


@pytest.mark.parametrize("spoil", [math.nan, {1, 2}, "\ud800", object()])
def test_what_a_handler_changes_is_in_no_retry_and_no_record(spoil: object) -> None:
    def spoiling(data: Any, meta: Any, envelope: Any) -> None:
        data["order_id"] = meta["queue"] = envelope["x"] = spoil
        fail()

    link = FakeLink(body(), is_looped=True)
    handle(spoiling, link, max_attempts=2)
    assert link.published("orders.retry") == [body(attempts="1")]
    (dead,) = link.published("orders.dlq")
    assert dead.startswith(body(attempts="2")[:-1] + b',"dead_letter":{')


@pytest.mark.parametrize("case", VALID, ids=lambda case: case.name)
def test_every_right_envelope_is_retried_with_its_bytes(case: Case) -> None:
    link, recorded = FakeLink(case.content), RecordedEvents()
    run(app_on(link, recorded, max_attempts=100))  # without a handler, every attempt fails
    attempts = max(json.loads(case.content)["attempts"], 0) + 1
    retry = dead_letter_record.with_attempts(case.content, attempts)
    assert link.published("orders.retry") == [retry]
    assert "process.failed" not in recorded.names


@pytest.mark.parametrize(
    ("strategy", "events", "queue"),
    [
        ("fail", ["job.retry", "job.retry", "job.dead_letter"], "orders.dlq"),
        ("delete", ["job.dropped"], None),
        ("release", ["job.released"], "orders.retry"),
        ("dead_letter", ["job.dead_letter"], "orders.dlq"),
    ],
)
def test_unknown_urn(strategy: str, events: list[str], queue: str | None) -> None:
    link, recorded = FakeLink(body(), is_looped=strategy == "fail"), RecordedEvents()
    run(app_on(link, recorded, on_unknown_urn=strategy))
    assert [name for name in recorded.names if name.startswith("job.")] == events
    published = [call for call in link.calls if call[0] == "publish"]
    assert (published[-1][1] if published else None) == queue
    if strategy == "release":
        assert published[0][2:4] == (body(), 5)  # the SDK's default of 0 would spin
    if strategy == "dead_letter":
        block = dead_letter_record.read_block(published[0][2])
        assert block is not None
        assert (block.reason, block.attempts) == ("unknown_urn", 0)


def test_async_handlers_share_a_loop_that_goes_on_between_jobs() -> None:
    loops: list[Any] = []
    background: list[asyncio.Task[None]] = []
    ticked = asyncio.Event()

    async def later() -> None:
        ticked.set()

    async def handler(data: Any, meta: Any) -> None:
        loops.append(asyncio.get_running_loop())
        if not background:
            background.append(asyncio.create_task(later()))
        else:
            await ticked.wait()

    link, recorded = FakeLink(body(), body()), RecordedEvents()
    handle(handler, link, recorded)
    assert recorded.names.count("job.ack") == 2
    assert loops[0] is loops[1]
    assert loops[0].is_closed()


async def cancelled(*_: Any) -> None:
    raise asyncio.CancelledError


async def failing(data: Any, meta: Any, envelope: Any) -> None:
    fail()


@pytest.mark.parametrize("handler", [cancelled, failing])
def test_async_handler_that_fails_is_retried(handler: Any) -> None:
    link, recorded = FakeLink(body(), is_looped=True), RecordedEvents()
    handle(handler, link, recorded)
    assert recorded.names.count("job.retry") == 2


def leaving(*_: Any) -> None:
    raise SystemExit(3)


async def leaving_later(*_: Any) -> None:
    leaving()


@pytest.mark.parametrize("handler", [leaving, leaving_later])
def test_handler_that_exits_leaves_its_message_to_the_broker(handler: Any) -> None:
    link, recorded = FakeLink(body(), body()), RecordedEvents()
    app = app_on(link, recorded)
    app.register(URN, handler)
    with pytest.raises(SystemExit) as exit_info:
        run(app)
    assert exit_info.value.code == 3
    assert link.calls == [("close", "as it is")]
    assert recorded.names == ["worker.started", "process.failed", "worker.stopping"]
    assert recorded.events[-1][1]["reason"] == "exit"


def test_middleware_wraps_the_handler_in_order() -> None:
    seen: list[str] = []

    def named(name: str) -> Any:
        def one(context: JobContext, next_one: NextHandler) -> None:
            seen.append(f"{name} before {context.urn} {context.attempts}")
            next_one(context)
            seen.append(f"{name} after")

        return one

    app = app_on(FakeLink(body()))
    app.use(named("own"))
    app.register(URN, lambda data, meta: seen.append(f"handler {data} {meta['lang']}"))
    run(app, middleware=[named("outer")])
    assert seen == [
        f"outer before {URN} 0", f"own before {URN} 0",
        "handler {'order_id': 1042} go", "own after", "outer after",
    ]  # fmt: skip


def test_middleware_that_calls_nothing_handles_the_job_itself() -> None:
    link = FakeLink(body())
    app = app_on(link)
    app.use(lambda context, next_one: None)
    app.register(URN, fail)
    run(app)
    assert link.calls[0][0] == "ack"


def test_async_middleware_is_refused() -> None:
    async def one(context: JobContext, next_one: NextHandler) -> None:
        next_one(context)

    with pytest.raises(TypeError, match="is async"):
        app_on(FakeLink()).use(one)  # type: ignore[arg-type]


def test_handler_gets_an_empty_object_where_php_sent_a_list() -> None:
    got: list[Any] = []
    content = with_meta(lang='"php"').replace(b'{"order_id":1042}', b"[]")
    handle(lambda data, meta, envelope: got.append((data, envelope["data"])), FakeLink(content))
    assert got == [({}, {})]


@pytest.mark.parametrize("how", ["register", "handler"])
def test_second_handler_of_a_urn_is_refused(how: str) -> None:
    """A URN is routed to exactly one handler."""
    app = app_on(FakeLink())
    app.handler(URN)(fail)
    with pytest.raises(ValueError, match=f"'{URN}' already has the handler fail"):
        app.register(URN, print) if how == "register" else app.handler(URN)(print)
    assert app._handlers == {URN: fail}


def test_handlers_are_unwrapped_after_a_run() -> None:
    assert handle(fail, FakeLink(body()))._handlers == {URN: fail}


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_handler_publishes_continues_its_trace(is_async: bool) -> None:
    link = FakeLink(body())
    app = app_on(link)

    def publish(*_: Any) -> None:
        app.publish("urn:babel:mails:wanted", {"a": 1}, queue="mails")

    async def publish_async(*_: Any) -> None:
        await asyncio.to_thread(contextvars.copy_context().run, publish)

    app.register(URN, publish_async if is_async else publish)
    run(app)
    (sent,) = link.published("mails")
    assert json.loads(sent)["trace_id"] == "7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b"
    assert codec.current_trace_id() is None


@pytest.mark.parametrize(
    ("limits", "jobs", "reason"),
    [
        (WorkerLimits(max_jobs=2), 2, "jobs"),
        (WorkerLimits(max_runtime_s=1.5), 2, "runtime"),
        (WorkerLimits(memory_bytes=1), 0, "memory"),
        (WorkerLimits(parent=1 << 30), 0, "orphaned"),
        (WorkerLimits(stop_when_empty=True), 4, "empty"),
    ],
)
def test_run_ends_at_a_limit(limits: WorkerLimits, jobs: int, reason: str) -> None:
    seconds = iter([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0])
    link = FakeLink(body(), b"{", body(), body())  # the malformed one counts
    app = app_on(link)
    app.register(URN, lambda *_: None)
    outcome = run(app, limits, monotonic=lambda: next(seconds))
    assert outcome == worker.WorkerOutcome(jobs, reason)
    assert link.calls[-1] == ("close",)


def test_worker_without_dead_letters_does_not_start() -> None:
    app = app_on(FakeLink(), dead_letter=False)
    with pytest.raises(SettingsError, match="--drop-exhausted"):
        run(app)


def test_worker_drops_exhausted_jobs_on_request() -> None:
    link, recorded = FakeLink(body(), b"{", is_looped=True), RecordedEvents()
    app = app_on(link, recorded, dead_letter=False, max_attempts=1)
    app.register(URN, fail)
    run(app, drop_exhausted=True)
    assert [name for name in recorded.names if name.startswith("job")] == [
        "job.dropped", "job.dead_letter",
    ]  # fmt: skip
    assert len(link.published("orders.dlq")) == 1  # malformed ones are always kept


def test_app_of_the_sdk_runs_on_our_transport() -> None:
    got: list[Any] = []
    app = BabelQueue("memory://", queue="orders", dead_letter=True, dead_letter_suffix="-dead")
    app.register(URN, lambda data, meta: got.append(data))
    link = FakeLink(body(), b"{")
    run(app, transport=transport_on(link))
    assert got == [{"order_id": 1042}]
    assert len(link.published("orders-dead")) == 1


def test_app_on_another_transport_is_refused() -> None:
    with pytest.raises(SettingsError, match="does not use PHPMQ"):
        run(BabelQueue("memory://", dead_letter=True))


def test_hook_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def hook(*_: Any) -> None:
        raise ValueError

    transport_on(FakeLink(), hook).emit("info", "job.ack", "orders")
    assert "the event hook failed for job.ack" in caplog.text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_unknown_urn": "ignore"}, "on_unknown_urn"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"credit": 0}, "credit"),
        ({"url": "redis://localhost"}, "is not a valid broker"),
        ({"url": "phpmq://host/path"}, "is not a valid broker"),
    ],
)
def test_connect_refuses(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        connect(**options)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("phpmq://localhost", "localhost:9100"),
        ("phpmq://127.0.0.1:9/", "127.0.0.1:9"),
        ("phpmqs://[::1]:7", "[::1]:7"),
        ("host:1", "host:1"),
        ("unix:/run/phpmq.sock", "unix:/run/phpmq.sock"),
    ],
)
def test_connect_reads_a_url_and_opens_nothing(url: str, target: str) -> None:
    client = connect(url).transport.link.client
    assert str(client.target) == target
    assert not client.is_connected


def test_delays() -> None:
    steps = parse_delays("1, 5,15")
    assert [steps.after(n) for n in (1, 2, 3, 4, 99)] == [1, 5, 15, 15, 15]
    grown = RetryDelays(base_s=2, multiplier=3, max_s=10)
    assert [grown.after(n, lambda low, high: high) for n in (1, 2, 3, 1 << 31)] == [2, 6, 10, 10]
    assert grown.after(2, lambda low, high: low) == 0
    for text in ("", "1,x", "-1", "inf", "nan"):
        with pytest.raises(ValueError, match="not a comma-separated list"):
            parse_delays(text)


def test_third_positional_argument_is_the_envelope() -> None:
    assert takes_envelope(lambda a, b, c: None)
    assert takes_envelope(lambda *a: None)
    assert not takes_envelope(lambda a, b, *, c=1: None)
    assert not takes_envelope(dict.fromkeys)


def test_app_limits_messages_to_max_content() -> None:
    side = connect(max_content=10).transport.link.client.session.side
    assert side.publish("orders", b"x" * 10)
    with pytest.raises(LocalProtocolError, match="the limit is 10"):
        side.publish("orders", b"x" * 11)
