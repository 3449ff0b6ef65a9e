"""Types of command-line parameters: files, durations, rates, times and URLs."""

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import click

from phpmq_lite import settings
from phpmq_lite.cli.output import Command, add_options, is_terminal, print_message
from phpmq_lite.durations import SHORT_UNITS_S
from phpmq_lite.errors import SettingsError

EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)
EXISTING_PATH: Final = click.Path(exists=True, path_type=Path)
FILE: Final = click.Path(dir_okay=False, path_type=Path)
FOLDER: Final = click.Path(file_okay=False, path_type=Path)
FILE_OR_STDIN: Final = click.Path(
    exists=True, dir_okay=False, allow_dash=True, path_type=Path
)  # for read_input, "-" means standard input
LOG_LEVELS: Final = click.Choice(["debug", "info", "warning", "error"])
LOG_FORMATS: Final = click.Choice(["auto", "json", "console"])
_DURATION: Final = re.compile(rf"([0-9]{{1,15}}) *([{''.join(SHORT_UNITS_S)}]?)")


def option(
    names: str | tuple[str, ...],
    help: str,
    type: Any = None,
    default: Any = None,
    **attributes: Any,
) -> Callable[[Any], Any]:
    """Return an option with one or more names, whose help shows a default that is not empty."""
    if default is not None:
        attributes = {"default": default, "show_default": bool(default), **attributes}
    declarations = (names,) if isinstance(names, str) else names
    return click.option(*declarations, help=help, type=type, **attributes)


def choice(names: str | tuple[str, ...], help: str, *values: str) -> Callable[[Any], Any]:
    """Return an option with one of these values, by default the first."""
    return option(names, help, click.Choice(values), values[0])


flag: Final = partial(option, is_flag=True)
repeatable: Final = partial(option, multiple=True)
number_option: Final = partial(option, type=click.IntRange(min=1), metavar="N")
_TRUSTED: Final = "PEM file with the CA certificate to trust instead of the system's."
ca_option: Final = option("--tls-ca", _TRUSTED, EXISTING_FILE)


def cert_options(command: Command) -> Command:
    """Add ``--tls-cert`` and ``--tls-key``, for a PHPMQ listener with ``tcp.tls_client_ca``."""
    pem_file = partial(click.option, type=EXISTING_FILE)
    return add_options(
        command,
        pem_file("--tls-key", help="PEM file with the private key for --tls-cert."),
        pem_file("--tls-cert", help="PEM file with the client certificate."),
    )


def duration(value: str) -> int:
    """Parse a duration such as ``90``, ``90s``, ``15m``, ``1h``, ``7d`` or ``2w`` into seconds."""
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is not a duration; use a value such as 90, 15m or 7d")
    return int(match[1]) * SHORT_UNITS_S[match[2] or "s"]


def assignment(value: str) -> tuple[str, str]:
    """Parse an assignment such as ``limits.credit=100`` into a name and a value."""
    name, sign, text = value.partition("=")
    if not sign or not name.strip():
        raise click.BadParameter(f"{value!r} is not a valid assignment; use SECTION.NAME=VALUE")
    return name.strip(), text


def admin_url(value: str) -> str:
    """Return the URL of a broker's admin interface, if it is valid."""
    if "://" not in value:
        raise click.BadParameter(
            f"{value!r} has no scheme; use http://{value} for the admin, "
            f"or phpmq://{value} for a PHPMQ listener"
        )
    try:
        parts = urlsplit(value)
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port or an IPv6 address is invalid
        is_valid = False
    if not is_valid:
        raise click.BadParameter(f"{value!r} is not a valid address; use http://HOST:PORT")
    return value


