"""Loads settings from flags, the environment, credentials and a TOML file.

A flag overrides the environment, which overrides the TOML file, which overrides the default.

``PHPMQ_LIMITS__CREDIT`` contains a value.  ``PHPMQ_LIMITS__CREDIT_FILE`` names a file that contains
the value, and so does a systemd credential, ``$CREDENTIALS_DIRECTORY/limits.credit``.  If
the setting is itself a path, such as that of a private key, its value is the path of the file.
"""

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from phpmq_lite.errors import SettingsError
from phpmq_lite.settings.model import Settings
from phpmq_lite.settings.reference import BOUNDS, ENVIRONMENT_PREFIX, SECTIONS, SETTINGS
from phpmq_lite.text_files import TextFileError, read_secret, read_text

FOLDER_FILE: Final = Path("config.toml")  # in the working directory, where `config init` writes it
SYSTEM_FILE: Final = Path("/etc/phpmq-lite/config.toml")
_FILE_SUFFIX: Final = "_FILE"


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """The effective settings, with the source of each value."""

    settings: Settings
    # keyed by setting: "flag", "environment VARIABLE", "credential NAME", "file PATH" or "default"
    sources: Mapping[str, str]
    warnings: list[str]


EnvironmentValue = tuple[str, str]  # a value and its source, as in ``EffectiveSettings.sources``


def load(
    flags: Mapping[str, object] | None = None, config: Path | None = None
) -> EffectiveSettings:
    """Load the settings from flags, the environment, credentials and a TOML file.

    Args:     flags: values keyed by setting (``tcp.listen``); None means that a flag is not given.
    config: the TOML file; by default the first existing file of
    ``$CONFIGURATION_DIRECTORY/config.toml``, ``./config.toml`` and
    ``/etc/phpmq-lite/config.toml``.  Raises SettingsError: a setting is unknown, malformed or out
    of bounds; the message names it.
    """
    flag_values = {name: value for name, value in (flags or {}).items() if value is not None}
    for name in flag_values:
        _check_name(name, "a flag")
    path = config if config is not None else find_file()
    from_file = _read_file(path) if path is not None else {}
    from_environment, warnings = read_environment()
    flat = from_file | {name: value for name, (value, _) in from_environment.items()} | flag_values
    sources = {name: "default" for name in SETTINGS}
    sources |= {name: f"file {path}" for name in from_file}
    sources |= {name: source for name, (_, source) in from_environment.items()}
    sources |= {name: "flag" for name in flag_values}
    try:
        settings = Settings(**_nest(flat))
    except ValidationError as error:
        raise SettingsError(_describe(error, sources)) from None
    return EffectiveSettings(settings, sources, warnings)


def find_file() -> Path | None:
    """Return the TOML file to read if ``--config`` is not given, or None if there is none."""
    folder = os.environ.get("CONFIGURATION_DIRECTORY")  # systemd separates folders by colons
    candidates = [Path(parent) / "config.toml" for parent in folder.split(":")] if folder else []
    for path in candidates:
        if path.is_file():  # raises PermissionError, because these settings are for this process
            return path
    for path in FOLDER_FILE, SYSTEM_FILE:
        with suppress(OSError):
            if path.is_file():
                return path
    return None


def _check_name(name: str, source: str) -> None:
    if name in SETTINGS:
        return
    if name in SECTIONS:
        raise SettingsError(
            f"{name} in {source} is a section, not a setting. Use one of its settings, {name}.NAME."
        )
    similar = get_close_matches(name, SETTINGS, n=1, cutoff=0.7)
    similar = similar or [s for s in SETTINGS if s.partition(".")[2] == name.rpartition(".")[2]][:1]
    hint = f". Did you mean {similar[0]}?" if similar else ""
    raise SettingsError(f"{name} in {source} is not a setting{hint}")


