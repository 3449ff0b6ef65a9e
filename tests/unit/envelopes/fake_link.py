"""A link without a socket: what was asked of it, in order, and what comes out of it."""

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from phpmq_lite.client.session import Delivery
from phpmq_lite.envelopes.transport import PhpmqTransport
from phpmq_lite.envelopes.worker_connection import Settlement, WorkerConnection
from phpmq_lite.protocol.frames import Dispatch

Act = tuple[Any, ...]


def delivery(content: bytes, number: int = 1, queue: str = "orders", ttl_s: int = 0) -> Delivery:
    """Give a message as a client hands it out."""
    frame = Dispatch(queue, content, b"%032x" % number, ttl_s)
    return Delivery(cast("Any", None), frame, 1)


class FakeLink:
    """Hands out ``waiting``, one after the other; an exception among them is raised.

    What is published to ``orders`` or ``orders.retry`` waits too where ``is_looped``.
    """

    def __init__(self, *contents: bytes, is_looped: bool = False) -> None:
        self.acts: list[Act] = []
        self.waiting: deque[Delivery | BaseException] = deque()
        self.refusal: BaseException | None = None  # of the next publishes
        self.on_confirm: Callable[[], None] = lambda: None
        self.credit = 1
        self.waits: list[float] = []  # seconds, of each take
        self._is_looped = is_looped
        self._number = 0
        for content in contents:
            self.add(content)

    def add(self, content: bytes, ttl_s: int = 0) -> None:
        self._number += 1
        self.waiting.append(delivery(content, self._number, ttl_s=ttl_s))

    def take(self, queue: str, timeout_s: float) -> Delivery | None:
        self.waits.append(timeout_s)
        if not self.waiting:
            return None
        found = self.waiting.popleft()
        if isinstance(found, BaseException):
            raise found
        return found

    def confirm(self, queue: str, body: bytes, ttl_s: int = 0, key: bytes | None = None) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.acts.append(("publish", queue, body, ttl_s, key))
        self.on_confirm()
        if self._is_looped and queue in ("orders", "orders.retry"):
            self.add(body)

    def end(self, ended: Delivery, how: Settlement, ttl_s: int = 0) -> None:
        rest = (ttl_s,) if how is Settlement.REQUEUE else ()
        self.acts.append((how.value, ended.message_id, *rest))

    def give_back(self, queue: str) -> None:
        self.acts.append(("give back", queue))

    def close(self, *, is_tidy: bool = True) -> None:
        self.acts.append(("close",) if is_tidy else ("close", "as it is"))

    def published(self, queue: str) -> list[bytes]:
        """Give the contents that went to a queue."""
        return [act[2] for act in self.acts if act[0] == "publish" and act[1] == queue]


class Told:
    """The events, as (event, context)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, level: str, event: str, context: Any) -> None:
        self.events.append((event, dict(context)))

    @property
    def names(self) -> list[str]:
        return [event for event, _ in self.events]


def transport_on(link: FakeLink, told: Told | None = None, **options: Any) -> PhpmqTransport:
    """Make the transport on a link; it neither sleeps nor reads a clock."""
    from phpmq_lite.envelopes.transport import WorkerEvents

    return PhpmqTransport(
        cast("WorkerConnection", link),
        WorkerEvents(told or Told()),
        now_ms=lambda: 1_700_000_000_000,
        **({"monotonic": lambda: 0.0, "sleep": lambda _s: None} | options),
    )
