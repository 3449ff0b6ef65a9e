"""The messages of a relay connection, without sockets."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.relay.handshake import (
    END,
    MAGIC,
    MAX_PREAMBLE,
    ChunkDecoder,
    RelayedClient,
    RelayError,
    create_relay_secret,
    encode_chunk,
    read_request,
    send_reply,
    send_request,
)
from phpmq_lite.relay.standby import Relay
from phpmq_lite.server.counters import RelayCounters

KEY = bytes(range(32))
EPOCH = 7
CLIENT = RelayedClient(
    protocol="ttl",
    transport="tls",
    relay="broker-2",
    peer=("192.0.2.1", 5_000),
    local=("2001:db8::1", 9_100),
    subject="commonName=shop",
)
VALUES: dict[str, Any] = json.loads(CLIENT.model_dump_json())


class Pipe:
    """Carries bytes to a reader in pieces, which ``change`` may alter."""

    def __init__(self, cuts: Sequence[int] = (), change: Callable[[bytes], bytes] = bytes) -> None:
        self.reader = asyncio.StreamReader()
        self.sent = b""
        self._cuts = list(cuts)
        self._change = change

    def write(self, data: bytes) -> None:
        self.sent += data
        data = self._change(data)
        while data:
            cut = self._cuts.pop() if self._cuts else len(data)
            self.reader.feed_data(data[:cut])
            data = data[cut:]


def perform(
    up_cuts: Sequence[int] = (),
    down_cuts: Sequence[int] = (),
    *,
    change_up: Callable[[bytes], bytes] = bytes,
    change_down: Callable[[bytes], bytes] = bytes,
    **options: Any,
) -> tuple[Any, Any]:
    """Perform both sides; return the results of the active broker and of the standby."""

    async def run() -> tuple[Any, Any]:
        up, down = Pipe(up_cuts, change_up), Pipe(down_cuts, change_down)
        return await perform_on(up, down, **options)

    return asyncio.run(run())


async def perform_on(
    up: Pipe, down: Pipe, *, keys: tuple[bytes, bytes] = (KEY, KEY), refusal: str = ""
) -> tuple[Any, Any]:

    async def active() -> Any:
        found = await read_request(up.reader, down.write, keys[0])
        send_reply(down.write, keys[0], found[0], refusal)
        return found

    async def end(side: Any, to_peer: Pipe) -> Any:
        try:
            return await side
        finally:
            to_peer.reader.feed_eof()

    standby = send_request(down.reader, up.write, keys[1], EPOCH, CLIENT)
    results: Any = await asyncio.gather(
        end(active(), down), end(standby, up), return_exceptions=True
    )
    return results[0], results[1]


CUTS = st.lists(st.integers(1, 64), max_size=40)


@given(CUTS, CUTS)
def test_handshake_is_cut_anywhere(up: list[int], down: list[int]) -> None:
    (_, epoch, preamble), done = perform(up, down)
    assert (epoch, RelayedClient.decode(preamble), done) == (EPOCH, CLIENT, None)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_altered_request_is_refused(at: int, mask: int) -> None:
    """Whether nonce, epoch, length, preamble or MAC: nothing of it can be changed."""

    def flip(data: bytes) -> bytes:
        place = at % len(data)
        return data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]

    active, standby = perform(change_up=flip)
    assert isinstance(active, RelayError | EOFError)
    assert isinstance(standby, RelayError | EOFError)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_altered_reply_is_refused(at: int, mask: int) -> None:
    def flip(data: bytes) -> bytes:
        place = at % len(data)
        return data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]

    _, standby = perform(change_down=flip)
    assert isinstance(standby, RelayError | EOFError)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    async def offer() -> None:
        pipe = Pipe()
        pipe.write(data)
        pipe.reader.feed_eof()
        await read_request(pipe.reader, len, KEY)

    with pytest.raises((RelayError, EOFError)):
        asyncio.run(offer())


@pytest.mark.parametrize("keys", [(KEY, bytes(32)), (bytes(32), KEY)], ids=["standby", "active"])
def test_broker_with_another_key_is_refused(keys: tuple[bytes, bytes]) -> None:
    active, standby = perform(keys=keys)
    assert isinstance(active, RelayError)
    assert active.code == "authentication"
    assert isinstance(standby, EOFError)


def test_standby_refuses_a_peer_that_only_repeats_its_request() -> None:
    """The roles are part of the MAC."""

    async def reflect() -> None:
        down = Pipe()
        down.write(MAGIC + bytes(32))

        def write(request: bytes) -> None:
            down.write(request)
            down.reader.feed_eof()

        await send_request(down.reader, write, KEY, EPOCH, CLIENT)

    with pytest.raises(RelayError, match="shared key"):
        asyncio.run(reflect())


def test_request_is_valid_for_its_own_greeting_only() -> None:
    async def replay() -> None:
        up = Pipe()
        await perform_on(up, Pipe())
        again = Pipe()
        again.write(up.sent)
        await read_request(again.reader, len, KEY)

    with pytest.raises(RelayError, match="shared key"):
        asyncio.run(replay())


def test_standby_learns_the_reason_of_a_refusal() -> None:
    _, standby = perform(refusal="this broker is not active")
    assert isinstance(standby, RelayError)
    assert (standby.code, "this broker is not active" in str(standby)) == ("refused", True)


def test_other_server_is_not_taken_for_a_broker() -> None:
    async def greet() -> None:
        pipe = Pipe()
        pipe.write(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n".ljust(100))
        await send_request(pipe.reader, len, KEY, EPOCH, CLIENT)

    with pytest.raises(RelayError, match="not a relay listener"):
        asyncio.run(greet())


# -- the preamble


def test_preamble_keeps_all_members_and_ignores_unknown_ones() -> None:
    assert RelayedClient.decode(json.dumps(VALUES | {"new": [1]}).encode()) == CLIENT
    unix = CLIENT.model_copy(update={"transport": "unix", "peer": None, "local": None})
    assert RelayedClient.decode(unix.model_dump_json().encode()) == unix


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"version": 2}, "version"),
        ({"protocol": "smtp"}, "protocol"),
        ({"transport": 1}, "transport"),
        ({"relay": "x" * 256}, "relay"),
        ({"peer": ["192.0.2.1"]}, "peer"),
        ({"peer": ["192.0.2.1", 65_536]}, "peer"),
        ({"peer": ["192.0.2.1", "80"]}, "peer"),
        ({"local": "192.0.2.1:80"}, "local"),
        ({"subject": None}, "subject"),
    ],
)
def test_invalid_preamble_is_refused(changes: dict[str, Any], place: str) -> None:
    with pytest.raises(RelayError, match=rf"^invalid preamble: {place}") as caught:
        RelayedClient.decode(json.dumps(VALUES | changes).encode())
    assert caught.value.code == "preamble"


@given(st.binary(max_size=200) | st.just(b"[" * MAX_PREAMBLE))
def test_preamble_that_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(RelayError):
        RelayedClient.decode(data)


def test_longest_preamble_is_within_the_limit() -> None:
    longest = "\x01" * 255
    client = CLIENT.model_copy(
        update={"relay": longest, "subject": longest, "peer": (longest, 1), "local": (longest, 1)}
    )
    assert len(client.model_dump_json().encode()) < MAX_PREAMBLE


# -- chunks


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), CUTS, st.booleans())
def test_chunks_are_cut_anywhere(pieces: list[bytes], cuts: list[int], is_ended: bool) -> None:
    data = b"".join(map(encode_chunk, pieces)) + END * is_ended
    decoder, received, ends = ChunkDecoder(), b"", 0
    while data:
        cut = cuts.pop() if cuts else len(data)
        some, is_end = decoder.receive(data[:cut])
        received, ends, data = received + some, ends + is_end, data[cut:]
    assert (received, ends) == (b"".join(pieces), is_ended)


# -- the secret, and which requests a standby answers


def test_secret_is_not_shown() -> None:
    secret = create_relay_secret()
    assert len(secret.key) == 32
    assert "PRIVATE" not in repr(secret)
    assert repr(secret.key) not in repr(secret)
    assert create_relay_secret().key != secret.key


@pytest.mark.parametrize(
    ("line", "is_own"),
    [
        (b"GET /livez HTTP/1.1\r\n", True),
        (b"HEAD /mq/readyz?verbose HTTP/1.1\r\n", True),
        (b"GET /metrics HTTP/1.1", True),
        (b"GET /queues HTTP/1.1\r\n", False),
        (b"GET /livez/x HTTP/1.1\r\n", False),
        (b"GET\r\n", False),
        (b"\xff\xfe \xff \r\n", False),
        (b"", False),
    ],
)
def test_standby_answers_health_checks(line: bytes, *, is_own: bool) -> None:
    relay = Relay("broker-2", create_relay_secret(), RelayCounters(), "/mq")
    assert relay.is_own(line) is is_own
