"""The short form of ``tests.faults.copy``."""

from pathlib import Path

from tests.faults.copy import NO_QUORUM, run
from tests.support.postgres_server import PostgresServer
from tests.support.seed import SEED


def test_copy_that_is_killed_is_continued(tmp_path: Path, postgres: PostgresServer) -> None:
    with postgres.database("template0") as name:
        run(
            tmp_path, postgres.url(name), postgres.conninfo(name), live=3_000, settled=7_000,
            seed=SEED, more=NO_QUORUM,
        )  # fmt: skip
