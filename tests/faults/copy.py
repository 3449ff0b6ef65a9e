"""A store is copied to PostgreSQL and back, and killed three times each way.

``python -m tests.faults.copy`` copies 1,000,000 live and 2,000,000 settled messages, prints the
figures and ends with 1 if a message differs by id, order, outcome or body; ``--short`` copies
10,000.  ``--url`` names an empty database; without it, a server is started that does not sync.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from phpmq_lite.errors import StartRefusedError
from phpmq_lite.storage.copying import release
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.postgres.copy_side import open_database
from phpmq_lite.storage.sqlite.integrity.database_check import verify
from tests.support.filled_store import filled_folder, postgres_fingerprint, sqlite_fingerprint
from tests.support.postgres_server import postgres_server
from tests.support.seed import SEED

# When to kill: some time after this phase has begun.
MOMENTS: Final = ("body", "history", "verifying")
NO_QUORUM: Final = ("--set", "store.allow_asynchronous=true")


@dataclass
class Way:
    seconds: float = 0.0  # without those of killed runs
    killed_s: float = 0.0
    kills: list[str] = field(default_factory=list)
    report: list[dict[str, int]] = field(default_factory=list)


def run_once(words: list[str], phase: str | None, delay_s: float) -> tuple[int | None, str]:
    """Run a copy; kill it after a phase has begun.  Return its exit code (None: killed), output."""
    command = [sys.executable, "-m", "phpmq_lite", "store", "copy", *words, "-o", "jsonl"]
    log = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        for line in process.stderr:
            log.append(line)
            if phase is not None and f'"phase": "{phase}"' in line:
                time.sleep(delay_s)
                process.kill()
                break
        output = process.stdout.read()
        code = process.wait()
    if code > 0:
        raise AssertionError("".join(log[-20:]))
    return (None if code else 0), output


def copy_with_kills(
    words: list[str], chance: random.Random, longest_s: float, refused: Callable[[], None]
) -> Way:
    way = Way()
    for phase in MOMENTS:
        began_s = time.monotonic()
        code, _ = run_once(words, phase, chance.uniform(0, longest_s))
        way.killed_s += time.monotonic() - began_s
        if code is None:
            way.kills.append(phase)
            refused()
        else:
            raise AssertionError(f"the copy ended before it was killed in the phase {phase}")
    began_s = time.monotonic()
    _, output = run_once(words, None, 0)
    way.seconds = time.monotonic() - began_s
    way.report = [json.loads(line) for line in output.splitlines()]
    return way


def assert_refused(folder: Path) -> None:
    try:
        with closing(DataFolder.open(folder)):
            raise AssertionError(f"a broker could start in {folder}")
    except StartRefusedError:
        pass


def run(
    place: Path,
    url: str,
    conninfo: str,
    *,
    live: int,
    settled: int,
    seed: int,
    more: tuple[str, ...],
) -> list[str]:
    """Copy there and back; return the figures."""
    chance = random.Random(seed)
    data, back = filled_folder(place / "data", live=live, settled=settled), place / "back"
    expected = sqlite_fingerprint(data)
    longest_s = (live + settled) / 100_000  # within each of the phases
    figures = [f"{live:,} live and {settled:,} settled messages, seed {seed}"]
    for name, words, folder in (
        ("SQLite to PostgreSQL", [str(data), url], data),
        ("PostgreSQL to SQLite", [url, str(back)], back),
    ):
        way = copy_with_kills(
            [*words, *more],
            chance,
            longest_s,
            lambda folder=folder: assert_refused(folder),  # type: ignore[misc]
        )
        size = sum(row["bytes"] for row in way.report) / 1e6
        rows = sum(row["rows"] for row in way.report)
        figures.append(
            f"{name}: {rows:,} rows, {size:,.0f} MB as text; killed in {', '.join(way.kills)} after"
            f" {way.killed_s:.1f} s in total; the last run took {way.seconds:.1f} s"
        )
        found = postgres_fingerprint(conninfo) if folder is data else sqlite_fingerprint(back)
        if found != expected:
            raise AssertionError(f"{name}: {found} instead of {expected}")
    bad = [problem for check in verify(back) for problem in check.problems]
    if bad:
        raise AssertionError(f"verify: {bad}")
    with open_database(url, is_target=False, allow_asynchronous=bool(more)) as side:
        release(side)
    for name, words in (
        ("PostgreSQL to SQLite", [url, str(back), "--replace"]),
        ("SQLite to PostgreSQL", [str(back), url, "--replace"]),
    ):
        began_s = time.monotonic()
        run_once([*words, *more], None, 0)
        figures.append(f"{name}, undisturbed: {time.monotonic() - began_s:.1f} s")
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="10,000 messages")
    parser.add_argument("--url", help="an empty database of servers with a quorum")
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    live, settled = (3_000, 7_000) if given.short else (1_000_000, 2_000_000)
    with TemporaryDirectory(prefix="phpmq-copy-") as place:
        if given.url:
            figures = run(
                Path(place),
                given.url,
                given.url,
                live=live,
                settled=settled,
                seed=given.seed,
                more=(),
            )
        else:
            with postgres_server() as server, server.database("template0") as name:
                figures = run(
                    Path(place), server.url(name), server.conninfo(name), live=live,
                    settled=settled, seed=given.seed, more=NO_QUORUM,
                )  # fmt: skip
    print("\n".join(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