def _read_file(path: Path) -> dict[str, object]:
    try:
        tree = tomllib.loads(read_text(path))
    except (OSError, TextFileError) as error:
        reason = error if isinstance(error, OSError) else f"it {error}"
        raise SettingsError(f"cannot read settings from {path}: {reason}") from None
    except tomllib.TOMLDecodeError as error:
        hint = ". Keep the settings of a section below one heading" if "twice" in str(error) else ""
        raise SettingsError(f"{path} is not valid TOML: {error}{hint}") from None
    values = _flatten(tree)
    for name in values:
        try:
            _check_name(name, str(path))
        except SettingsError as error:
            if path != FOLDER_FILE:
                raise
            raise SettingsError(
                f"{error} (PHPMQ Lite reads its settings from ./config.toml. If this file belongs"
                " to another program, select yours with --config.)"
            ) from None
    return values


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in tree.items():
        name = prefix + key
        flat |= _flatten(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


def _nest(flat: Mapping[str, object]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        section, dot, key = name.partition(".")
        if dot:
            tree.setdefault(section, {})[key] = value
        else:
            tree[section] = value
    return tree


def _describe(error: ValidationError, sources: Mapping[str, str]) -> str:
    """Describe each invalid value: its setting, what is wrong, and where it was set."""
    lines = []
    for detail in error.errors(include_url=False):
        name = ".".join(map(str, detail["loc"][:2]))
        if name not in SETTINGS:  # the error concerns an entire section
            lines.append(describe_error(name, detail))
            continue
        problem = describe_error("", detail)
        if BOUNDS.keys() & detail.get("ctx", {}).keys():
            problem = f"the value must be {SETTINGS[name].bounds}"
        lines.append(f"{name} is {detail['input']!r}: {problem} (from {sources[name]})")
    return "; ".join(lines)


# -- the environment


def read_environment() -> tuple[dict[str, EnvironmentValue], list[str]]:
    """Return a pair: values keyed by setting, and warnings about unknown variables and credentials.

    Empty variables are ignored.  A variable overrides a file, which overrides a credential.  An
    unknown variable only causes a warning, because Kubernetes sets ``PHPMQ_PORT`` for a service
    called phpmq.  Raises SettingsError: a file cannot be read; the message names the variable or
    credential.
    """
    values = {setting.environment: name for name, setting in SETTINGS.items()}
    files = {
        variable + _FILE_SUFFIX: name
        for variable, name in values.items()
        if variable + _FILE_SUFFIX not in values
    }
    from_variables: dict[str, EnvironmentValue] = {}
    from_files: dict[str, EnvironmentValue] = {}
    credentials, warnings = _read_credentials()
    for variable, text in os.environ.items():
        upper = variable.upper()
        if not upper.startswith(ENVIRONMENT_PREFIX) or upper == "PHPMQ_OUTPUT":
            continue
        source = f"environment {upper}"
        if upper not in values and upper not in files:
            similar = get_close_matches(upper, values, n=1, cutoff=0.85)
            hint = "".join(f". Did you mean {candidate}?" for candidate in similar)
            warnings.append(f"{variable} in the environment is not a setting and is ignored{hint}")
        elif text and upper in values:
            from_variables[values[upper]] = (text, source)
        elif text:
            name = files[upper]
            from_files[name] = (_file_value(name, Path(text), upper), source)
    return credentials | from_files | from_variables, warnings


def _read_credentials() -> tuple[dict[str, EnvironmentValue], list[str]]:
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if not folder:
        return {}, []
    values, warnings = {}, []
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        reason = f"cannot list CREDENTIALS_DIRECTORY {folder}: {error.strerror}"
        raise SettingsError(reason) from None
    for name in names:
        if name not in SETTINGS:
            warnings.append(f"credential {name} is not a setting and is ignored")
            continue
        source = f"credential {name}"
        values[name] = (_file_value(name, Path(folder, name), source), source)
    return values, warnings


def _file_value(name: str, path: Path, source: str) -> str:
    """Return the path if the setting is a path; otherwise, the file's text without line break."""
    if SETTINGS[name].is_path:
        return str(path)
    try:
        text = read_secret(path)
    except (OSError, TextFileError) as error:
        reason = getattr(error, "strerror", None) or f"it {error}"
        raise SettingsError(f"{source}: {path} cannot be read: {reason}") from None
    if not text:
        raise SettingsError(f"{source}: {path} is empty")
    return text


def check_private(name: str, path: Path) -> None:
    """Reject a file that other users can read; ``name`` is the setting that refers to the file.

    Unless we are root, a file owned by root may be readable by its group, as shared keys often are.

    Raises:
        SettingsError: other users can read the file; the message names setting, file and mode.
        OSError: the file does not exist.
    """
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    is_handed_out = status.st_uid == 0 and os.geteuid() != 0
    forbidden = stat.S_IRWXO | stat.S_IWGRP if is_handed_out else stat.S_IRWXO | stat.S_IRWXG
    if mode & forbidden:
        raise SettingsError(
            f"{name}: other users can read {path} (mode {mode:04o}). Run: chmod 600 {path}"
        )


# -- the first user's password

FIRST_USER_SETTING: Final = "admin.initial_password_file"
SHORTEST_PASSWORD: Final = 12
LONGEST_PASSWORD: Final = 1_024


def initial_password(path: Path) -> str:
    """Read the first user's password from its file, without trailing line breaks.

    Raises SettingsError: the file cannot be read, other users can read it, or the password is
    invalid.
    """
    try:
        check_private(FIRST_USER_SETTING, path)
        password = read_secret(path)
    except (OSError, TextFileError) as error:
        reason = getattr(error, "strerror", None) or f"the file {error}"
        raise SettingsError(f"{FIRST_USER_SETTING} {path} cannot be read: {reason}") from None
    if not SHORTEST_PASSWORD <= (size := len(password)) <= LONGEST_PASSWORD:
        bounds = f"{SHORTEST_PASSWORD} to {LONGEST_PASSWORD} are required"
        raise SettingsError(f"{FIRST_USER_SETTING} {path}: {size} characters; {bounds}")
    return password


# -- messages for pydantic's validation errors

_NUMBER: Final = "must be a whole number"
_BY_TYPE: Final = {  # https://docs.pydantic.dev/latest/errors/validation_errors/
    "missing": "is missing",
    "extra_forbidden": "is unknown",
    "int_parsing": _NUMBER,
    "int_type": _NUMBER,
    "int_from_float": _NUMBER,
    "int_parsing_size": "is too large",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "path_type": "must be a path",
    "ip_v4_address": "must be an IPv4 address",
    "ip_any_network": "must be a network, such as 10.0.0.0/8",
    "byte_size": "must be a size, such as 512 MiB",
    "byte_size_unit": "must be a size, such as 512 MiB",
    "json_invalid": "is not valid JSON",
    "greater_than_equal": "must be at least {ge:.16g}",
    "greater_than": "must be above {gt:.16g}",
    "less_than_equal": "must be at most {le:.16g}",
    "less_than": "must be below {lt:.16g}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
}
_SUBJECT: Final = re.compile(r"^(Value error, |Assertion failed)|^(Input|[A-Z]\w+) should ")


def describe_error(name: str, detail: Mapping[str, Any]) -> str:
    """Describe what is wrong with the value ``name``; ``detail`` is an item of ``errors()``.

    Errors from our own validators keep their text.  If the name is empty, "the value" replaces it.
    """
    template = _BY_TYPE.get(detail["type"])
    if template is not None:
        return f"{name or 'the value'} {template.format_map(detail.get('ctx', {}))}"
    text = _SUBJECT.sub(lambda match: "" if match[1] else "must ", str(detail["msg"]))
    return f"{name}: {text}" if name else text
