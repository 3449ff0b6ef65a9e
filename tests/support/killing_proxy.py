"""A proxy between a worker and the broker that kills the worker at a frame of its choice.

Kill points are frames of the wire, so the code under test has no hook in it.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import WireLimits

Moment = Literal["before", "after"]


class KillingProxy:
    """Passes bytes on, frame by frame; calls ``cut`` once at the chosen frame.

    ``names`` of frames are those of their classes: Consume, Dispatch, Publish, ReceiptFrame,
    Acknowledge, DeadLetter.  ``before``: the frame never arrives.  ``after``: it does, and what
    follows it does not.
    """

    def __init__(self, port: int, name: str, moment: Moment, cut: Callable[[], None]) -> None:
        self.seen: list[str] = []
        self._target = port
        self._name = name
        self._moment = moment
        self._cut = cut
        self.is_cut = False
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self._target))
                pair = (client, broker)
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
        pair: tuple[socket.socket, socket.socket],
    ) -> None:
        """Pass one direction on; the parser gets single bytes, so that frames end where they do."""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                whole = 0
                for at in range(len(data)):
                    for frame in read(data[at : at + 1]):
                        if self._is_it(type(frame).__name__):
                            end = whole if self._moment == "before" else at + 1
                            sink.sendall(data[:end])
                            self._end(pair)
                            return
                        whole = at + 1
                if self.is_cut:
                    return  # nothing passes behind the chosen frame, the other way either
                sink.sendall(data)
        for one in pair:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _is_it(self, name: str) -> bool:
        with self._lock:
            self.seen.append(name)
            if self.is_cut or name != self._name:
                return False
            self.is_cut = True
            return True

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        """Kill the worker first, then end both halves."""
        self._cut()
        for one in pair:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # close() alone waits for the other thread's read

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()
