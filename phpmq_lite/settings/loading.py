"""What the environment gives: variables, files that they name, and systemd's credentials.

``PHPMQ_LIMITS__CREDIT`` has the value itself.  ``PHPMQ_LIMITS__CREDIT_FILE`` names a file with it,
and so does a credential ``limits.credit``, a file in ``$CREDENTIALS_DIRECTORY``.  Of a setting that
is a path, that file is the value: so a key is handed over without anybody writing down its place.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from phpmq_lite.errors import SettingsError

PREFIX: Final = "PHPMQ_"
FILE_SUFFIX: Final = "_FILE"


class EnvironmentValue(NamedTuple):
    """A value, and where it comes from, in the words of ``Effective.sources``."""

    value: str
    source: str


def variable_of(name: str) -> str:
    """Name the variable of a setting."""
    return PREFIX + name.replace(".", "__").upper()


def read_environment(settings: Mapping[str, bool]) -> tuple[dict[str, EnvironmentValue], list[str]]:
    """Give the values by name, and a warning for each variable or credential that is no setting.

    ``settings`` tells of each whether it is a path.  What is empty was not given.  A variable wins
    over a file, a file over a credential.  A stranger only warns: Kubernetes sets ``PHPMQ_PORT``
    for a service called phpmq.

    Raises:
        SettingsError: a file cannot be read; the message names what names it.
    """
    values = {variable_of(name): name for name in settings}
    files = {
        variable + FILE_SUFFIX: name
        for variable, name in values.items()
        if variable + FILE_SUFFIX not in values
    }
    direct, named = {}, {}
    found, warnings = _credentials(settings)
    for variable, text in os.environ.items():
        upper = variable.upper()
        if not upper.startswith(PREFIX):
            continue
        source = f"environment {upper}"
        if upper not in values and upper not in files:
            warnings.append(f"{variable} in the environment is no setting and is ignored")
        elif text and upper in values:
            direct[values[upper]] = EnvironmentValue(text, source)
        elif text:
            name = files[upper]
            named[name] = EnvironmentValue(
                _value(Path(text), upper, is_path=settings[name]), source
            )
    return found | named | direct, warnings


def _credentials(settings: Mapping[str, bool]) -> tuple[dict[str, EnvironmentValue], list[str]]:
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if not folder:
        return {}, []
    found, warnings = {}, []
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise SettingsError(f"CREDENTIALS_DIRECTORY {folder}: {error.strerror}") from None
    for name in names:
        if name not in settings:
            warnings.append(f"{name} among the credentials is no setting and is ignored")
            continue
        who = f"credential {name}"
        found[name] = EnvironmentValue(_value(Path(folder, name), who, is_path=settings[name]), who)
    return found, warnings


def _value(path: Path, who: str, *, is_path: bool) -> str:
    """Give the path, or what is in the file, without a line break at its end."""
    if is_path:
        return str(path)
    try:
        text = path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise SettingsError(f"{who}: {path} cannot be read: {reason}") from None
    if not text:
        raise SettingsError(f"{who}: {path} is empty")
    return text


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
