"""How the process keeps its memory: what it gives back, and when it looks for garbage.

A broker runs for months.  What is said here is about what stays once a burst is over.
"""

import ctypes
import gc
from contextlib import suppress
from typing import Final

# Of glibc's malloc.h.  To set one threshold ends that both grow by themselves.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

TRIM_S: Final = 60.0  # from one trim to the next

_CHOICES: Final = {
    _ARENA_MAX: 2,  # all threads but the first share one: what they free, the others can use
    _MMAP_THRESHOLD: 1 << 20,  # larger pieces are maps of their own, and go back when freed
    _TRIM_THRESHOLD: 4 << 20,  # free at the end of a heap, for the next batch
}


def give_back() -> None:
    """Have the C library keep little of what is freed; to be called ahead of all threads.

    By itself it has a heap for each of 16 threads, and takes pieces of up to 32 MiB from it once
    one of that size was freed: each time that the table of keys moved, 5 MiB stayed as a hole.
    """
    with suppress(AttributeError, OSError):  # another C library
        choose = ctypes.CDLL(None).mallopt
        for name, value in _CHOICES.items():
            choose(name, value)


def trim() -> None:
    """Give pages back that are free in the middle of a heap; to be called in a thread.

    Under load 0.3 to 1.2 ms, in which nobody else gets memory, for 1 to 14 MiB.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def look_seldom() -> None:
    """Look for garbage, but neither often nor at what there is now.

    A start makes 150,000 objects that stay: looking through them again and again took 60 ms.  A
    message makes a handful of objects and no cycle: looking for cycles every 700 objects cost
    about 6 % of the throughput.  A page leaves 200 in cycles.  Those of a page that was under way
    at a look count as old, so the old ones are looked at too.
    """
    gc.freeze()
    gc.set_threshold(10_000, 5, 5)
    gc.enable()
