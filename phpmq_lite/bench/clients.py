"""What the clients of a benchmark do: publish, consume, and one message at a time.

Each function at the top is a piece for ``processes.run``.  Sockets block, and nothing is measured
before the broker has proved that it knows the connection.
"""

import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Final

from phpmq_lite.bench.streams import PLAIN, DispatchStream, PublishStream
from phpmq_lite.errors import ClientError

Address = tuple[str, int]

UNCONFIRMED: Final = 1_000  # publishes under way on one connection, at most
BARRIER_QUEUE: Final = "bench.barrier"
STALL_S: Final = 30.0
_UNCONFIRMED_BYTES: Final = 32 << 20  # of their bodies
_AT_ONCE: Final = 200  # publishes in one piece, at most
_RECEIVE_BYTES: Final = 1 << 18
_FRAME_BYTES: Final = 256  # more than a receipt has


def unconfirmed(size: int) -> int:
    """Return how many messages of so many bytes may be under way: as many as memory bears."""
    return max(2, min(UNCONFIRMED, _UNCONFIRMED_BYTES // size))


def at_once(size: int) -> int:
    """Return how many publishes of so many bytes go out in one piece."""
    return max(1, min(_AT_ONCE, unconfirmed(size) // 5))


@contextmanager
def connect(address: Address) -> Iterator[socket.socket]:
    """Open a connection; waiting for the broker ends with an error after 30 s of silence."""
    with socket.create_connection(address, STALL_S) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield link


def receive(link: socket.socket) -> bytes:
    """Wait for the next bytes of the broker."""
    try:
        data = link.recv(_RECEIVE_BYTES)
    except TimeoutError:
        raise ClientError(f"nothing came from the broker for {STALL_S:.0f} s") from None
    if not data:
        raise ClientError("the broker closed the connection")
    return data


def prove(link: socket.socket, before: bytes = b"") -> None:
    """Send ``before`` and wait until the broker has stored its effect.

    Acknowledgements have no answer, but commands of one connection are stored in order: so a
    confirmed publish behind them proves that they are.  Nothing else may be on its way to us.
    """
    barrier = PublishStream(BARRIER_QUEUE, 1)
    link.sendall(before + barrier.encode(1))
    while not barrier.feed(receive(link)):
        pass


def publish(
    address: Address,
    queue: str,
    size: int,
    seconds: float,
    is_confirmed: bool,
    content: str = PLAIN,
    most: int | None = None,
) -> Generator[None, None, int]:
    """Publish for ``seconds``, and until all is stored; return how many messages.

    It ends earlier where ``most`` messages have gone out, rounded up to whole pieces.
    """
    stream = PublishStream(queue, size, is_confirmed=is_confirmed, content=content)
    with connect(address) as link:
        prove(link)
        yield
        end_s = time.monotonic() + seconds

        def is_over(sent: int) -> bool:
            return time.monotonic() >= end_s or (most is not None and sent >= most)

        if is_confirmed:
            return _publish_confirmed(link, stream, size, is_over)
        sent = _publish_plain(link, stream, size, is_over)
        prove(link)
        return sent


def fill(
    address: Address, queue: str, size: int, number: int, content: str = PLAIN
) -> Generator[None, None, int]:
    """Publish ``number`` messages, confirmed, rounded up to whole pieces; return how many.

    They are not marked as the last: more may follow.
    """
    stream = PublishStream(queue, size, content=content)
    piece, most = at_once(size), unconfirmed(size)
    with connect(address) as link:
        yield
        sent = confirmed = 0
        while confirmed < sent or sent < number:
            if sent < number and sent - confirmed <= most - piece:
                link.sendall(stream.encode(piece))
                sent += piece
            else:
                confirmed += stream.feed(receive(link))
        return sent


def _publish_confirmed(
    link: socket.socket, stream: PublishStream, size: int, is_over: Callable[[int], bool]
) -> int:
    piece, most = at_once(size), unconfirmed(size)
    sent = confirmed = 0
    is_last = False
    while not is_last or confirmed < sent:
        if not is_last and sent - confirmed <= most - piece:
            is_last = is_over(sent + piece)
            link.sendall(stream.encode(piece, is_last=is_last))
            sent += piece
        else:
            confirmed += stream.feed(receive(link))
    return sent


def _publish_plain(
    link: socket.socket, stream: PublishStream, size: int, is_over: Callable[[int], bool]
) -> int:
    number = at_once(size)
    piece = stream.encode(number)
    sent = 0
    while not is_over(sent):
        link.sendall(piece)  # waits while the broker does not read
        sent += number
    link.sendall(stream.encode(1, is_last=True))
    return sent + 1


def consume(
    address: Address, queue: str, size: int, window: int, content: str = PLAIN
) -> Generator[None, None, int]:
    """Receive and acknowledge up to the last message of a ``publish``, until all is stored.

    Returns the number of messages; an empty queue is assumed at the start.
    """
    stream = DispatchStream(queue, size, window, content)
    with connect(address) as link:
        prove(link, stream.consume)
        yield
        while not stream.is_complete:
            answer = stream.feed(receive(link))
            if answer:
                link.sendall(answer)
        prove(link)
        return stream.received


def one_in_flight(
    address: Address, queue: str, size: int, seconds: float, content: str = PLAIN
) -> Generator[None, None, tuple[list[float], list[float]]]:
    """Publish one message at a time; the next one when the last is acknowledged and stored.

    Returns the seconds from publish to dispatch, and from publish to receipt.  Rounds take turns
    in which of both they wait for first, so that neither is read late.
    """
    stream = PublishStream(queue, size, content=content)
    dispatches = DispatchStream(queue, size, 1, content)
    receive_s: list[float] = []
    receipt_s: list[float] = []
    with connect(address) as publisher, connect(address) as consumer:
        prove(publisher)
        prove(consumer, dispatches.consume)
        yield
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            message = stream.encode(1)
            is_receipt_first = len(receive_s) > len(receipt_s)
            began_s = time.perf_counter()
            publisher.sendall(message)
            if is_receipt_first:
                _wait_receipt(publisher, stream)
                receipt_s.append(time.perf_counter() - began_s)
                answer = _wait_dispatch(consumer, dispatches)
            else:
                answer = _wait_dispatch(consumer, dispatches)
                receive_s.append(time.perf_counter() - began_s)
                _wait_receipt(publisher, stream)
            prove(consumer, answer)
    return receive_s, receipt_s


def _wait_receipt(link: socket.socket, stream: PublishStream) -> None:
    while not stream.feed(receive(link)):
        pass


def _wait_dispatch(link: socket.socket, stream: DispatchStream) -> bytes:
    answer = b""
    while not answer:
        answer = stream.feed(receive(link))
    return answer


def drain(
    address: Address,
    queue: str,
    size: int,
    number: int,
    window: int = UNCONFIRMED,
    content: str = PLAIN,
) -> Generator[None, None, int]:
    """Take ``number`` messages out of a queue, until that is stored; return how many it was.

    Where there are more, up to ``window`` of them are taken too, and as many go back to their
    place: they were on their way.
    """
    stream = DispatchStream(queue, size, window, content)
    barrier = PublishStream(BARRIER_QUEUE, 1)
    with connect(address) as link:
        yield
        link.sendall(stream.consume)
        while stream.received < number:
            answer = stream.feed(receive(link))
            if answer:
                link.sendall(answer)
        link.sendall(barrier.encode(1))
        tail = b""
        while not barrier.is_answered(tail):
            tail = tail[-_FRAME_BYTES:] + receive(link)
        return stream.received
