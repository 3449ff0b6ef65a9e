"""``bench``: measure throughput and latency, and what the machine would give without a broker."""

import json
import time
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from phpmq_lite.bench.clients import UNCONFIRMED, Address
from phpmq_lite.bench.machine import file_system
from phpmq_lite.bench.processes import unwound_by_signals
from phpmq_lite.bench.report import Limits, Quantiles, Rate, Report
from phpmq_lite.bench.session import (
    FLOW,
    FLOW_PLAIN,
    LATENCY,
    PUBLISH,
    WORKLOADS,
    Plan,
    Watcher,
    measure,
)
from phpmq_lite.bench.streams import CONTENTS, PLAIN
from phpmq_lite.cli.main import CommandError
from phpmq_lite.cli.options import talk
from phpmq_lite.cli.output import Column, write

_IN_MEMORY: Final = ("tmpfs", "ramfs")
_MAX_SIZE: Final = 1 << 20  # 1,000 of them are under way at once

_WHAT: Final = {
    PUBLISH: "confirmed publishing, {unconfirmed:,} unanswered at most",
    FLOW: "publish (confirmed), store, dispatch, acknowledge, store; window {window:,}",
    FLOW_PLAIN: "the same with publishes that are not confirmed; window {window:,}",
}
_LIMIT_COLUMNS: Final = (
    Column("limit", "LIMIT OF THE MACHINE"),
    Column("per_second", "PER SECOND", is_number=True),
)
_RATE_COLUMNS: Final = (
    Column("workload", "WORKLOAD"),
    Column("per_second", "PER SECOND", is_number=True),
    Column("share", "OF SQLITE", is_number=True),
    Column("broker", "BROKER", is_number=True),
    Column("clients", "CLIENTS", is_number=True),
    Column("others", "OTHERS", is_number=True),
    Column("limit", "LIMITED BY"),
)
_LATENCY_COLUMNS: Final = (
    Column("what", "LATENCY (ms), ONE IN FLIGHT"),
    Column("p50", "P50", is_number=True),
    Column("p95", "P95", is_number=True),
    Column("p99", "P99", is_number=True),
    Column("ratio", "P50 / LEAST", is_number=True),
)


def workload_list(value: str) -> tuple[str, ...]:
    """Give the workloads of ``publish,flow``, in the order of ours; a click type."""
    names = {name.strip() for name in value.split(",")}
    unknown = sorted(names - set(WORKLOADS))
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(WORKLOADS)}")
    return tuple(name for name in WORKLOADS if name in names)


def host_and_port(value: str) -> Address:
    """Give host and port of ``127.0.0.1:9100`` or ``[::1]:9100``; a click type."""
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise click.BadParameter(f"{value!r} is no HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 600),
    default=5.0,
    show_default=True,
    help="How long each workload publishes.",
)
@click.option(
    "--size",
    type=click.IntRange(1, _MAX_SIZE),
    default=256,
    show_default=True,
    help="Bytes of a message.",
)
@click.option(
    "--content",
    type=click.Choice(CONTENTS),
    default=PLAIN,
    show_default=True,
    help="What the messages are; the broker indexes envelopes.",
)
@click.option(
    "--window",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="Messages the consumer may hold unacknowledged.",
)
@click.option(
    "--workloads",
    type=workload_list,
    default=f"{PUBLISH},{FLOW},{LATENCY}",
    show_default=True,
    metavar="LIST",
    help=f"Any of {', '.join(WORKLOADS)}.",
)
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="A folder on the disk to measure; nothing is left in it.  [default: .]",
)
@click.option(
    "--connect",
    type=host_and_port,
    metavar="HOST:PORT",
    help="Measure a broker that runs. Its queues and its history keep the traces.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Format.",
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

    Starts a broker of its own on a free port of the loopback, with its data in a temporary folder,
    and clients in processes of their own. Every rate counts until the last message is proved to be
    stored. Beside it stand the limits of the machine from the same run: compare the ratios, the
    figures themselves move with the machine and with what else runs on it.
    """
    folder = data or Path.cwd()
    kind = file_system(folder)
    if kind in _IN_MEMORY:
        raise CommandError(f"{folder} is in memory ({kind}); name a folder on a disk with --data")
    plan = Plan(seconds, size, window, workloads, folder, connect, content)
    with unwound_by_signals(), _Bar(plan) as bar:
        report = measure(plan, bar)
    if output == "json":
        click.echo(json.dumps(report.document(), indent=2))
    else:
        _write(report)


class _Bar(Watcher):
    """A bar on standard error that follows the plan's time; not on a terminal, a line a step."""

    def __init__(self, plan: Plan) -> None:
        self._console = console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:30}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,  # a thread of its own would disturb what is measured
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=plan.planned_seconds)
        self._done_s = 0.0  # of the steps that have ended, as planned
        self._step_s = 0.0
        self._began_s = 0.0

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, step: str, seconds: float) -> None:
        """See ``Watcher``."""
        self._step_s, self._began_s = seconds, time.monotonic()
        if not self._console.is_terminal:
            talk(step)
        self._progress.update(self._task, description=step, refresh=True)

    def tick(self) -> None:
        """See ``Watcher``."""
        gone_s = min(time.monotonic() - self._began_s, self._step_s)
        self._progress.update(self._task, completed=self._done_s + gone_s, refresh=True)

    def end(self) -> None:
        """See ``Watcher``."""
        self._done_s += self._step_s
        self._progress.update(self._task, completed=self._done_s, refresh=True)


