"""Run a broker under load for hours and inject faults: ``python -m tests.soak --hours 8``.

Producers publish with and without keys; consumers acknowledge, requeue, dead-letter and forget;
others browse the admin pages.  Every 10 to 60 s, one fault is injected: kill -9, SIGTERM, SIGSTOP,
EIO, a slow or full disk, a clock jump, a partitioned, slow or reset network, a flood of
connections, a backup, a scrub, concurrent readers.  The ledger of the clients is compared with
every dispatch and with the database.  Requires gcc.

Prints a report.  Exits with 1 if a message was lost or redelivered after it was settled, if the
broker exited unexpectedly, or if its memory or descriptors grow.
"""

import asyncio
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tests.soak.nemesis import ALL
from tests.soak.report import problems_of, readings, report
from tests.soak.run import RATE, Plan, soak


@click.command(help=__doc__)
@click.option("--hours", type=float, default=0.0)
@click.option("--minutes", type=float, default=0.0)
@click.option("--seed", type=int, help="Repeats the choices of a run, not its timing.")
@click.option("--rate", default=RATE, show_default=True, help="Confirmed publishes per second.")
@click.option(
    "--each",
    nargs=2,
    type=float,
    default=(10.0, 60.0),
    show_default=True,
    help="Seconds between faults.",
)
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(list(ALL)), help="Inject only this fault."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Also write the report to this file, and the memory readings to a .csv beside it.",
)
def main(
    hours: float, minutes: float, seed: int | None, rate: float, each: tuple[float, float],
    kinds: tuple[str, ...], out: Path | None,
) -> None:  # fmt: skip
    """Run a soak and print its report."""
    seconds = hours * 3_600 + minutes * 60
    if seconds <= 0:
        raise click.UsageError("set the duration with --hours or --minutes")
    seed = random.SystemRandom().randrange(1, 10**9) if seed is None else seed
    plan = Plan(seconds, seed, each, kinds or tuple(ALL), rate)
    with TemporaryDirectory(prefix="phpmq-soak-") as folder:
        result = asyncio.run(soak(plan, Path(folder)))
        text = report(result)
        if problems_of(result):
            log = result.broker.child.log.read_text(encoding="utf-8")
            text += f"\nThe end of the broker's log:\n\n```\n{log[-5_000:]}\n```\n"
    click.echo(text)
    if out is not None:
        out.write_text(text, encoding="utf-8")
        out.with_suffix(".csv").write_text(readings(result), encoding="utf-8")
    sys.exit(bool(problems_of(result)))


if __name__ == "__main__":
    main()
