"""Producers of envelopes: each publish is confirmed and returns the ``meta.id``.

The receipt key is the ``meta.id``, with ``attempts`` where they are not 0, unless another is
given.  So an envelope that is sent again, by the client after a lost connection or by its caller
after an error, is stored once within the broker's window of keys.  ``publish`` makes a new
envelope at each call: to try again yourself, ``make`` it once and give it to
``publish_envelope`` as often as it takes.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol, Self

from phpmq_lite.client.async_client import Client
from phpmq_lite.client.async_client import connect as connect_aio
from phpmq_lite.client.blocking_client import BlockingClient, connect_blocking
from phpmq_lite.envelopes import codec
from phpmq_lite.envelopes.indexed_fields import is_blank
from phpmq_lite.errors import EnvelopeError

KEY_BYTES: Final = 64  # of a receipt key, at most


class EnvelopeSource(Protocol):
    """What knows its URN and its payload; it may also have ``get_babel_trace_id()``."""

    def get_babel_urn(self) -> str:
        """Return the URN."""

    def to_payload(self) -> Mapping[str, Any]:
        """Return the data."""


class PreparedEnvelope(NamedTuple):
    """An envelope ready to be sent."""

    queue: str
    content: bytes
    key: bytes
    meta_id: str  # empty: it has none


def make_envelope(
    urn: str,
    data: Mapping[str, Any],
    *,
    queue: str,
    trace_id: str | None = None,
    meta: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make an envelope that continues the trace being handled, unless ``trace_id`` is given.

    Raises:
        EnvelopeError: as ``codec.make``.
    """
    inherited = codec.current_trace_id() if trace_id is None else trace_id
    return codec.make(urn, data, queue=queue, trace_id=inherited, meta=meta)


def make_from_object(message: Any, *, queue: str) -> dict[str, Any]:
    """Make the envelope of an object with ``get_babel_urn`` and ``to_payload``.

    Its own ``get_babel_trace_id`` comes before the trace being handled.

    Raises:
        EnvelopeError: as ``codec.from_message``.
    """
    envelope = codec.from_message(message, queue=queue)
    inherited = codec.current_trace_id()
    if inherited is not None and not _has_trace(message):
        envelope["trace_id"] = inherited
    return envelope


