"""The command ``bench``: runs a benchmark, prints tables or a Markdown report."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from phpmq_lite.bench.machine import Machine, file_system
from phpmq_lite.bench.processes import unwound_by_signals
from phpmq_lite.bench.report import (
    BenchReport,
    ConnectionsResult,
    MachineLimits,
    Quantiles,
    Throughput,
)
from phpmq_lite.bench.session import measure
from phpmq_lite.bench.traffic import CONTENTS, PLAIN, UNCONFIRMED, Address
from phpmq_lite.bench.workloads import (
    BACKLOG,
    CONNECTIONS,
    FLOW,
    FLOW_PLAIN,
    LATENCY,
    OWN_BROKER,
    PUBLISH,
    WORKLOADS,
    BenchObserver,
    BenchPlan,
)
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.output import Column, format_cell, print_message, write_rows
from phpmq_lite.client.address import parse_address

_WHAT: Final = {
    PUBLISH: "confirmed publishing, {unconfirmed:,} unanswered at most",
    FLOW: "publish (confirmed), store, dispatch, acknowledge, store; window {window:,}",
    FLOW_PLAIN: "the same with publishes that are not confirmed; window {window:,}",
}
_LIMIT_COLUMNS: Final = (
    Column("limit", "LIMIT OF THE MACHINE"),
    Column("per_second", "PER SECOND", is_number=True),
)
_LOAD_COLUMNS: Final = (
    Column("broker", "BROKER", is_number=True),
    Column("clients", "CLIENTS", is_number=True),
    Column("others", "OTHERS", is_number=True),
    Column("limit", "LIMITED BY"),
)
_RATE_COLUMNS: Final = (
    Column("workload", "WORKLOAD"),
    Column("per_second", "PER SECOND", is_number=True),
    Column("share", "OF SQLITE", is_number=True),
    *_LOAD_COLUMNS,
)
_LATENCY_COLUMNS: Final = (
    Column("what", "LATENCY (ms), ONE IN FLIGHT"),
    Column("p50", "P50", is_number=True),
    Column("p95", "P95", is_number=True),
    Column("p99", "P99", is_number=True),
    Column("ratio", "P50 / LEAST", is_number=True),
)
_LARGE_COLUMNS: Final = (
    Column("workload", "LARGE BODIES"),
    Column("megabytes", "MB/S", is_number=True),
    Column("share", "OF DISK", is_number=True),
    *_LOAD_COLUMNS,
)


class _Section(NamedTuple):
    """A table, and what is said ahead of it."""

    notes: tuple[str, ...]
    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]]


def write_tables(report: BenchReport) -> None:
    """Write tables that fit into 80 columns."""
    machine = report.machine
    click.echo(f"phpmq-lite {_built(machine)}, messages of {report.size:,} bytes")
    click.echo(f"{machine.cpu}, {machine.cores} cores, {machine.kernel}, {machine.file_system}")
    click.echo(f"Python {machine.python}, SQLite {machine.sqlite}")
    for section in _sections(report):
        click.echo()
        for note in section.notes:
            click.echo(note)
        write_rows(section.rows, section.columns, "table", "")


def write_markdown(report: BenchReport) -> None:
    """Write all of it as Markdown, with the settings that it depends on."""
    machine = report.machine
    settings = (
        ("phpmq-lite", _built(machine)),
        ("processor", f"{machine.cpu}, {machine.cores} cores"),
        ("system", f"{machine.kernel}, {machine.file_system}"),
        ("versions", f"Python {machine.python}, SQLite {machine.sqlite}"),
        ("messages", f"{report.size:,} bytes, {report.content}"),
        ("window of the consumer", f"{report.window:,}"),
        ("published for", f"{report.seconds:g} s each"),
    )
    click.echo("### phpmq-lite bench\n")
    rows = [{"what": what, "value": value} for what, value in settings]
    click.echo(_markdown((Column("what", "what"), Column("value", "value")), rows))
    for section in _sections(report):
        click.echo()
        for note in section.notes:
            click.echo(f"- {note}")
        if section.notes:
            click.echo()
        click.echo(_markdown(section.columns, section.rows))


def _built(machine: Machine) -> str:
    return machine.broker if machine.build is None else f"{machine.broker} ({machine.build})"


def _markdown(columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> str:
    """Give the lines of a table."""
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
    yield _Section(_noise(report), _LIMIT_COLUMNS, _limit_rows(report.limits))
    if report.rates:
        notes = [
            f"{rate.workload}: "
            + _WHAT[rate.workload].format(unconfirmed=UNCONFIRMED, window=report.window)
            for rate in report.rates
        ]
        head = "OF SQLITE: of its rows at 1,000 a commit; then CPU, in percent of a core"
        rows = [_rate_row(report, rate) for rate in report.rates]
        yield _Section((head, *notes), _RATE_COLUMNS, rows)
    if report.latency is not None:
        least = "LEAST: a commit of one row and a round trip, as above"
        rows = [
            _latency_row(report, "publish to receive", report.latency.receive),
            _latency_row(report, "publish to receipt", report.latency.receipt),
        ]
        yield _Section((least,), _LATENCY_COLUMNS, rows)
    if report.large:
        disk = "OF DISK: of what SQLite alone wrote in sequence right before"
        rows = [_large_row(report, rate) for rate in report.large]
        yield _Section((disk,), _LARGE_COLUMNS, rows)
    if report.backlog is not None:
        yield _pairs(f"BACKLOG OF {report.backlog.messages:,}", _backlog_rows(report))
    if report.connections is not None:
        title = f"{report.connections.number:,} CONNECTIONS"
        yield _pairs(title, _connection_rows(report.connections))


def _noise(report: BenchReport) -> tuple[str, ...]:
    if not report.is_noisy:
        return ()
    return ("Other processes were busy meanwhile (OTHERS): the rates are too low.",)


def _limit_rows(limits: MachineLimits) -> list[dict[str, Any]]:
    return [
        {"limit": "4 KiB appended and synced to the disk", "per_second": round(limits.syncs)},
        {"limit": "SQLite rows of 256 bytes, 1 a commit", "per_second": round(limits.rows_1)},
        {"limit": "SQLite rows, 1,000 a commit", "per_second": round(limits.rows_1000)},
        {
            "limit": "SQLite rows of 100 KB, 4 MiB a commit",
            "per_second": _megabytes(limits.written_bytes),
        },
        {"limit": "round trips on the loopback", "per_second": round(limits.round_trips)},
    ]


def _rate_row(report: BenchReport, rate: Throughput) -> dict[str, Any]:
    return {
        "workload": rate.workload,
        "per_second": round(rate.per_second),
        "share": _percent(report.share_of_rows(rate)),
    } | _load_cells(rate)


def _large_row(report: BenchReport, rate: Throughput) -> dict[str, Any]:
    return {
        "workload": f"{rate.workload}, {rate.size:,}",
        "megabytes": rate.bytes_per_second / 1e6,
        "share": _percent(report.share_of_disk(rate)),
    } | _load_cells(rate)


def _load_cells(rate: Throughput) -> dict[str, Any]:
    load = rate.load
    return {
        "broker": _percent(load.broker),
        "clients": " + ".join(_percent(share) or "" for share in load.clients.values()),
        "others": _percent(load.others),
        "limit": load.limit,
    }


def _latency_row(report: BenchReport, what: str, quantiles: Quantiles) -> dict[str, Any]:
    return {
        "what": what,
        "p50": f"{quantiles.p50:.3f}",
        "p95": f"{quantiles.p95:.3f}",
        "p99": f"{quantiles.p99:.3f}",
        "ratio": f"{report.latency_ratio(quantiles):.1f} x",
    }


def _backlog_rows(report: BenchReport) -> Iterator[tuple[str, str]]:
    backlog = report.backlog
    if backlog is None:
        return
    memory = backlog.memory
    yield "stored with nobody consuming, confirmed", f"{backlog.published_per_second:,.0f}/s"
    yield "resident memory, empty", _megabytes(memory.empty)
    yield f"resident memory, {backlog.few:,} messages", _megabytes(memory.with_few)
    yield f"resident memory, {backlog.messages:,} messages", _megabytes(memory.with_all)
    yield "database and write-ahead log", _megabytes(backlog.database_bytes)
    yield "start after kill -9, until clients may connect", f"{backlog.started_s:.3f} s"
    yield "until the first message was received", f"{backlog.first_message_s:.3f} s"
    yield (
        f"taken out with acknowledgements, window {report.window:,}",
        f"{backlog.drained_per_second:,.0f}/s",
    )
    yield "most memory at any time since the start", _megabytes(memory.peak_after_restart)


def _connection_rows(found: ConnectionsResult) -> Iterator[tuple[str, str]]:
    each = found.each_bytes
    yield "resident memory without them", _megabytes(found.before_bytes)
    yield "resident memory with them", _megabytes(found.with_bytes)
    yield "one, with consumer and queue", "–" if each is None else f"{each / 1e3:.1f} KB"
    yield "flow alone", f"{found.alone.per_second:,.0f}/s"
    yield "flow beside them", f"{found.beside.per_second:,.0f}/s"
    yield "beside / alone", f"{found.beside.per_second / found.alone.per_second:.2f}"


def _pairs(title: str, pairs: Iterator[tuple[str, str]]) -> _Section:
    columns = (Column("what", title), Column("value", "", is_number=True))
    return _Section((), columns, [{"what": what, "value": value} for what, value in pairs])


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share * 100:.0f} %"


def _megabytes(size: float | None) -> str:
    """Write bytes in units of 10^6."""
    return "–" if size is None else f"{size / 1e6:,.1f} MB"


_IN_MEMORY: Final = ("tmpfs", "ramfs")
_MAX_SIZE: Final = 1 << 20  # 1,000 of them are under way at once

_ALL: Final = "all"


def workload_list(value: str) -> tuple[str, ...]:
    """Give the workloads of ``publish,flow`` or ``all``, in the order of ours; a click type."""
    names = {name.strip() for name in value.split(",")}
    if names == {_ALL}:
        return WORKLOADS
    unknown = sorted(names - set(WORKLOADS))
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(WORKLOADS)}, {_ALL}")
    return tuple(name for name in WORKLOADS if name in names)


def listener_address(value: str) -> Address:
    """Return host and port of ``phpmq://127.0.0.1:9100``; a click type."""
    try:
        target = parse_address(value.removeprefix("phpmq://"))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if target.path or not value.startswith("phpmq://"):
        raise click.BadParameter(f"{value!r} is no PHPMQ listener; write phpmq://HOST:PORT")
    return target.host, target.port


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
    help=f"Any of {', '.join(WORKLOADS)}; or {_ALL}.",
)
@click.option(
    "--backlog",
    type=click.IntRange(1_000, 100_000_000),
    default=100_000,
    show_default=True,
    help=f"Messages of the workload {BACKLOG}.",
)
@click.option(
    "--connections",
    type=click.IntRange(1, 20_000),
    default=1_000,
    show_default=True,
    help=f"How many the workload {CONNECTIONS} opens.",
)
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="A folder on the disk to measure; nothing is left in it.  [default: .]",
)
@click.option(
    "--url",
    "connect",
    type=listener_address,
    metavar="phpmq://HOST:PORT",
    help="Measure a broker that runs. Its queues and its history keep the traces.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "markdown", "json"]),
    default="table",
    show_default=True,
    help="Format; markdown is a report to paste into an issue.",
)
def bench(
    seconds: float,
    size: int,
    content: str,
    window: int,
    workloads: tuple[str, ...],
    backlog: int,
    connections: int,
    data: Path | None,
    connect: Address | None,
    output: str,
) -> None:
    """Measure throughput and latency.

    Starts a broker of its own on a free port of the loopback, with its data in a temporary folder,
    and clients in processes of their own. Every rate counts until the last message is proved to be
    stored. Beside it stand the limits of the machine from the same run: compare the ratios, the
    figures themselves move with the machine and with what else runs on it.

    \b
    publish      confirmed publishing, one connection
    flow         one producer, one consumer: publish to stored acknowledgement
    flow-plain   the same with publishes that are not confirmed
    latency      one message in flight
    large        publish and flow of 100 KB and 1 MB, beside the disk
    backlog      messages that nobody consumes: memory, kill -9, start, drain
    connections  idle consumers, each with a queue: memory, and a flow beside them
    """  # noqa: D301 - click's sign for lines that stay as they are
    folder = data or Path.cwd()
    kind = file_system(folder)
    if kind in _IN_MEMORY:
        raise CommandError(f"{folder} is in memory ({kind}); name a folder on a disk with --data")
    if connect is not None and (own := [name for name in OWN_BROKER if name in workloads]):
        raise CommandError(
            f"{' and '.join(own)} cannot be measured with --url: the broker is killed, "
            "or started with other limits"
        )
    plan = BenchPlan(
        seconds, size, window, workloads, folder, connect, content, backlog, connections
    )  # fmt: skip
    with unwound_by_signals(), _BenchProgressBar(plan) as bar:
        report = measure(plan, bar)
    if output == "json":
        click.echo(json.dumps(report.document(), indent=2))
    elif output == "markdown":
        write_markdown(report)
    else:
        write_tables(report)


class _BenchProgressBar(BenchObserver):
    """A bar on standard error that follows the plan's time; not on a terminal, a line a step."""

    def __init__(self, plan: BenchPlan) -> None:
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

    def __enter__(self) -> "_BenchProgressBar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, step: str, seconds: float) -> None:
        """See ``BenchObserver``."""
        self._step_s, self._began_s = seconds, time.monotonic()
        if not self._console.is_terminal:
            print_message(step)
        self._progress.update(self._task, description=step, refresh=True)

    def tick(self) -> None:
        """See ``BenchObserver``."""
        gone_s = min(time.monotonic() - self._began_s, self._step_s)
        self._progress.update(self._task, completed=self._done_s + gone_s, refresh=True)

    def end(self) -> None:
        """See ``BenchObserver``."""
        self._done_s += self._step_s
        self._progress.update(self._task, completed=self._done_s, refresh=True)