def _write(report: Report) -> None:
    """Write tables that fit into 80 columns."""
    machine = report.machine
    click.echo(f"phpmq-lite {machine.broker}, messages of {report.size:,} bytes")
    click.echo(f"{machine.cpu}, {machine.cores} cores, {machine.kernel}, {machine.file_system}")
    click.echo(f"Python {machine.python}, SQLite {machine.sqlite}\n")
    write(_limit_rows(report.limits), _LIMIT_COLUMNS, "table", "")
    if report.rates:
        _write_rates(report)
    if report.latency is not None:
        click.echo("\nLEAST: a commit of one row and a round trip, as above")
        rows = [
            _latency_row(report, "publish to receive", report.latency.receive),
            _latency_row(report, "publish to receipt", report.latency.receipt),
        ]
        write(rows, _LATENCY_COLUMNS, "table", "")


def _write_rates(report: Report) -> None:
    click.echo("\nOF SQLITE: of its rows at 1,000 a commit; then CPU, in percent of a core")
    for rate in report.rates:
        meaning = _WHAT[rate.workload].format(unconfirmed=UNCONFIRMED, window=report.window)
        click.echo(f"{rate.workload}: {meaning}")
    write([_rate_row(report, rate) for rate in report.rates], _RATE_COLUMNS, "table", "")
    if any(rate.load.is_noisy for rate in report.rates):
        talk("other processes were busy meanwhile: the rates are too low")


def _limit_rows(limits: Limits) -> list[dict[str, Any]]:
    return [
        {"limit": "4 KiB appended and synced to the disk", "per_second": round(limits.syncs)},
        {"limit": "SQLite rows of 256 bytes, 1 a commit", "per_second": round(limits.rows_1)},
        {"limit": "SQLite rows, 1,000 a commit", "per_second": round(limits.rows_1000)},
        {"limit": "round trips on the loopback", "per_second": round(limits.round_trips)},
    ]


def _rate_row(report: Report, rate: Rate) -> dict[str, Any]:
    load = rate.load
    return {
        "workload": rate.workload,
        "per_second": round(rate.per_second),
        "share": _percent(report.share_of_rows(rate)),
        "broker": _percent(load.broker),
        "clients": " + ".join(_percent(share) or "" for share in load.clients.values()),
        "others": _percent(load.others),
        "limit": load.limit,
    }


def _latency_row(report: Report, what: str, quantiles: Quantiles) -> dict[str, Any]:
    return {
        "what": what,
        "p50": f"{quantiles.p50:.3f}",
        "p95": f"{quantiles.p95:.3f}",
        "p99": f"{quantiles.p99:.3f}",
        "ratio": f"{report.latency_ratio(quantiles):.1f} x",
    }


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share * 100:.0f} %"
