"""HTTP memory budget: which request gets memory, which waits, and which is ended."""

import asyncio
from collections.abc import Iterator

import pytest

from phpmq_lite.admin.http import memory as http_memory
from phpmq_lite.admin.http.memory import HttpMemory, MemoryReservation
from phpmq_lite.admin.http.problems import Problem

TOTAL = 1_000


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_memory, "_LOOK_S", 0.001)


class Clock:
    """A clock set by hand that also advances on every read, so that waits end."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.01
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(clock: Clock) -> HttpMemory:
    return HttpMemory(TOTAL, clock)


async def upload(memory: HttpMemory, identity: str, size: int) -> MemoryReservation:
    """Return the hold of an upload that releases its memory when it is ended."""
    hold = memory.hold(identity)
    hold.begin(hold.release)
    await hold.grow(size)
    hold.move(size)
    return hold


async def test_hold_reserves_and_releases(memory: HttpMemory) -> None:
    hold = memory.hold("anna")
    await hold.resize(600)
    await hold.resize(200)
    assert (memory.used, hold.bytes) == (200, 200)
    hold.release()
    assert (memory.used, memory.reached) == (0, 0)


async def test_only_request_gets_more_than_the_budget(memory: HttpMemory) -> None:
    """A budget that is too small must not block a request that its route allows."""
    hold = memory.hold("anna")
    await hold.grow(5 * TOTAL)
    assert memory.used == 5 * TOTAL


async def test_identity_leaves_as_much_as_it_has(memory: HttpMemory) -> None:
    holds = [memory.hold("hostile") for _ in range(10)]
    for hold in holds[:5]:
        await hold.grow(100)
    with pytest.raises(Problem) as refused:
        await holds[5].grow(100)
    assert (refused.value.status, refused.value.code) == (429, "memory_share")
    assert refused.value.headers["Retry-After"]
    other = memory.hold("anna")
    await other.grow(500)
    assert memory.used == TOTAL


async def test_request_is_refused_when_all_is_used_by_others(memory: HttpMemory) -> None:
    await memory.hold("a").grow(500)
    await memory.hold("b").grow(400)
    with pytest.raises(Problem) as refused:
        await memory.hold("c").grow(200)
    assert (refused.value.status, refused.value.code, memory.refused) == (503, "memory", 1)


async def test_slow_upload_ends_for_a_fast_one(memory: HttpMemory, clock: Clock) -> None:
    slow = [await upload(memory, "hostile", 100) for _ in range(5)]
    clock.now_s += 60
    fast = memory.hold("hostile")
    fast.begin(fast.release)
    fast.move(100)
    await fast.grow(200)
    assert fast.bytes == 200
    assert [hold.is_ended for hold in slow].count(True) == memory.ended > 0


async def test_older_of_two_equally_fast_uploads_continues(memory: HttpMemory) -> None:
    older, younger = [await upload(memory, "anna", 250) for _ in range(2)]
    done = await asyncio.gather(younger.grow(250), older.grow(250), return_exceptions=True)
    assert isinstance(done[0], Problem)
    assert (older.bytes, older.is_ended, younger.is_ended) == (500, False, True)


async def test_upload_of_a_smaller_user_is_not_ended(memory: HttpMemory, clock: Clock) -> None:
    small = await upload(memory, "anna", 100)
    large = [await upload(memory, "hostile", 400)]
    clock.now_s += 60
    with pytest.raises(Problem):
        await memory.hold("hostile").grow(950)
    assert not small.is_ended
    assert large[0].is_ended


async def test_release_wakes_a_waiter(memory: HttpMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_memory, "WAIT_S", float("inf"))
    first, second = memory.hold("a"), memory.hold("b")
    await first.grow(900)
    waiting = asyncio.create_task(second.grow(300))
    while not memory.reached:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0)
    assert not waiting.done()
    first.release()
    await waiting
    assert memory.used == 300


async def test_time_that_a_transfer_waits_for_memory_does_not_make_it_slow(
    memory: HttpMemory, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_memory, "WAIT_S", 1e9)
    first = memory.hold("a")
    await first.grow(900)
    second = await upload(memory, "b", 50)
    rate = second.rate
    waiting = asyncio.create_task(second.grow(300))
    while not memory.reached:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0)
    clock.now_s += 1_000
    assert second.rate == pytest.approx(rate, rel=0.9)
    first.release()
    await waiting
    assert second.active_s < 10


async def test_large_body_is_parsed_in_turns_with_those_of_others(
    memory: HttpMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender does not decide how long others wait, whatever it sends, and however often."""
    monkeypatch.setattr(http_memory, "TURN_S", -1.0)  # each result ends a turn
    parsed: list[str] = []

    def results(name: str, count: int) -> Iterator[None]:
        for _ in range(count):
            parsed.append(name)
            yield

    hostile = [asyncio.create_task(memory.parse("a", results("a", 50))) for _ in range(3)]
    await memory.parse("a", results("a", 1))
    began = len(parsed)
    await memory.parse("b", results("b", 2))
    assert parsed.index("b") - began <= 2
    assert len(parsed) <= began + 8
    assert [len(found) for found in await asyncio.gather(*hostile)] == [50] * 3
    assert not memory.parsing.held


async def test_turn_is_free_again_after_an_error(memory: HttpMemory) -> None:
    with pytest.raises(ZeroDivisionError):
        await memory.parse("a", map(divmod, [1], [0]))
    assert await memory.parse("b", map(divmod, [7, 8], [4, 4])) == [(1, 3), (2, 0)]
