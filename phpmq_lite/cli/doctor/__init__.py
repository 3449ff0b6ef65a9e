"""``doctor``: checks whether a broker can run here, or how a running one is; suggests remedies.

There is one file per subject.  In each, ``check_…`` gathers facts, and ``…_finding`` turns facts
into findings.  Nothing is changed, except for a small file in the data folder that is written and
removed to measure the disk.
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
def doctor(output: str | None, settings_args: SettingsArguments) -> None:
    """Check whether a broker can run here; suggest remedies.

    Checks the installation, settings, data folder, disk, database, ports, certificates, limits,
    clock and backups, whether the broker runs or not. Run it with the account and the flags of the
    broker. It changes nothing.
    Exit codes: 0 no problem, 1 at least one problem.
    """
    report_findings(list(run_checks(settings_args)), output)


def run_checks(settings_args: SettingsArguments) -> Iterator[Finding]:
    """Yield the findings of all checks; each check works without the others."""
    from phpmq_lite.cli.doctor import database, host, installation, listeners
    from phpmq_lite.cli.doctor import settings as setting_checks

    yield from run_check("installation", installation.check_installation)
    settings, findings = setting_checks.read_settings(settings_args)
    yield from findings
    pid = host.broker_pid(settings.data)
    yield from run_check("settings", lambda: setting_checks.check_settings(settings))
    yield from run_check("data folder", lambda: host.check_data_folder(settings, pid))
    yield from run_check("database", lambda: database.check_database(settings, pid))
    yield from run_check("listeners", lambda: listeners.check_listeners(settings, pid))
    yield from run_check("machine", lambda: host.check_machine(settings, pid))
    yield from run_check("backups", lambda: database.check_backups(settings))
    yield from run_check("pipeline", installation.check_pipeline_packages)
