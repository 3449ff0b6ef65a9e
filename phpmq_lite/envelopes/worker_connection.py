"""A worker's connection, which reconnects with increasing delays and never loses a settlement."""

import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, Unpack

from phpmq_lite.client.blocking_client import STOP_S, BlockingClient
from phpmq_lite.client.core import AwayLog, Backoff
from phpmq_lite.client.delivery import Delivery, Settler, delivery_of
from phpmq_lite.client.publishes import AnswerCallback, KeyedMessage, PublishFields, storing_once
from phpmq_lite.client.session import ConsumedQueue, OldForm
from phpmq_lite.errors import ConnectionLostError
from phpmq_lite.os_process import reset_after_fork
from phpmq_lite.protocol.frames import CONSUME_WITH_OPTIONS

PUBLISH_TIMEOUT_S: Final = 30.0  # how long to retry a publish after the connection is lost
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def _ended_by_signals(*, is_idle: bool) -> Iterator[None]:
    """If ``is_idle``, raise KeyboardInterrupt at a signal, which only sets a flag in the SDK."""
    is_main = threading.current_thread() is threading.main_thread()
    current = {number: signal.getsignal(number) for number in _SIGNALS if is_idle and is_main}
    handlers = {number: handler for number, handler in current.items() if callable(handler)}

    def end(number: int, frame: FrameType | None) -> None:
        handlers[signal.Signals(number)](number, frame)
        raise KeyboardInterrupt

    try:
        for number in handlers:
            signal.signal(number, end)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class WorkerConnection(Settler):
    """Connection that receives, publishes and settles messages; threads can share it.

    ``client`` must not reconnect automatically. After a loss, the next call reconnects 0.1 to
    10 s after the last attempt. At most ``credit`` messages are held per queue, with info if the
    broker knows it.
    """

    def __init__(
        self,
        client: BlockingClient,
        credit: int = 1,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if credit < 1:
            raise ValueError(f"the credit is {credit}; the minimum is 1")
        self.client = client
        self.session = client.session
        self.credit = credit
        self._backoff = Backoff()
        self._sleep = sleep
        self._windows: dict[str, ConsumedQueue] = {}
        self._next_connect_at = 0.0  # do not reconnect before this monotonic time
        self._connecting = threading.Lock()
        self._away = AwayLog(client.target)
        self._was_connected = False
        self._first_generation = 0  # messages of earlier connections belong to the parent process
        reset_after_fork(self)

    def forked(self) -> None:
        """Leave the connection and its messages to the parent process; the next call reconnects."""
        self._windows.clear()
        self._was_connected = False
        self._connecting = threading.Lock()
        self._first_generation = self.session.generation + 1

    # -- connecting

    def _ensure_connected(self, timeout_s: float) -> None:
        """Connect if not connected; raise ConnectionLostError if that fails or is not due yet."""
        if self.client.is_connected:
            return
        deadline_s = time.monotonic() + timeout_s
        if not self._connecting.acquire(timeout=max(0.0, timeout_s)):  # another thread connects
            raise ConnectionLostError(f"{self.client.target} is not connected")
        try:
            self._connect(deadline_s)
        finally:
            self._connecting.release()

    def _connect(self, deadline_s: float) -> None:
        if self.client.is_connected:  # another thread has connected meanwhile
            return
        if self._was_connected:
            self._away.lost()
        self._forget_windows()
        wait_s, left_s = self._next_connect_at - time.monotonic(), deadline_s - time.monotonic()
        if wait_s > left_s:
            self._sleep(max(0.0, left_s))
            raise ConnectionLostError(f"{self.client.target} is not connected")
        if wait_s > 0:
            self._sleep(wait_s)
        self._next_connect_at = time.monotonic() + self._backoff.next_s()
        self.client.open()
        self._away.connected()
        self._was_connected = True

    def _forget_windows(self) -> None:
        """Forget the messages held on a lost connection, because the broker has requeued them."""
        with self.client.lock:
            for window in self._windows.values():
                self.session.stop_consuming(window)
            self._windows.clear()

    # -- worker operations

    def receive(self, queue: str, timeout_s: float) -> Delivery | None:
        """Return the next message, or None after a time; ConnectionLostError means: call again."""
        deadline_s = time.monotonic() + timeout_s
        with _ended_by_signals(is_idle=not self.client.is_connected):
            self._ensure_connected(timeout_s)
        with self.client.lock:
            window = self._windows.get(queue)
            if window is None:
                has_info = self.session.knows(CONSUME_WITH_OPTIONS)
                window = self.client.start_consuming(queue, self.credit, has_info=has_info)
                self._windows[queue] = window
        dispatches = window.dispatches
        while True:
            with suppress(IndexError):
                frame = dispatches.popleft()
                self._backoff.reset()  # the connection works, so restart the delays
                return delivery_of(self, frame, self.session.generation)
            left_s = max(0.0, deadline_s - time.monotonic())
            with _ended_by_signals(is_idle=True):
                is_empty = not self.client.pump(lambda: bool(dispatches), left_s)
            if is_empty:
                self._backoff.reset()
                return None

    def waiting_for(self, queue: str) -> list[Delivery]:
        """Return the messages that have arrived behind the one in work."""
        if self.credit < 2:
            return []
        self.client.pump(lambda: True, 0)
        with self.client.lock:
            window, number = self._windows.get(queue), self.session.generation
            return (
                [delivery_of(self, frame, number) for frame in window.dispatches] if window else []
            )

    def publish(
        self,
        queue: str,
        body: bytes,
        ttl_s: float = 0,
        key: bytes | None = None,
        **options: Unpack[PublishFields],
    ) -> None:
        """Publish a message and wait up to 30 s for its receipt; raise as ``publish_confirmed``.

        A message with a ``key`` is stored once, even if its body differs when it is repeated.
        """
        key = key or secrets.token_hex(16).encode()
        deadline_s = time.monotonic() + PUBLISH_TIMEOUT_S
        while True:
            try:
                self._ensure_connected(max(0.0, deadline_s - time.monotonic()))
                with storing_once():
                    self.client.publish_confirmed(queue, body, ttl_s, key, **options)
            except (ConnectionLostError, TimeoutError):
                if time.monotonic() >= deadline_s:
                    raise
            else:
                self._backoff.reset()
                return

    def settle(
        self, delivery: Delivery, frame: bytes, old_form: OldForm | None, *, is_kept: bool
    ) -> None:
        """Settle a message immediately or, if not connected, on the next connection.

        A requeue without a connection is not sent, because the broker has already requeued the
        message.  A forked child cannot settle the messages of its parent process.
        """
        if delivery.generation < self._first_generation:
            return
        with self.client.lock:
            if is_kept or self.session.is_connected:
                place = (delivery.queue, delivery.generation, frame, old_form)
                data = self.session.settlement_to_send(*place, is_kept=is_kept)
                with suppress(ConnectionLostError):  # the session keeps the settlement
                    self.client.send_now(data)

    def confirm(self, message: KeyedMessage, answer: AnswerCallback) -> None:
        """Begin a confirmed publish."""
        self.client.confirm(message, answer)

    def return_messages(self, queue: str) -> None:
        """Return a queue's held messages to their positions without counting a delivery."""
        with self.client.lock:
            window = self._windows.pop(queue, None)
            if window is not None:
                with suppress(ConnectionLostError):  # the broker has requeued the messages
                    self.client.stop_consuming(window)

    def close(self, *, is_tidy: bool = True) -> None:
        """Send outstanding settlements and close. Safe to call twice.

        With ``is_tidy``, held messages are returned first, so no delivery is counted. Otherwise,
        the broker counts one delivery of the oldest held message, because that message may have
        crashed the worker. If settlements are outstanding, one more connection attempt is made.
        """
        if is_tidy:
            for queue in list(self._windows):
                self.return_messages(queue)
        self.client.timeout_s = self.client.close_s = STOP_S
        if self.session.late_settlements and not self.client.is_connected:
            with suppress(ConnectionLostError):  # the broker then delivers the messages again
                self._ensure_connected(STOP_S)
        self._forget_windows()
        if self.client.is_connected:
            self.client.close()
