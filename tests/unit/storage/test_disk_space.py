"""When publishing stops and resumes, and what happens to the ballast, on a simulated disk."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.errors import NotWritableError, StorageFullError
from phpmq_lite.model import DATABASE_FULL, DISK_FULL, DISK_LOW, ShortageKind
from phpmq_lite.storage import disk_space as spaces
from phpmq_lite.storage.disk_space import (
    BALLAST,
    MAX_TROUBLE_S,
    DiskSpace,
    DiskSpaceBounds,
    LowWatermark,
)

LEAST = 1_000
BOUNDS = DiskSpaceBounds(free_bytes=LEAST, max_bytes=16_000, ballast_bytes=400)
FULL = StorageFullError("the disk is full")
LOCKED = NotWritableError("locked")


# -- the watermark


@given(st.lists(st.integers(0, 300)), st.integers(0, 100), st.integers(0, 100))
def test_watermark_remembers_the_last_bound_that_was_passed(
    seen: list[int], least: int, gap: int
) -> None:
    """Compare the watermark with a backwards search through all values."""
    mark = LowWatermark()
    for at, left in enumerate(seen):
        found = mark.update(left, least, least + gap)
        passed = (n for n in reversed(seen[: at + 1]) if n < least or n >= least + gap)
        last = next(passed, None)
        assert found is mark.is_short is (last is not None and last < least)


# -- disk space


class Rig:
    """A DiskSpace on a simulated disk and clock."""

    def __init__(self, folder: Path) -> None:
        self.room = 0  # free space without the ballast
        self.is_broken = False
        self.now_s = 0.0
        self.waits_s: list[float] = []
        self.changes = 0
        self.space = DiskSpace(folder, BOUNDS, timer=lambda: self.now_s, sleep=self._sleep)
        self.space.on_change = self._note
        self._ballast = folder / BALLAST

    def free(self, _: Path) -> int:
        if self.is_broken:
            raise OSError("gone")
        size = self._ballast.stat().st_size if self._ballast.exists() else 0
        return self.room - size

    def _sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.now_s += seconds

    def _note(self) -> None:
        self.changes += 1

    @property
    def detail(self) -> str:
        return "" if self.space.shortage is None else self.space.shortage.detail

    def has_ballast(self) -> bool:
        return self.space.has_ballast

    def problem(self) -> str | None:
        return self.space.write_problem

    def measure(self, room: int, used: int = 0) -> ShortageKind | None:
        """Measure with this room; return the kind of any shortage."""
        self.room = room
        self.space.measure(used)
        found = self.space.shortage
        return None if found is None else found.kind


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    made = Rig(tmp_path)
    monkeypatch.setattr(spaces, "_free", made.free)
    return made


def test_publishing_stops_below_the_bound_and_resumes_half_above_it(rig: Rig) -> None:
    found = [rig.measure(room) for room in (LEAST, LEAST - 1, LEAST * 3 // 2 - 1, LEAST * 3 // 2)]
    assert found == [None, DISK_LOW, DISK_LOW, None]
    assert rig.changes == 2


def test_publishing_stops_if_the_database_exceeds_its_bound(rig: Rig) -> None:
    found = [rig.measure(10 * LEAST, used) for used in (16_000, 16_001, 15_001, 15_000)]
    assert found == [None, DATABASE_FULL, DATABASE_FULL, None]


def test_bound_of_zero_is_disabled(rig: Rig) -> None:
    rig.space.bounds = DiskSpaceBounds()
    assert rig.measure(0, 1 << 60) is None


def test_shortage_names_the_setting_and_its_value(rig: Rig) -> None:
    rig.space.bounds = DiskSpaceBounds(free_bytes=512 << 20, max_bytes=10 << 30)
    rig.measure(0)
    assert rig.detail == (
        "the disk has less free space than storage.free_bytes (512 MiB); "
        "publishing resumes once 768 MiB are free"
    )
    rig.measure(1 << 40, 11 << 30)
    assert "storage.max_bytes (10 GiB); publishing resumes below 9.4 GiB" in rig.detail


def test_changed_bounds_apply_at_the_next_measurement(rig: Rig) -> None:
    assert rig.measure(LEAST - 1) == DISK_LOW
    rig.space.bounds = DiskSpaceBounds(free_bytes=LEAST // 2)
    assert rig.measure(LEAST - 1) is None


def test_ballast_is_created_if_enough_space_remains(rig: Rig) -> None:
    enough = LEAST * 3 // 2 + 400
    rig.measure(enough - 1)
    assert not rig.has_ballast()
    assert rig.measure(enough) is None
    assert rig.has_ballast()
    assert rig.space.free_bytes == LEAST * 3 // 2
    rig.measure(LEAST)
    assert rig.has_ballast()


def test_failed_ballast_leaves_no_file(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_file: int, _start: int, _size: int) -> None:
        raise OSError("no room")

    monkeypatch.setattr("os.posix_fallocate", refuse, raising=False)
    assert rig.measure(10 * LEAST) is None
    assert not rig.has_ballast()


def test_ballast_truncated_by_a_kill_is_created_again(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / BALLAST).write_bytes(b"x")
    assert not rig.has_ballast()
    rig.measure(2 * LEAST + 1)
    assert rig.has_ballast()


def test_ballast_is_deleted_at_start_when_it_is_disabled(rig: Rig, tmp_path: Path) -> None:
    rig.measure(2 * LEAST)
    rig.space.bounds = DiskSpaceBounds()
    rig.space.prepare()
    assert not (tmp_path / BALLAST).exists()


def test_full_disk_releases_the_ballast_and_stops_publishing(rig: Rig) -> None:
    rig.measure(2 * LEAST)
    rig.space.wait_after(FULL)  # retry immediately
    assert (rig.waits_s, rig.has_ballast(), rig.problem()) == ([], False, None)
    assert rig.space.shortage is not None
    assert rig.space.shortage.kind == DISK_FULL
    assert rig.measure(LEAST * 3 // 2 - 1) == DISK_FULL
    assert rig.measure(LEAST * 3 // 2) is None
    assert not rig.has_ballast()
    rig.measure(2 * LEAST)
    assert rig.has_ballast()


def test_full_disk_without_a_reserve_stops_publishing(rig: Rig) -> None:
    """Otherwise each measurement would resume publishing onto the same full disk."""
    rig.space.bounds = DiskSpaceBounds()
    rig.space.wait_after(FULL)
    rig.space.note_stored()  # an acknowledgement
    assert rig.measure(0) == rig.measure((12 << 20) - 1) == DISK_FULL
    assert rig.detail == "the disk is full; publishing resumes once 12 MiB are free"
    assert rig.measure(12 << 20) is None


@pytest.mark.parametrize(
    "bounds",
    [
        DiskSpaceBounds(free_bytes=0, ballast_bytes=400),
        DiskSpaceBounds(free_bytes=300, ballast_bytes=400),
        DiskSpaceBounds(free_bytes=LEAST, ballast_bytes=LEAST),
        BOUNDS,
    ],
)
def test_publishing_resumed_with_a_reserve_and_more_room_never_stops_it(
    bounds: DiskSpaceBounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise acknowledgements would have no reserve when the disk is full again."""
    goes_on = []
    for room in range(0, 4 * LEAST, 50):
        folder = tmp_path / str(room)
        folder.mkdir()
        rig = Rig(folder)
        rig.space.bounds = bounds
        monkeypatch.setattr(spaces, "_free", rig.free)
        rig.measure(10 * LEAST)
        rig.room = 0
        rig.space.wait_after(FULL)
        rig.measure(0)
        is_taking = rig.measure(room) is None
        goes_on.append(is_taking)
        assert not is_taking or rig.has_ballast() or rig.free(folder) >= bounds.free_bytes > 0
    assert goes_on == sorted(goes_on)
    assert goes_on[-1]


