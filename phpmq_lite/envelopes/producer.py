"""Envelope producers. Each publish waits for the broker's receipt and returns the ``meta.id``.

The publish key is the ``meta.id``, with ``attempts`` appended unless they are 0, so an envelope
that is sent again after a lost connection or an error is stored only once while the broker
remembers the key. ``publish`` creates a new envelope on each call. To retry in your own code,
create the envelope once with ``make`` and pass it to ``publish_envelope`` on each attempt.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol, Self, Unpack

from phpmq_lite.client.async_client import Client
from phpmq_lite.client.async_client import connect as connect_aio
from phpmq_lite.client.blocking_client import BlockingClient, connect_blocking
from phpmq_lite.client.publishes import PublishFields, storing_once
from phpmq_lite.envelopes import codec
from phpmq_lite.envelopes.indexed_fields import is_blank
from phpmq_lite.errors import EnvelopeError
from phpmq_lite.queue_settings import KEY_BYTES


class EnvelopeSource(Protocol):
    """An object with a URN, a payload and, optionally, ``get_babel_trace_id()``."""

    def get_babel_urn(self) -> str:
        """Return the URN of the job."""

    def to_payload(self) -> Mapping[str, Any]:
        """Return the payload of the job."""


class PreparedEnvelope(NamedTuple):
    """An encoded envelope that is ready to be sent."""

    queue: str
    content: bytes
    key: bytes
    meta_id: str  # empty if the envelope has no meta.id


def envelope_for(
    job: str | EnvelopeSource,
    data: Mapping[str, Any] | str | None,
    queue: str | None,
    default_queue: str,
    *,
    trace_id: str | None = None,
    meta: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return an envelope for a URN with data or for a job object, continuing the current trace.

    ``trace_id`` and the job's ``get_babel_trace_id`` take precedence over the current trace. With a
    job, the second argument can be the queue: ``publish(UserRegistered(42), "emails")``.  Raise
    EnvelopeError if data is missing, or passed along with a job.
    """
    if isinstance(job, str):
        if data is None:
            raise EnvelopeError(f"/data is missing; pass it as publish({job[:200]!r}, data)")
        target = default_queue if queue is None else queue
        inherited = codec.current_trace_id() if trace_id is None else trace_id
        return codec.make(job, data, target, trace_id=inherited, meta=meta)  # type: ignore[arg-type]
    if isinstance(data, str) and queue is None:
        data, queue = None, data
    if data is not None or meta is not None:
        raise EnvelopeError(
            f"/data comes from the {type(job).__name__}; pass neither data nor meta"
        )
    target = default_queue if queue is None else queue
    envelope = codec.from_message(job, target, inherited_trace_id=codec.current_trace_id())
    if trace_id is not None and not is_blank(trace_id):
        envelope["trace_id"] = trace_id
    return envelope


def prepare_publish(
    envelope: Mapping[str, Any], queue: str | None = None, key: bytes | str | None = None
) -> PreparedEnvelope:
    """Encode an envelope for ``queue`` or its ``meta.queue``; raise EnvelopeError or ValueError."""
    content = codec.encode(envelope)
    meta = envelope["meta"]
    target = queue or meta.get("queue")
    if not target:
        raise EnvelopeError("/meta/queue is missing; set it or pass a queue")
    meta_id = meta.get("id") or ""
    attempts = envelope["attempts"]
    # A retry needs a new key.
    identity = f"{meta_id}:{attempts}" if meta_id and attempts else meta_id
    return PreparedEnvelope(target, content, receipt_key(content, identity, key), meta_id)


def receipt_key(content: bytes, identity: str, key: bytes | str | None = None) -> bytes:
    """Return the publish key: ``key``, or ``identity`` if that is None, or a hash of the content.

    An identity that is too long is hashed; a key that is too long raises ValueError.
    """
    if key is not None:
        encoded = key.encode() if isinstance(key, str) else key
        if not 0 < len(encoded) <= KEY_BYTES:
            raise ValueError(f"the key is {len(encoded)} bytes long; it must be 1 to {KEY_BYTES}")
        return encoded
    encoded = identity.encode()
    if 0 < len(encoded) <= KEY_BYTES:
        return encoded
    return hashlib.sha256(encoded or content).hexdigest().encode()  # a key of 64 hex digits


