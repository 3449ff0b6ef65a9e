"""``serve``: run the broker until it is told to stop."""

import gc
from pathlib import Path

import click

from phpmq_lite.cli.options import data_option, load_settings, settings_options, start_options
from phpmq_lite.settings import Effective


@click.command()
@data_option
@click.option(
    "--listen",
    multiple=True,
    metavar="ADDRESS",
    help="PHPMQ with TTL: HOST:PORT, unix:PATH or none; port 0 picks one. Repeatable."
    "  [default: 127.0.0.1:9100]",
)
@click.option(
    "--legacy-listen",
    multiple=True,
    metavar="ADDRESS",
    help="PHPMQ for clients of the older revision, without TTL.  [default: 127.0.0.1:9102]",
)
@click.option(
    "--admin",
    multiple=True,
    metavar="ADDRESS",
    help="Admin pages, health and metrics.  [default: 127.0.0.1:9101]",
)
@start_options
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--log-format", type=click.Choice(["auto", "json", "console"]))
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
    SIGHUP reads log level, retention, room, audit, metrics and ui settings anew.
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