def make_for(
    job: str | EnvelopeSource,
    data: Mapping[str, Any] | str | None,
    queue: str | None,
    default_queue: str,
    *,
    trace_id: str | None = None,
    meta: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the envelope of a URN with its data, or of a job; see ``make`` for traces.

    With a job the second argument may be the queue: ``publish(UserRegistered(42), "emails")``.

    Raises:
        EnvelopeError: as ``codec.make``; the data is missing, or given beside a job.
    """
    if isinstance(job, str):
        if data is None:
            raise EnvelopeError(f"/data is missing: publish({job[:200]!r}, data)")
        target = default_queue if queue is None else queue
        return make_envelope(job, data, queue=target, trace_id=trace_id, meta=meta)  # type: ignore[arg-type]
    if isinstance(data, str) and queue is None:
        data, queue = None, data
    if data is not None or meta is not None:
        raise EnvelopeError(f"/data comes from the {type(job).__name__}: give no data and no meta")
    envelope = make_from_object(job, queue=default_queue if queue is None else queue)
    if trace_id is not None and not is_blank(trace_id):
        envelope["trace_id"] = trace_id
    return envelope


def _has_trace(message: Any) -> bool:
    ask = getattr(message, "get_babel_trace_id", None)
    found = ask() if callable(ask) else None
    return isinstance(found, str) and not is_blank(found)


def prepare_publish(
    envelope: Mapping[str, Any], queue: str | None = None, key: bytes | str | None = None
) -> PreparedEnvelope:
    """Encode an envelope for its queue: the given one, else ``meta.queue``.

    Raises:
        EnvelopeError: it cannot be written, no consumer could handle it, or it has no queue.
        ValueError: the key is not 1 to 64 bytes.
    """
    content = codec.encode(envelope)
    meta = envelope["meta"]
    target = queue or meta.get("queue")
    if not target:
        raise EnvelopeError("/meta/queue: names no queue, and none was given")
    meta_id = meta.get("id") or ""
    attempts = envelope["attempts"]
    own = f"{meta_id}:{attempts}" if meta_id and attempts else meta_id  # a later try is another
    return PreparedEnvelope(target, content, receipt_key(content, own, key), meta_id)


def receipt_key(content: bytes, identity: str, key: bytes | str | None = None) -> bytes:
    """Return the key of a publish: the given one, else the identity, hashed where it is long.

    Without an identity it is a hash of the content.

    Raises:
        ValueError: the given key is not 1 to 64 bytes.
    """
    if key is not None:
        given = key.encode() if isinstance(key, str) else key
        if not 0 < len(given) <= KEY_BYTES:
            raise ValueError(f"the key has {len(given)} bytes, it may have 1 to {KEY_BYTES}")
        return given
    own = identity.encode()
    if 0 < len(own) <= KEY_BYTES:
        return own
    return hashlib.sha256(own or content).hexdigest().encode()  # 64 digits


class Producer:
    """Publishes envelopes from threads and scripts; for one thread at a time.

    ::

        with Producer("127.0.0.1:9100", queue="orders") as orders:
            orders.publish("urn:babel:orders:created", {"order_id": 1042})
    """

    def __init__(
        self, client: BlockingClient | str = "127.0.0.1", *, queue: str = "default", **options: Any
    ) -> None:
        """Publish over a client that is open already, or over one of its own to an address.

        Args:
            client: the client, which stays its owner's; or an address, connected to by ``with``.
            queue: where envelopes go that name no other.
            options: of ``connect_blocking``, with an address.
        """
        self.queue = queue
        self._is_owner = isinstance(client, str)
        self.client = connect_blocking(client, **options) if isinstance(client, str) else client

    def __enter__(self) -> Self:
        if self._is_owner:
            self.client.open()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_owner:
            self.client.close()

    def publish(
        self,
        job: str | EnvelopeSource,
        data: Mapping[str, Any] | str | None = None,
        queue: str | None = None,
        *,
        trace_id: str | None = None,
        ttl_s: int = 0,
        meta: Mapping[str, Any] | None = None,
        key: bytes | str | None = None,
    ) -> str:
        """Publish a new envelope; return its ``meta.id`` when the broker has stored it.

        ::

            orders.publish("urn:babel:users:registered", {"user_id": 42}, "emails")
            orders.publish(UserRegistered(42), "emails")

        Args:
            job: the URN, ``urn:babel:<context>:<event>``; or a job, an object with
                ``get_babel_urn`` and ``to_payload``.
            data: the payload of a URN; with a job, its queue may stand here.
            queue: where it goes, if not to the producer's own queue.
            trace_id: the trace to continue; without it, that of the job, that of the envelope
                being handled, or a new one.
            ttl_s: seconds to live; 0: for ever.
            meta: further members of ``meta``.
            key: the receipt key, 1 to 64 bytes, if not the ``meta.id``.

        Raises:
            EnvelopeError: it cannot be written; nothing was sent, the message has the pointer.
            ClientError, LocalProtocolError, TimeoutError: as ``publish_confirmed`` of the client.
        """
        envelope = make_for(job, data, queue, self.queue, trace_id=trace_id, meta=meta)
        return self.publish_envelope(envelope, ttl_s=ttl_s, key=key)

    def publish_message(
        self,
        message: Any,
        *,
        queue: str | None = None,
        ttl_s: int = 0,
        key: bytes | str | None = None,
    ) -> str:
        """Publish an object with ``get_babel_urn`` and ``to_payload``; as :meth:`publish`.

        A trace of its ``get_babel_trace_id`` is continued.
        """
        envelope = make_from_object(message, queue=self.queue if queue is None else queue)
        return self.publish_envelope(envelope, ttl_s=ttl_s, key=key)

    def publish_envelope(
        self,
        envelope: Mapping[str, Any],
        *,
        queue: str | None = None,
        ttl_s: int = 0,
        key: bytes | str | None = None,
    ) -> str:
        """Publish a made envelope to ``queue``, else to its ``meta.queue``; as :meth:`publish`.

        The same envelope again, after an error or a restart, is stored once within the broker's
        window of keys.  To have it stored again on purpose, give another ``key``.
        """
        made = prepare_publish(envelope, queue, key)
        self.client.publish_confirmed(made.queue, made.content, ttl_s, made.key)
        return made.meta_id


class AsyncProducer:
    """Publishes envelopes from asyncio; all tasks of a loop may use it at the same time.

    ::

        async with AsyncProducer("127.0.0.1:9100", queue="orders") as orders:
            await orders.publish("urn:babel:orders:created", {"order_id": 1042})
    """

    def __init__(
        self, client: Client | str = "127.0.0.1", *, queue: str = "default", **options: Any
    ) -> None:
        """Publish over a client that is open already, or over one of its own to an address.

        Args:
            client: the client, which stays its owner's; or an address, connected to by
                ``async with``.
            queue: where envelopes go that name no other.
            options: of ``connect``, with an address.
        """
        self.queue = queue
        self._is_owner = isinstance(client, str)
        self.client = connect_aio(client, **options) if isinstance(client, str) else client

    async def __aenter__(self) -> Self:
        if self._is_owner:
            await self.client.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._is_owner:
            await self.client.close()

    async def publish(
        self,
        job: str | EnvelopeSource,
        data: Mapping[str, Any] | str | None = None,
        queue: str | None = None,
        *,
        trace_id: str | None = None,
        ttl_s: int = 0,
        meta: Mapping[str, Any] | None = None,
        key: bytes | str | None = None,
    ) -> str:
        """Publish a new envelope; as :meth:`Producer.publish`."""
        envelope = make_for(job, data, queue, self.queue, trace_id=trace_id, meta=meta)
        return await self.publish_envelope(envelope, ttl_s=ttl_s, key=key)

    async def publish_message(
        self,
        message: Any,
        *,
        queue: str | None = None,
        ttl_s: int = 0,
        key: bytes | str | None = None,
    ) -> str:
        """Publish an object; as :meth:`Producer.publish_message`."""
        envelope = make_from_object(message, queue=self.queue if queue is None else queue)
        return await self.publish_envelope(envelope, ttl_s=ttl_s, key=key)

    async def publish_envelope(
        self,
        envelope: Mapping[str, Any],
        *,
        queue: str | None = None,
        ttl_s: int = 0,
        key: bytes | str | None = None,
    ) -> str:
        """Publish a made envelope; as :meth:`Producer.publish_envelope`."""
        made = prepare_publish(envelope, queue, key)
        await self.client.publish_confirmed(made.queue, made.content, ttl_s, made.key)
        return made.meta_id
