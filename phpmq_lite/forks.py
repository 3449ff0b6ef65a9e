"""Resets objects in a forked child, which must not share identity or sockets with its parent."""

import os
from typing import Final, Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """An object with state that must be unique to a process."""

    def forked(self) -> None:
        """Replace locks and identity, and close descriptors without sending or shutting down."""


_objects: Final[WeakSet[Forkable]] = WeakSet()


def reset_after_fork(forkable: Forkable) -> None:
    """Call ``forkable.forked()`` in each child that is forked while ``forkable`` exists."""
    _objects.add(forkable)


def _reset() -> None:
    for forkable in list(_objects):
        forkable.forked()


if hasattr(os, "register_at_fork"):  # systems without it do not fork
    os.register_at_fork(after_in_child=_reset)
