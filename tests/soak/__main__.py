"""``python -m tests.soak --hours 8``: a broker under load for hours, and what befalls one.

Producers with keys, publishers without, consumers that acknowledge, requeue, dead-letter and
forget, people with browsers; and each 10 to 60 s one of: kill -9, SIGTERM, SIGSTOP, EIO, a slow or
full disk, a clock that jumps, a parted, slow or torn network, a flood of connections, a backup, a
scrub, a crowd of readers.  The clients keep books, which are compared with every dispatch and with
the database.  It needs gcc.

Prints a report, and ends with 1 where anything was lost, came again after its end was stored,
ended by itself, or grows.
"""

import asyncio
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tests.soak.nemesis import ALL
from tests.soak.report import offences_of, readings, report
from tests.soak.run import RATE, Plan, soak


@click.command(help=__doc__)
@click.option("--hours", type=float, default=0.0)
@click.option("--minutes", type=float, default=0.0)
@click.option("--seed", type=int, help="Repeats the choices of a run, though not its moments.")
@click.option("--rate", default=RATE, show_default=True, help="Confirmed publishes a second.")
@click.option(
    "--each",
    nargs=2,
    type=float,
    default=(10.0, 60.0),
    show_default=True,
    help="Seconds from one thing that befalls it to the next.",
)
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(list(ALL)), help="Only these; all without."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write the report there too, and beside it as .csv what was read of memory.",
)
def main(
    hours: float, minutes: float, seed: int | None, rate: float, each: tuple[float, float],
    kinds: tuple[str, ...], out: Path | None,
) -> None:  # fmt: skip
    """Run one and tell."""
    seconds = hours * 3_600 + minutes * 60
    if seconds <= 0:
        raise click.UsageError("say how long: --hours or --minutes")
    seed = random.SystemRandom().randrange(1, 10**9) if seed is None else seed
    plan = Plan(seconds, seed, each, kinds or tuple(ALL), rate)
    with TemporaryDirectory(prefix="phpmq-soak-") as folder:
        result = asyncio.run(soak(plan, Path(folder)))
        text = report(result)
        if offences_of(result):
            log = result.house.broker.log.read_text(encoding="utf-8")
            text += f"\nThe end of the broker's log:\n\n```\n{log[-5_000:]}\n```\n"
    click.echo(text)
    if out is not None:
        out.write_text(text, encoding="utf-8")
        out.with_suffix(".csv").write_text(readings(result), encoding="utf-8")
    sys.exit(bool(offences_of(result)))


if __name__ == "__main__":
    main()
