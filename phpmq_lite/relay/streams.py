"""Connections that an ``Admission`` limits and a coroutine reads."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, cast

from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.relay.handshake import Address, RelayError
from phpmq_lite.server.admission import Admission
from phpmq_lite.server.counters import RelayCounters

_log = get_logger(__name__)


class AdmittedStream(asyncio.StreamReaderProtocol):
    """An accepted connection, which ``run`` serves; it is in ``running`` meanwhile.

    ``name_of`` returns the name by which ``gate`` counts a host.
    """

    def __init__(
        self,
        gate: Admission,
        running: "set[Any]",
        counters: RelayCounters,
        name_of: Callable[[str | None], str | None] = lambda host: host,
    ) -> None:
        self.reader = asyncio.StreamReader()
        super().__init__(self.reader)
        self.transport: asyncio.Transport
        self.address: str | None = None
        self.counters = counters
        self.is_lost = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._gate = gate
        self._running = running
        self._name_of = name_of
        self._is_admitted = False

    @abstractmethod
    async def run(self) -> None:
        """Serve the connection; raise RelayError to refuse it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the connection if it is admitted."""
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, transport)
        peer = address_of(transport, "peername")
        self.address = self._name_of(None if peer is None else peer[0])
        refusal = self._gate.admit(self.address)
        if refusal is not None:
            self.report(RelayError("not_admitted", refusal))
            self.transport.abort()
            return
        self._is_admitted = True
        self.task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        self._running.add(self)
        try:
            await self.run()
        except RelayError as error:
            self.report(error)
            if not self.transport.is_closing():
                self.transport.abort()
        except (EOFError, OSError):  # the peer has left, or a timeout has expired
            self.transport.abort()
        except Exception as error:
            _log.error("relay_failed", address=self.address, reason=str(error), exc_info=error)
            self.transport.abort()
        finally:
            self._running.discard(self)

    def report(self, error: RelayError) -> None:
        """Count and log why the connection is not relayed."""
        self.counters.refused[error.code] += 1
        if not is_quiet("connection_not_relayed"):
            _log.warning("connection_not_relayed", address=self.address, code=error.code,
                         reason=str(error))  # fmt: skip

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection; its reader receives the end or the error."""
        super().connection_lost(exc)
        self.is_lost.set()
        self.leave()

    def leave(self) -> None:
        """Stop counting the connection, because it has ended or another protocol serves it."""
        if self._is_admitted:
            self._is_admitted = False
            self._gate.leave(self.address)


def address_of(transport: asyncio.BaseTransport, name: str) -> Address | None:
    """Return a host and a port, or None for a Unix socket."""
    value = transport.get_extra_info(name)
    return (value[0], value[1]) if isinstance(value, tuple) else None
