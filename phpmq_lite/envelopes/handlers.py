"""What runs around a handler: middleware, fresh data, an event loop for coroutines."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from babelqueue import BabelQueue

from phpmq_lite.envelopes import codec

_CANCEL_S: Final = 5.0  # an interrupted coroutine may clean up for so long

Handler = Callable[..., Any]


@dataclass(slots=True)
class JobContext:
    """What is being handled.  ``data`` and ``meta`` are members of ``envelope``.

    All three are this run's own: what a handler changes in them is in no retry and no record.
    ``extra`` is for middleware, to hand something on.
    """

    envelope: dict[str, Any]
    queue: str
    message_id: str  # the broker's, 32 hex digits
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> dict[str, Any]:
        """The payload."""
        data: dict[str, Any] = self.envelope["data"]
        return data

    @property
    def meta(self) -> dict[str, Any]:
        """The block of the producer."""
        meta: dict[str, Any] = self.envelope["meta"]
        return meta

    @property
    def urn(self) -> str:
        """What it is about."""
        return str(self.envelope["job"])

    @property
    def trace_id(self) -> str:
        """What it belongs to."""
        return str(self.envelope["trace_id"])

    @property
    def attempts(self) -> int:
        """How often it has failed so far, at least 0."""
        return int(self.envelope["attempts"])


NextHandler = Callable[[JobContext], None]
Middleware = Callable[[JobContext, NextHandler], None]
"""``fn(context, next)``: calls ``next(context)`` once, or not at all: then it counts as handled."""


class CurrentJob(Protocol):
    """Knows the job of the moment; the transport does."""

    def begin(self) -> JobContext:
        """Note that its handler starts; give what the handler may have."""

    def done(self) -> None:
        """Note that its handler has returned."""

    def failed(self, error: BaseException) -> None:
        """Note what its handler raised."""


class HandlerLoop:
    """An event loop in a thread of its own, started by the first coroutine; use it in ``with``.

    It runs between jobs too, so what handlers keep open (sessions, pools) stays alive.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "HandlerLoop":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Wait for a result; whatever interrupts the waiting cancels the coroutine first."""
        ended = threading.Event()
        future = asyncio.run_coroutine_threadsafe(_guarded(awaitable, ended), self._running())
        try:
            result = future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                ended.wait(_CANCEL_S)
            raise
        if isinstance(result, _Exit):
            raise result.error
        return result

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="handlers", daemon=True
            )
            self._thread.start()
        return self._loop

    def close(self) -> None:
        """Cancel what still runs, and end the loop.  May be called twice."""
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result(2 * _CANCEL_S)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()


@dataclass(slots=True)
class _Exit:
    """Carries out of the loop what would end the loop itself."""

    error: BaseException


async def _guarded(awaitable: Awaitable[Any], ended: threading.Event) -> Any:
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:
        return _Exit(error)
    finally:
        ended.set()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_CANCEL_S)


@contextmanager
def wrap_handlers(
    app: BabelQueue, current: CurrentJob, middleware: Sequence[Middleware]
) -> Iterator[None]:
    """Put middleware, loop and fresh data round every handler of an app, for the time of a run.

    Handlers registered meanwhile get the SDK's own arguments.
    """
    plain = dict(app._handlers)  # the SDK has no list of its handlers to read
    with HandlerLoop() as loop:
        for urn, handler in plain.items():
            app._handlers[urn] = _wrapped(handler, current, middleware, loop)
        try:
            yield
        finally:
            app._handlers.update(plain)


def _wrapped(
    handler: Handler, current: CurrentJob, middleware: Sequence[Middleware], loop: HandlerLoop
) -> Handler:
    wants_envelope = takes_envelope(handler)

    def last(context: JobContext) -> None:
        whole = (context.envelope,) if wants_envelope else ()
        result = handler(context.data, context.meta, *whole)
        if inspect.isawaitable(result):
            loop.run(result)

    chain: NextHandler = last
    for one in reversed(middleware):
        chain = partial(_step, one, chain)

    def work(_data: Any, _meta: Any, _envelope: Any) -> None:
        """Run the chain on data of its own: the SDK encodes its envelope again for a retry."""
        context = current.begin()
        try:
            with codec.continue_trace(context.envelope):
                chain(context)
        except BaseException as error:
            current.failed(error)
            raise
        current.done()

    return work


def _step(one: Middleware, following: NextHandler, context: JobContext) -> None:
    one(context, following)


def takes_envelope(handler: Handler) -> bool:
    """Tell whether a handler takes a third positional argument, the whole envelope."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # built in
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) >= 3 or any(p.kind is p.VAR_POSITIONAL for p in parameters)


def check_middleware(one: Middleware) -> Middleware:
    """Return a middleware that is a plain function.

    Raises:
        TypeError: it is ``async def``; it would stand in its own way on the handlers' loop.
    """
    if inspect.iscoroutinefunction(one):
        raise TypeError(f"middleware {one!r} is async: write a plain function")
    return one
