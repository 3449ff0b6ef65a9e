"""Who listens on a port, from a ``/proc`` that changes while it is read."""

from pathlib import Path

from phpmq_lite.admin.monitoring.processes import PeerProcess, find_listener

HEAD = "  sl  local_address rem_address   st"
LINE = " 0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 777 1"


def test_file_that_is_closed_meanwhile_hides_nothing(tmp_path: Path) -> None:
    """It is listed, and cannot be read: what stands behind it is looked at all the same."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(f"{HEAD}\n{LINE}\n")
    files = tmp_path / "42" / "fd"
    files.mkdir(parents=True)
    for number in range(64):
        (files / str(number)).touch()  # no link: reading it fails, as of one that is closed
    (files / "64").symlink_to("socket:[777]")
    (tmp_path / "42" / "cmdline").write_bytes(b"server\0-p\0")
    assert find_listener(0x1F90, tmp_path) == PeerProcess(42, "server")
