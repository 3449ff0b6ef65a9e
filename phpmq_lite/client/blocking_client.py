"""The blocking client, which performs the I/O for ``core.py`` on sockets, without own threads.

All I/O happens inside calls.  Of all threads that wait in a call, one reads for the whole client;
a lock protects the state, and is never held while a thread waits.
"""

import ssl as tls
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self, TypeVar, Unpack
from urllib.parse import urlsplit

from phpmq_lite.client.buffered_socket import (
    SIGNAL_S,
    BufferedSocket,
    deadline_after,
    open_stream,
    seconds_left,
)
from phpmq_lite.client.core import Backoff, ClientCore, ConnectionOptions, parse_address
from phpmq_lite.client.delivery import Delivery
from phpmq_lite.client.publishes import (
    AnswerCallback,
    KeyedMessage,
    PublishBatch,
    PublishFields,
    check_fields,
)
from phpmq_lite.client.session import ConsumedQueue, OldForm
from phpmq_lite.errors import (
    KEY_CONFLICT,
    ClientError,
    ConnectionLostError,
    LocalProtocolError,
    PhpmqError,
    PublishRefusedError,
)
from phpmq_lite.protocol.frames import DEFAULT_MAX_CONTENT
from phpmq_lite.sockets import Dialer

_Result = TypeVar("_Result")
_RECONNECT_S: Final = 10.0  # time limit of an attempt to connect again
_CLOSE_S: Final = 5.0  # maximum time for the broker to read the remaining data
STOP_S: Final = 1.0  # the same after a signal that ends the process
_GATHER_S: Final = 0.005  # maximum delay of a settlement that is to be sent together with others
_PUT_BYTES: Final = 65_536  # buffered data is sent immediately above this size


def connect_blocking(
    address: str = "127.0.0.1",
    port: int | None = None,
    *,
    ssl: tls.SSLContext | None = None,
    server_hostname: str | None = None,
    max_content: int = DEFAULT_MAX_CONTENT,
    reconnect: bool = True,
    timeout_s: float | None = 30.0,
    backoff: Backoff | None = None,
) -> "BlockingClient":
    """Return a client for a broker, to be used with ``with``.

    The arguments are those of :func:`phpmq_lite.client.connect`, and ``timeout_s``: the default
    timeout of calls that wait for the broker; None means no timeout.
    """
    options = ConnectionOptions(
        parse_address(address, port), ssl, server_hostname, max_content, reconnect, backoff
    )
    return BlockingClient(options, timeout_s)


