"""The mounted file systems of Linux, of which network file systems do not suit SQLite."""

import re
from pathlib import Path
from typing import Final, NamedTuple

from phpmq_lite.errors import StartRefusedError

MOUNTS: Final = Path("/proc/self/mountinfo")

# These file systems are remote or shared by several machines; all other "fuse.*" types are local.
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
    """A mounted file system."""

    point: str  # absolute path of the mount point
    kind: str  # type, such as ext4, nfs4 or fuse.sshfs


def parse_mounts(text: str) -> list[Mount]:
    """Parse the lines of ``/proc/self/mountinfo`` (see proc(5)), skipping invalid ones."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.partition(" ")[0]
        if len(fields) > 4 and kind:
            point = _ESCAPED.sub(lambda escape: chr(int(escape[1], 8)), fields[4])
            mounts.append(Mount(point, kind))
    return mounts


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """Return the innermost mount that contains ``path``, of several at a point the last one."""
    innermost = None
    for mount in mounts:
        above = mount.point.rstrip("/")
        is_above = path == above or path.startswith(above + "/")
        if is_above and (innermost is None or len(mount.point) >= len(innermost.point)):
            innermost = mount
    return innermost


def file_system(path: Path) -> str | None:
    """Return the type of the file system for ``path``; None without a list of mounts (macOS)."""
    try:
        text = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    mount = mount_of(str(path.resolve()), parse_mounts(text))
    return None if mount is None else mount.kind


def check_local(path: Path) -> None:
    """Raise StartRefusedError if a path is, or would be created, on a network file system."""
    kind = file_system(path)
    if kind in NETWORK:
        raise StartRefusedError(
            f"{path} is on a network file system ({kind}), where SQLite's locks and shared "
            "memory are unreliable; use a local disk, or allow it with "
            "storage.allow_network_fs (--allow-network-fs)"
        )
