"""``doctor``: look whether a broker can run here, or how the one that runs is, and say what to do.

A file for each part of the world looked at.  In each the functions that judge take facts and give
findings, and ``look`` gathers the facts.  Nothing is changed: one small file is written to the data
folder and removed, to see how long the disk takes.
"""

from collections.abc import Callable, Iterable, Iterator

import click

from phpmq_lite.cli.findings import Finding, bad, end_with
from phpmq_lite.cli.given import Given, data_option, listener_options, settings_options
from phpmq_lite.cli.output import output_option
from phpmq_lite.errors import PhpmqError


@click.command()
@data_option
@listener_options
@settings_options
@output_option
def doctor(output: str | None, given: Given) -> None:
    """Look whether a broker can run here, and say what to do.

    Looks at the installation, settings, data folder, disk, database, ports, certificates, limits,
    clock and backups, with a broker running or not. Run it with the account and the flags of the
    broker. It changes nothing.
    Exit codes: 0 nothing is bad, 1 something is.
    """
    end_with(list(look(given)), output)


def look(given: Given) -> Iterator[Finding]:
    """Look at one part of the world after another; each works without the others."""
    from phpmq_lite.cli.doctor import (
        backups,
        configuration,
        database,
        folder,
        installation,
        machine,
        network,
    )

    yield from tried("installation", installation.look)
    settings, findings = configuration.read(given)
    yield from findings
    pid = folder.holder_of(settings.data)
    yield from tried("settings", lambda: configuration.look(settings))
    yield from tried("data folder", lambda: folder.look(settings, pid))
    yield from tried("database", lambda: database.look(settings, pid))
    yield from tried("listeners", lambda: network.look(settings, pid))
    yield from tried("machine", lambda: machine.look(settings, pid))
    yield from tried("backups", lambda: backups.look(settings))
    yield from tried("pipeline", installation.look_at_pipeline)


def tried(part: str, look_at: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Look at a part; what cannot be read is a finding too."""
    try:
        yield from look_at()
    except Exception as error:  # whatever it is, the rest is looked at
        told = error if isinstance(error, PhpmqError | OSError) else repr(error)
        is_foreign = isinstance(error, PermissionError)
        hint = "run doctor with the account of the broker" if is_foreign else ""
        yield bad(part, f"cannot be looked at: {told}", hint)