class BlockingClient(ClientCore):
    """Blocking client, which reconnects automatically; created by :func:`connect_blocking`.

    Threads can share it: while one waits for messages, others publish and settle.  After a lost
    connection, the next call consumes the queues again and repeats unanswered confirmed publishes.
    """

    def __init__(self, options: ConnectionOptions, timeout_s: float | None) -> None:
        super().__init__(options)
        self.timeout_s = timeout_s  # default timeout of all calls; callers may change it
        self.close_s = _CLOSE_S
        self._dialer = Dialer(self.target.host, self.target.port)
        self._stream: BufferedSocket | None = None
        self._opened_at = 0.0
        self._sent_at = 0.0
        self._make_lock()

    def _make_lock(self) -> None:
        # Never held during a wait; a destructor or a signal handler may interrupt its holder.
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)  # notified if any wait may have ended
        self._waiting = 0  # number of threads that wait for `_changed`
        self._reader: int | None = None  # the thread that waits for the socket, or connects

    def forked(self) -> None:
        """Leave the connection to the parent process; its other threads do not exist here."""
        super().forked()
        self._stream = None  # closes itself
        self._make_lock()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_connected(self) -> bool:
        """Whether the client was still connected when it was last used."""
        return self._stream is not None

    # -- opening and closing

    def open(self) -> None:
        """Connect to the broker, unless the client is connected.

        Raises:
            ConnectionLostError: cannot connect.  The first connection is not retried.
        """
        with self.lock:
            deadline = deadline_after(self.timeout_s)
            while (
                self._stream is None and self._is_read_elsewhere() and seconds_left(deadline) != 0
            ):
                self._wait_for_change(seconds_left(deadline))
            if self._stream is not None:
                return
            before, self._ended, self.is_closing = self._ended, None, False
            try:
                self._connect(seconds_left(deadline))
            except BaseException as error:
                if not self.is_closing and self.is_retried(error):
                    return
                if not self.is_closing:
                    self._ended = before
                if isinstance(error, OSError):
                    raise self._connect_error(error) from error
                raise

    def close(self) -> None:
        """Send buffered data and close the client; unsettled messages return to their queues.

        The calls of other threads end, too.  The broker closes first, because closing our socket
        with unread data would send a reset, which may overtake the last acknowledgements.
        """
        deadline = deadline_after(self.close_s)
        with self.lock:
            self.is_closing = True
            stream, self._stream = self._stream, None
            self.session.lost()
            self._end("the client is closed")
            self._changed.notify_all()
            if stream is None:
                return
            while self._is_read_elsewhere() and seconds_left(deadline):
                stream.watch(wakes=True)
                self._wait_for_change(seconds_left(deadline))
        _finish(stream, deadline)

    def _connect(self, timeout_s: float | None) -> None:
        """Connect while other threads wait; the caller holds the lock."""
        deadline = deadline_after(timeout_s)
        stream = None
        while stream is None:
            stream = self._unlocked(self._open_stream, deadline)
        if self._ended is not None:  # closed by another thread meanwhile
            stream.close()
            self.raise_if_ended()
        self._stream = stream
        self._opened_at = time.monotonic()
        stream.buffer(self.session.connected())
        self._away.connected()

    def _open_stream(self, deadline: float | None) -> BufferedSocket | None:
        """Return a connection on which the broker has answered the hello, or None: try again."""
        left_s = seconds_left(deadline)
        stream = open_stream(self.options, self._dialer, left_s, is_probed=self.is_probed())
        hello = self.greet()
        if not hello:
            return stream
        stream.buffer(hello)
        try:
            self._wait_for_welcome(stream, deadline)
        except BaseException as error:
            stream.close()
            if isinstance(error, TimeoutError) or not isinstance(error, OSError):
                raise
            self.hello_ended()
            return None
        self.welcomed()
        return stream

    def _wait_for_welcome(self, stream: BufferedSocket, deadline: float | None) -> None:
        """Read until the broker has answered the hello; raise OSError if it does not."""
        session = self.session
        while not (session.is_welcome or self.is_closing):
            stream.send()
            stream.watch()
            stream.wait(seconds_left(deadline))
            for data in stream.receive():
                session.receive(data)
            if session.side.error is not None:
                raise ConnectionError("the peer does not speak PHPMQ")
            if seconds_left(deadline) == 0 and not session.is_welcome:
                raise TimeoutError("the broker does not answer")

    def _reconnect(self, deadline: float | None) -> None:
        """Try once to reconnect; after a failure, this or another call tries again."""
        left_s = seconds_left(deadline)
        if left_s == 0:
            raise self._not_accepted()
        delay_s = self._backoff.next_s()
        before, self._reader = self._reader, threading.get_ident()
        try:
            self._changed.wait_for(
                lambda: self._ended is not None, delay_s if left_s is None else min(delay_s, left_s)
            )
        finally:
            self._reader = before
        self.raise_if_ended()
        left_s = seconds_left(deadline)
        try:
            self._connect(_RECONNECT_S if left_s is None else min(left_s, _RECONNECT_S))
        except OSError as error:  # the broker is still unavailable
            self.note_failure(error)
        except ConnectionLostError as error:
            self._end(str(error))
            raise

    def _drop_connection(self, error: OSError) -> None:
        """Drop the connection; raise ConnectionLostError if the client is not set to reconnect."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if not self._lose_connection(time.monotonic() - self._opened_at, error):
            self.raise_if_ended()

    # -- sharing the client among threads; all of these are called with the lock

    def _is_read_elsewhere(self) -> bool:
        return self._reader is not None and self._reader != threading.get_ident()

    def _wait_for_change(self, timeout_s: float | None) -> None:
        """Wait up to 1 s until another thread has read something or has stopped reading."""
        self._waiting += 1
        try:
            self._changed.wait(SIGNAL_S if timeout_s is None else min(timeout_s, SIGNAL_S))
        finally:
            self._waiting -= 1

    def _unlocked(self, call: Callable[..., _Result], *arguments: Any) -> _Result:
        """Return ``call(*arguments)`` without the lock, as the thread that reads for all."""
        before, self._reader = self._reader, threading.get_ident()
        self.lock.release()
        try:
            return call(*arguments)
        finally:
            self.lock.acquire()  # in a forked child, these are a new lock and no other threads
            self._reader = before
            if self._waiting:
                self._changed.notify_all()

    # -- the pump

    def pump(self, until: Callable[[], bool], timeout_s: float | None) -> bool:
        """Read and write until a condition is met, with the lock; return False on timeout.

        Raise ConnectionLostError if the client has ended, or could not reconnect in time.
        """
        deadline = deadline_after(timeout_s)
        self.lock.acquire()
        try:
            while True:
                self.raise_if_ended()
                stream = self._stream
                is_reader = not self._is_read_elsewhere()
                if stream is None and is_reader:
                    self._reconnect(deadline)
                    continue
                try:
                    if stream is not None and is_reader:
                        stream.send()
                        for data in stream.receive():
                            self._take(data)
                    elif stream is not None:
                        self._send(stream)
                    if (stream is not None or not is_reader) and until():
                        return True
                    left_s = seconds_left(deadline)
                    if left_s == 0:
                        return False
                    if stream is None or not is_reader:
                        self._wait_for_change(left_s)
                    else:
                        stream.watch()
                        self._unlocked(stream.wait, left_s)
                except OSError as error:
                    if self._stream is stream:
                        self._drop_connection(error)
        finally:
            self.lock.release()

    def _take(self, data: bytes) -> None:
        if not self._receive(data) and self._stream is not None:
            self._stream.close()
            self._stream = None
            raise ConnectionLostError(self._ended) from self.session.side.error

    def _put(self, frame: bytes) -> None:
        if self._stream is not None:
            self._stream.buffer(frame)

    def _send(self, stream: BufferedSocket) -> None:
        """Send what the socket accepts; leave errors and the rest to the thread that reads."""
        try:
            stream.send()
        except OSError as error:
            if not self._is_read_elsewhere():
                self._drop_connection(error)
            elif stream.failure is None:
                stream.failure = error
                stream.watch(wakes=True)
        else:
            if stream.unsent and self._is_read_elsewhere():
                stream.watch()

    # -- publishing

    def publish(
        self, queue: str, body: bytes, ttl_s: float = 0, **options: Unpack[PublishFields]
    ) -> None:
        """Send a message without waiting for a receipt, as with ``Client.publish``.

        Raises:
            LocalProtocolError: the queue name, the body, the TTL or an option is invalid.
            ClientError: the broker is older and does not know an option.
            ConnectionLostError: the connection was lost during sending; the message may be stored.
            TimeoutError: the broker is not reading; the message may still be sent later.
        """
        checked = check_fields(ttl_s, options)
        frame = self.session.side.publish(queue, body, int(ttl_s)) if checked is None else b""
        deadline = deadline_after(self.timeout_s)
        is_open = self.pump(lambda: self._stream is not None, self.timeout_s)  # or already lost
        with self.lock:
            self.raise_if_ended()
            session, stream = self.session, self._stream
            if not is_open or stream is None:
                raise self._not_accepted()
            generation = session.generation
            if checked is not None:
                frame = session.publish(queue, body, checked)
            stream.buffer(frame)
            end = stream.buffered
        if not self.pump(
            lambda: stream.sent >= end or session.generation != generation, seconds_left(deadline)
        ):
            raise TimeoutError(f"{self.target} stopped reading; the message may be sent later")
        if session.generation != generation:
            raise ConnectionLostError("the connection closed while a message was being sent")

    def publish_confirmed(
        self,
        queue: str,
        body: bytes,
        ttl_s: float = 0,
        key: bytes | None = None,
        **options: Unpack[PublishFields],
    ) -> None:
        """Publish a message and return when it is stored, as with ``Client.publish_confirmed``.

        Raises:
            PublishRefusedError: the broker refused the message; ``reason`` says why.
            LocalProtocolError: as for :meth:`publish`.
            ConnectionLostError: the client has ended, or could not reconnect in time.
            TimeoutError: the broker did not answer; the message may be stored.
        """
        checked = check_fields(ttl_s, options)
        batch = PublishBatch()
        with self.lock:
            self.raise_if_ended()
            answer = batch.begin()
            key, frame = self.session.confirm(queue, body, int(ttl_s), key, answer, checked)
            self._put(frame)
        try:
            self._wait_below(batch, 1)
        finally:
            with self.lock:
                self.session.pending.forget(queue, key)

    def publish_many(
        self,
        queue: str,
        bodies: Iterable[bytes],
        ttl_s: float = 0,
        window: int = 1_000,
        **options: Unpack[PublishFields],
    ) -> int:
        """Publish all bodies and return their number, as with ``Client.publish_many``.

        Raises:
            PublishRefusedError: the broker refused a body; no more bodies are sent.
            ConnectionLostError: as for :meth:`publish_confirmed`.
            TimeoutError: too few publishes were answered in time.
        """
        checked, whole_s = check_fields(ttl_s, options), int(ttl_s)
        self.raise_if_ended()
        batch = PublishBatch(window)
        try:
            for body in bodies:
                if bound := batch.bound():
                    self._wait_below(batch, bound)
                with self.lock:
                    answer = batch.begin()
                    _, frame = self.session.confirm(queue, body, whole_s, None, answer, checked)
                    self._put(frame)
                    is_full = self._stream is not None and self._stream.unsent > _PUT_BYTES
                if is_full:
                    self.pump(lambda: True, self.timeout_s)
            self._wait_below(batch, 1)
        finally:
            with self.lock:
                if batch.unanswered:
                    self.session.pending.forget_all(batch.answered)
        return batch.stored

    def _wait_below(self, batch: PublishBatch, bound: int) -> None:
        """Wait for answers; after an error, wait for the remaining answers and raise the error."""
        if not self.pump(lambda: batch.unanswered < bound, self.timeout_s):
            raise TimeoutError(f"{batch.unanswered} publish requests were not acknowledged in time")
        if batch.error is not None:
            self.pump(lambda: not batch.unanswered, self.timeout_s)
            raise batch.error

    def confirm(self, message: KeyedMessage, answer: AnswerCallback) -> None:
        """Begin a confirmed publish; raise LocalProtocolError if it is invalid or repeated."""
        with self.lock:
            frame = self.session.confirm_message(message, answer)
            self.send_now(frame, may_wait=self._reader is None)

    # -- consuming

    def consume(
        self, queue: str, credit: int = 100, timeout_s: float | None = None, *, info: bool = False
    ) -> "BlockingConsumer":
        """Return an iterator over a queue's messages; at most ``credit`` are unsettled at a time.

        With ``info``, deliveries have their attempt, their hold and more; see
        :class:`~phpmq_lite.client.Delivery`.

        ::

            for delivery in client.consume("orders"):
                handle(delivery.body)
                delivery.ack()

        The iterator continues after a lost connection and ends if no message arrives for
        ``timeout_s`` (None: never).  When your code leaves the loop, unsettled messages return to
        the queue; use ``with`` to control when that happens.

        Raises:
            LocalProtocolError: this client already consumes the queue, or the name or credit is
                invalid.
            ClientError: the broker is of an earlier release, which has no ``info``.
            ConnectionLostError: the client has ended.
        """
        self.raise_if_ended()
        return BlockingConsumer(self, queue, credit, timeout_s, has_info=info)

    def consume_with(
        self,
        queue: str,
        callback: Callable[[Delivery], None],
        credit: int = 100,
        timeout_s: float | None = None,
    ) -> None:
        """Call ``callback``, which settles the message, until none arrives for ``timeout_s``."""
        with self.consume(queue, credit, timeout_s) as deliveries:
            for delivery in deliveries:
                callback(delivery)

    def settle(
        self, delivery: Delivery, frame: bytes, old_form: OldForm | None, *, is_kept: bool
    ) -> None:
        """Send the settlement of a delivery; called by :class:`Delivery`.

        If more received messages are waiting, settlements within 5 ms are sent together; otherwise,
        the broker would have to read each settlement separately.
        """
        with self.lock:
            self.raise_if_ended()
            session = self.session
            place = (delivery.queue, delivery.generation, frame, old_form)
            self.send_now(
                session.settlement_to_send(*place, is_kept=is_kept),
                may_wait=self._reader is None
                and any(window.dispatches for window in session.windows.values()),
            )

    def send_now(self, frame: bytes, *, may_wait: bool = False) -> None:
        """Send a frame if connected, without waiting for the broker to accept the data."""
        with self.lock:
            stream = self._stream
            if stream is None or not frame:
                return
            stream.buffer(frame)
            now_s = time.monotonic()
            if may_wait and now_s - self._sent_at < _GATHER_S:
                return
            self._sent_at = now_s
            self._send(stream)

    def start_consuming(self, queue: str, credit: int, *, has_info: bool = False) -> ConsumedQueue:
        """Begin to consume a queue; called by :class:`BlockingConsumer`."""
        with self.lock:
            # No wake-up is needed, because a waiting call runs the pump itself.
            window = self.session.start_consuming(queue, credit, lambda: None, has_info=has_info)
            self.send_now(self.session.consume_frame(window))
        return window

    def set_credit(self, window: ConsumedQueue, credit: int) -> None:
        """Change the credit of a queue; called by :class:`BlockingConsumer`."""
        with self.lock:
            self.raise_if_ended()
            self.send_now(self.session.set_credit(window, credit))

    def stop_consuming(self, window: ConsumedQueue) -> None:
        """Return the unsettled messages of a queue, and end a wait for more in another thread."""
        with self.lock:
            self.send_now(self.session.stop_consuming(window))
            if self._stream is not None and self._is_read_elsewhere():
                self._stream.watch(wakes=True)


class BlockingConsumer:
    """Iterator over a queue's messages; created by :meth:`BlockingClient.consume`."""

    def __init__(
        self,
        client: BlockingClient,
        queue: str,
        credit: int,
        timeout_s: float | None,
        *,
        has_info: bool,
    ) -> None:
        self._client = client
        self._timeout_s = timeout_s
        window = client.start_consuming(queue, credit, has_info=has_info)
        self._window: ConsumedQueue | None = window

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        """Return the next message; raise ConnectionLostError if the client has lost its broker."""
        window, client = self._window, self._client
        deadline = None
        while window is not None:
            if window.dispatches:
                with suppress(IndexError):  # another thread took it
                    return client._deliver(window)
            deadline = deadline or deadline_after(self._timeout_s)
            try:
                if not client.pump(
                    lambda: self._window is None or bool(self._window.dispatches),
                    seconds_left(deadline),
                ):
                    break
            except ConnectionLostError:
                if client.is_closing:
                    break
                raise
            window = self._window
        raise StopIteration

    def set_credit(self, credit: int) -> None:
        """Change the credit, as with ``Consumer.set_credit``."""
        if self._window is not None:
            self._client.set_credit(self._window, credit)

    def close(self) -> None:
        """Stop consuming; unsettled messages return to the queue.  Safe to call twice."""
        if self._window is not None:
            window, self._window = self._window, None
            self._client.stop_consuming(window)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError, ConnectionLostError):  # never opened, or already lost
            self.close()


