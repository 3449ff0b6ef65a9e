"""Options for settings: ``--config``, ``--set`` and flags for single settings."""

import os
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from phpmq_lite import settings
from phpmq_lite.cli.output import add_options, print_message
from phpmq_lite.cli.parameters import EXISTING_FILE, FOLDER, assignment, option
from phpmq_lite.errors import SettingsError

Command = Callable[..., None]

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


def settings_options(command: Command) -> Command:
    """Add ``--config`` and ``--set``, and pass ``settings_args`` to the command."""
    return add_options(config_option(command), set_option)


set_option: Final = option(  # for a command that already has ``--config``
    ("--set", "assignments"),
    "Set a setting; `phpmq-lite config show` lists all settings. Repeatable.",
    assignment,
    multiple=True,
    metavar="SECTION.NAME=VALUE",
)


def config_option(command: Command) -> Command:
    """Add ``--config``, and pass ``settings_args`` to the command."""
    text = "TOML file with settings.  [default: ./config.toml, if it exists]"
    return add_options(collect_setting_flags(command), option("--config", text, EXISTING_FILE))


def collect_setting_flags(command: Command) -> Command:
    """Collect the settings given on the command line, and pass them on as ``settings_args``.

    Unused flags are omitted; a setting's own flag overrides ``--set``.
    """

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
            if value is not None and value != ():
                setting = name.removeprefix(_MARK).replace("__", ".")
                values[setting] = list(value) if isinstance(value, tuple) else value
        command(*args, settings_args=SettingsArguments(values, config), **arguments)

    return collect


def setting_option(flag: str, setting: str, **options: Any) -> Callable[[Command], Command]:
    """Return a flag for a setting; ``options`` are passed to ``click.option``."""
    return click.option(flag, _MARK + setting.replace(".", "__"), **options)


data_option: Final = setting_option(
    "--data", "data", type=FOLDER, help="Folder for the database.  [default: ./phpmq-data]"
)


store_option: Final = setting_option(
    "--store",
    "store.url",
    metavar="URL",
    help="Store everything in this PostgreSQL database.  [default: SQLite in the data folder]",
)


def listener_options(command: Command) -> Command:
    """Add ``--listen``, ``--legacy-listen`` and ``--admin``."""
    address_option = partial(setting_option, multiple=True, metavar="ADDRESS")
    return add_options(
        command,
        address_option(
            "--admin",
            "admin.listen",
            help="Address of admin pages, health checks and metrics.  [default: 127.0.0.1:9101]",
        ),
        address_option(
            "--legacy-listen",
            "tcp.legacy_listen",
            help="PHPMQ without TTL, for clients of the older revision.  [default: 127.0.0.1:9102]",
        ),
        address_option(
            "--listen",
            "tcp.listen",
            help="PHPMQ with TTL: HOST:PORT, unix:PATH or none; port 0 picks a free port."
            " Repeatable.  [default: 127.0.0.1:9100]",
        ),
    )


def startup_override_options(command: Command) -> Command:
    """Add the flags that make the broker start in cases where it would otherwise refuse to."""
    setting_flag = partial(setting_option, is_flag=True, default=None)
    return add_options(
        command,
        setting_flag(
            "--accept-loss",
            "storage.accept_loss",
            help="Start once with what can be recovered from damaged files.",
        ),
        setting_flag(
            "--allow-network-fs",
            "storage.allow_network_fs",
            help="Allow a network file system despite its unreliable locks.",
        ),
    )
