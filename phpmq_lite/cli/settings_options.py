"""Options that set settings: ``--config``, ``--set`` and flags of single settings."""

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from phpmq_lite import settings
from phpmq_lite.cli.output import print_message
from phpmq_lite.cli.parameters import assignment

Command = Callable[..., None]

_NAMING: Final = frozenset({"data", "admin.listen", "tcp.listen", "tcp.legacy_listen"})
_MARK: Final = "setting__"  # what the parameters of such flags are called by: setting__tcp__listen


class SettingsArguments(NamedTuple):
    """The settings that were given, by name, and the file; ``load`` finds the rest of them."""

    values: Mapping[str, object]
    config: Path | None = None  # None: the usual places

    @property
    def names_broker(self) -> bool:
        """Return whether a flag says which broker is meant; it wins over the context in use."""
        return self.config is not None or not _NAMING.isdisjoint(self.values)

    @property
    def data(self) -> Path | None:
        """The folder of the database, where it was given."""
        folder = self.values.get("data")
        return None if folder is None else Path(str(folder))

    def load(self, **instead: object) -> settings.EffectiveSettings:
        """Read the settings as ``read`` does; warnings go to standard error."""
        effective = self.read(**instead)
        for warning in effective.warnings:
            print_message(f"warning: {warning}")
        return effective

    def read(self, **instead: object) -> settings.EffectiveSettings:
        """Read the settings; ``instead`` has some that count above all others."""
        return settings.load({**self.values, **instead}, self.config)


def settings_options(command: Command) -> Command:
    """Add ``--config`` and ``--set``; the command gets ``given``."""
    command = click.option(
        "--set",
        "assignments",
        type=assignment,
        multiple=True,
        metavar="SECTION.NAME=VALUE",
        help="Any setting; `phpmq-lite config show` lists them. Repeatable.",
    )(collect_setting_flags(command))
    return click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="TOML file with settings.  [default: ./config.toml, if there is one]",
    )(command)


def collect_setting_flags(command: Command) -> Command:
    """Give the command, as ``given``, what the flags of settings say that are added around it.

    A flag of its own wins over ``--set``; what was not given is not there.
    """

    @wraps(command)
    def gather(
        *args: Any,
        config: Path | None = None,
        assignments: tuple[tuple[str, str], ...] = (),
        **others: Any,
    ) -> None:
        values: dict[str, object] = dict(assignments)
        for name in [name for name in others if name.startswith(_MARK)]:
            value = others.pop(name)
            if value is not None and value != ():
                setting = name.removeprefix(_MARK).replace("__", ".")
                values[setting] = list(value) if isinstance(value, tuple) else value
        command(*args, given=SettingsArguments(values, config), **others)

    return gather


def setting_option(flag: str, setting: str, **options: Any) -> Callable[[Command], Command]:
    """Give a flag of its own to a setting; ``options`` are those of ``click.option``."""
    return click.option(flag, _MARK + setting.replace(".", "__"), **options)


data_option: Final = setting_option(
    "--data",
    "data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the database.  [default: ./phpmq-data]",
)


def listener_options(command: Command) -> Command:
    """Add ``--listen``, ``--legacy-listen`` and ``--admin``."""
    for flag, setting, help_text in (
        ("--admin", "admin.listen",
         "Admin pages, health and metrics.  [default: 127.0.0.1:9101]"),
        ("--legacy-listen", "tcp.legacy_listen",
         "PHPMQ for clients of the older revision, without TTL.  [default: 127.0.0.1:9102]"),
        ("--listen", "tcp.listen",
         "PHPMQ with TTL: HOST:PORT, unix:PATH or none; port 0 picks one. Repeatable."
         "  [default: 127.0.0.1:9100]"),
    ):  # fmt: skip
        option = setting_option(flag, setting, multiple=True, metavar="ADDRESS", help=help_text)
        command = option(command)
    return command


def startup_override_options(command: Command) -> Command:
    """Add the flags by which an operator accepts what would refuse the start."""
    for flag, setting, help_text in (
        ("--accept-loss", "storage.accept_loss",
         "Go on although files are damaged, with what is left of them, this once."),
        ("--allow-network-fs", "storage.allow_network_fs",
         "Start on a network file system, whose locks may lie."),
    ):  # fmt: skip
        option = setting_option(flag, setting, is_flag=True, default=None, help=help_text)
        command = option(command)
    return command
