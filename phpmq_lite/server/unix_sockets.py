"""Unix sockets of mode 0600: nobody can connect before they listen, which comes after the mode."""

import errno
import os
import socket
import stat
from pathlib import Path


def bind_private(path: Path) -> socket.socket:
    """Bind a socket that only this account can connect to; the caller listens, and unlinks.

    Raises:
        OSError: somebody answers there, or the path is something else.
    """
    remove_stale(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bound.bind(str(path))
        path.chmod(0o600)
    except BaseException:
        bound.close()
        raise
    return bound


def remove_stale(path: Path) -> None:
    """Remove the socket that a killed broker left; what somebody answers on is in use."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, f"{path} is there and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # its backlog is full, so somebody is there
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
