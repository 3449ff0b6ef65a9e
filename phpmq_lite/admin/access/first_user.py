"""The way to the first admin: a token in a file that only this account can read."""

import os
from pathlib import Path
from secrets import token_hex
from typing import Final

from phpmq_lite.admin.access.accounts import is_same
from phpmq_lite.admin.access.passwords import LONGEST, SHORTEST
from phpmq_lite.errors import SettingsError
from phpmq_lite.settings.loading import check_private

FILE: Final = "setup-token"  # in the data folder
HOW: Final = (
    "Open /setup with the token in the file setup-token of the data folder, or run "
    "`phpmq-lite user add NAME` on this machine."
)

SETTING: Final = "admin.initial_password_file"
FIRST_NAME: Final = "admin"


def initial_password(path: Path) -> str:
    """Read the first user's password from its file; a line break at its end does not count.

    Raises:
        SettingsError: it cannot be read, others can read it, or it is no password.
    """
    try:
        check_private(SETTING, path)
        password = path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise SettingsError(f"{SETTING} {path} cannot be read: {reason}") from None
    if not SHORTEST <= len(password) <= LONGEST:
        raise SettingsError(
            f"{SETTING} {path} has {len(password)} characters, it needs {SHORTEST} to {LONGEST}"
        )
    return password


class SetupToken:
    """A one-time token of 128 bits; valid from ``make`` to ``spend``, at most until the stop."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._token = ""

    def make(self) -> str:
        """Write a new token into its file, mode 0600, and return it."""
        self._token = token_hex(16)
        self.path.unlink(missing_ok=True)  # whoever has it open reads the old one
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{self._token}\n")
        return self._token

    def is_right(self, given: str) -> bool:
        """Tell whether this is the token; while there is none nothing is."""
        return bool(self._token) and is_same(given.strip(), self._token)

    def spend(self) -> None:
        """Make the token worthless, for there is a user now."""
        self._token = ""
        self.path.unlink(missing_ok=True)
