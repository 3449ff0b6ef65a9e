"""HTTP requests that are sent again, and those that are not."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.client import RemoteDisconnected

import pytest

from phpmq_lite.cli.admin_client import AdminClient
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.http_client import Attempts, HttpClient, HttpRequest, NotConnectedError

BUSY = b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
DONE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone"
REFUSED = b"HTTP/1.1 413 Too large\r\nContent-Length: 0\r\n\r\n"


@contextmanager
def listener(*replies: bytes) -> Iterator[str]:
    """Answer each connection with one of the replies, as soon as the request has begun."""

    def answer() -> None:
        for reply in replies:
            with server.accept()[0] as connection:
                connection.recv(100)
                connection.sendall(reply)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/prefix/"
        thread.join()


def test_busy_broker_and_a_lost_connection_are_waited_for() -> None:
    waits: list[float] = []
    with listener(BUSY, b"", b"", DONE) as url:
        client = HttpClient(url, {}, attempts=partial(Attempts, (1, 2, 4), 10, waits.append))
        with client.send(HttpRequest("GET", "/path")) as response:
            assert response.read() == b"done"
    assert waits == [7, 1, 2]


def test_request_that_may_have_been_received_is_repeated_only_if_it_can_be() -> None:
    waits: list[float] = []
    attempts = partial(Attempts, (1, 2), 0, waits.append)
    request = HttpRequest("POST", "/", content=b"x", is_repeatable=False)
    with listener(b"") as url, pytest.raises(RemoteDisconnected):
        HttpClient(url, {}, attempts=attempts).send(request)
    assert waits == []
    with pytest.raises(NotConnectedError):
        HttpClient(url, {}, attempts=attempts).send(request)
    assert waits == [1, 2]


def test_refusal_of_a_large_request_is_read() -> None:
    with listener(REFUSED) as url:
        request = HttpRequest("POST", "/", content=bytes(8 << 20))
        with HttpClient(url, {}, timeout_s=30).send(request) as response:
            assert response.status == 413


def test_redirect_names_the_address_to_use() -> None:
    moved = b"HTTP/1.1 301 Moved\r\nLocation: https://queues.example/\r\nContent-Length: 0\r\n\r\n"
    expected = r"/prefix redirects to https://queues.example/; give its address with --url$"
    with listener(moved) as url, pytest.raises(CommandError, match=expected):
        AdminClient(None, url).get("/queues")
