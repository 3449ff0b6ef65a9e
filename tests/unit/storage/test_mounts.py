"""Which mount contains a path, and which file systems are refused."""

import pytest

from phpmq_lite.storage.mounts import NETWORK, Mount, mount_of, parse_mounts

TEXT = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:45 / /home/ann/share rw,nosuid - nfs4 nas:/ann rw,vers=4.2
31 22 0:46 / /mnt/with\\040blank rw master:2 shared:3 - fuse.sshfs ann@host: rw
32 22 0:47 / /home/ann/share rw - tmpfs tmpfs rw
not a mount
"""


def test_mounts_are_read_with_their_escapes() -> None:
    assert parse_mounts(TEXT) == [
        Mount("/", "ext4"),
        Mount("/home/ann/share", "nfs4"),
        Mount("/mnt/with blank", "fuse.sshfs"),
        Mount("/home/ann/share", "tmpfs"),
    ]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/home/ann", "ext4"),
        ("/home/ann/shared", "ext4"),  # a name with the same beginning
        ("/mnt/with blank/data/phpmq.db", "fuse.sshfs"),
        ("/home/ann/share/data", "tmpfs"),  # mounted over the other mount
    ],
)
def test_path_is_on_its_deepest_and_latest_mount(path: str, kind: str) -> None:
    found = mount_of(path, parse_mounts(TEXT))
    assert found is not None
    assert found.kind == kind


def test_path_has_no_mount_if_none_is_known() -> None:
    assert mount_of("/data", []) is None


def test_local_file_systems_are_not_network_file_systems() -> None:
    assert not NETWORK & {"ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", "fuseblk"}
