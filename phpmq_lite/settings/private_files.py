"""Which files with secrets are private enough: one that others can read is refused."""

import os
import stat
from pathlib import Path

from phpmq_lite.errors import SettingsError


def check_private(name: str, path: Path) -> None:
    """Refuse a file that others can read; ``name`` is the setting that names it.

    Its group may where root owns it and we are not root: so a system hands out keys.

    Raises:
        SettingsError: names setting, file and mode.
        OSError: there is no such file.
    """
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    is_handed_out = status.st_uid == 0 and os.geteuid() != 0
    others = stat.S_IRWXO | stat.S_IWGRP if is_handed_out else stat.S_IRWXO | stat.S_IRWXG
    if mode & others:
        raise SettingsError(
            f"{name} {path} can be read by others (mode {mode:04o}); it needs mode 0600"
        )
