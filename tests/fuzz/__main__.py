"""``python -m tests.fuzz parser --inputs 1000000 --seed 1``: many inputs, and what became of them.

Targets are ``parser``, ``answers``, ``options``, ``envelopes``, ``searches`` and ``uploads``.
``--processes`` shares the inputs out.  An input that is not caught is written into the corpus as
``crash-…``, shortened, and the program ends with 1; it stays there under the name of its outcome
once it is mended.

``--grow`` keeps one short input for each outcome that the corpus does not have.
"""

import multiprocessing
import random
import sys
from zlib import crc32

import click

from tests.fuzz.bodies import BODIES
from tests.fuzz.options import OPTIONS
from tests.fuzz.run import Found, fuzz, shortened
from tests.fuzz.searches import SEARCHES
from tests.fuzz.streams import ANSWERS, PARSER
from tests.fuzz.target import CRASH, Target
from tests.fuzz.uploads import UPLOADS

TARGETS: dict[str, Target] = {
    one.name: one for one in (PARSER, ANSWERS, OPTIONS, BODIES, SEARCHES, UPLOADS)
}


@click.command(help=__doc__)
@click.argument("name", type=click.Choice(sorted(TARGETS)))
@click.option("--inputs", default=20_000, show_default=True)
@click.option("--seed", type=int, help="Repeats a run; a number of chance without.")
@click.option("--processes", default=1, show_default=True)
@click.option("--grow", is_flag=True, help="Keep inputs with outcomes that are not in the corpus.")
def main(name: str, inputs: int, seed: int | None, processes: int, grow: bool) -> None:
    """Run one target and say what was found."""
    seed = random.SystemRandom().randrange(1, 10**9) if seed is None else seed
    shares = [(name, inputs // processes, seed + number) for number in range(processes)]
    found = Found()
    with multiprocessing.Pool(processes) as pool:
        for part in pool.imap_unordered(_share, shares):
            found += part
    click.echo(f"{name}: {found}, seed {seed}")
    target = TARGETS[name]
    if grow:
        grown = _grow(target, found)
        click.echo(f"{grown} kept in {target.folder}")
    for data, error in found.uncaught:
        short = shortened(target, data, None)
        path = target.keep(f"{CRASH}{crc32(short):08x}", short)
        click.echo(f"{error}\n  {short!r}\n  kept as {path}", err=True)
    sys.exit(bool(found.uncaught))


def _share(share: tuple[str, int, int]) -> Found:
    name, inputs, seed = share
    return fuzz(TARGETS[name], inputs, seed)


def _grow(target: Target, found: Found) -> int:
    """Keep new inputs."""
    new = sorted(found.first.keys() - target.kept().keys())
    for outcome in new:
        target.keep(outcome, shortened(target, found.first[outcome], outcome))
    return len(new)


if __name__ == "__main__":
    main()
