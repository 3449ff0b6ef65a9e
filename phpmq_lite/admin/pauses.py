"""Long work of a page in short pieces: the broker has its turn in between."""

from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from typing import Final, TypeVar

T = TypeVar("T")

PIECE_S: Final = 0.000_3  # of work at once; about half a commit


async def gather_slowly(items: Iterable[T], pause: Callable[[], Awaitable[None]]) -> list[T]:
    """Take all items of something that computes them one by one; ``pause`` is the engine's.

    A page of 5 ms at once would stand in the way of some publishes by 5 ms each.
    """
    taken: list[T] = []
    ends_s = 0.0
    for item in items:
        taken.append(item)
        if monotonic() >= ends_s:
            await pause()
            ends_s = monotonic() + PIECE_S
    return taken
