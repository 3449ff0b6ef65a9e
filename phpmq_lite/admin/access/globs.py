"""Globs that limit users and tokens to queues: ``orders.*``, ``*-mail``, ``[ab]?``."""

from collections.abc import Iterable
from fnmatch import fnmatchcase


def is_match(name: str, globs: Iterable[str]) -> bool:
    """Tell whether one of the globs fits the whole name; case counts."""
    return any(fnmatchcase(name, glob) for glob in globs)
