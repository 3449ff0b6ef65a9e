"""Which file system a path lies on, and whether another machine may write to it as well.

SQLite's WAL needs memory shared by all who open the file, and ``flock`` that everybody sees; a
file system of the network gives neither.  ``os.statvfs`` does not tell the type of a file system,
so the kernel's list of mounts is read: its names are those that ``mount`` prints.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

MOUNTS: Final = Path("/proc/self/mountinfo")

# Of the network, or shared by several machines; "fuse.*" is local unless it is named here.
NETWORK: Final = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs"),
        *("lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs"),
        *("fuse.ceph", "fuse.ceph-fuse", "fuse.curlftpfs", "fuse.davfs2", "fuse.gcsfuse"),
        *("fuse.glusterfs", "fuse.goofys", "fuse.juicefs", "fuse.rclone", "fuse.s3fs"),
        *("fuse.sshfs",),
    )
)

_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One mounted file system."""

    point: str  # absolute path
    kind: str  # ext4, nfs4, fuse.sshfs, …


def parse_mounts(text: str) -> list[Mount]:
    """Read the lines of ``/proc/self/mountinfo`` (proc(5)); what is no such line is left out."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.partition(" ")[0]
        if len(fields) > 4 and kind:
            point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4])
            mounts.append(Mount(point, kind))
    return mounts


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """Return the mount with the deepest point above ``path``, absolute and without symlinks.

    Of two at the same point the later one lies on top.
    """
    found = None
    for mount in mounts:
        above = mount.point.rstrip("/")
        is_above = path == above or path.startswith(above + "/")
        if is_above and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def file_system(path: Path) -> str | None:
    """Return the kind of file system that ``path`` is on or would be made on.

    Where the system has no list of mounts (macOS) the answer is None.
    """
    try:
        text = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    mount = mount_of(str(path.resolve()), parse_mounts(text))
    return None if mount is None else mount.kind


def network_file_system(path: Path) -> str | None:
    """Return the kind of network file system that ``path`` is on or would be made on, else None."""
    kind = file_system(path)
    return kind if kind in NETWORK else None
