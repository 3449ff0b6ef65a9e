"""The asyncio client, which performs the I/O for ``core.py``."""

import asyncio
import os
import socket
import ssl as tls
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, Self, Unpack, cast

from phpmq_lite.client.core import (
    Backoff,
    ClientCore,
    ConnectionOptions,
    EndedAtOnceError,
    parse_address,
)
from phpmq_lite.client.delivery import Delivery
from phpmq_lite.client.publishes import (
    PROBE_S,
    AnswerCallback,
    KeyedMessage,
    Options,
    PublishBatch,
    PublishFields,
    check_fields,
)
from phpmq_lite.client.session import ConsumedQueue, OldForm
from phpmq_lite.errors import ClientError, ConnectionLostError
from phpmq_lite.protocol.frames import DEFAULT_MAX_CONTENT
from phpmq_lite.sockets import Dialer, prepare

_WRITE_BYTES: Final = 65_536  # smaller amounts are sent at the end of the event loop iteration
_CLOSE_S: Final = 5.0  # maximum time for the broker to read the remaining data


def connect(
    address: str = "127.0.0.1",
    port: int | None = None,
    *,
    ssl: tls.SSLContext | None = None,
    server_hostname: str | None = None,
    max_content: int = DEFAULT_MAX_CONTENT,
    reconnect: bool = True,
    connect_timeout_s: float = 10.0,
    backoff: Backoff | None = None,
) -> "Client":
    """Return a client for a broker, to be used with ``async with``.

    Args:
        address: ``HOST``, ``HOST:PORT`` or ``unix:PATH``; the default port is 9100.
        port: port, if ``address`` does not include one.
        ssl: TLS context.
        server_hostname: name in the broker's certificate, if it differs from the host.  Required
            for TLS over a Unix socket.
        max_content: maximum size of a body in bytes, in both directions; use the broker's
            ``limits.max_content``.  If the broker sends a larger message, the client ends and the
            message is delivered again; publishing a larger message fails.
        reconnect: reconnect after a lost connection, with delays from 0.1 s to 10 s.
        connect_timeout_s: timeout of each connection attempt.
        backoff: delays between connection attempts, instead of the default.
    """
    options = ConnectionOptions(
        parse_address(address, port), ssl, server_hostname, max_content, reconnect, backoff
    )
    return Client(options, connect_timeout_s)


