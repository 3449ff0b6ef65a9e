"""Admission of connections: limits, allowed networks, places reserved for handshakes."""

import asyncio
import resource
from ipaddress import ip_network
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.server.admission import (
    KEPT_S,
    NOT_ALLOWED,
    SPARE_FILES,
    TOO_MANY,
    TOO_MANY_OF_ADDRESS,
    Admission,
    Handshake,
    Network,
    max_connections,
    max_http_connections,
    open_files_problem,
)
from phpmq_lite.settings import Settings
from phpmq_lite.settings.model import LimitSettings


def admission_with(
    total: int = 100, per_address: int = 10, per_loopback: int = 50, *allow: str
) -> Admission:
    """Return an admission whose clock advances by 2 s with each connection."""
    networks: list[Network] = [ip_network(text) for text in allow]
    return Admission(total, per_address, per_loopback, networks, count(0.0, 2.0).__next__)


def test_total_of_connections_is_limited() -> None:
    admission = admission_with(total=2)
    assert [admission.admit(a) for a in ("10.0.0.1", "10.0.0.2", "10.0.0.3")] == [
        None,
        None,
        TOO_MANY,
    ]
    admission.leave("10.0.0.1")
    assert admission.admit("10.0.0.3") is None
    assert admission.connections == 2


def test_connections_of_an_address_are_limited() -> None:
    admission = admission_with(per_address=1)
    assert admission.admit("10.0.0.1") is None
    assert admission.admit("10.0.0.1") == TOO_MANY_OF_ADDRESS
    assert admission.admit("10.0.0.2") is None
    assert admission.refused == {TOO_MANY_OF_ADDRESS: 1}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", None])
def test_loopback_has_a_limit_of_its_own(address: str | None) -> None:
    admission = admission_with(per_address=1, per_loopback=2)
    assert [admission.admit(address) for _ in range(3)] == [None, None, TOO_MANY_OF_ADDRESS]


def test_spellings_of_an_address_count_together() -> None:
    admission = admission_with(per_address=1)
    assert admission.admit("10.0.0.1") is None
    assert admission.admit("::ffff:10.0.0.1") == TOO_MANY_OF_ADDRESS


def test_connections_of_an_ipv6_network_are_limited() -> None:
    admission = admission_with(per_address=2)
    network = [f"2001:db8:1:2::{number:x}" for number in range(3)]
    assert [admission.admit(a) for a in network] == [None, None, TOO_MANY_OF_ADDRESS]
    assert admission.admit("2001:db8:1:3::") is None
    assert admission.busiest == 2
    admission.leave(network[1])
    assert admission.admit(network[2]) is None


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("10.1.2.3", None),
        ("::ffff:10.1.2.3", None),
        ("2001:db8::7", None),
        ("11.0.0.1", NOT_ALLOWED),
        ("2001:db9::7", NOT_ALLOWED),
        ("127.0.0.1", NOT_ALLOWED),  # loopback is an ordinary address over TCP
        ("nonsense", NOT_ALLOWED),
        (None, None),  # a Unix socket has a mode instead
    ],
)
def test_only_allowed_networks_are_admitted(address: str | None, reason: str | None) -> None:
    assert admission_with(9, 9, 9, "10.0.0.0/8", "2001:db8::/32").admit(address) == reason


def test_place_is_kept_during_a_handshake() -> None:
    admission = admission_with(total=1)
    assert admission.reserve("10.0.0.1") is None
    assert admission.admit("10.0.0.2") == TOO_MANY
    assert admission.admit("10.0.0.1") is None  # the handshake has succeeded
    admission.cancel_reservation("10.0.0.1")  # no effect now
    assert admission.connections == 1
    admission.leave("10.0.0.1")
    assert admission.connections == 0


def test_place_is_free_again_when_the_handshake_fails() -> None:
    admission = admission_with(total=1)
    assert admission.reserve("10.0.0.1") is None
    assert admission.reserve("10.0.0.1") == TOO_MANY
    admission.cancel_reservation("10.0.0.1")
    assert admission.admit("10.0.0.2") is None


class Peer:
    def __init__(self, *, is_idle: bool = True, has_login: bool = False) -> None:
        self.is_idle = is_idle
        self.has_login = has_login
        self.is_closed = False

    def give_up(self, *, is_full: bool) -> bool:
        self.is_closed = self.is_idle and (is_full or not self.has_login)
        return self.is_closed


def admitted(admission: Admission, peers: list[Peer], address: str = "10.0.0.1") -> list[Peer]:
    """Admit the peers; return those that have been closed."""
    for peer in peers:
        assert admission.admit(address, peer) is None
    return [peer for peer in peers if peer.is_closed]


def test_longest_idle_connection_is_closed_once_four_fifths_are_used() -> None:
    admission, peers = admission_with(total=10), [Peer() for _ in range(12)]
    assert admitted(admission, peers[:8]) == []
    admission.rest(peers[0])  # has been served just now
    assert admitted(admission, peers[8:]) == []
    assert [peers.index(peer) for peer in peers if peer.is_closed] == [1, 2, 3, 4]
    assert (admission.connections, admission.given_up) == (8, 4)
    for peer in peers:
        admission.leave("10.0.0.1", peer)  # the closed ones are no longer counted
    assert admission.connections == 0


