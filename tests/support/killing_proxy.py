"""A proxy between worker and broker that kills the worker at a chosen frame.

Kill points are frames of the wire, so the tested code needs no hooks.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import Hello, WireLimits

Moment = Literal["before", "after"]
Pair = tuple[socket.socket, socket.socket]  # of the client, to the broker


class KillingProxy:
    """Forwards frames; calls ``cut`` once at the chosen frame.

    ``names`` of frames are those of their classes: Consume, Dispatch, Publish, ReceiptFrame,
    Acknowledge, DeadLetter.  ``before``: the frame never arrives.  ``after``: it does, and what
    follows does not.  ``is_old``: as a broker of the release before does, it closes on a hello.
    """

    def __init__(
        self,
        port: int,
        name: str,
        moment: Moment,
        cut: Callable[[], None],
        *,
        is_old: bool = False,
    ) -> None:
        self.seen: list[str] = []
        self._target = port
        self._name = name
        self._moment = moment
        self._cut = cut
        self._is_old = is_old
        self.is_cut = False
        self._lock = threading.Lock()
        self._pairs: list[Pair] = []
        self._silent: set[Pair] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self._target))
                pair = (client, broker)
                self._pairs.append(pair)
                server_side, client_side = ServerSide(WireLimits(), http_guard=False), ClientSide()
                for source, sink, read in (
                    (client, broker, server_side.receive),
                    (broker, client, client_side.receive),
                ):
                    threading.Thread(
                        target=self._pass, args=(source, sink, read, pair), daemon=True
                    ).start()

    def _pass(
        self,
        source: socket.socket,
        sink: socket.socket,
        read: Callable[[bytes], list[object]],
        pair: Pair,
    ) -> None:
        """Forward one direction; parse byte by byte to find the end of each frame."""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                whole = 0
                for at in range(len(data)):
                    for frame in read(data[at : at + 1]):
                        if self._is_old and isinstance(frame, Hello):
                            shut_down(pair)
                            return
                        if self._is_it(type(frame).__name__):
                            end = whole if self._moment == "before" else at + 1
                            sink.sendall(data[:end])
                            self._end(pair)
                            return
                        whole = at + 1
                if self.is_cut:
                    return  # neither direction passes anything after the chosen frame
                sink.sendall(data)
        if pair not in self._silent:
            shut_down(pair)

    def _is_it(self, name: str) -> bool:
        with self._lock:
            self.seen.append(name)
            if self.is_cut or name != self._name:
                return False
            self.is_cut = True
            return True

    def _end(self, pair: Pair) -> None:
        self._cut()
        shut_down(pair)

    def cut_all(self) -> None:
        """End all connections, on both sides; new ones are accepted."""
        for pair in self._pairs:
            shut_down(pair)

    def fall_silent(self) -> list[socket.socket]:
        """End all connections without telling the broker; return its sides, to end them later."""
        pairs = list(self._pairs)
        self._silent.update(pairs)
        for client, _ in pairs:
            client.shutdown(socket.SHUT_RDWR)
        return [broker for _, broker in pairs]

    def close(self) -> None:
        self._listener.close()
        self.cut_all()
        for pair in self._pairs:
            for one in pair:
                one.close()


def shut_down(pair: Pair) -> None:
    """Shut down both sockets; ``close`` alone waits for the reads of other threads."""
    for one in pair:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
