"""A worker's connection: holds what it works on, comes back with growing pauses, loses no end."""

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Final

from phpmq_lite.client.blocking_client import BlockingClient
from phpmq_lite.client.session import Backoff, ConsumedQueue, Delivery
from phpmq_lite.errors import ConnectionLostError

PATIENCE_S: Final = 30.0  # a publish is repeated so long, over lost connections
_LAST_TRY_S: Final = 1.0  # at the end, for ends that have not left


class Settlement(Enum):
    """What becomes of a message that was held."""

    ACK = "ack"  # 004
    REQUEUE = "requeue"  # 005
    DEAD_LETTER = "dead_letter"  # 006


class WorkerConnection:
    """Takes messages, publishes with receipts, ends what it took; for one call at a time.

    ``client`` must be one that does not reconnect by itself.  After a loss the next call connects
    again, 0.1 s to 10 s after the last try.  Acknowledgements and dead letters that did not leave
    go first on the next connection.  At most ``credit`` messages are held for a queue.
    """

    def __init__(
        self,
        client: BlockingClient,
        credit: int = 1,
        *,
        patience_s: float = PATIENCE_S,
        backoff: Backoff | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if credit < 1:
            raise ValueError(f"a credit is at least 1, not {credit}")
        self.client = client
        self.credit = credit
        self._patience_s = patience_s
        self._backoff = backoff or Backoff()
        self._monotonic = monotonic
        self._sleep = sleep
        self._windows: dict[str, ConsumedQueue] = {}
        self._try_at = 0.0  # monotonic: not before
        self._lock = threading.RLock()  # a handler may publish from the worker's event loop

    # -- connecting

    def _ready(self, timeout_s: float) -> None:
        """Be connected; raises ConnectionLostError where that fails, or is not due in time."""
        if self.client.is_connected:
            return
        self._lose_windows()
        wait_s = self._try_at - self._monotonic()
        if wait_s > timeout_s:
            self._sleep(max(0.0, timeout_s))
            raise ConnectionLostError(f"{self.client.target} is away")
        if wait_s > 0:
            self._sleep(wait_s)
        self._try_at = self._monotonic() + self._backoff.next_s()
        self.client.open()

    def _lose_windows(self) -> None:
        """Forget what was dispatched on a connection that is gone: the broker has it back."""
        for window in self._windows.values():
            self.client.session.close_window(window)
        self._windows.clear()

    # -- what a worker does

    def take(self, queue: str, timeout_s: float) -> Delivery | None:
        """Return the next message, or None where none came in time.

        Raises:
            ConnectionLostError: there is no connection; call again.
        """
        with self._lock:
            until = self._monotonic() + timeout_s
            self._ready(timeout_s)
            window = self._windows.get(queue) or self._open_window(queue)
            dispatches = window.dispatches
            left_s = max(0.0, until - self._monotonic())
            if not dispatches and not self.client.pump(lambda: bool(dispatches), left_s):
                self._backoff.reset()  # it lasted
                return None
            self._backoff.reset()
            return Delivery(self.client, dispatches.popleft(), self.client.session.generation)

    def _open_window(self, queue: str) -> ConsumedQueue:
        session = self.client.session
        window = self._windows[queue] = session.open_window(queue, self.credit, _wake_nobody)
        self.client.send_now(session.side.consume(queue, self.credit))
        return window

    def confirm(self, queue: str, body: bytes, ttl_s: int = 0, key: bytes | None = None) -> None:
        """Return when the broker has stored a message; over lost connections it is stored once.

        Raises:
            PublishRefusedError: the broker did not take it.
            LocalProtocolError: the queue's name, the body or the TTL is not allowed.
            ConnectionLostError, TimeoutError: no receipt in 30 s; it may be stored.
        """
        key = key or secrets.token_hex(16).encode()
        until = self._monotonic() + self._patience_s
        with self._lock:
            while True:
                try:
                    self._ready(max(0.0, until - self._monotonic()))
                    self.client.publish_confirmed(queue, body, ttl_s, key)
                except (ConnectionLostError, TimeoutError):
                    if self._monotonic() >= until:
                        raise
                else:
                    self._backoff.reset()
                    return

    def end(self, delivery: Delivery, how: Settlement, ttl_s: int = 0) -> None:
        """Send the end of a message at once; without a connection it leaves with the next one.

        A requeue without a connection is not sent: the broker has put the message back already.
        """
        session, message_id = self.client.session, delivery.message_id.encode()
        with self._lock:
            if how is Settlement.ACK:
                frame = session.side.acknowledge(delivery.queue, message_id)
            elif how is Settlement.REQUEUE:
                frame = session.side.requeue(delivery.queue, message_id, ttl_s)
            else:
                frame = session.side.dead_letter(delivery.queue, message_id)
            if self.client.is_connected:
                try:
                    self.client.send_now(frame)
                except ConnectionLostError:
                    pass  # as if it had been lost before
                else:
                    return
            if how is not Settlement.REQUEUE:
                session.late.append(frame)

    def give_back(self, queue: str) -> None:
        """Give back all that is held of a queue, to its old place, as if it had not been taken."""
        with self._lock:
            window = self._windows.pop(queue, None)
            if window is not None:
                frame = self.client.session.close_window(window)
                if self.client.is_connected:
                    with suppress(ConnectionLostError):  # then the broker has it back
                        self.client.send_now(frame)

    def close(self, *, is_tidy: bool = True) -> None:
        """Send what is left, then close: the broker has back what was not ended.  May be repeated.

        Tidily it is given back first, which charges nobody; a connection that just ends charges
        one delivery to the oldest message it held: right for one that ended its worker.  Ends that
        have not left get one more try to connect.
        """
        if is_tidy:
            for queue in list(self._windows):
                self.give_back(queue)
        with self._lock:
            if self.client.session.late and not self.client.is_connected:
                with suppress(ConnectionLostError):  # those messages come again
                    self._ready(_LAST_TRY_S)
            self._lose_windows()
            if self.client.is_connected:
                self.client.close()


def _wake_nobody() -> None:
    """Do nothing: who waits is inside the pump."""
