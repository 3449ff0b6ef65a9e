"""Resets objects in a forked child, which must not share identity or sockets with its parent."""

import os
from typing import Final, Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """An object with state that must be unique to a process."""

    def forked(self) -> None:
        """Replace locks and identity, and close descriptors without sending or shutting down."""


_objects: Final[WeakSet[Forkable]] = WeakSet()


def reset_after_fork(made: Forkable) -> None:
    """Call ``made.forked()`` in each child that this process forks while ``made`` exists."""
    _objects.add(made)


def _reset() -> None:
    for made in list(_objects):
        made.forked()


if hasattr(os, "register_at_fork"):  # systems without it do not fork
    os.register_at_fork(after_in_child=_reset)