def broker_url(value: str) -> str:
    """Return the URL of a broker's admin interface or PHPMQ listener, if it is valid."""
    if not is_phpmq_url(value):
        return admin_url(value)
    from phpmq_lite.client.blocking_client import client_from_url

    try:
        client_from_url(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


def is_phpmq_url(url: str) -> bool:
    """Return whether a URL is for PHPMQ, that is ``phpmq://``, ``phpmqs://`` or ``unix:``."""
    return url.startswith(("phpmq://", "phpmqs://", "unix:"))


def read_input(path: Path) -> bytes:
    """Read a file or, if ``path`` is ``-``, standard input, which must not be a terminal."""
    if str(path) != "-":
        return path.read_bytes()
    if is_terminal():
        raise click.UsageError("no input: specify a file, or pipe data to standard input")
    return sys.stdin.buffer.read()


def time_ms(value: str) -> int:
    """Return a time in Unix milliseconds, rounded down to the second.

    The time is ``2026-01-31``, ``2026-01-31T08:00`` or ``…+01:00``, in UTC if it has no offset, or
    a duration before now, such as ``2h``.
    """
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        try:
            return (int(time.time()) - duration(value)) * 1_000
        except click.BadParameter:
            raise click.BadParameter(
                f"{value!r} is not a time; use a value such as 2026-01-31T08:00+01:00 or 2h (ago)"
            ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()) * 1_000


def date(value: str) -> int:
    """Return a date with a UTC offset, such as ``2027-01-01T08:00+01:00``, in Unix ms."""
    from phpmq_lite.frame_options import read_date

    try:
        at_ms = read_date(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if at_ms is None:
        raise click.BadParameter("the date is empty")
    return at_ms


delay_option: Final = option(
    ("--delay", "delay_s"), "Let it become ready after this time, such as 30s or 15m.", duration
)
at_option: Final = option(
    ("--at", "deliver_at"), "Let it become ready at this date.", date, metavar="2027-01-01T08:00Z"
)


def messages_per_second(value: str) -> float:
    """Parse a rate such as ``20/s`` or ``20`` into messages per second."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)(?:/s)?", value.strip())
    if match is None or not float(match[1]):
        raise click.BadParameter(f"{value!r} is not a rate; use a number such as 20/s")
    return float(match[1])


_NAMING: Final = frozenset({"data", "admin.listen", "tcp.listen", "tcp.legacy_listen"})
_MARK: Final = "setting__"  # prefix of the flags' parameter names, such as setting__tcp__listen


class SettingsArguments(NamedTuple):
    """The settings given on the command line, keyed by name, and the configuration file."""

    values: Mapping[str, object]
    config: Path | None = None  # None means that the default locations are searched

    @property
    def names_broker(self) -> bool:
        """Whether flags determine the broker, in which case the current context is ignored."""
        return self.config is not None or not _NAMING.isdisjoint(self.values)

    @property
    def data(self) -> Path | None:
        """The data folder that a flag names, or None."""
        folder = self.values.get("data")
        return None if folder is None else Path(str(folder))

    def load(self, *, is_optional: bool = False, **overrides: object) -> settings.EffectiveSettings:
        """Return the effective settings, and print warnings to standard error."""
        effective = (self.read_optional if is_optional else self.read)(**overrides)
        for warning in effective.warnings:
            print_message(f"warning: {warning}")
        return effective

    def read(self, **overrides: object) -> settings.EffectiveSettings:
        """Return the effective settings; ``overrides`` take precedence over every source."""
        return settings.load({**self.values, **overrides}, self.config)

    def read_optional(self, **overrides: object) -> settings.EffectiveSettings:
        """Like ``read``, but ignore an unusable file that ``--config`` does not name."""
        try:
            return self.read(**overrides)
        except (SettingsError, OSError) as error:
            if self.config is not None:
                raise
            effective = settings.load({**self.values, **overrides}, Path(os.devnull))
            effective.warnings.append(f"{error}; this file is ignored")
            return effective


def settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--config`` and ``--set``, and pass ``settings_args`` to the command."""
    return add_options(config_option(command), set_option)


set_option: Final = repeatable(  # for a command that already has ``--config``
    ("--set", "assignments"),
    "Set a setting; `phpmq-lite config show` lists all settings. Repeatable.",
    assignment,
    metavar="SECTION.NAME=VALUE",
)


def config_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--config``, and pass ``settings_args`` to the command."""
    text = "TOML file with settings.  [default: ./config.toml, if it exists]"
    return add_options(collect_setting_flags(command), option("--config", text, EXISTING_FILE))


def collect_setting_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Pass the settings of the command line as ``settings_args``; a flag overrides ``--set``."""

    @wraps(command)
    def collect(
        *args: Any,
        config: Path | None = None,
        assignments: tuple[tuple[str, str], ...] = (),
        **arguments: Any,
    ) -> None:
        values: dict[str, object] = dict(assignments)
        for name in [name for name in arguments if name.startswith(_MARK)]:
            value = arguments.pop(name)
            if value not in (None, (), False):
                setting = name.removeprefix(_MARK).replace("__", ".")
                values[setting] = list(value) if isinstance(value, tuple) else value
        command(*args, settings_args=SettingsArguments(values, config), **arguments)

    return collect


def setting_option(
    flag: str, setting: str, help: str, type: Any = None, **attributes: Any
) -> Callable[[Any], Any]:
    return option((flag, _MARK + setting.replace(".", "__")), help, type, **attributes)


data_option: Final = setting_option(
    "--data", "data", "Folder for the database.  [default: ./phpmq-data]", FOLDER
)
store_option: Final = setting_option(
    "--store",
    "store.url",
    "Store everything in this PostgreSQL database.  [default: SQLite in the data folder]",
    metavar="URL",
)
_ADDRESSES: Final = (
    (
        "--admin",
        "admin.listen",
        "Address of admin pages, health checks and metrics.  [default: 127.0.0.1:9101]",
    ),
    (
        "--legacy-listen",
        "tcp.legacy_listen",
        "PHPMQ without TTL, for clients of the older revision.  [default: 127.0.0.1:9102]",
    ),
    (
        "--listen",
        "tcp.listen",
        "PHPMQ with TTL: HOST:PORT, unix:PATH or none; port 0 picks a free port. Repeatable.  "
        "[default: 127.0.0.1:9100]",
    ),
)


def listener_options(command: Command) -> Command:
    """Add ``--listen``, ``--legacy-listen`` and ``--admin``."""
    address_option = partial(setting_option, multiple=True, metavar="ADDRESS")
    return add_options(command, *(address_option(*texts) for texts in _ADDRESSES))


def startup_override_options(command: Command) -> Command:
    """Add the flags that make the broker start in cases where it would otherwise refuse to."""
    loss = "Start once with what can be recovered from damaged files."
    network = "Allow a network file system despite its unreliable locks."
    return add_options(
        command,
        setting_option("--accept-loss", "storage.accept_loss", loss, is_flag=True),
        setting_option("--allow-network-fs", "storage.allow_network_fs", network, is_flag=True),
    )