class Producer:
    """Blocking producer, which threads can share.

    ::

        with Producer("127.0.0.1:9100", queue="orders") as orders:
            orders.publish("urn:babel:orders:created", {"order_id": 1042})
    """

    def __init__(
        self, client: BlockingClient | str = "127.0.0.1", *, queue: str = "default", **options: Any
    ) -> None:
        """Publish over an open client, or over a new connection, which the first publish opens.

        Args:
            client: an open client, which the caller closes, or the address to connect to.
            queue: default queue.
            options: passed to ``connect_blocking`` if ``client`` is an address.
        """
        self.queue = queue
        self._is_owner = isinstance(client, str)
        self._is_new = self._is_owner  # not yet opened: the first publish opens it
        self.client = connect_blocking(client, **options) if isinstance(client, str) else client

    def __enter__(self) -> Self:
        if self._is_owner:
            self.client.open()
            self._is_new = False
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, unless the caller passed an open client."""
        if self._is_owner:
            self._is_new = False
            self.client.close()

    def publish(
        self,
        job: str | EnvelopeSource,
        data: Mapping[str, Any] | str | None = None,
        queue: str | None = None,
        *,
        trace_id: str | None = None,
        ttl_s: float = 0,
        meta: Mapping[str, Any] | None = None,
        key: bytes | str | None = None,
        **options: Unpack[PublishFields],
    ) -> str:
        """Publish a new envelope; return its ``meta.id`` once the broker has stored it.

        ::

            orders.publish("urn:babel:users:registered", {"user_id": 42}, "emails")
            orders.publish(UserRegistered(42), "emails")

        Args:
            job: the URN, ``urn:babel:<context>:<event>``; or an object with ``get_babel_urn`` and
                ``to_payload``.
            data: the payload for the URN; with an object, the queue can be passed here.
            queue: replaces the producer's queue.
            trace_id: the trace to continue; defaults to the object's trace, the trace of the
                envelope being handled, or a new one.
            ttl_s: time to live in seconds; 0 means no expiry.
            meta: additional members of ``meta``.
            key: the publish key, 1 to 64 bytes; defaults to the ``meta.id``.  A key of your own
                stands for an event, which is stored once: while the broker remembers the key, a
                second publish with it counts as stored, even if the data differs.
            options: ``delay_s``, ``priority`` and others, as for ``Client.publish``.

        Raises:
            EnvelopeError: the envelope is invalid; nothing was sent. The message names the member.
            ClientError, LocalProtocolError, TimeoutError: as in the client's ``publish_confirmed``.
        """
        envelope = envelope_for(job, data, queue, self.queue, trace_id=trace_id, meta=meta)
        return self.publish_envelope(envelope, ttl_s=ttl_s, key=key, **options)

    def publish_envelope(
        self,
        envelope: Mapping[str, Any],
        *,
        queue: str | None = None,
        ttl_s: float = 0,
        key: bytes | str | None = None,
        **options: Unpack[PublishFields],
    ) -> str:
        """Publish an existing envelope to ``queue``, or to its ``meta.queue`` if no queue is given.

        An envelope that is published again after an error or a restart is stored only once while
        the broker remembers its key. To store it twice on purpose, pass a different ``key``. Raises
        the same errors as :meth:`publish`.
        """
        prepared = prepare_publish(envelope, queue, key)
        if self._is_new:
            self.__enter__()
        with storing_once() if key is not None else nullcontext():
            place = (prepared.queue, prepared.content, ttl_s, prepared.key)
            self.client.publish_confirmed(*place, **options)
        return prepared.meta_id


class AsyncProducer:
    """Asyncio producer; all tasks of one event loop can share it.

    ::

        async with AsyncProducer("127.0.0.1:9100", queue="orders") as orders:
            await orders.publish("urn:babel:orders:created", {"order_id": 1042})

    Accepts the same arguments as :class:`Producer`.
    """

    def __init__(
        self, client: Client | str = "127.0.0.1", *, queue: str = "default", **options: Any
    ) -> None:
        """Publish over an open client, or over a new connection, which the first publish opens."""
        self.queue = queue
        self._is_owner = isinstance(client, str)
        self._is_new = self._is_owner
        self._opening = asyncio.Lock()  # tasks that publish first wait for each other
        self.client = connect_aio(client, **options) if isinstance(client, str) else client

    async def __aenter__(self) -> Self:
        if self._is_owner:
            await self.client.open()
            self._is_new = False
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection, unless the caller passed an open client."""
        if self._is_owner:
            self._is_new = False
            await self.client.close()

    async def publish(
        self,
        job: str | EnvelopeSource,
        data: Mapping[str, Any] | str | None = None,
        queue: str | None = None,
        *,
        trace_id: str | None = None,
        ttl_s: float = 0,
        meta: Mapping[str, Any] | None = None,
        key: bytes | str | None = None,
        **options: Unpack[PublishFields],
    ) -> str:
        """Publish a new envelope, like :meth:`Producer.publish`."""
        envelope = envelope_for(job, data, queue, self.queue, trace_id=trace_id, meta=meta)
        return await self.publish_envelope(envelope, ttl_s=ttl_s, key=key, **options)

    async def publish_envelope(
        self,
        envelope: Mapping[str, Any],
        *,
        queue: str | None = None,
        ttl_s: float = 0,
        key: bytes | str | None = None,
        **options: Unpack[PublishFields],
    ) -> str:
        """Publish an existing envelope, like :meth:`Producer.publish_envelope`."""
        prepared = prepare_publish(envelope, queue, key)
        if self._is_new:
            async with self._opening:
                if self._is_new:
                    await self.__aenter__()
        with storing_once() if key is not None else nullcontext():
            place = (prepared.queue, prepared.content, ttl_s, prepared.key)
            await self.client.publish_confirmed(*place, **options)
        return prepared.meta_id
