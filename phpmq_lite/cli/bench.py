"""``bench``: measure throughput and latency, and what the machine would give without a broker."""

import json
import time
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from phpmq_lite.bench.clients import Address
from phpmq_lite.bench.machine import file_system
from phpmq_lite.bench.plan import (
    BACKLOG,
    CONNECTIONS,
    FLOW,
    LATENCY,
    OWN_BROKER,
    PUBLISH,
    WORKLOADS,
    Plan,
    Watcher,
)
from phpmq_lite.bench.processes import unwound_by_signals
from phpmq_lite.bench.session import measure
from phpmq_lite.bench.streams import CONTENTS, PLAIN
from phpmq_lite.cli.bench_report import write_markdown, write_tables
from phpmq_lite.cli.main import CommandError
from phpmq_lite.cli.options import talk
from phpmq_lite.client.address import parse_address

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


def listener(value: str) -> Address:
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
    type=listener,
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
    plan = Plan(
        seconds, size, window, workloads, folder, connect, content, backlog, connections
    )  # fmt: skip
    with unwound_by_signals(), _Bar(plan) as bar:
        report = measure(plan, bar)
    if output == "json":
        click.echo(json.dumps(report.document(), indent=2))
    elif output == "markdown":
        write_markdown(report)
    else:
        write_tables(report)


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
