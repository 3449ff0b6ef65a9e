"""How ``bench`` shows what it found: tables for a terminal, Markdown to paste into an issue."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import click

from phpmq_lite.bench.clients import UNCONFIRMED
from phpmq_lite.bench.machine import Machine
from phpmq_lite.bench.plan import FLOW, FLOW_PLAIN, PUBLISH
from phpmq_lite.bench.report import Connections, Limits, Quantiles, Rate, Report
from phpmq_lite.cli.output import Column, cell, write

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


def write_tables(report: Report) -> None:
    """Write tables that fit into 80 columns."""
    machine = report.machine
    click.echo(f"phpmq-lite {_built(machine)}, messages of {report.size:,} bytes")
    click.echo(f"{machine.cpu}, {machine.cores} cores, {machine.kernel}, {machine.file_system}")
    click.echo(f"Python {machine.python}, SQLite {machine.sqlite}")
    for section in _sections(report):
        click.echo()
        for note in section.notes:
            click.echo(note)
        write(section.rows, section.columns, "table", "")


def write_markdown(report: Report) -> None:
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
        *([cell(row.get(column.key)).replace("|", "\\|") for column in columns] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _sections(report: Report) -> Iterator[_Section]:
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


def _noise(report: Report) -> tuple[str, ...]:
    if not report.is_noisy:
        return ()
    return ("Other processes were busy meanwhile (OTHERS): the rates are too low.",)


def _limit_rows(limits: Limits) -> list[dict[str, Any]]:
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


def _rate_row(report: Report, rate: Rate) -> dict[str, Any]:
    return {
        "workload": rate.workload,
        "per_second": round(rate.per_second),
        "share": _percent(report.share_of_rows(rate)),
    } | _load_cells(rate)


def _large_row(report: Report, rate: Rate) -> dict[str, Any]:
    return {
        "workload": f"{rate.workload}, {rate.size:,}",
        "megabytes": rate.bytes_per_second / 1e6,
        "share": _percent(report.share_of_disk(rate)),
    } | _load_cells(rate)


def _load_cells(rate: Rate) -> dict[str, Any]:
    load = rate.load
    return {
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


def _backlog_rows(report: Report) -> Iterator[tuple[str, str]]:
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


def _connection_rows(found: Connections) -> Iterator[tuple[str, str]]:
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
