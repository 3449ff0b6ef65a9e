"""Shared slots: owners take turns, and no slot is lost when a waiter is cancelled."""

import asyncio
from collections import Counter

from phpmq_lite.storage.read.read_pool import FairReadSlots


async def hold(slots: FairReadSlots, owner: str, served: list[str]) -> None:
    await slots.acquire(owner)
    served.append(owner)


async def begin(slots: FairReadSlots, owners: str, served: list[str]) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(hold(slots, owner, served)) for owner in owners]
    await asyncio.sleep(0)
    return tasks


async def test_owner_alone_may_hold_all_slots() -> None:
    slots, served = FairReadSlots(2), list[str]()
    await begin(slots, "aa", served)
    assert served == ["a", "a"]
    assert slots.held == Counter(a=2)


async def test_newcomer_waits_for_one_turn_however_many_wait_ahead() -> None:
    slots, served = FairReadSlots(1), list[str]()
    tasks = await begin(slots, "aaaaab", served)
    for _ in range(5):
        slots.release(served[-1])
        await asyncio.sleep(0)
    assert "".join(served) == "aabaaa"
    await asyncio.gather(*tasks)


async def test_freed_slot_goes_to_the_owner_that_holds_fewest() -> None:
    slots, served = FairReadSlots(3), list[str]()
    tasks = await begin(slots, "aabaab", served)
    assert {owner: len(line) for owner, line in slots._waiting.items()} == {"a": 2, "b": 1}
    slots.release("a")  # both hold one slot now, and "a" came first
    slots.release("b")
    await asyncio.sleep(0)
    assert served[3:] == ["a", "b"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_slot_is_not_lost_when_a_waiter_is_cancelled() -> None:
    slots, served = FairReadSlots(1), list[str]()
    tasks = await begin(slots, "abc", served)
    tasks[1].cancel()  # before the slot is handed over
    slots.release("a")
    tasks[2].cancel()  # after that
    await asyncio.gather(*tasks, return_exceptions=True)
    assert served == ["a"]
    assert (slots.free, slots.held, slots._waiting) == (1, Counter(), {})