def test_connection_keeps_its_place_for_its_first_second_unless_all_are_used() -> None:
    now_s, peers = [0.0], [Peer() for _ in range(7)]
    admission = Admission(5, 10, 10, now_s=lambda: now_s[0])
    admitted(admission, peers[:5])
    assert not any(peer.is_closed for peer in peers)
    admitted(admission, peers[5:6])  # the only one that had a place left
    now_s[0] += KEPT_S
    admitted(admission, peers[6:])
    assert [peers.index(peer) for peer in peers if peer.is_closed] == [0, 1]


def test_connection_that_is_not_idle_keeps_its_place() -> None:
    admission = admission_with(total=5)
    admitted(admission, [Peer(is_idle=False) for _ in range(5)])
    assert admission.admit("10.0.0.2", Peer()) == TOO_MANY


def test_idle_caller_with_a_login_is_closed_only_if_no_place_is_left() -> None:
    admission = admission_with(total=5)
    known, silent = Peer(has_login=True), Peer()
    admitted(admission, [known, silent, *(Peer(is_idle=False) for _ in range(3))])
    assert (known.is_closed, silent.is_closed) == (False, True)
    admitted(admission, [Peer(is_idle=False)])
    assert not known.is_closed
    admitted(admission, [Peer(is_idle=False)])
    assert known.is_closed


def test_full_address_closes_its_own_longest_idle_connection() -> None:
    admission = admission_with(per_address=2)
    other, mine = Peer(), [Peer() for _ in range(3)]
    admitted(admission, [other], "10.0.0.2")
    admitted(admission, mine)
    assert [peer.is_closed for peer in (other, *mine)] == [False, True, False, False]


def test_address_that_is_not_allowed_closes_nothing() -> None:
    admission, peer = admission_with(1, 1, 1, "10.0.0.0/8"), Peer()
    admitted(admission, [peer])
    assert admission.admit("11.0.0.1", Peer()) == NOT_ALLOWED
    assert not peer.is_closed


async def test_oldest_handshake_gives_up_its_place() -> None:
    admission = admission_with(total=5)

    async def shake_hands() -> None:
        place = Handshake()
        assert admission.reserve("10.0.0.1", place) is None
        try:
            await asyncio.Event().wait()
        finally:
            admission.cancel_reservation("10.0.0.1", place)

    tasks = [asyncio.create_task(shake_hands()) for _ in range(6)]
    while not all(task.done() for task in tasks[:2]):
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert [task.done() for task in tasks] == [True, True, False, False, False, False]
    assert admission.connections == 4
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert admission.connections == 0


@given(st.lists(st.tuples(st.sampled_from(["reserve", "admit", "leave"]), st.integers(0, 3))))
def test_counts_equal_those_of_a_list(steps: list[tuple[str, int]]) -> None:
    admission = admission_with(total=5, per_address=2)
    inside: list[str] = []
    for step, number in steps:
        address = f"10.0.0.{number}"
        if step == "leave":
            if address in inside:
                inside.remove(address)
                admission.leave(address)
            continue
        if step == "reserve":
            refusal = admission.reserve(address)
            refusal = admission.admit(address) if refusal is None else refusal
        else:
            refusal = admission.admit(address)
        has_room = len(inside) < 5 and inside.count(address) < 2
        assert (refusal is None) == has_room
        if refusal is None:
            inside.append(address)
        assert admission.connections == len(inside)


@pytest.mark.parametrize(
    ("files", "most"),
    [(None, 500), (1_024, 500), (256, 256 - SPARE_FILES), (SPARE_FILES + 1, 1), (10, 1)],
)
def test_connections_leave_descriptors_for_the_rest(files: int | None, most: int) -> None:
    assert max_connections(Settings(), files) == most


def test_broker_counts_two_descriptors_when_it_may_relay_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One to the client, and one to the active broker."""
    settings = Settings.model_validate({"store": {"url": "postgresql://h/d"}})
    files = SPARE_FILES + 2 * 500
    assert max_connections(settings, files) == 500
    assert max_connections(settings, files - 2) == 499
    problem = open_files_problem(settings, files - 2, None)
    assert problem is not None
    assert f"LimitNOFILE={SPARE_FILES + 2 * 600}" in problem[1]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files + 40, files + 40))
    assert Admission.from_settings(settings).capacity == 500
    assert max_http_connections(settings) == (40 + SPARE_FILES // 2) // 2


def test_limits_come_from_the_settings() -> None:
    limits = LimitSettings(connections=3, connections_per_loopback_address=2)
    admission = Admission.from_settings(Settings(limits=limits))
    assert [admission.admit("127.0.0.1") for _ in range(3)] == [None, None, TOO_MANY_OF_ADDRESS]
    assert [admission.admit("10.0.0.1") for _ in range(2)] == [None, TOO_MANY]


def test_connections_are_limited_by_the_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (SPARE_FILES + 2, SPARE_FILES + 2))
    admission = Admission.from_settings(Settings())
    assert [admission.admit("127.0.0.1") for _ in range(3)] == [None, None, TOO_MANY]
