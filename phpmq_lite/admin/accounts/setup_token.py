"""The setup token, with which a browser creates the first user.

The broker imports this module before it imports the rest of the admin.
"""

import hmac
import os
from pathlib import Path
from secrets import token_hex
from typing import Final

SETUP_FILE: Final = "setup-token"  # name of the token's file in the data folder


class SetupToken:
    """A one-time 128-bit token that is valid from ``make`` until ``spend`` or broker shutdown."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / SETUP_FILE
        self._token = ""

    def make(self) -> str:
        """Generate a token, write it to a file with mode 0600, and return the token."""
        self._token = token_hex(16)
        self.path.unlink(missing_ok=True)  # processes with the file open don't see the new token
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{self._token}\n")
        return self._token

    def is_right(self, secret: str) -> bool:
        """Return whether ``secret`` matches the token; always False if no token exists."""
        attempt = secret.strip().encode(errors="replace")
        return bool(self._token) and hmac.compare_digest(attempt, self._token.encode())

    def spend(self) -> None:
        """Invalidate the token; called once a user exists."""
        self._token = ""
        self.path.unlink(missing_ok=True)
