"""Who is let in: limits in all and per address, networks, places for handshakes."""

import resource
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.server.admission import (
    NOT_ALLOWED,
    SPARE_FILES,
    TOO_MANY,
    TOO_MANY_OF_ADDRESS,
    Admission,
    Network,
    max_connections,
)
from phpmq_lite.settings import Settings
from phpmq_lite.settings.model import LimitSettings


def gate(total: int = 100, per_address: int = 10, per_loopback: int = 50, *allow: str) -> Admission:
    networks: list[Network] = [ip_network(text) for text in allow]
    return Admission(total, per_address, per_loopback, networks)


def test_connections_in_all_are_limited() -> None:
    door = gate(total=2)
    assert [door.admit(a) for a in ("10.0.0.1", "10.0.0.2", "10.0.0.3")] == [None, None, TOO_MANY]
    door.leave("10.0.0.1")
    assert door.admit("10.0.0.3") is None
    assert door.connections == 2


def test_connections_of_an_address_are_limited() -> None:
    door = gate(per_address=1)
    assert door.admit("10.0.0.1") is None
    assert door.admit("10.0.0.1") == TOO_MANY_OF_ADDRESS
    assert door.admit("10.0.0.2") is None
    assert door.refused == {TOO_MANY_OF_ADDRESS: 1}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", None])
def test_loopback_has_a_limit_of_its_own(address: str | None) -> None:
    door = gate(per_address=1, per_loopback=2)
    assert [door.admit(address) for _ in range(3)] == [None, None, TOO_MANY_OF_ADDRESS]


def test_spellings_of_an_address_count_together() -> None:
    door = gate(per_address=1)
    assert door.admit("10.0.0.1") is None
    assert door.admit("::ffff:10.0.0.1") == TOO_MANY_OF_ADDRESS


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("10.1.2.3", None),
        ("::ffff:10.1.2.3", None),
        ("2001:db8::7", None),
        ("11.0.0.1", NOT_ALLOWED),
        ("2001:db9::7", NOT_ALLOWED),
        ("127.0.0.1", NOT_ALLOWED),  # over TCP, loopback is an address like others
        ("nonsense", NOT_ALLOWED),
        (None, None),  # a Unix socket has a mode instead
    ],
)
def test_only_allowed_networks_come_in(address: str | None, reason: str | None) -> None:
    assert gate(9, 9, 9, "10.0.0.0/8", "2001:db8::/32").admit(address) == reason


def test_place_is_kept_during_a_handshake() -> None:
    door = gate(total=1)
    assert door.reserve("10.0.0.1") is None
    assert door.admit("10.0.0.2") == TOO_MANY
    assert door.admit("10.0.0.1") is None  # the handshake is done
    door.cancel_reservation("10.0.0.1")  # does nothing then
    assert door.connections == 1
    door.leave("10.0.0.1")
    assert door.connections == 0


def test_place_is_free_again_when_the_handshake_fails() -> None:
    door = gate(total=1)
    assert door.reserve("10.0.0.1") is None
    assert door.reserve("10.0.0.1") == TOO_MANY
    door.cancel_reservation("10.0.0.1")
    assert door.admit("10.0.0.2") is None


@given(st.lists(st.tuples(st.sampled_from(["reserve", "admit", "leave"]), st.integers(0, 3))))
def test_counts_are_those_of_a_list(steps: list[tuple[str, int]]) -> None:
    door = gate(total=5, per_address=2)
    inside: list[str] = []
    for step, number in steps:
        address = f"10.0.0.{number}"
        if step == "leave":
            if address in inside:
                inside.remove(address)
                door.leave(address)
            continue
        if step == "reserve":
            refusal = door.reserve(address)
            refusal = door.admit(address) if refusal is None else refusal
        else:
            refusal = door.admit(address)
        has_room = len(inside) < 5 and inside.count(address) < 2
        assert (refusal is None) == has_room
        if refusal is None:
            inside.append(address)
        assert door.connections == len(inside)


@pytest.mark.parametrize(
    ("wanted", "files", "most"),
    [(500, 1_024, 500), (500, 256, 256 - SPARE_FILES), (500, SPARE_FILES + 1, 1), (500, 10, 1)],
)
def test_connections_leave_descriptors_for_the_rest(wanted: int, files: int, most: int) -> None:
    assert max_connections(wanted, files) == most


def test_settings_make_the_gate() -> None:
    limits = LimitSettings(connections=3, connections_per_loopback_address=2)
    door = Admission.from_settings(Settings(limits=limits))
    assert [door.admit("127.0.0.1") for _ in range(3)] == [None, None, TOO_MANY_OF_ADDRESS]
    assert [door.admit("10.0.0.1") for _ in range(2)] == [None, TOO_MANY]


def test_limit_of_files_is_below_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (SPARE_FILES + 2, SPARE_FILES + 2))
    door = Admission.from_settings(Settings())
    assert [door.admit("127.0.0.1") for _ in range(3)] == [None, None, TOO_MANY]
