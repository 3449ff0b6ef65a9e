"""Doctor checks of the data folder, the disk and the machine."""

from pathlib import Path

import pytest

from phpmq_lite.cli.doctor import host
from phpmq_lite.cli.doctor.findings import BAD, OK, WARN
from phpmq_lite.cli.doctor.host import FolderAccess
from phpmq_lite.settings import Settings

NOBODY = 4_000_000_000  # an account without a name
PATH = Path("/srv/mq")


@pytest.mark.parametrize(
    ("rights", "state", "words"),
    [
        (FolderAccess(PATH, NOBODY), OK, "/srv/mq does not exist yet"),
        (FolderAccess(PATH, NOBODY, can_write=False), BAD, "4000000000 cannot create it"),
        (FolderAccess(PATH, NOBODY, NOBODY), OK, "/srv/mq, no broker is running"),
        (FolderAccess(PATH, NOBODY, NOBODY, 0o755), WARN, "accessible to other users (mode 0755)"),
        (FolderAccess(PATH, 0, NOBODY), WARN, "/srv/mq (owner 4000000000), checked as root"),
        (
            FolderAccess(PATH, NOBODY, 0, can_write=False),
            BAD,
            "4000000000 cannot use /srv/mq (owner root)",
        ),
        (
            FolderAccess(PATH, 0, 0, strangers=("phpmq.db",)),
            BAD,
            "files owned by another account: phpmq.db",
        ),
    ],
)
def test_rights_are_judged(rights: FolderAccess, state: str, words: str) -> None:
    found = host.folder_access_finding(rights, None)
    assert (found.state, words in found.text) == (state, True), found
    assert bool(found.hint) or state == OK


def test_running_broker_is_named() -> None:
    found = host.folder_access_finding(FolderAccess(PATH, NOBODY, NOBODY), "4711")
    assert found.text == "/srv/mq, in use by pid 4711"


@pytest.mark.parametrize(
    ("kind", "refusal", "is_allowed", "state"),
    [
        ("ext4", "", False, OK),
        (None, "", False, OK),
        ("tmpfs", "", False, WARN),
        ("overlay", "", False, WARN),
        ("nfs4", "it is on a network file system (nfs4)", False, BAD),
        ("nfs4", "it is on a network file system (nfs4)", True, WARN),
    ],
)
def test_filesystem_is_judged(kind: str | None, refusal: str, is_allowed: bool, state: str) -> None:
    found = host.file_system_finding(kind, refusal, is_allowed=is_allowed)
    assert found.state == state
    assert (kind or "unknown") in found.text


@pytest.mark.parametrize(
    ("took_ms", "state", "words"),
    [(0.043, OK, "0.04 ms"), (12.3, OK, "12 ms"), (250.0, WARN, "250 ms")],
)
def test_disk_is_judged_by_how_long_it_takes(took_ms: float, state: str, words: str) -> None:
    found = host.sync_finding(took_ms)
    assert (found.state, found.text) == (state, f"writes and syncs 4 KiB in {words}")


@pytest.mark.parametrize(
    ("free", "least", "shortage", "state", "words"),
    [
        (1 << 30, 512 << 20, "less than storage.free_bytes", BAD, "1 GiB free: less than"),
        (1 << 30, 512 << 20, "", WARN, "publishing stops below 512 MiB"),
        (9 << 30, 512 << 20, "", OK, "9 GiB free; publishing stops below 512 MiB"),
        (1 << 20, 0, "", OK, "1 MiB free"),
    ],
)
def test_room_is_judged(free: int, least: int, shortage: str, state: str, words: str) -> None:
    found = host.disk_space_finding(free, least, shortage)
    assert (found.state, words in found.text) == (state, True)


NOW_MS = 1_800_000_000_000
GIB = 1 << 30


@pytest.mark.parametrize(
    ("files", "state", "words"),
    [
        (None, OK, "no limit"),
        (4_096, OK, "4,096 files may be open, enough for 500 connections"),
        (564, OK, "564 files may be open"),
        (563, WARN, "563 files may be open, enough for 499 of the 500 connections"),
    ],
)
def test_open_files_are_judged(files: int | None, state: str, words: str) -> None:
    found = host.open_files_finding(Settings(), files)
    assert (found.state, words in found.text) == (state, True), found
    assert ("LimitNOFILE=664" in found.hint) == (state == WARN)


@pytest.mark.parametrize(
    ("bound", "of_machine", "state", "words"),
    [
        (GIB, 8 * GIB, OK, "limits.memory (1 GiB) of 8 GiB RAM"),
        (GIB, 0, OK, "limits.memory (1 GiB)"),
        (GIB // 2, 8 * GIB, WARN, "the container's limit leaves 512 MiB of limits.memory (1 GiB)"),
        (GIB, GIB, WARN, "more than three quarters of the 1 GiB"),
    ],
)
def test_memory_is_judged(bound: int, of_machine: int, state: str, words: str) -> None:
    found = host.memory_finding(GIB, bound, of_machine)
    assert (found.state, words in found.text) == (state, True), found


@pytest.mark.parametrize(
    ("now_ms", "made_ms", "kept", "state", "words"),
    [
        (NOW_MS, 0, True, OK, "2027-01-15 08:00:00 UTC, synchronized by a time service"),
        (NOW_MS, 0, None, OK, "2027-01-15 08:00:00 UTC"),
        (NOW_MS, 0, False, WARN, "not synchronized by a time service"),
        (NOW_MS, NOW_MS + 59_000, True, OK, "UTC"),
        (NOW_MS, NOW_MS + 7_200_000, True, BAD, "the data folder was created 2 h later"),
        (0, 0, True, BAD, "1970-01-01 00:00:00 UTC is not plausible"),
        (5_000_000_000_000, 0, True, BAD, "is not plausible"),
    ],
)
def test_clock_state(now_ms: int, made_ms: int, kept: bool | None, state: str, words: str) -> None:
    found = host.clock_finding(now_ms, made_ms, kept)
    assert (found.state, words in found.text) == (state, True), found


def test_kernel_is_asked_for_the_clock() -> None:
    assert host.is_clock_synchronized() in (True, False, None)


@pytest.mark.parametrize("hard", [None, 1_000])
def test_limit_that_the_account_may_raise_is_recommended(hard: int | None) -> None:
    assert "`ulimit -n 664`" in host.open_files_finding(Settings(), 200, hard).hint


def test_limit_that_only_root_may_raise_is_not_recommended_to_others() -> None:
    hint = host.open_files_finding(Settings(), 200, 300).hint
    assert "ulimit -n" not in hint
    assert "this account may open at most 300 files: ask root for LimitNOFILE=664" in hint
    assert "or set limits.connections = 136" in hint
