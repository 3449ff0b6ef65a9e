"""A small answer leaves at once, and in order with what the transport has."""

import asyncio
from typing import Any

import pytest

from phpmq_lite.server.session import descriptor_of, write_data


class Transport(asyncio.Transport):
    """Keeps what it is given; ``unsent`` bytes wait in it."""

    def __init__(self, unsent: int = 0) -> None:
        super().__init__()
        self.unsent = unsent
        self.given: list[bytes] = []

    def write(self, data: Any) -> None:
        self.given.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def fileno(self) -> int:
        return 7


class Socket:
    """What was written past the transport, at most ``room`` bytes each time; None: it fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int | None = 1 << 20) -> None:
        self.got: list[bytes] = []
        self.room = room
        monkeypatch.setattr("os.write", self._write)

    def _write(self, descriptor: int, data: bytes) -> int:
        assert descriptor == 7
        if self.room is None:
            raise BlockingIOError
        self.got.append(data[: self.room])
        return len(self.got[-1])


def test_small_answer_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    socket, transport = Socket(monkeypatch), Transport()
    write_data(transport, 7, b"x" * 4_096)
    assert (socket.got, transport.given) == ([b"x" * 4_096], [])


def test_large_one_is_left_to_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    socket, transport = Socket(monkeypatch), Transport()
    write_data(transport, 7, b"x" * 4_097)
    assert (socket.got, transport.given) == ([], [b"x" * 4_097])


def test_nothing_overtakes_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    socket, transport = Socket(monkeypatch), Transport(unsent=1)
    write_data(transport, 7, b"abc")
    assert (socket.got, transport.given) == ([], [b"abc"])


def test_what_the_socket_does_not_take_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    socket, transport = Socket(monkeypatch, room=2), Transport()
    write_data(transport, 7, b"abc")
    assert (socket.got, transport.given) == ([b"ab"], [b"c"])


def test_failure_is_left_to_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    socket, transport = Socket(monkeypatch, room=None), Transport()
    write_data(transport, 7, b"abc")
    assert (socket.got, transport.given) == ([], [b"abc"])


def test_without_a_socket_of_its_own_the_transport_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    socket, transport = Socket(monkeypatch), Transport()
    write_data(transport, None, b"abc")
    assert (socket.got, transport.given) == ([], [b"abc"])


@pytest.mark.parametrize(("kind", "descriptor"), [("tcp", 7), ("unix", 7), ("tls", None)])
def test_encrypted_bytes_are_not_those_written(kind: str, descriptor: int | None) -> None:
    assert descriptor_of(Transport(), kind) == descriptor
