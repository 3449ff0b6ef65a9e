"""The ``bench`` command, which runs the benchmark and writes tables, Markdown or JSON."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from phpmq_lite.bench.machine import Machine
from phpmq_lite.bench.processes import unwind_on_signals
from phpmq_lite.bench.report import BenchReport, Throughput
from phpmq_lite.bench.traffic import CONTENTS, UNCONFIRMED, Address
from phpmq_lite.bench.workloads import (
    FLOW,
    FLOW_PLAIN,
    LATENCY,
    PUBLISH,
    WORKLOADS,
    BenchObserver,
    BenchPlan,
    measure,
)
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.output import (
    Column,
    columns,
    format_cell,
    number_columns,
    print_message,
    write_rows,
)
from phpmq_lite.cli.parameters import choice, option
from phpmq_lite.client.core import parse_address
from phpmq_lite.storage.mounts import file_system

_NOTES: Final = {
    PUBLISH: "confirmed publishing, at most {unconfirmed:,} messages unconfirmed",
    FLOW: "publish (confirmed), store, dispatch, acknowledge, store; window {window:,}",
    FLOW_PLAIN: "flow without confirmed publishing; window {window:,}",
}
_LIMIT_COLUMNS: Final = (*columns(limit="MACHINE LIMIT"), *number_columns("per_second"))
_RATE_COLUMNS: Final = (
    *columns("workload"),
    *number_columns("per_second", share="OF SQLITE"),
    *number_columns("broker", "clients", "others"),
    *columns(limit="LIMITED BY"),
)
_LATENCY_COLUMNS: Final = (
    *columns(what="LATENCY (ms), ONE IN FLIGHT"),
    *number_columns("p50", "p95", "p99", ratio="P50 / LEAST"),
)


# A table of results, with the notes that are printed above it.
_Section = tuple[tuple[str, ...], Sequence[Column], Sequence[dict[str, Any]]]


def write_tables(report: BenchReport) -> None:
    """Write the report as tables that are at most 80 columns wide."""
    machine = report.machine
    click.echo(f"phpmq-lite {_describe_version(machine)}, messages of {report.size:,} bytes")
    click.echo(f"{machine.cpu}, {machine.cores} cores, {machine.kernel}, {machine.file_system}")
    click.echo(f"Python {machine.python}, SQLite {machine.sqlite}")
    for notes, section_columns, rows in _sections(report):
        click.echo("\n".join(["", *notes]))
        write_rows(rows, section_columns, "table", "")


def write_markdown(report: BenchReport) -> None:
    """Write the report as Markdown, including the settings of the benchmark."""
    machine = report.machine
    settings = {
        "phpmq-lite": _describe_version(machine),
        "processor": f"{machine.cpu}, {machine.cores} cores",
        "system": f"{machine.kernel}, {machine.file_system}",
        "versions": f"Python {machine.python}, SQLite {machine.sqlite}",
        "messages": f"{report.size:,} bytes, {report.content}",
        "consumer window": f"{report.window:,}",
        "duration per workload": f"{report.seconds:g} s",
    }
    click.echo("### phpmq-lite bench\n")
    rows = [{"what": name, "value": value} for name, value in settings.items()]
    click.echo(_format_markdown(columns(what="what", value="value"), rows))
    for notes, section_columns, section_rows in _sections(report):
        click.echo("\n".join(["", *(f"- {note}" for note in notes), *([""] if notes else [])]))
        click.echo(_format_markdown(section_columns, section_rows))


def _describe_version(machine: Machine) -> str:
    return machine.broker if machine.build is None else f"{machine.broker} ({machine.build})"


def _format_markdown(columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        [column.title.replace("|", "\\|") for column in columns],
        ["---:" if column.is_number else "---" for column in columns],
        *(
            [format_cell(row.get(column.key)).replace("|", "\\|") for column in columns]
            for row in rows
        ),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _sections(report: BenchReport) -> Iterator[_Section]:
    noise = "Other processes were busy during the run (OTHERS); the rates are too low."
    limits = report.limits
    rates = {
        "4 KiB appended and synced to disk": round(limits.syncs),
        "SQLite rows of 256 bytes, 1 per commit": round(limits.rows_1),
        "SQLite rows, 1,000 per commit": round(limits.rows_1000),
        "SQLite rows of 100 KB, 4 MiB per commit": f"{limits.written_bytes / 1e6:,.1f} MB",
        "loopback round trips": round(limits.round_trips),
    }
    rows: list[dict[str, Any]] = [
        {"limit": limit, "per_second": rate} for limit, rate in rates.items()
    ]
    yield (noise,) if report.is_noisy else (), _LIMIT_COLUMNS, rows
    if report.rates:
        notes = [
            f"{rate.workload}: "
            + _NOTES[rate.workload].format(unconfirmed=UNCONFIRMED, window=report.window)
            for rate in report.rates
        ]
        meanings = (
            "OF SQLITE: percent of SQLite's rows/s (1,000 per commit), or bytes/s from 64 KiB",
            "BROKER, CLIENTS, OTHERS: CPU use in percent of one core",
        )
        yield (*meanings, *notes), _RATE_COLUMNS, [_rate_row(report, rate) for rate in report.rates]
    if report.latency is not None:
        note = "P50 / LEAST: P50 divided by the time of a one-row commit plus a round trip"
        intervals = {"receive": report.latency.receive, "receipt": report.latency.receipt}
        rows = [
            {"what": f"publish to {end}", "ratio": f"{report.latency_ratio(quantiles):.1f} x"}
            | {name: f"{value:.3f}" for name, value in asdict(quantiles).items()}
            for end, quantiles in intervals.items()
        ]
        yield (note,), _LATENCY_COLUMNS, rows


def _rate_row(report: BenchReport, rate: Throughput) -> dict[str, Any]:
    load = rate.load
    return {
        "workload": rate.workload,
        "per_second": round(rate.per_second),
        "share": _format_percent(rate.share_of_sqlite(report.limits)),
        "broker": _format_percent(load.broker),
        "clients": " + ".join(_format_percent(share) or "" for share in load.clients.values()),
        "others": _format_percent(load.others),
        "limit": load.limit,
    }


def _format_percent(share: float | None) -> str | None:
    return None if share is None else f"{share * 100:.0f} %"


_IN_MEMORY: Final = ("tmpfs", "ramfs")
_MAX_SIZE: Final = 1 << 20

_ALL: Final = "all"


def workload_list(value: str) -> tuple[str, ...]:
    """Parse ``all`` or a list such as ``publish,flow``; return the workloads in a fixed order."""
    names = {name.strip() for name in value.split(",")}
    if names == {_ALL}:
        return WORKLOADS
    unknown = sorted(names - set(WORKLOADS))
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(WORKLOADS)}, {_ALL}")
    return tuple(name for name in WORKLOADS if name in names)


def listener_address(value: str) -> Address:
    """Return the host and port of an address such as ``phpmq://127.0.0.1:9100``."""
    try:
        target = parse_address(value.removeprefix("phpmq://"))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if target.path or not value.startswith("phpmq://"):
        raise click.BadParameter(f"{value!r} is not a valid PHPMQ address; use phpmq://HOST:PORT")
    return target.host, target.port