class Client(ClientCore):
    """A broker's asyncio client, which reconnects automatically; created by :func:`connect`.

    All tasks of an event loop can use the client concurrently, because publishes are pipelined.
    Calls from other threads and event loops raise ClientError.
    After a lost connection, the client consumes its queues again and repeats unanswered confirmed
    publishes.  Plain publishes may be lost.
    """

    def __init__(self, options: ConnectionOptions, connect_timeout_s: float) -> None:
        super().__init__(options)
        self._connect_timeout_s = connect_timeout_s
        self._connection: _Connection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._dialer = Dialer(self.target.host, self.target.port)
        self._loop: asyncio.AbstractEventLoop | None = None  # that of :meth:`open`
        self._thread = 0

    def forked(self) -> None:
        """Leave the connection to the parent process, without using the event loop's selector."""
        super().forked()
        link, self._connection, self._keeper = self._connection, None, None
        if link is not None:
            link.abandon()

    def raise_if_ended(self) -> None:
        """Raise ConnectionLostError if the client has ended, ClientError in another event loop."""
        super().raise_if_ended()
        try:
            is_own = asyncio.get_running_loop() is self._loop
        except RuntimeError:  # a plain function, which may be called while the loop is not running
            is_own = threading.get_ident() == self._thread
        if not is_own:
            raise ClientError(
                "this client belongs to the event loop in which it was opened; from another "
                "thread, use asyncio.run_coroutine_threadsafe, or a blocking client"
            )

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def is_connected(self) -> bool:
        """Whether the client is currently connected."""
        return self.session.is_connected

    # -- opening and closing

    async def open(self) -> None:
        """Connect to the broker.

        Raises:
            ConnectionLostError: cannot connect.  The first connection is not retried.
        """
        self._ready = asyncio.Event()  # set if the socket accepts data or the client has ended
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        link = None
        try:
            link = await self._connect()
        except OSError as error:
            if not self.is_retried(error):
                raise self._connect_error(error) from error
        self._ended = None
        self.is_closing = False
        if self._connection is None:  # the connection has already been lost again
            self._ready.clear()
        self._keeper = asyncio.create_task(self._stay_connected(link))

    async def close(self) -> None:
        """Send buffered data, then close; unanswered publishes fail.

        Raises:
            ClientError: the client was opened in another event loop.
        """
        if self._ended is None:
            self.raise_if_ended()
        self.is_closing = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._connection is not None:
            await self._connection.close()
        self._end("the client is closed")

    async def _connect(self) -> "_Connection":
        async with asyncio.timeout(self._connect_timeout_s):
            while True:
                link = await self._dial()
                try:
                    await link.decided.wait()
                except BaseException:
                    link.abort()
                    raise
                if link.is_usable:
                    return link
                self.hello_ended()

    async def _dial(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        target = self.target
        ssl, name = self.options.ssl, self.options.server_hostname
        if target.path:
            _, link = await loop.create_unix_connection(
                lambda: _Connection(self), target.path, ssl=ssl, server_hostname=name
            )
            return link
        connected = await self._dialer.connect_async()
        if self.is_probed():
            await _check_stays_open(connected)
        _, link = await loop.create_connection(
            lambda: _Connection(self),
            sock=connected,
            ssl=ssl,
            server_hostname=name if ssl is None else name or target.host,
        )
        return link

    async def _stay_connected(self, link: "_Connection | None") -> None:
        loop = asyncio.get_running_loop()
        while True:
            if link is not None:
                opened_at = loop.time()
                await link.lost.wait()
                if self._ended is not None or not self._lose_connection(loop.time() - opened_at):
                    return
            link = None
            while link is None:
                await asyncio.sleep(self._backoff.next_s())
                try:
                    link = await self._connect()
                except OSError as error:  # the broker is still unavailable
                    self.note_failure(error)
                except ConnectionLostError as error:
                    self._end(str(error))
                    return
            self._away.connected()

    def _end(self, detail: str) -> None:
        """End the client; all waiting calls fail."""
        super()._end(detail)
        for window in self.session.windows.values():
            window.wake()
        if self._loop is not None:
            self._ready.set()

    # -- publishing

    async def publish(
        self, queue: str, body: bytes, ttl_s: float = 0, **options: Unpack[PublishFields]
    ) -> None:
        """Send a message without waiting for a receipt; wait only if the socket's buffer is full.

        The message may still be lost.  ``ttl_s`` is its time to live; 0 means it never expires.
        The options are those of :class:`~phpmq_lite.client.publishes.PublishFields`.  To a broker
        of an earlier release, a message with only ``delay_s`` is sent to ``<queue>.retry``.

        Raises:
            LocalProtocolError: the queue name, the body, the TTL or an option is invalid.
            ClientError: the broker is older and does not know an option.
            ConnectionLostError: the client has ended.
        """
        checked = check_fields(ttl_s, options)
        if checked is None:
            frame = self.session.side.publish(queue, body, int(ttl_s))
            await self._writable()
        else:
            await self._writable()
            frame = self.session.publish(queue, body, checked)
        self.write(frame)

    async def publish_confirmed(
        self,
        queue: str,
        body: bytes,
        ttl_s: float = 0,
        key: bytes | None = None,
        **options: Unpack[PublishFields],
    ) -> None:
        """Publish a message and return when the broker has stored it.

        ``ttl_s`` and the options are those of :meth:`publish`.

        After a lost connection, the publish is repeated with its ``key`` until the broker answers;
        the message is stored only once.  If you pass your own key (1 to 64 bytes), you can also
        repeat it after your process restarts.  If this call is cancelled, the message may or may
        not be stored.

        Raises:
            PublishRefusedError: the broker refused the message; ``reason`` says why.
            LocalProtocolError: as for :meth:`publish`, or an unanswered publish has this key.
            ConnectionLostError: the client ended, or gave up repeating the publish.
        """
        checked = check_fields(ttl_s, options)
        answered = asyncio.Event()
        batch = PublishBatch(notify=answered.set)
        key = await self._send_confirmed(queue, body, int(ttl_s), key, batch, checked)
        try:
            await answered.wait()
        finally:
            self.session.pending.forget(queue, key)
        if batch.error is not None:
            raise batch.error

    async def publish_many(
        self,
        queue: str,
        bodies: Iterable[bytes] | AsyncIterable[bytes],
        ttl_s: float = 0,
        window: int = 1_000,
        **options: Unpack[PublishFields],
    ) -> int:
        """Publish all bodies with confirmation, leaving at most ``window`` unanswered at a time.

        Returns the number of stored messages, which is the number of bodies.

        Raises:
            PublishRefusedError: the broker refused a body; no more bodies are sent, and all bodies
                already sent have been answered.
            ConnectionLostError: as for :meth:`publish_confirmed`.
        """
        checked, whole_s = check_fields(ttl_s, options), int(ttl_s)
        progress = asyncio.Event()
        batch = PublishBatch(window, progress.set)

        async def wait_until_below(bound: int) -> None:
            while batch.unanswered >= bound:
                progress.clear()
                await progress.wait()

        async def send(body: bytes) -> bool:
            if bound := batch.bound():
                await wait_until_below(bound)
            if batch.error is None:
                await self._send_confirmed(queue, body, whole_s, None, batch, checked)
            return batch.error is None

        try:
            if isinstance(bodies, AsyncIterable):
                async for body in bodies:
                    if not await send(body):
                        break
            else:
                for body in bodies:
                    if not await send(body):
                        break
            await wait_until_below(1)
        finally:
            if batch.unanswered:
                self.session.pending.forget_all(batch.answered)
        if batch.error is not None:
            raise batch.error
        return batch.stored

    async def _send_confirmed(
        self,
        queue: str,
        body: bytes,
        ttl_s: int,
        key: bytes | None,
        batch: PublishBatch,
        options: Options | None,
    ) -> bytes:
        if self.session.is_connected:
            await self._writable()
        else:
            self.raise_if_ended()
        key, frame = self.session.confirm(queue, body, ttl_s, key, batch.begin(), options)
        self.write(frame)
        return key

    def confirm(self, message: KeyedMessage, answer: AnswerCallback) -> None:
        """Begin a confirmed publish; raise LocalProtocolError if it is invalid or repeated."""
        self.raise_if_ended()
        self.write(self.session.confirm_message(message, answer))

    async def _writable(self) -> None:
        self.raise_if_ended()
        while not self._ready.is_set():
            await self._ready.wait()
        self.raise_if_ended()

    def write(self, frame: bytes) -> None:
        """Send a frame if connected. If not, the session keeps any data that must not be lost."""
        if self._connection is not None:
            self._connection.write(frame)

    # -- consuming

    def consume(self, queue: str, credit: int = 100, *, info: bool = False) -> "Consumer":
        """Return an iterator over a queue's messages; at most ``credit`` are unsettled at a time.

        With ``info``, deliveries have their attempt, their hold and more; see
        :class:`~phpmq_lite.client.Delivery`.

        ::

            async for delivery in client.consume("orders"):
                handle(delivery.body)
                delivery.ack()

        The iterator continues after a lost connection and ends when the client is closed.  When
        your code leaves the loop, unsettled messages return to the queue; use ``async with`` to
        control when that happens.

        Raises:
            LocalProtocolError: this client already consumes the queue, or the name or credit is
                invalid.
            ClientError: the broker is of an earlier release, which has no ``info``.
            ConnectionLostError: the client has ended.
        """
        self.raise_if_ended()
        return Consumer(self, queue, credit, has_info=info)

    async def consume_with(
        self, queue: str, callback: Callable[[Delivery], Awaitable[None] | None], credit: int = 100
    ) -> None:
        """Call ``callback`` for one message at a time, until cancelled or until the client closes.

        The callback must settle the delivery.  An exception from the callback ends this call, and
        unsettled messages return to the queue.
        """
        async with self.consume(queue, credit) as deliveries:
            async for delivery in deliveries:
                if (awaitable := callback(delivery)) is not None:
                    await awaitable

    def settle(
        self, delivery: Delivery, frame: bytes, old_form: OldForm | None, *, is_kept: bool
    ) -> None:
        """Send the settlement of a delivery; called by :class:`Delivery`."""
        self.raise_if_ended()
        place = (delivery.queue, delivery.generation, frame, old_form)
        self.write(self.session.settlement_to_send(*place, is_kept=is_kept))

    # -- called by the connection

    def connection_made(self, link: "_Connection") -> None:
        """Start using a new connection."""
        self._connection = link
        if opening := self.session.connected():
            link.write(opening)
        self._ready.set()

    def connection_lost(self, link: "_Connection") -> None:
        """Stop using the lost connection, unless a forked child has done so."""
        if self._connection is not link:
            return
        self._connection = None
        self.session.lost()
        if self._ended is None:
            self._ready.clear()


async def _check_stays_open(connected: socket.socket) -> None:
    """Close the socket and raise ConnectionError if the peer closes it within ``PROBE_S``."""
    with suppress(TimeoutError):
        try:
            async with asyncio.timeout(PROBE_S):
                if not await asyncio.get_running_loop().sock_recv(connected, 1):
                    raise EndedAtOnceError("the broker has closed the connection")
        except OSError as error:
            if not isinstance(error, TimeoutError):
                connected.close()
            raise


class Consumer:
    """Asynchronous iterator over a queue's messages; created by :meth:`Client.consume`."""

    def __init__(self, client: Client, queue: str, credit: int, *, has_info: bool) -> None:
        self._client = client
        self._filled = asyncio.Event()
        window = client.session.start_consuming(queue, credit, self._filled.set, has_info=has_info)
        self._window: ConsumedQueue | None = window
        client.write(client.session.consume_frame(window))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """Return the next message; raise ConnectionLostError if the client has lost its broker."""
        window = self._window
        while window is not None:
            if window.dispatches:
                return self._client._deliver(window)
            if self._client.is_closing:
                break
            self._client.raise_if_ended()
            self._filled.clear()
            await self._filled.wait()
            window = self._window
        raise StopAsyncIteration

    def set_credit(self, credit: int) -> None:
        """Change the credit; nothing that is held returns.  0 pauses.

        Raises:
            ClientError: the broker is of an earlier release, which cannot do that.
        """
        if self._window is not None:
            self._client.raise_if_ended()
            self._client.write(self._client.session.set_credit(self._window, credit))

    def close(self) -> None:
        """Stop consuming; unsettled messages return to the queue.  Safe to call twice."""
        if self._window is not None:
            window, self._window = self._window, None
            self._client.write(self._client.session.stop_consuming(window))
            self._filled.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError, RuntimeError):  # never opened, or the event loop has ended
            if threading.get_ident() == self._client._thread:
                self.close()
            elif self._client._loop is not None:
                self._client._loop.call_soon_threadsafe(self.close)