def test_writer_waits_for_a_full_disk_without_a_limit(rig: Rig) -> None:
    for _ in range(100):
        rig.space.wait_after(FULL)
    assert len(rig.waits_s) == 100
    assert rig.problem() == "the disk is full"
    assert rig.changes == 2  # the shortage and the write problem
    rig.space.note_stored()
    rig.space.note_stored()
    assert rig.problem() is None
    assert rig.changes == 3


def test_writer_gives_up_if_it_can_never_write(rig: Rig) -> None:
    while rig.now_s < MAX_TROUBLE_S:
        rig.space.wait_after(LOCKED)
    with pytest.raises(NotWritableError, match="locked"):
        rig.space.wait_after(LOCKED)
    assert rig.problem() == "locked"


def test_time_on_a_full_disk_does_not_count_for_a_lock(rig: Rig) -> None:
    for _ in range(100):
        rig.space.wait_after(FULL)
    rig.space.wait_after(LOCKED)


def test_time_limit_starts_again_after_a_successful_write(rig: Rig) -> None:
    rig.space.wait_after(LOCKED)
    rig.space.note_stored()
    rig.now_s += 2 * MAX_TROUBLE_S
    rig.space.wait_after(LOCKED)


def test_only_a_start_on_a_full_disk_releases_the_ballast(rig: Rig) -> None:
    rig.measure(2 * LEAST)
    rig.space.prepare()
    assert rig.has_ballast()
    rig.room = 400 + 199  # including 400 of the ballast
    rig.space.prepare()
    assert not rig.has_ballast()
    assert rig.measure(599) == DISK_FULL


@pytest.mark.parametrize(("room", "stays"), [(401, False), (2 << 20, True)])
def test_stop_releases_the_ballast_if_its_last_files_need_the_space(
    rig: Rig, room: int, stays: bool
) -> None:
    rig.measure(2 * LEAST)
    rig.room = room
    rig.space.release_ballast_if_full()
    assert rig.has_ballast() is stays


def test_failed_measurement_changes_nothing(rig: Rig) -> None:
    assert rig.measure(LEAST - 1) == DISK_LOW
    rig.is_broken = True
    assert rig.measure(10 * LEAST) == DISK_LOW


@pytest.mark.parametrize("has_allocate", [True, False])
def test_ballast_occupies_disk_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_allocate: bool
) -> None:
    """The file must not be sparse, even if the system cannot allocate space."""
    if not has_allocate:
        monkeypatch.delattr("os.posix_fallocate")
    size = 3 << 20
    DiskSpace(tmp_path, DiskSpaceBounds(ballast_bytes=size)).measure(0)
    found = (tmp_path / BALLAST).stat()
    assert (found.st_size, found.st_blocks * 512 >= size) == (size, True)
    assert found.st_mode & 0o777 == 0o600