@click.command()
@option("--seconds", "Publishing time per workload, in seconds.", click.FloatRange(0.1, 600), 5.0)
@option("--size", "Message body size in bytes.", click.IntRange(1, _MAX_SIZE), 256)
@choice("--content", "Message content; envelopes are also indexed by the broker.", *CONTENTS)
@option(
    "--window",
    "Maximum number of unacknowledged messages that the consumer holds.",
    click.IntRange(1, 100_000),
    100,
)
@option(
    "--workloads",
    f"Comma-separated workloads ({', '.join(WORKLOADS)}), or {_ALL}.",
    workload_list,
    f"{PUBLISH},{FLOW},{LATENCY}",
    metavar="LIST",
)
@option(
    "--data",
    "Folder on the disk to measure; the benchmark deletes its files at the end.  [default: .]",
    click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
)
@option(
    ("--url", "connect"),
    "Measure a running broker. Its queues and history keep records of the run.",
    listener_address,
    metavar="phpmq://HOST:PORT",
)
@choice(
    ("-o", "--output"),
    "Output format; use markdown to paste the report into an issue.",
    "table",
    "markdown",
    "json",
)
def bench(
    seconds: float,
    size: int,
    content: str,
    window: int,
    workloads: tuple[str, ...],
    data: Path | None,
    connect: Address | None,
    output: str,
) -> None:
    """Measure throughput and latency.

    Starts a temporary broker on a free loopback port, with its data in a temporary folder, and
    clients in separate processes. Each rate counts messages until the last one is known to be
    stored. The limits of the machine are measured in the same run. Compare the ratios, because
    absolute figures depend on the machine and its other load.

    \b
    publish      confirmed publishing, one connection
    flow         one producer and one consumer: publish to stored acknowledgement
    flow-plain   like flow, but without confirmed publishing
    latency      one message in flight
    """  # noqa: D301 - click keeps the line breaks of the paragraph
    folder = data or Path.cwd()
    kind = file_system(folder)
    if kind in _IN_MEMORY:
        raise CommandError(
            f"{folder} is stored in memory ({kind}), not on disk. Choose another with --data."
        )
    plan = BenchPlan(seconds, size, window, workloads, folder, connect, content)
    observer = _BenchProgressBar(plan)
    with unwind_on_signals(), observer.progress:
        report = measure(plan, observer)
    if output == "json":
        click.echo(json.dumps(report.document(), indent=2))
    else:
        (write_markdown if output == "markdown" else write_tables)(report)


class _BenchProgressBar(BenchObserver):
    """A progress bar on standard error or, if that is not a terminal, one line per step."""

    def __init__(self, plan: BenchPlan) -> None:
        console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description:30}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,  # a refresh thread would disturb the measurement
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self.progress.add_task("starting", total=plan.planned_seconds)
        self._done_s = 0.0  # total planned duration of the finished steps
        self._step_s = 0.0
        self._began_s = 0.0

    def begin(self, step: str, seconds: float) -> None:
        self._done_s += self._step_s
        self._step_s, self._began_s = seconds, time.monotonic()
        if self.progress.disable:
            print_message(step)
        self.progress.update(self._task, description=step, completed=self._done_s, refresh=True)

    def tick(self) -> None:
        elapsed_s = min(time.monotonic() - self._began_s, self._step_s)
        self.progress.update(self._task, completed=self._done_s + elapsed_s, refresh=True)
