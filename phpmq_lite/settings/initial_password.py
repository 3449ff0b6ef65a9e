"""The bounds of a password, and the first user's password, which is read from a file."""

from pathlib import Path
from typing import Final

from phpmq_lite.errors import SettingsError
from phpmq_lite.settings.loading import check_private
from phpmq_lite.text_files import TextFileError, read_secret

SETTING: Final = "admin.initial_password_file"
SHORTEST: Final = 12
LONGEST: Final = 1_024


def initial_password(path: Path) -> str:
    """Read the first user's password from its file, without trailing line breaks.

    Raises:
        SettingsError: the file cannot be read, other users can read it, or the password is invalid.
    """
    try:
        check_private(SETTING, path)
        password = read_secret(path)
    except (OSError, TextFileError) as error:
        reason = getattr(error, "strerror", None) or f"the file {error}"
        raise SettingsError(f"{SETTING} {path} cannot be read: {reason}") from None
    if not SHORTEST <= len(password) <= LONGEST:
        raise SettingsError(
            f"{SETTING} {path}: {len(password)} characters; {SHORTEST} to {LONGEST} are required"
        )
    return password