def _finish(stream: BufferedSocket, deadline: float | None) -> None:
    """Send the remaining data, stop sending, and read until the broker closes the connection."""
    is_open = True
    try:
        while seconds_left(deadline):
            stream.send()
            if is_open and not stream.unsent:
                stream.half_close()
                is_open = False
            for _ in stream.receive():
                pass  # discard the data, because no caller is waiting for it
            stream.watch()
            stream.wait(seconds_left(deadline))
    except OSError:
        pass  # the broker has closed the connection, as expected
    finally:
        stream.close()


TIMEOUT_S: Final = 10.0  # default timeout for connecting and for waiting for a receipt
_SCHEMES: Final = {"phpmq": False, "phpmqs": True}  # scheme -> whether TLS is used


def client_from_url(
    url: str,
    *,
    ssl: tls.SSLContext | None = None,
    timeout_s: float = TIMEOUT_S,
    reconnect: bool = False,
    max_content: int = DEFAULT_MAX_CONTENT,
) -> BlockingClient:
    """Return an unopened client for a URL.

    Args:
        url: ``phpmq://HOST:PORT``, ``phpmqs://…``, ``HOST:PORT`` or ``unix:PATH``; the default port
            is 9100.  ``phpmqs`` uses TLS with the system's certificate authorities.
        ssl: TLS context to use instead of the default.
        timeout_s: timeout of each call that waits for the broker.
        reconnect: reconnect after a lost connection; must be False for a WorkerConnection.
        max_content: maximum size of a body in bytes; use the broker's ``limits.max_content``.

    Raises:
        ValueError: the URL has none of these forms.
    """
    address = url
    scheme, sign, location = url.partition("://")
    if sign:
        if scheme not in _SCHEMES or urlsplit(url).path not in ("", "/"):
            forms = "phpmq://HOST:PORT or unix:PATH"
            raise ValueError(f"{url!r} is not a valid broker address; use {forms}")
        address = location.rstrip("/")
        if _SCHEMES[scheme] and ssl is None:
            ssl = tls.create_default_context()
    return connect_blocking(
        address, ssl=ssl, timeout_s=timeout_s, reconnect=reconnect, max_content=max_content
    )


