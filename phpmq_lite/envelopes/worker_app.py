"""The SDK's app class on the PHPMQ transport; ``connect(url)`` creates one with safe defaults."""

import inspect
import ssl as tls
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Unpack, get_args

from babelqueue import BabelQueue

from phpmq_lite.client.blocking_client import client_from_url
from phpmq_lite.client.publishes import PublishFields
from phpmq_lite.envelopes import producer
from phpmq_lite.envelopes.handlers import Handler, Middleware, wrap_handlers
from phpmq_lite.envelopes.idempotency import IdempotencyStore
from phpmq_lite.envelopes.transport import (
    DEFAULT_DELAYS_S,
    RELEASE_S,
    EventHook,
    PhpmqTransport,
    RetryDelays,
    log_event,
)
from phpmq_lite.envelopes.validation import EmptyListData
from phpmq_lite.envelopes.worker_connection import WorkerConnection
from phpmq_lite.protocol.frames import DEFAULT_MAX_CONTENT

DEFAULT_URL: Final = "phpmq://127.0.0.1:9100"

Unknown = Literal[
    "fail",  # retried like a failed job, then dead-lettered
    "delete",  # acknowledged without being handled
    "release",  # put back into the queue unchanged after a delay
    "dead_letter",  # moved to the dead-letter queue immediately
]
STRATEGIES: Final[tuple[Unknown, ...]] = get_args(Unknown)


class App(BabelQueue):
    """The SDK's app class running on PHPMQ, with middleware support (:meth:`use`).

    Envelopes are validated before they are published, and the broker confirms each one. Use
    :func:`connect` to create an app.
    """

    transport: PhpmqTransport

    def __init__(self, transport: PhpmqTransport, **options: Any) -> None:
        super().__init__(transport=transport, **options)
        if self.on_unknown_urn not in STRATEGIES:
            raise ValueError(
                f"on_unknown_urn is {self.on_unknown_urn!r}; choose one of {STRATEGIES}"
            )
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts}; the minimum is 1")
        transport.dead_letter_queue = self.dead_letter_queue or transport.dead_letter_queue
        self.middleware: list[Middleware] = []  # outermost middleware first

    def use(self, middleware: Middleware) -> Middleware:
        """Add middleware inside the existing middleware; can also be used as a decorator.

        Raises:
            TypeError: ``middleware`` is ``async def``.
        """
        if inspect.iscoroutinefunction(middleware):  # would block the handlers' loop
            raise TypeError(f"middleware {middleware!r} is async; use a plain function")
        self.middleware.append(middleware)
        return middleware

    def register(self, urn: str, fn: Handler, *, time_limit_s: float | None = None) -> None:
        """Route a URN to ``fn(data, meta)`` or ``fn(data, meta, envelope)``, plain or async.

        ``time_limit_s`` replaces the app's limit for this handler.

        Raises:
            ValueError: the URN already has a handler.
        """
        existing = self._handlers.get(urn)
        if existing is not None:
            name = getattr(existing, "__qualname__", repr(existing))
            raise ValueError(
                f"{urn!r} already has the handler {name}; a URN can have only one. "
                "Call both functions from one handler, or remove one of them."
            )
        super().register(urn, fn)
        if time_limit_s is not None:
            self.transport.time_limits[urn] = time_limit_s

    def handler(
        self, urn: str, *, time_limit_s: float | None = None
    ) -> Callable[[Handler], Handler]:
        """Register the decorated function as :meth:`register` does."""

        def decorate(fn: Handler) -> Handler:
            self.register(urn, fn, time_limit_s=time_limit_s)
            return fn

        return decorate

    def publish(
        self,
        job: str | producer.EnvelopeSource,
        data: Mapping[str, Any] | str | None = None,
        queue: str | None = None,
        *,
        trace_id: str | None = None,
        ttl_s: float = 0,
        **options: Unpack[PublishFields],
    ) -> str:
        """Publish an envelope; return its ``meta.id`` once the broker has stored it.

        ``job`` is a URN with its ``data``, or an object with ``get_babel_urn`` and ``to_payload``.
        With an object, the second argument can be the queue::

            app.publish("urn:babel:users:registered", {"user_id": 42}, "emails")
            app.publish(UserRegistered(42), "emails")

        Inside a handler, the envelope continues the current envelope's trace, unless the job or
        ``trace_id`` names another.  The options are those of ``Client.publish``.

        Raises:
            EnvelopeError: the envelope is invalid; nothing was sent. The message names the member.
            PublishRefusedError: the broker refused it.
            ConnectionLostError, TimeoutError: no receipt within 30 s; the envelope may be stored.
        """
        envelope = producer.envelope_for(job, data, queue or None, self.queue, trace_id=trace_id)
        prepared = producer.prepare_publish(envelope)
        place = (prepared.queue, prepared.content, ttl_s, prepared.key)
        self.transport.link.publish(*place, **options)
        return prepared.meta_id

    def consume(
        self,
        queue: str | None = None,
        *,
        max_messages: int | None = None,
        timeout: float = 1.0,
        handle_signals: bool = True,
    ) -> int:
        """Handle messages until stopped, as the SDK does; ``run_worker`` supports more limits."""
        with wrap_handlers(self, self.transport, self.middleware):
            return super().consume(
                queue, max_messages=max_messages, timeout=timeout, handle_signals=handle_signals
            )

    run = consume

    def close(self) -> None:
        """Close the connection; unsettled messages return to their queue."""
        self.transport.close()


