"""The first steps of an empty broker work as they stand."""

import pytest

from phpmq_lite.admin.snippets import address, frame, snippets
from phpmq_lite.protocol.connection import ServerSide
from phpmq_lite.protocol.frames import Publish
from phpmq_lite.protocol.wire import WireLimits


@pytest.mark.parametrize(
    ("listeners", "expected"),
    [
        (["127.0.0.1:9100", "127.0.0.1:9102"], ("127.0.0.1", 9100)),
        (["unix:/run/mq.sock", "[::1]:9107"], ("::1", 9107)),
        (["0.0.0.0:9100"], ("mq.example", 9100)),
        ([], ("127.0.0.1", 9100)),
    ],
)
def test_address_is_one_that_works_from_here(
    listeners: list[str], expected: tuple[str, int]
) -> None:
    assert address(listeners, "mq.example") == expected


def test_frame_is_a_publish() -> None:
    side = ServerSide(WireLimits(), http_guard=False)
    (got,) = side.receive(frame("orders", '{"é":1}').encode())
    assert isinstance(got, Publish)
    assert (got.queue, got.content, got.ttl_s) == ("orders", '{"é":1}'.encode(), None)


def test_snippets_have_the_real_address() -> None:
    code = {snippet.key: snippet.code for snippet in snippets("::1", 9107)}
    assert "[::1]:9107" in code["python"]
    assert "tcp://[::1]:9107" in code["php"]
    assert code["nc"].endswith("| nc -w 1 ::1 9107")
