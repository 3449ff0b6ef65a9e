"""One page of a list, whichever rows it has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Place = TypeVar("Place")  # what a page starts from: a position here, an opaque cursor for users


@dataclass(slots=True, frozen=True)
class Page(Generic[Item, Place]):
    """The rows of one page, and where the adjacent pages start; None means there is none.

    About ``searched`` of ``total`` rows have been searched since the first page.
    """

    rows: Sequence[Item]
    next: Place | None = None
    previous: Place | None = None
    is_cut: bool = False  # whether a limit ended the search before the page was full
    searched: int = 0
    total: int = 0