def connect(
    url: str = DEFAULT_URL,
    *,
    queue: str = "default",
    max_attempts: int = 3,
    backoff: Sequence[float] | RetryDelays = DEFAULT_DELAYS_S,
    on_unknown_urn: Unknown = "fail",
    release_delay_s: float = RELEASE_S,
    dead_letter: bool = True,
    dead_letter_queue: str | None = None,
    shutdown_timeout_s: float = 30.0,
    time_limit_s: float | None = None,
    idempotency_store: IdempotencyStore | None = None,
    idempotency_by: Literal["meta.id", "trace_id"] = "meta.id",
    empty_list_data: EmptyListData = "php",
    credit: int = 1,
    hook: EventHook = log_event,
    ssl: tls.SSLContext | None = None,
    max_content: int = DEFAULT_MAX_CONTENT,
) -> App:
    """Create an app, which connects when it is first used; raise ValueError if not valid.

    Args:
        url: ``phpmq://HOST:PORT``, ``phpmqs://HOST:PORT``, ``HOST:PORT`` or ``unix:PATH``.
        queue: default for publishing and consuming.
        max_attempts: runs per message, including the first, before it is dead-lettered.
        backoff: seconds before each retry (the last value repeats), or :class:`RetryDelays`.
        on_unknown_urn: what to do with a URN without a handler, one of ``STRATEGIES``.
        release_delay_s: delay for ``release`` and for messages that another worker is handling.
        dead_letter: False drops failed messages, except malformed ones.
        dead_letter_queue: replaces ``<queue>.dlq``; configure the same name in the broker.
        shutdown_timeout_s: time a handler has after SIGTERM before its message is requeued.
        time_limit_s: time that a job may take (0: any); by default an hour, or ``ack_timeout_s``.
        idempotency_store: prevents an envelope from being handled again while the store has it.
        idempotency_by: the member that identifies an envelope.
        empty_list_data: when ``data: []`` is accepted as ``{}``.
        credit: messages held at a time, including the current one.
        hook: receives worker events; see :data:`EventHook`.
        ssl: TLS context, for a private certificate authority.
        max_content: maximum body size in bytes; must match the broker's ``limits.max_content``.
    """
    return App(
        PhpmqTransport(
            WorkerConnection(client_from_url(url, ssl=ssl, max_content=max_content), credit),
            hook,
            delays=backoff if isinstance(backoff, RetryDelays) else RetryDelays(tuple(backoff)),
            idempotency_store=idempotency_store,
            idempotency_by=idempotency_by,
            empty_list_data=empty_list_data,
            release_s=release_delay_s,
            time_limit_s=time_limit_s,
        ),
        queue=queue,
        on_unknown_urn=on_unknown_urn,
        max_attempts=max_attempts,
        dead_letter=dead_letter,
        dead_letter_queue=dead_letter_queue,
        unknown_urn_release_delay=release_delay_s,
        shutdown_timeout=shutdown_timeout_s,
    )
