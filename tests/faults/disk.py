"""The disks that a power cut could leave, recreated from the log of ``shim.py``.

Synced data is there.  A policy decides about everything else: it is lost, all there, there up to a
moment, or there in part and out of order.  The same holds for names: changes that no fsync of their
folder has covered may be undone.  A sector of 512 bytes is old or new, never mixed.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

from tests.faults.shim import Kind, Record

SECTOR: Final = 512


class Policy(StrEnum):
    """What happens to unsynced data."""

    DROPPED = "dropped"
    KEPT = "kept"
    TORN = "torn"  # kept up to any moment; the last write is cut off at a sector
    REORDERED = "reordered"  # any of the sectors are kept; sizes and names in order


@dataclass(slots=True)
class _Change:
    number: int  # order of all changes
    offset: int  # for a change of size: the size
    content: bytes | None  # None: a change of size
    only_grows: bool = False  # an allocation
    is_synced: bool = False  # kept here while an older change is not synced
    is_given_up: bool = False  # a sync of it failed: the system considers it written

    def apply(self, image: bytearray) -> None:
        if self.content is not None:
            _write(image, self.offset, self.content)
        elif not self.only_grows:
            del image[self.offset :]
        _grow(image, self.offset)

    def sectors(self) -> Iterator["_Change"]:
        """Yield pieces that are written or not independently."""
        if self.content is None:
            yield self
            return
        at, content = 0, self.content
        while at < len(content):
            end = at + SECTOR - (self.offset + at) % SECTOR
            yield _Change(self.number, self.offset + at, content[at:end])
            at = end


@dataclass(slots=True, eq=False)
class _File:
    """A file, with its content that is surely on the disk, and changes that may be."""

    synced: bytearray = field(default_factory=bytearray)
    pending: list[_Change] = field(default_factory=list)

    def sync(self, upto: int) -> None:
        """Mark changes before a number as synced, except those of a failed sync."""
        for change in self.pending:
            change.is_synced |= change.number < upto and not change.is_given_up
        while self.pending and self.pending[0].is_synced:
            self.pending.pop(0).apply(self.synced)

    def give_up(self, upto: int) -> None:
        """Mark changes before a number as those of a failed sync: they may never be written."""
        for change in self.pending:
            change.is_given_up |= change.number < upto and not change.is_synced

    @property
    def unsynced(self) -> int:
        """Number of changes that could be lost."""
        return sum(not change.is_synced for change in self.pending)

    def image(self, chosen: Callable[[list[_Change]], Iterator[_Change]]) -> bytes:
        if not self.pending:
            return bytes(self.synced)
        image = bytearray(self.synced)
        for change in chosen(self.pending):
            change.apply(image)
        return bytes(image)


@dataclass(slots=True)
class _Naming:
    number: int
    folder: str  # its fsync covers the change
    name: str
    file: _File | None  # None: the name is removed

    def apply(self, names: dict[str, _File]) -> None:
        if self.file is None:
            names.pop(self.name, None)
        else:
            names[self.name] = self.file


class Disk:
    """The data folder after the records taken so far."""

    def __init__(self) -> None:
        self._names: dict[str, _File] = {}  # as a program sees them
        self._synced_names: dict[str, _File] = {}
        self._namings: list[_Naming] = []
        self._handles: dict[tuple[int, int], tuple[str, _File | None]] = {}  # None: a folder
        self._syncing: dict[tuple[int, int], int] = {}  # first change that the sync does not cover
        self._number = 0

    @property
    def pending(self) -> int:
        """Number of changes that could be lost now."""
        return len(self._namings) + sum(file.unsynced for file in self._files())

    def take(self, record: Record) -> None:
        """Apply a record; those of connections change nothing."""
        self._number += 1
        if record.kind in _TAKEN:
            _TAKEN[record.kind](self, record)

    def left(self, policy: Policy, rng: random.Random) -> dict[str, bytes]:
        """Return the files that a cut could leave now, by their names below the folder."""
        cut = rng.choice(self._moments())
        names = dict(self._synced_names)
        for naming in self._namings:
            is_in_time = policy is not Policy.DROPPED and naming.number < cut
            if is_in_time or policy is Policy.KEPT:
                naming.apply(names)
        chosen = _chooser(policy, cut, rng)
        return {name: file.image(chosen) for name, file in names.items()}

    def _moments(self) -> list[int]:
        """Return the numbers of all unsynced changes, and the next number."""
        changes = [change.number for file in self._files() for change in file.pending]
        return [*changes, *(naming.number for naming in self._namings), self._number + 1]

    # -- records

    def _files(self) -> set[_File]:
        return {*self._names.values(), *self._synced_names.values()}

    def _open(self, record: Record) -> None:
        name = record.content.decode()
        if name in self._names and not record.is_new:
            file = self._names[name]
        elif record.is_new:
            file = _File()
            self._name(name, file)
        else:  # a folder
            self._handles[record.owner] = (name, None)
            return
        self._handles[record.owner] = (name, file)
        if record.is_emptied:
            file.pending.append(_Change(self._number, 0, None))

    def _name(self, name: str, file: _File | None) -> None:
        folder = str(PurePosixPath(name).parent)
        naming = _Naming(self._number, "" if folder == "." else folder, name, file)
        naming.apply(self._names)
        self._namings.append(naming)

    def _change(self, record: Record) -> None:
        _, file = self._handles[record.owner]
        assert file is not None
        content = record.content if record.kind is Kind.WRITTEN else None
        only_grows = record.kind is Kind.ALLOCATED
        file.pending.append(_Change(self._number, record.offset, content, only_grows))

    def _begin_sync(self, record: Record) -> None:
        self._syncing[record.owner] = self._number

    def _end_sync(self, record: Record) -> None:
        upto = self._syncing.pop(record.owner)
        name, file = self._handles[record.owner]
        if file is not None:
            file.sync(upto)
            return
        done = [
            naming for naming in self._namings if naming.folder == name and naming.number < upto
        ]
        for naming in done:
            naming.apply(self._synced_names)
            self._namings.remove(naming)

    def _fail_sync(self, record: Record) -> None:
        upto = self._syncing.pop(record.owner)
        _, file = self._handles[record.owner]
        if file is not None:
            file.give_up(upto)

    def _rename(self, record: Record) -> None:
        old, new = record.content.decode().split("\0")
        file = self._names[old]
        self._name(new, file)
        self._name(old, None)

    def _unlink(self, record: Record) -> None:
        name = record.content.decode()
        if name in self._names:  # not a socket
            self._name(name, None)


_TAKEN: Final[dict[Kind, Callable[[Disk, Record], None]]] = {
    Kind.OPENED: Disk._open,
    Kind.WRITTEN: Disk._change,
    Kind.TRUNCATED: Disk._change,
    Kind.ALLOCATED: Disk._change,
    Kind.SYNC_BEGUN: Disk._begin_sync,
    Kind.SYNC_ENDED: Disk._end_sync,
    Kind.SYNC_FAILED: Disk._fail_sync,
    Kind.RENAMED: Disk._rename,
    Kind.UNLINKED: Disk._unlink,
}


def _chooser(
    policy: Policy, cut: int, rng: random.Random
) -> Callable[[list[_Change]], Iterator[_Change]]:
    if policy is Policy.DROPPED:
        return lambda pending: (change for change in pending if change.is_synced)
    if policy is Policy.KEPT:
        return iter
    if policy is Policy.TORN:
        return lambda pending: _torn(pending, cut, rng)
    return lambda pending: _reordered(pending, rng)


def _torn(pending: list[_Change], cut: int, rng: random.Random) -> Iterator[_Change]:
    for change in pending:
        if change.is_synced or change.number < cut:
            yield change
        elif change.number == cut:
            pieces = list(change.sectors())
            yield from pieces[: rng.randint(0, len(pieces))]


def _reordered(pending: list[_Change], rng: random.Random) -> Iterator[_Change]:
    """Choose sectors; after a size change that is lost, nothing is chosen."""
    share = rng.choice((0.1, 0.5, 0.9))
    is_open = True
    for change in pending:
        if change.is_synced:
            yield change
        elif change.content is None:
            is_open = is_open and rng.random() < share
            if is_open:
                yield change
        elif is_open:
            yield from (piece for piece in change.sectors() if rng.random() < share)


def _write(image: bytearray, offset: int, content: bytes) -> None:
    _grow(image, offset)
    image[offset : offset + len(content)] = content


def _grow(image: bytearray, size: int) -> None:
    if len(image) < size:
        image.extend(bytes(size - len(image)))
