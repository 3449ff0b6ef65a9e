"""The data folder and its disk, judged by made-up facts."""

from pathlib import Path

import pytest

from phpmq_lite.cli.doctor import host
from phpmq_lite.cli.doctor.findings import BAD, OK, WARN
from phpmq_lite.cli.doctor.host import FolderAccess

NOBODY = 4_000_000_000  # an account without a name
PATH = Path("/srv/mq")


@pytest.mark.parametrize(
    ("rights", "state", "words"),
    [
        (FolderAccess(PATH, NOBODY), OK, "/srv/mq does not exist yet"),
        (FolderAccess(PATH, NOBODY, can_write=False), BAD, "4000000000 cannot create it"),
        (FolderAccess(PATH, NOBODY, NOBODY), OK, "/srv/mq, no broker runs"),
        (FolderAccess(PATH, NOBODY, NOBODY, 0o755), WARN, "is open to others, mode 0755"),
        (FolderAccess(PATH, 0, NOBODY), WARN, "/srv/mq of 4000000000, checked as root"),
        (
            FolderAccess(PATH, NOBODY, 0, can_write=False),
            BAD,
            "4000000000 cannot use /srv/mq of root",
        ),
        (
            FolderAccess(PATH, 0, 0, strangers=("phpmq.db",)),
            BAD,
            "files of another account: phpmq.db",
        ),
    ],
)
def test_rights_are_judged(rights: FolderAccess, state: str, words: str) -> None:
    found = host.folder_access_finding(rights, None)
    assert (found.state, words in found.found) == (state, True), found
    assert bool(found.hint) or state == OK


def test_broker_that_runs_is_named() -> None:
    found = host.folder_access_finding(FolderAccess(PATH, NOBODY, NOBODY), "4711")
    assert found.found == "/srv/mq, in use by pid 4711"


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
def test_file_system_is_judged(
    kind: str | None, refusal: str, is_allowed: bool, state: str
) -> None:
    found = host.file_system_finding(kind, refusal, is_allowed=is_allowed)
    assert found.state == state
    assert (kind or "unknown") in found.found


@pytest.mark.parametrize(
    ("took_ms", "state", "words"),
    [(0.043, OK, "0.04 ms"), (12.3, OK, "12 ms"), (250.0, WARN, "250 ms")],
)
def test_disk_is_judged_by_how_long_it_takes(took_ms: float, state: str, words: str) -> None:
    found = host.sync_finding(took_ms)
    assert (found.state, found.found) == (state, f"writes and syncs 4 KiB in {words}")


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
    assert (found.state, words in found.found) == (state, True)
