"""The disks that ``disk.py`` recreates could be those of a real folder."""

import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.disk import SECTOR, Disk, Policy
from tests.faults.shim import Kind, Record

pytestmark = pytest.mark.faults

_NAMES = ("one", "two", "three")
_CONTENT = st.binary(min_size=1, max_size=3 * SECTOR)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(_NAMES), st.integers(0, 2_000), _CONTENT),
        st.tuples(st.just("size"), st.sampled_from(_NAMES), st.integers(0, 2_000)),
        st.tuples(st.just("sync"), st.sampled_from(_NAMES)),
        st.tuples(st.just("rename"), st.sampled_from(_NAMES), st.sampled_from(_NAMES)),
        st.tuples(st.just("unlink"), st.sampled_from(_NAMES)),
        st.tuples(st.just("sync names")),
    ),
    max_size=30,
)


@dataclass
class _Folder:
    """A real folder, and a ``Disk`` with the same changes."""

    path: Path
    disk: Disk = field(default_factory=Disk)
    handles: int = 0

    def log(
        self, kind: Kind, number: int = 0, flags: int = 0, at: int = 0, what: bytes = b""
    ) -> None:
        self.disk.take(Record(kind, (1, number), flags, at, what))

    def open(self, name: str) -> tuple[int, int]:
        self.handles += 1
        is_new = not (self.path / name).exists()
        fd = os.open(self.path / name, os.O_RDWR | os.O_CREAT)
        self.log(Kind.OPENED, self.handles, is_new, 0, name.encode())
        return fd, self.handles

    def do(self, what: str, *given: object) -> None:
        if what == "sync names":
            self.handles += 1
            self.log(Kind.OPENED, self.handles)
            self.log(Kind.SYNC_BEGUN, self.handles)
            self.log(Kind.SYNC_ENDED, self.handles)
            return
        name = str(given[0])
        if what in ("rename", "unlink"):
            self._name(what, *map(str, given))
            return
        fd, number = self.open(name)
        if what == "write":
            at, content = int(str(given[1])), given[2]
            assert isinstance(content, bytes)
            os.pwrite(fd, content, at)
            self.log(Kind.WRITTEN, number, 0, at, content)
        elif what == "size":
            os.ftruncate(fd, int(str(given[1])))
            self.log(Kind.TRUNCATED, number, 0, int(str(given[1])))
        else:
            self.log(Kind.SYNC_BEGUN, number)
            self.log(Kind.SYNC_ENDED, number)
        os.close(fd)

    def _name(self, what: str, name: str, new: str = "") -> None:
        if not (self.path / name).exists() or name == new:
            return
        if what == "rename":
            (self.path / name).rename(self.path / new)
            self.log(Kind.RENAMED, 0, 0, 0, f"{name}\0{new}".encode())
        else:
            (self.path / name).unlink()
            self.log(Kind.UNLINKED, 0, 0, 0, name.encode())

    def sync_all(self) -> None:
        for name in list(self.files):
            self.do("sync", name)
        self.do("sync names")

    @property
    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.path.iterdir()}


@given(_STEPS, st.integers(0, 1_000))
def test_disk_is_the_folder_when_all_is_kept_or_synced(
    steps: list[tuple[object, ...]], seed: int
) -> None:
    with TemporaryDirectory() as path:
        folder = _Folder(Path(path))
        for what, *rest in steps:
            folder.do(str(what), *rest)
        rng = random.Random(seed)
        assert folder.disk.left(Policy.KEPT, rng) == folder.files
        folder.sync_all()
        assert folder.disk.pending == 0
        for policy in Policy:
            assert folder.disk.left(policy, rng) == folder.files


@given(_STEPS, _STEPS, st.integers(0, 1_000))
def test_disk_keeps_synced_changes(
    before: list[tuple[object, ...]], steps: list[tuple[object, ...]], seed: int
) -> None:
    """With the policy DROPPED, later changes are lost."""
    with TemporaryDirectory() as path:
        folder = _Folder(Path(path))
        for what, *rest in before:
            folder.do(str(what), *rest)
        folder.sync_all()
        synced = folder.files
        for what, *rest in steps:
            if "sync" not in str(what):
                folder.do(str(what), *rest)
        assert folder.disk.left(Policy.DROPPED, random.Random(seed)) == synced


@pytest.mark.parametrize("policy", [Policy.TORN, Policy.REORDERED])
def test_disk_tears_between_sectors_only(policy: Policy) -> None:
    old, new = b"o" * 4 * SECTOR, b"n" * 3 * SECTOR
    seen = set()
    for seed in range(200):
        with TemporaryDirectory() as path:
            folder = _Folder(Path(path))
            folder.do("write", "one", 0, old)
            folder.sync_all()
            folder.do("write", "one", SECTOR // 2, new)
            seen.add(folder.disk.left(policy, random.Random(seed))["one"])
    whole = old[: SECTOR // 2] + new + old[SECTOR // 2 * 7 :]
    starts = range(0, len(old), SECTOR)
    assert {old, whole} < seen
    for image in seen:
        for at in starts:
            sector = slice(at, at + SECTOR)
            assert image[sector] in (old[sector], whole[sector])
    assert len(seen) == (5 if policy is Policy.TORN else 16)


def test_write_during_a_sync_is_not_synced() -> None:
    disk = Disk()
    for record in (
        Record(Kind.OPENED, (1, 1), 1, 0, b"one"),
        Record(Kind.OPENED, (1, 2), 0, 0, b""),
        Record(Kind.SYNC_BEGUN, (1, 2), 0, 0, b""),
        Record(Kind.SYNC_ENDED, (1, 2), 0, 0, b""),
        Record(Kind.WRITTEN, (1, 1), 0, 0, b"before"),
        Record(Kind.SYNC_BEGUN, (1, 1), 0, 0, b""),
        Record(Kind.WRITTEN, (1, 1), 0, 0, b"during"),
        Record(Kind.SYNC_ENDED, (1, 1), 0, 0, b""),
    ):
        disk.take(record)
    assert disk.left(Policy.DROPPED, random.Random(1)) == {"one": b"before"}


def test_sync_after_a_failed_one_saves_only_later_writes() -> None:
    """The system considers the pages of a failed sync written, and never writes them again."""
    disk = Disk()
    for kind, offset, content in (
        (Kind.OPENED, 0, b"one"),
        (Kind.WRITTEN, 0, b"given up"),
        (Kind.SYNC_BEGUN, 0, b""),
        (Kind.SYNC_FAILED, 0, b""),
        (Kind.WRITTEN, 6, b"later"),
        (Kind.SYNC_BEGUN, 0, b""),
        (Kind.SYNC_ENDED, 0, b""),
    ):
        disk.take(Record(kind, (1, 1), kind is Kind.OPENED, offset, content))
    assert disk.left(Policy.KEPT, random.Random(1)) == {"one": b"given later"}
    disk.take(Record(Kind.OPENED, (1, 2), 0, 0, b""))
    disk.take(Record(Kind.SYNC_BEGUN, (1, 2), 0, 0, b""))
    disk.take(Record(Kind.SYNC_ENDED, (1, 2), 0, 0, b""))
    assert disk.left(Policy.DROPPED, random.Random(1)) == {"one": bytes(6) + b"later"}
