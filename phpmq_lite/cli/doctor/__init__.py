"""The ``doctor`` command, which checks a broker and its host and suggests fixes.

There is one module per subject.  In each, ``check_…`` gathers facts, and ``…_finding`` turns them
into findings.  The checks change nothing, except that they write and remove a small file in the
data folder to measure the disk.
"""

from collections.abc import Iterator
from contextlib import suppress

import click

from phpmq_lite.cli.doctor.findings import Finding, report_findings, run_check
from phpmq_lite.cli.output import output_option
from phpmq_lite.cli.parameters import (
    SettingsArguments,
    data_option,
    listener_options,
    settings_options,
    store_option,
)


@click.command()
@data_option
@store_option
@listener_options
@settings_options
@output_option
def doctor(output: str | None, settings_args: SettingsArguments) -> None:
    """Check whether a broker can run here and suggest fixes.

    Checks the installation, settings, data folder, disk, database or its server, ports,
    certificates, limits, clock and backups, whether the broker is running or not. Run it under the
    broker's account with the broker's flags. It changes nothing.
    Exit codes: 0 no problem, 1 at least one problem.
    """
    report_findings(list(run_checks(settings_args)), output)


def run_checks(settings_args: SettingsArguments) -> Iterator[Finding]:
    """Run all checks, even if one of them fails, and yield their findings."""
    from phpmq_lite.cli.doctor import database, host, installation, listeners
    from phpmq_lite.storage.data_folder import locking_pid

    yield from run_check("installation", installation.check_installation)
    settings, findings = installation.read_settings(settings_args)
    yield from findings
    pid = None  # of the broker that uses the folder
    with suppress(OSError):
        pid = locking_pid(settings.data)
    yield from run_check("settings", lambda: installation.check_settings(settings))
    yield from run_check("data folder", lambda: host.check_data_folder(settings, pid))
    if settings.store.url:
        yield from run_check(database.SERVER, lambda: database.check_server(settings))
    yield from run_check("database", lambda: database.check_database(settings, pid))
    yield from run_check("listeners", lambda: listeners.check_listeners(settings, pid))
    yield from run_check("machine", lambda: host.check_machine(settings, pid))
    yield from run_check("backups", lambda: database.check_backups(settings))
    yield from run_check("standby", lambda: database.check_standby(settings))
    yield from run_check("pipeline", installation.check_pipeline_packages)
