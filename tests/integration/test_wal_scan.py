"""WAL files that a real SQLite wrote, with flipped bits, cut tails and old frames."""

import io
import random
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.errors import DataDamagedError
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.sqlite.integrity.wal_check import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    WalScan,
    check_wal,
    frame_sums,
    scan_wal,
)

PAGE = 512
FRAME = FRAME_HEADER_BYTES + PAGE
SECTOR = 512


def connect(path: Path, page_size: int = PAGE) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for pragma in (f"page_size={page_size}", "journal_mode=WAL", "synchronous=FULL",
                   "wal_autocheckpoint=0"):  # fmt: skip
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY, x BLOB)")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return connection


def wal_of(path: Path) -> bytes:
    return path.with_name(path.name + "-wal").read_bytes()


def commit(connection: sqlite3.Connection, size: int) -> None:
    """Commit a row of about ``size`` bytes, in one or many frames."""
    connection.execute("INSERT INTO t (x) VALUES (?)", (bytes(range(256)) * (size // 256 + 1),))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[bytes, bytes]]:
    """Return a database and its WAL of twelve commits, each of 1 to 16 frames."""
    path = tmp_path_factory.mktemp("wal") / "a.db"
    with closing(connect(path)) as connection:
        for size in (1, 1, 3_000, 1, 1, 5_000, 700, 1, 1, 1, 1, 7_000):
            commit(connection, size)
        yield path.read_bytes(), wal_of(path)


def ends(wal: bytes) -> list[int]:
    """Return the numbers of the frames that end a transaction, from 1."""
    count = (len(wal) - HEADER_BYTES) // FRAME
    return [n for n in range(1, count + 1) if wal[at(n) + 4 : at(n) + 8] != b"\0\0\0\0"]


def at(number: int) -> int:
    """Return the offset of a frame."""
    return HEADER_BYTES + (number - 1) * FRAME


def judge(wal: bytes) -> WalScan:
    return scan_wal(io.BytesIO(wal))


def flipped(wal: bytes, bit: int) -> bytes:
    changed = bytearray(wal)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def rows_seen(folder: Path, database: bytes, wal: bytes) -> int:
    """Return the number of rows that a real SQLite finds."""
    path = folder / "seen.db"
    path.write_bytes(database)
    path.with_name("seen.db-wal").write_bytes(wal)
    with closing(sqlite3.connect(path)) as connection:
        count: int = connection.execute("SELECT count(*) FROM t").fetchone()[0]
    return count


# -- whole files


def test_intact_wal_has_all_commits(small: tuple[bytes, bytes], tmp_path: Path) -> None:
    database, wal = small
    found = judge(wal)
    assert found == WalScan(commits=12, frames=ends(wal)[-1])
    assert not found.is_damaged
    assert rows_seen(tmp_path, database, wal) == 12


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES])
def test_wal_without_frames_is_normal(small: tuple[bytes, bytes], size: int) -> None:
    assert judge(small[1][:size]) == WalScan()


def test_empty_wal_of_a_new_file_is_normal() -> None:
    assert not judge(bytes(HEADER_BYTES + 3 * FRAME)).is_damaged


@pytest.mark.parametrize("page_size", [512, 4_096, 65_536])
def test_every_page_size_is_read(tmp_path: Path, page_size: int) -> None:
    with closing(connect(tmp_path / "a.db", page_size)) as connection:
        for _ in range(300 if page_size < 65_536 else 40):  # more than are summed at once
            commit(connection, 200)
        wal = wal_of(tmp_path / "a.db")
    found = judge(wal)
    assert (found.first_bad, found.commits) == (None, 300 if page_size < 65_536 else 40)
    second = HEADER_BYTES + FRAME_HEADER_BYTES + page_size
    assert judge(flipped(wal, second * 8 + 2_000)).is_damaged


def test_wal_of_the_other_byte_order_is_read(small: tuple[bytes, bytes], tmp_path: Path) -> None:
    database, wal = small
    other = in_big_endian(wal)
    assert rows_seen(tmp_path, database, other) == 12  # SQLite accepts it, so it is valid
    assert judge(other) == judge(wal)
    assert judge(flipped(other, at(3) * 8 + 900)).is_damaged
    assert judge(flipped(other, 3)).is_damaged  # in the header


def in_big_endian(wal: bytes) -> bytes:
    """Return the same WAL as a machine of the other byte order writes it."""

    def behind(seed: tuple[int, int], data: bytes) -> tuple[int, int]:
        first, second = seed
        for x, y in struct.iter_unpack(">II", data):
            first = (first + x + second) % 2**32
            second = (second + y + first) % 2**32
        return first, second

    changed = bytearray(wal)
    changed[3] |= 1
    seed = behind((0, 0), bytes(changed[:24]))
    changed[24:32] = struct.pack(">II", *seed)
    for start in range(HEADER_BYTES, len(wal), FRAME):
        seed = behind(seed, bytes(changed[start : start + 8]))
        seed = behind(seed, bytes(changed[start + 24 : start + FRAME]))
        changed[start + 16 : start + 24] = struct.pack(">II", *seed)
    return bytes(changed)


# -- damage


def test_sixty_flipped_bits_are_all_reported(small: tuple[bytes, bytes], tmp_path: Path) -> None:
    """SQLite notices none of them: it silently has fewer rows."""
    database, wal = small
    behind = at(ends(wal)[-2] + 1)  # the last commit begins here
    dice = random.Random(20)
    for bit in (dice.randrange(HEADER_BYTES * 8, behind * 8) for _ in range(60)):
        found = judge(flipped(wal, bit))
        assert found.is_damaged, bit
        assert found.first_bad == (bit // 8 - HEADER_BYTES) // FRAME + 1
        assert found.last_after == ends(wal)[-1]
        assert rows_seen(tmp_path, database, flipped(wal, bit)) == found.commits < 12


def test_every_bit_of_header_and_frame_heads_is_reported(small: tuple[bytes, bytes]) -> None:
    """One commit after the damage is enough, whatever the bit changes in the frame."""
    _, wal = small
    commits = ends(wal)
    missed = []
    damaged = {0, commits[-2]} | {n + more for n in commits[:-2] for more in (0, 1)}
    for number in sorted(damaged):
        _, after, *_ = [n for n in commits if n >= number]
        start, size = (at(number), FRAME_HEADER_BYTES) if number else (0, HEADER_BYTES)
        short = wal[: at(after + 1)]
        bits = range(start * 8, (start + size) * 8)
        missed += [bit for bit in bits if not judge(flipped(short, bit)).is_damaged]
    # Where a sector ends between a frame's commit and its salts, a cut can look the same.
    frames = [(bit // 8 - HEADER_BYTES) // FRAME + 1 for bit in missed]
    assert [frame for frame in frames if (at(frame) + 8) % SECTOR] == []


def test_header_that_is_damaged_loses_all_commits(small: tuple[bytes, bytes]) -> None:
    found = judge(flipped(small[1], 100))
    assert (found.first_bad, found.commits, found.commits_after) == (0, 0, 12)


def test_bad_sector_before_two_commits_is_reported(small: tuple[bytes, bytes]) -> None:
    _, wal = small
    last_safe = at(ends(wal)[-3]) // SECTOR
    for sector in range(last_safe):
        for content in (bytes(SECTOR), random.Random(sector).randbytes(SECTOR)):
            changed = wal[: sector * SECTOR] + content + wal[(sector + 1) * SECTOR :]
            assert judge(changed).is_damaged, sector


def test_old_frames_do_not_hide_damage(tmp_path: Path) -> None:
    wal = restarted_wal(tmp_path)
    assert judge(flipped(wal, at(1) * 8 + 999)).is_damaged


# -- effects of a power cut are normal


def test_tail_cut_anywhere_in_the_last_frame_is_normal(small: tuple[bytes, bytes]) -> None:
    _, wal = small
    kept = WalScan(commits=11, frames=ends(wal)[-1] - 1)
    for size in range(len(wal) - FRAME, len(wal)):
        assert judge(wal[:size]) == kept


def test_tail_cut_anywhere_is_normal(small: tuple[bytes, bytes]) -> None:
    _, wal = small
    for size in range(0, len(wal), 37):
        assert not judge(wal[:size]).is_damaged


def test_tail_of_zeros_is_normal(small: tuple[bytes, bytes]) -> None:
    _, wal = small
    for size in range(at(ends(wal)[-2] + 1), len(wal), 37):
        assert not judge(wal[:size].ljust(len(wal) + 5_000, b"\0")).is_damaged


@given(st.data())
def test_torn_last_transaction_is_normal(small: tuple[bytes, bytes], data: st.DataObject) -> None:
    """Any of its sectors may be missing; the disk had zeros, old frames or anything there."""
    _, wal = small
    begin = at(ends(wal)[-2] + 1)
    old = data.draw(st.sampled_from([bytes(len(wal)), wal[begin:] * 3, old_frames(wal)]))
    missing = data.draw(st.sets(st.integers(begin // SECTOR, len(wal) // SECTOR), min_size=1))
    torn = bytearray(wal)
    for sector in missing:
        first, last = max(begin, sector * SECTOR), min(len(wal), (sector + 1) * SECTOR)
        torn[first:last] = old[first:last]
    found = judge(bytes(torn))
    assert not found.is_damaged
    assert found.commits >= 11


def old_frames(wal: bytes) -> bytes:
    """Return an older generation of the file: other salts, each frame a commit."""
    old = bytearray(wal)
    for start in range(HEADER_BYTES, len(wal), FRAME):
        old[start + 4 : start + 8] = struct.pack(">I", 77)
        old[start + 8 : start + 12] = b"salt"
    return bytes(old)


def restarted_wal(folder: Path) -> bytes:
    """Return a WAL that SQLite restarted: two new commits before many old frames."""
    with closing(connect(folder / "restarted.db")) as connection:
        for _ in range(20):
            commit(connection, 1_000)
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        commit(connection, 1)
        commit(connection, 1)
        return wal_of(folder / "restarted.db")


def test_old_frames_are_normal(tmp_path: Path) -> None:
    found = judge(restarted_wal(tmp_path))
    assert (found.commits, found.first_bad) == (2, found.frames + 1)
    assert not found.is_damaged


def test_transaction_rolled_back_after_the_last_commit_is_normal(tmp_path: Path) -> None:
    """Its pages overflowed the cache into the WAL with the current salts; commits follow."""
    with closing(connect(tmp_path / "a.db")) as connection:
        connection.execute("PRAGMA cache_size=5").fetchall()
        commit(connection, 1)
        connection.execute("BEGIN")
        for _ in range(20):
            commit(connection, 3_000)
        connection.execute("ROLLBACK")
        long = len(wal_of(tmp_path / "a.db"))
        assert not judge(wal_of(tmp_path / "a.db")).is_damaged
        commit(connection, 1)
        wal = wal_of(tmp_path / "a.db")
    assert len(wal) == long > at(50)
    found = judge(wal)
    assert (found.commits, found.is_damaged) == (2, False)


# -- the guard


@pytest.fixture
def crashed(tmp_path: Path) -> Iterator[Callable[[Callable[[bytes], bytes]], DataFolder]]:
    """Return a function that creates the folder of a killed broker, with a changed WAL."""
    opened: list[DataFolder] = []

    def make(change: Callable[[bytes], bytes]) -> DataFolder:
        with closing(connect(tmp_path / "made.db")) as connection:
            for _ in range(5):
                commit(connection, 100)
            database, wal = (tmp_path / "made.db").read_bytes(), wal_of(tmp_path / "made.db")
        folder = DataFolder.open(tmp_path / "data")
        opened.append(folder)
        folder.database.write_bytes(database)
        folder.wal.write_bytes(change(wal))
        folder.shm.write_bytes(b"an index")
        return folder

    yield make
    for folder in opened:
        folder.close()


def damage(wal: bytes) -> bytes:
    return flipped(wal, at(2) * 8 + 1_000)


Crashed = Callable[[Callable[[bytes], bytes]], DataFolder]


def test_guard_passes_a_torn_tail(crashed: Crashed) -> None:
    folder = crashed(lambda wal: wal[:-5])
    assert check_wal(folder).commits == 4
    assert list(folder.path.glob("damaged-*")) == []


def test_guard_passes_when_there_is_no_wal(crashed: Crashed) -> None:
    folder = crashed(lambda wal: wal)
    folder.wal.unlink()
    assert check_wal(folder) == WalScan()


def test_guard_refuses_damage_and_keeps_a_copy(crashed: Crashed) -> None:
    folder = crashed(damage)
    files = (folder.database, folder.wal, folder.shm)
    before = [file.read_bytes() for file in files]
    with pytest.raises(DataDamagedError, match=r"frame 2, and 3 complete commits") as caught:
        check_wal(folder)
    (copies,) = folder.path.glob("damaged-*")
    assert str(copies) in str(caught.value)
    assert [(copies / file.name).read_bytes() for file in files] == before
    assert [file.read_bytes() for file in files] == before
    assert copies.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in copies.iterdir()} == {0o600}


def test_guard_keeps_one_copy_at_repeated_starts(crashed: Crashed) -> None:
    folder = crashed(damage)
    for _ in range(3):
        with pytest.raises(DataDamagedError):
            check_wal(folder)
    assert len(list(folder.path.glob("damaged-*"))) == 1
    folder.wal.write_bytes(flipped(folder.wal.read_bytes(), at(3) * 8 + 500))  # another damage
    with pytest.raises(DataDamagedError):
        check_wal(folder)
    assert len(list(folder.path.glob("damaged-*"))) == 2


def test_guard_passes_damage_when_the_loss_is_accepted(crashed: Crashed) -> None:
    folder = crashed(damage)
    assert check_wal(folder, accept_loss=True).commits_after == 3
    assert len(list(folder.path.glob("damaged-*"))) == 1


def test_guard_refuses_damage_when_it_cannot_be_copied(crashed: Crashed) -> None:
    folder = crashed(damage)
    folder.shm.unlink()
    folder.shm.mkdir()
    with pytest.raises(DataDamagedError, match="could not be copied"):
        check_wal(folder, accept_loss=True)


def test_guard_refuses_a_missing_wal_after_a_crash(crashed: Crashed) -> None:
    folder = crashed(lambda wal: wal)
    folder.record(is_running=True)
    folder.wal.unlink()
    with pytest.raises(DataDamagedError, match=r"phpmq\.db-wal is missing"):
        check_wal(folder)
    assert check_wal(folder, accept_loss=True) == WalScan()


def test_sums_of_a_real_wal_are_the_same_one_by_one(small: tuple[bytes, bytes]) -> None:
    frames = small[1][HEADER_BYTES:]
    together = frame_sums(frames, FRAME, "little")
    alone = [frame_sums(frames[i : i + FRAME], FRAME, "little")[0]
             for i in range(0, len(frames), FRAME)]  # fmt: skip
    assert together == alone
