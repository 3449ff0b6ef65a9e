"""A fake worker connection that records its calls."""

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from phpmq_lite.client.delivery import Delivery, delivery_of
from phpmq_lite.client.publishes import AnswerCallback, KeyedMessage
from phpmq_lite.client.session import BrokerFacts, ClientSession, OldForm
from phpmq_lite.envelopes.transport import EventHook, PhpmqTransport
from phpmq_lite.envelopes.worker_connection import WorkerConnection
from phpmq_lite.frame_options import read_object, write_options
from phpmq_lite.protocol.connection import ServerSide
from phpmq_lite.protocol.frames import (
    OUR_FRAMES,
    Acknowledge,
    Dispatch,
    DispatchWithInfo,
    Requeue,
    Settle,
    WireLimits,
)

Call = tuple[Any, ...]


def delivery(
    content: bytes, number: int = 1, queue: str = "orders", ttl_s: int = 0, **info: Any
) -> Delivery:
    """Return a delivery of an older broker, or of one that sends ``info``."""
    place = (queue, content, b"%032x" % number, ttl_s)
    frame = DispatchWithInfo(*place, write_options(info)) if info else Dispatch(*place)
    return delivery_of(cast("Any", None), frame, 1)


class FakeLink:
    """Returns the items of ``waiting`` in order; raises those that are exceptions.

    With ``is_looped``, messages published to ``orders`` or ``orders.retry`` are appended.  With
    ``info``, the broker knows the frames of ours, and sends this info with each message.
    """

    def __init__(self, *contents: bytes, is_looped: bool = False, **info: Any) -> None:
        self.session = ClientSession(8 << 20)
        self.session.is_connected = True
        self.session.generation = 1
        self.session.broker = BrokerFacts("0.2.0", frozenset(OUR_FRAMES if info else ()))
        self.calls: list[Call] = []
        self.waiting: deque[Delivery | BaseException] = deque()
        self.refusal: BaseException | None = None  # of the next publishes
        self.on_publish: Callable[[], None] = lambda: None
        self.credit = 1
        self.waiting_behind: list[Delivery] = []  # the current message
        self.waits: list[float] = []  # seconds of each receive
        self._info = info
        self._is_looped = is_looped
        self._number = 0
        for content in contents:
            self.add(content)

    def add(self, content: bytes, ttl_s: int = 0) -> None:
        self._number += 1
        self.waiting.append(delivery(content, self._number, ttl_s=ttl_s, **self._info))

    def receive(self, queue: str, timeout_s: float) -> Delivery | None:
        self.waits.append(timeout_s)
        if not self.waiting:
            return None
        found = self.waiting.popleft()
        if isinstance(found, BaseException):
            raise found
        found._client, found.is_settled = self, False
        return found

    def waiting_for(self, queue: str) -> list[Delivery]:
        return self.waiting_behind

    def publish(self, queue: str, body: bytes, ttl_s: int = 0, key: bytes | None = None) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.calls.append(("publish", queue, body, ttl_s, key))
        self.on_publish()
        if self._is_looped and queue in ("orders", "orders.retry"):
            self.add(body)

    def settle(
        self, settled: Delivery, frame: bytes, old_form: OldForm | None, *, is_kept: bool
    ) -> None:
        [sent] = ServerSide(WireLimits(), http_guard=False).receive(frame)
        call: Call = ("dead_letter", settled.message_id)
        if isinstance(sent, Acknowledge):
            call = ("ack", settled.message_id)
        elif isinstance(sent, Requeue):
            call = ("requeue", settled.message_id, sent.ttl_s)
        elif isinstance(sent, Settle):
            options = read_object(sent.options)
            call = (options.pop("action"), settled.message_id, options, sent.content)
        self.calls.append(call)

    def confirm(self, message: KeyedMessage, answer: AnswerCallback) -> None:
        raise NotImplementedError

    def return_messages(self, queue: str) -> None:
        self.calls.append(("return", queue))

    def close(self, *, is_tidy: bool = True) -> None:
        self.calls.append(("close",) if is_tidy else ("close", "as it is"))

    def published(self, queue: str) -> list[bytes]:
        return [call[2] for call in self.calls if call[0] == "publish" and call[1] == queue]


class RecordedEvents:
    """Records events as (event, context)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, level: str, event: str, context: Any) -> None:
        self.events.append((event, dict(context)))

    @property
    def names(self) -> list[str]:
        return [event for event, _ in self.events]


def transport_on(link: FakeLink, events: EventHook | None = None, **options: Any) -> PhpmqTransport:
    """Return a transport that neither sleeps nor reads a clock."""
    return PhpmqTransport(
        cast("WorkerConnection", link),
        events or RecordedEvents(),
        now_ms=lambda: 1_700_000_000_000,
        **({"monotonic": lambda: 0.0, "sleep": lambda _s: None} | options),
    )
