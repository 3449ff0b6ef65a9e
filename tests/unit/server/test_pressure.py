"""Who is read when memory is short."""

from dataclasses import dataclass, field

import pytest

from phpmq_lite.server.backpressure import FREE_BYTES, ReadBackpressure

LIMIT = 10 * FREE_BYTES


@dataclass(eq=False)
class Reader:
    """One connection, without a socket."""

    name: str
    paused: set[str] = field(default_factory=set)
    is_parked: bool = False

    def pause_reading(self, reason: str) -> None:
        assert reason not in self.paused
        self.paused.add(reason)

    def resume_reading(self, reason: str) -> None:
        self.paused.remove(reason)

    @property
    def is_read(self) -> bool:
        return not self.paused


@pytest.fixture
def pressure() -> ReadBackpressure:
    return ReadBackpressure(LIMIT)


@pytest.fixture
def readers() -> list[Reader]:
    return [Reader(name) for name in "abcd"]


def who_is_read(readers: list[Reader]) -> str:
    return "".join(reader.name for reader in readers if reader.is_read)


def test_all_are_read_up_to_the_limit(pressure: ReadBackpressure, readers: list[Reader]) -> None:
    for reader in readers[:2]:
        pressure.report(reader, LIMIT // 2)
    assert pressure.total_bytes == LIMIT
    assert who_is_read(readers) == "abcd"


def test_only_the_one_that_waits_longest_is_read_past_the_limit(
    pressure: ReadBackpressure, readers: list[Reader]
) -> None:
    for reader in readers:
        pressure.report(reader, LIMIT // 3)
    for reader in readers:
        pressure.report(reader, LIMIT // 3 + 1)
    assert who_is_read(readers) == "a"


def test_the_next_one_is_read_when_the_first_has_finished(
    pressure: ReadBackpressure, readers: list[Reader]
) -> None:
    for reader in readers:
        pressure.report(reader, LIMIT // 2)
    for reader in readers:
        pressure.report(reader, LIMIT // 2)
    assert who_is_read(readers) == "a"
    pressure.report(readers[0], 0)
    assert who_is_read(readers) == "ab"  # a has nothing here any more


def test_all_are_read_again_below_the_limit(
    pressure: ReadBackpressure, readers: list[Reader]
) -> None:
    for reader in readers:
        pressure.report(reader, LIMIT // 3)
    pressure.report(readers[1], LIMIT // 3 + 1)
    pressure.report(readers[3], 0)
    assert pressure.total_bytes <= LIMIT
    assert who_is_read(readers) == "abcd"


def test_who_holds_little_is_read_past_the_limit(
    pressure: ReadBackpressure, readers: list[Reader]
) -> None:
    pressure.report(readers[0], LIMIT + 1)
    pressure.report(readers[1], FREE_BYTES - 1)
    pressure.report(readers[2], FREE_BYTES)
    assert who_is_read(readers) == "abd"


def test_who_holds_little_again_is_read_past_the_limit(
    pressure: ReadBackpressure, readers: list[Reader]
) -> None:
    """Its messages were stored; that others still fill the room is no reason to wait."""
    pressure.report(readers[0], LIMIT + 1)
    pressure.report(readers[1], FREE_BYTES)
    assert who_is_read(readers) == "acd"
    pressure.report(readers[1], 0)
    assert who_is_read(readers) == "abcd"


def test_who_is_parked_does_not_take_the_turn_of_others(
    pressure: ReadBackpressure, readers: list[Reader]
) -> None:
    parked, *others = readers
    parked.is_parked = True
    pressure.report(parked, LIMIT + 1)
    for reader in others:
        pressure.report(reader, FREE_BYTES)
    assert who_is_read(others) == "b"
    pressure.report(others[0], 0)
    assert who_is_read(others) == "bc"


def test_bytes_of_who_has_left_do_not_count(
    pressure: ReadBackpressure, readers: list[Reader]
) -> None:
    pressure.report(readers[0], LIMIT)
    pressure.report(readers[0], 0)
    assert pressure.total_bytes == 0
    pressure.report(readers[1], LIMIT)
    assert who_is_read(readers) == "abcd"