class _Connection(asyncio.Protocol):
    """A connection that combines the data from one event loop iteration into one write."""

    def __init__(self, client: Client) -> None:
        self.lost = asyncio.Event()
        self.decided = asyncio.Event()  # set when it is usable or lost
        self.is_usable = False
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._size = 0  # total number of bytes in `_parts`

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        prepare(transport.get_extra_info("socket"))
        if hello := self._client.greet():
            self._transport.write(hello)
        else:
            self._begin()

    def _begin(self) -> None:
        self.is_usable = True
        self._client.connection_made(self)
        self.decided.set()

    def data_received(self, data: bytes) -> None:
        client = self._client
        client._receive(data)
        if client.session.side.error is not None:  # a frame is invalid or too large
            self.abort()
        elif not self.is_usable and client.session.is_welcome:
            client.welcomed()
            self._begin()

    def pause_writing(self) -> None:
        self._client._ready.clear()

    def resume_writing(self) -> None:
        self._client._ready.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._parts.clear()
        self._client.connection_lost(self)
        self.lost.set()
        self.decided.set()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._parts:
            parts, self._parts, self._size = self._parts, [], 0
            self._transport.write(b"".join(parts))

    def abandon(self) -> None:
        """Close the descriptor of a forked child; that of the parent process stays open.

        The number refers to the null device from now on, so that the transport can still use it.
        """
        self._parts.clear()
        number = self._transport.get_extra_info("socket").fileno()
        if number >= 0:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number, inheritable=False)
            os.close(null)

    async def close(self) -> None:
        """Close the connection after the broker has read all data.

        The broker closes first, because closing our socket with unread data would send a reset,
        which may overtake the last acknowledgements.
        """
        self._flush()
        try:
            async with asyncio.timeout(_CLOSE_S):
                if self._transport.can_write_eof():
                    with suppress(OSError):  # the broker has already closed the connection
                        self._transport.write_eof()
                else:
                    self._transport.close()
                await self.lost.wait()
        except TimeoutError:
            self._transport.abort()
            await self.lost.wait()
