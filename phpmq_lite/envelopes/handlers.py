"""Runs handlers with middleware, a private copy of the data, and an event loop for coroutines."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from babelqueue import BabelQueue

from phpmq_lite.envelopes import codec
from phpmq_lite.envelopes.job_time import JobInterrupt
from phpmq_lite.errors import JobTimeoutError
from phpmq_lite.os_process import reset_after_fork

_CANCEL_S: Final = 5.0  # maximum time for an interrupted coroutine to clean up

Handler = Callable[..., Any]


@dataclass(slots=True)
class JobContext:
    """Context of the message being handled; ``data`` and ``meta`` come from ``envelope``.

    The data belongs to this run: a handler's changes do not reach retries or dead-letter records.
    Middleware can pass values in ``extra``.
    """

    envelope: dict[str, Any]
    queue: str
    message_id: str  # assigned by the broker, 32 hex digits
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> dict[str, Any]:
        """The payload of the message."""
        data: dict[str, Any] = self.envelope["data"]
        return data

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata that the producer wrote."""
        meta: dict[str, Any] = self.envelope["meta"]
        return meta

    @property
    def urn(self) -> str:
        """The URN of the message."""
        return str(self.envelope["job"])

    @property
    def trace_id(self) -> str:
        """The trace id of the message."""
        return str(self.envelope["trace_id"])

    @property
    def attempts(self) -> int:
        """The number of times that the message has failed so far, at least 0."""
        return int(self.envelope["attempts"])


NextHandler = Callable[[JobContext], None]
Middleware = Callable[[JobContext, NextHandler], None]
"""``fn(context, next)`` calls ``next(context)`` once, or skips it to treat the job as handled."""


class CurrentJob(Protocol):
    """Interface for tracking the current job; implemented by the transport."""

    def begin(self) -> JobContext:
        """Record that the handler is starting and return its context."""

    def done(self) -> None:
        """Record that the handler has returned."""

    def failed(self, error: BaseException) -> None:
        """Record the exception that the handler raised."""


class HandlerLoop:
    """An event loop in its own thread, started by the first coroutine.

    It keeps running between jobs, so that handlers' sessions and connection pools stay open.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        reset_after_fork(self)

    def forked(self) -> None:
        """Forget the loop, whose thread does not exist in a forked child."""
        self._loop = self._thread = None

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Return the result of an awaitable; cancel the awaitable if the wait is interrupted."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="handlers", daemon=True
            )
            self._thread.start()
        finished = threading.Event()
        future = asyncio.run_coroutine_threadsafe(_run_and_signal(awaitable, finished), self._loop)
        try:
            result = future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                finished.wait(_CANCEL_S)
            raise
        if isinstance(result, SystemExit | KeyboardInterrupt):  # would have stopped the loop
            raise result
        return result

    def close(self) -> None:
        """Cancel the remaining tasks and stop the loop. Safe to call twice."""
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result(2 * _CANCEL_S)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()


async def _run_and_signal(awaitable: Awaitable[Any], finished: threading.Event) -> Any:
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:
        return error
    finally:
        finished.set()


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CANCEL_S)


@contextmanager
def wrap_handlers(
    app: BabelQueue, current: CurrentJob, middleware: Sequence[Middleware]
) -> Iterator[None]:
    """Within the block, wrap an app's handlers with middleware, tracing and the event loop.

    Handlers registered within the block are not wrapped and receive the SDK's own arguments.
    """
    originals = dict(app._handlers)  # the SDK does not expose its handlers publicly
    with closing(HandlerLoop()) as loop:
        for urn, handler in originals.items():
            app._handlers[urn] = _wrap_handler(handler, current, middleware, loop)
        try:
            yield
        finally:
            app._handlers.update(originals)


def _wrap_handler(
    handler: Handler, current: CurrentJob, middleware: Sequence[Middleware], loop: HandlerLoop
) -> Handler:
    wants_envelope = takes_envelope(handler)

    def last(context: JobContext) -> None:
        extra = (context.envelope,) if wants_envelope else ()
        result = handler(context.data, context.meta, *extra)
        if inspect.isawaitable(result):
            loop.run(result)

    chain: NextHandler = last
    for layer in reversed(middleware):
        chain = _step(layer, chain)

    def work(_data: Any, _meta: Any, _envelope: Any) -> None:
        """Call the middleware and handler with a copy of the data; a retry sends the original."""
        context = current.begin()
        try:
            with codec.continue_trace(context.envelope):
                chain(context)
        except JobInterrupt as interrupt:
            timeout = JobTimeoutError(str(interrupt))
            current.failed(timeout)
            raise timeout from interrupt
        except BaseException as error:
            current.failed(error)
            raise
        current.done()

    return work


def _step(layer: Middleware, next_handler: NextHandler) -> NextHandler:
    return lambda context: layer(context, next_handler)


def takes_envelope(handler: Handler) -> bool:
    """Return whether a handler accepts the complete envelope as a third positional argument."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # raised for some builtins, which have no signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) >= 3 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
