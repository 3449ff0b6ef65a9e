"""The ``serve`` command, which runs the broker until a signal stops it."""

import gc

import click

from phpmq_lite.cli.parameters import (
    LOG_FORMATS,
    LOG_LEVELS,
    SettingsArguments,
    data_option,
    listener_options,
    setting_option,
    settings_options,
    startup_override_options,
    store_option,
)


@click.command()
@data_option
@listener_options
@store_option
@startup_override_options
@setting_option("--log-level", "log.level", "Minimum log level.  [default: info]", LOG_LEVELS)
@setting_option(
    "--log-format",
    "log.format",
    "Log format; auto is console on a terminal, else json.  [default: auto]",
    LOG_FORMATS,
)
@settings_options
@click.pass_context
def serve(ctx: click.Context, settings_args: SettingsArguments) -> None:
    """Run the broker.

    Prints one line per listener when ready. SIGTERM drains the broker and stops it; a second
    SIGTERM stops it immediately. SIGHUP reloads certificates and the settings for the log level,
    retention, disk space, limits, audit, metrics and pages. Closing its terminal stops it; start it
    with nohup if it shall go on.
    Exit codes: 0 stopped, 65 damaged data, 74 failing disk, 78 invalid settings.
    """
    gc.disable()  # the service enables it again; a collection during startup would take 60 ms
    from phpmq_lite import logs, process

    effective = settings_args.load()
    settings = effective.settings
    logs.configure(settings.log.level, settings.log.format)
    ctx.exit(process.run(settings, effective.sources, settings_args.load))
