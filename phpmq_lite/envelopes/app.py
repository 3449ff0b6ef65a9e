"""``connect(url)``: the SDK's app on our transport, with defaults under which nothing is lost."""

import ssl as tls
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from babelqueue import BabelQueue

from phpmq_lite.client.blocking_client import client_from_url
from phpmq_lite.envelopes import producer
from phpmq_lite.envelopes.handlers import Handler, Middleware, check_middleware, wrap_handlers
from phpmq_lite.envelopes.idempotency import IdempotencyStore
from phpmq_lite.envelopes.retry_delays import DEFAULT_DELAYS_S, RetryDelays
from phpmq_lite.envelopes.transport import (
    RELEASE_S,
    EventHook,
    PhpmqTransport,
    WorkerEvents,
    log_event,
)
from phpmq_lite.envelopes.verdict import EmptyListData
from phpmq_lite.envelopes.worker_connection import WorkerConnection

DEFAULT_URL: Final = "phpmq://127.0.0.1:9100"

Unknown = Literal["fail", "delete", "release", "dead_letter"]
STRATEGIES: Final[tuple[Unknown, ...]] = (
    "fail",  # tried as often as a failing one, then a dead letter
    "delete",  # dropped
    "release",  # comes again as it is, after a delay
    "dead_letter",  # put aside at once
)


class App(BabelQueue):
    """The SDK's app: ``handler``, ``register``, ``publish``, ``consume``, ``stop``; and ``use``.

    What it publishes is checked first, and confirmed by the broker.  Made by :func:`connect`.
    """

    transport: PhpmqTransport

    def __init__(self, transport: PhpmqTransport, **options: Any) -> None:
        super().__init__(transport=transport, **options)
        if self.on_unknown_urn not in STRATEGIES:
            raise ValueError(f"on_unknown_urn is {self.on_unknown_urn!r}, not one of {STRATEGIES}")
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts}, and must be at least 1")
        self.middleware: list[Middleware] = []  # the first one is the outermost

    def use(self, middleware: Middleware) -> Middleware:
        """Put ``fn(context, next)`` round all handlers, inside what is there; a decorator too.

        Raises:
            TypeError: it is ``async def``.
        """
        self.middleware.append(check_middleware(middleware))
        return middleware

    def register(self, urn: str, fn: Handler) -> None:
        """Route a URN to ``fn(data, meta)`` or ``fn(data, meta, envelope)``, plain or async.

        Raises:
            ValueError: the URN has a handler already: each URN is routed to exactly one.
        """
        known = self._handlers.get(urn)
        if known is not None:
            name = getattr(known, "__qualname__", repr(known))
            raise ValueError(
                f"{urn!r} is handled by {name} already; a URN has one handler: "
                "call both from it, or remove one"
            )
        super().register(urn, fn)

    def handler(self, urn: str) -> Callable[[Handler], Handler]:
        """Register the function that follows, as :meth:`register` does; a decorator."""

        def decorate(fn: Handler) -> Handler:
            self.register(urn, fn)
            return fn

        return decorate

    def publish(
        self,
        job: str | producer.EnvelopeSource,
        data: Mapping[str, Any] | str | None = None,
        queue: str | None = None,
        *,
        trace_id: str | None = None,
    ) -> str:
        """Publish an envelope; return its ``meta.id`` when the broker has stored it.

        ``job`` is a URN, with its ``data``; or an object with ``get_babel_urn`` and
        ``to_payload``, whose queue may be the second argument::

            app.publish("urn:babel:users:registered", {"user_id": 42}, "emails")
            app.publish(UserRegistered(42), "emails")

        Inside a handler it continues the trace of what is being handled, unless the job or
        ``trace_id`` names another.

        Raises:
            EnvelopeError: it cannot be written, and nothing was sent; the message says where.
            PublishRefusedError: the broker did not take it.
            ConnectionLostError, TimeoutError: no receipt in 30 s; it may be stored.
        """
        envelope = producer.make_for(job, data, queue or None, self.queue, trace_id=trace_id)
        made = producer.prepare_publish(envelope)
        self.transport.publish_content(made.queue, made.content, made.key)
        return made.meta_id

    def consume(
        self,
        queue: str | None = None,
        *,
        max_messages: int | None = None,
        timeout: float = 1.0,
        handle_signals: bool = True,
    ) -> int:
        """Handle messages until stopped, as the SDK says; ``worker.run`` knows more limits."""
        with wrap_handlers(self, self.transport, self.middleware):
            return super().consume(
                queue, max_messages=max_messages, timeout=timeout, handle_signals=handle_signals
            )

    run = consume

    def close(self) -> None:
        """Close the connection; what was not ended goes back to its queue."""
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
    claims: IdempotencyStore | None = None,
    claim_by: Literal["meta.id", "trace_id"] = "meta.id",
    empty_list_data: EmptyListData = "php",
    credit: int = 1,
    hook: EventHook = log_event,
    ssl: tls.SSLContext | None = None,
    max_content: int = 8 << 20,
) -> App:
    """Make an app; it connects when it first publishes or consumes.

    Args:
        url: ``phpmq://HOST:PORT``, ``phpmqs://HOST:PORT``, ``HOST:PORT`` or ``unix:PATH``.
        queue: for both sides, unless a call names another.
        max_attempts: runs of one message, the first included; then it is a dead letter.
        backoff: seconds before each further run, the last repeats; or :class:`RetryDelays`.
        on_unknown_urn: what becomes of a URN without a handler, one of ``STRATEGIES``.
        release_delay_s: of ``release``, and of what another worker has claimed.
        dead_letter: False drops what failed ``max_attempts`` times; malformed is kept anyway.
        dead_letter_queue: instead of ``<queue>.dlq``; name it to the broker too.
        shutdown_timeout_s: for a handler, after SIGTERM; then its message goes back.
        claims: handles each envelope once, as long as the store remembers.
        claim_by: what makes two envelopes the same.
        empty_list_data: where ``data: []`` counts as ``{}``.
        credit: messages held at a time, the one being handled included.
        hook: is told what happens, see ``events``.
        ssl: for TLS with an authority of your own.
        max_content: longest body in bytes; give the broker's ``limits.max_content``.

    Raises:
        ValueError: the URL, a strategy or a number cannot be.
    """
    delays = backoff if isinstance(backoff, RetryDelays) else RetryDelays(tuple(backoff))
    transport = PhpmqTransport(
        WorkerConnection(client_from_url(url, ssl=ssl, max_content=max_content), credit),
        WorkerEvents(hook),
        delays=delays, claims=claims, claim_by=claim_by, empty_list_data=empty_list_data,
        dead_letter_queue=dead_letter_queue, release_s=release_delay_s,
    )  # fmt: skip
    return App(
        transport,
        queue=queue,
        on_unknown_urn=on_unknown_urn,
        max_attempts=max_attempts,
        dead_letter=dead_letter,
        dead_letter_queue=dead_letter_queue,
        unknown_urn_release_delay=release_delay_s,
        shutdown_timeout=shutdown_timeout_s,
    )
