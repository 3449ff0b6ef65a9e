"""``serve``: run the broker until it is told to stop."""

import gc
from pathlib import Path

import click

from phpmq_lite.cli.options import (
    data_option,
    listener_options,
    load_settings,
    settings_options,
    start_options,
)
from phpmq_lite.settings import Effective


@click.command()
@data_option
@listener_options
@start_options
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="The least that is logged.  [default: info]",
)
@click.option(
    "--log-format",
    type=click.Choice(["auto", "json", "console"]),
    help="How; auto is console on a terminal, else json.  [default: auto]",
)
@settings_options
@click.pass_context
def serve(
    ctx: click.Context,
    data: Path | None,
    listen: tuple[str, ...],
    legacy_listen: tuple[str, ...],
    admin: tuple[str, ...],
    allow_network_fs: bool | None,
    accept_loss: bool | None,
    log_level: str | None,
    log_format: str | None,
    config: Path | None,
    assignments: tuple[tuple[str, str], ...],
) -> None:
    """Run the broker.

    Prints one line per listener when it is ready. SIGTERM drains and stops, a second one at once;
    SIGHUP reads log level, retention, room, limits, audit, metrics and ui settings anew, and
    certificates.
    Exit codes: 0 stopped, 65 damaged data, 74 a failing disk, 78 settings refused.
    """
    gc.disable()  # the service enables it: what is imported stays, and was looked at for 60 ms
    from phpmq_lite import logs, process

    def load() -> Effective:
        return load_settings(
            config,
            assignments,
            data=data,
            tcp__listen=listen,
            tcp__legacy_listen=legacy_listen,
            admin__listen=admin,
            storage__allow_network_fs=allow_network_fs,
            storage__accept_loss=accept_loss,
            log__level=log_level,
            log__format=log_format,
        )

    effective = load()
    settings = effective.settings
    logs.configure(settings.log.level, settings.log.format)
    ctx.exit(process.run(settings, effective.sources, load))
