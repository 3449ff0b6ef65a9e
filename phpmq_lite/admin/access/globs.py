"""Globs that limit users and tokens to queues: ``orders.*``, ``*-mail``, ``[ab]?``."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache


def is_match(name: str, globs: Iterable[str]) -> bool:
    """Tell whether one of the globs fits the whole name; case counts."""
    return _is_match(name, tuple(globs))


@lru_cache(maxsize=1 << 16)  # a request looks at all queues: 0.2 instead of 2 µs for each
def _is_match(name: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)
