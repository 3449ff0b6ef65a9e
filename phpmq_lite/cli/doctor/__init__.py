"""``doctor``: look whether a broker can run here, or how the one that runs is, and say what to do.

A file for each part of the world looked at.  In each the functions that judge take facts and give
findings, and ``check_…`` gathers the facts.  Nothing is changed: one small file is written to the
data folder and removed, to see how long the disk takes.
"""

from collections.abc import Iterator

import click

from phpmq_lite.cli.doctor.findings import Finding, report_findings, run_check
from phpmq_lite.cli.output import output_option
from phpmq_lite.cli.settings_options import (
    SettingsArguments,
    data_option,
    listener_options,
    settings_options,
)


@click.command()
@data_option
@listener_options
@settings_options
@output_option
def doctor(output: str | None, given: SettingsArguments) -> None:
    """Look whether a broker can run here, and say what to do.

    Looks at the installation, settings, data folder, disk, database, ports, certificates, limits,
    clock and backups, with a broker running or not. Run it with the account and the flags of the
    broker. It changes nothing.
    Exit codes: 0 nothing is bad, 1 something is.
    """
    report_findings(list(run_checks(given)), output)


def run_checks(given: SettingsArguments) -> Iterator[Finding]:
    """Look at one part of the world after another; each works without the others."""
    from phpmq_lite.cli.doctor import database, host, installation, listeners
    from phpmq_lite.cli.doctor import settings as setting_checks

    yield from run_check("installation", installation.check_installation)
    settings, findings = setting_checks.read_settings(given)
    yield from findings
    pid = host.broker_pid(settings.data)
    yield from run_check("settings", lambda: setting_checks.check_settings(settings))
    yield from run_check("data folder", lambda: host.check_data_folder(settings, pid))
    yield from run_check("database", lambda: database.check_database(settings, pid))
    yield from run_check("listeners", lambda: listeners.check_listeners(settings, pid))
    yield from run_check("machine", lambda: host.check_machine(settings, pid))
    yield from run_check("backups", lambda: database.check_backups(settings))
    yield from run_check("pipeline", installation.check_pipeline_packages)
