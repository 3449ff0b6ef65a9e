"""Long work in pieces: nothing is lost, and others have their turn in between."""

import asyncio

from phpmq_lite.admin.views import rendering


async def test_everything_is_taken_in_order() -> None:
    pauses_made = 0

    async def pause() -> None:
        nonlocal pauses_made
        pauses_made += 1

    assert await rendering.collect_in_slices(iter(range(1_000)), pause) == list(range(1_000))
    assert pauses_made >= 1  # before the first piece, for what came before it took its time too


async def test_a_piece_ends_with_its_time() -> None:
    async def pause() -> None:
        turns.append(len(taken))

    def work() -> object:
        for number in range(5):
            ends = asyncio.get_running_loop().time() + rendering.PIECE_S
            while asyncio.get_running_loop().time() < ends:
                pass
            taken.append(number)
            yield number

    turns: list[int] = []
    taken: list[int] = []
    await rendering.collect_in_slices(work(), pause)  # type: ignore[arg-type]
    assert turns == [1, 2, 3, 4, 5]