class NoReplyError(ClientError):
    """The broker did not answer, so the message may be stored.  Repeat the publish with its key."""


PublishOutcome = PhpmqError | None  # None if the message was stored
Send = Callable[[Sequence[KeyedMessage]], list[PublishOutcome]]


def publish_each(
    client: BlockingClient, messages: Sequence[KeyedMessage], timeout_s: float | None = 30.0
) -> list[PublishOutcome]:
    """Publish all messages in order, without waiting for each answer; return each outcome.

    ``PublishRefusedError``: the queue does not accept the message now.  ``LocalProtocolError``: the
    message is invalid and was not sent.  ``ConnectionLostError``: several connections ended
    without any answer, so the message may be the cause.  ``NoReplyError``: the outcome is unknown.
    A message counts as stored if its key is known, even with another body.
    """
    outcomes: list[PublishOutcome] = [NoReplyError("the broker did not answer")] * len(messages)
    waiting: set[int] = set()

    def answered(place: int, error: PhpmqError | None) -> None:
        waiting.discard(place)
        is_known = isinstance(error, PublishRefusedError) and error.reason == KEY_CONFLICT
        outcomes[place] = None if is_known else error

    try:
        for place, message in enumerate(messages):
            client.raise_if_ended()
            waiting.add(place)
            try:
                client.confirm(message, partial(answered, place))
            except ConnectionLostError:
                raise
            except (LocalProtocolError, ClientError) as error:
                waiting.discard(place)
                outcomes[place] = error
        client.pump(lambda: not waiting, timeout_s)
    except ConnectionLostError as error:  # all unanswered publish requests have failed
        outcomes = [
            NoReplyError(str(error))
            if isinstance(outcome, ConnectionLostError | NoReplyError)
            else outcome
            for outcome in outcomes
        ]
    finally:
        for place in list(waiting):
            client.session.pending.forget(messages[place].queue, messages[place].key)
    return outcomes
