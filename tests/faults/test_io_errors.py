"""A write or an fsync fails: no wrong reply, nothing lost, the exit code as documented.

``python -m tests.faults.io_errors`` tries every call; here are some of each kind.
``PHPMQ_SEED=…`` repeats the random choices of a run.
"""

import errno
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from phpmq_lite.broker_process import StartFailedError
from phpmq_lite.storage.data_folder import DATABASE
from tests.faults.io_errors import Trials
from tests.faults.shim import Op, Shim
from tests.faults.shimmed_broker import NEEDS_SHIM, shimmed_broker
from tests.support.seed import SEED

pytestmark = [pytest.mark.faults, NEEDS_SHIM]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_second", [False, True])
def test_broker_keeps_its_promises_when_a_call_fails(
    tmp_path: Path, is_second: bool, figure: Callable[[str], None]
) -> None:
    """docs/operate/reliability.md, A write or an fsync that fails."""
    trials = Trials(tmp_path, is_second=is_second)
    trials.try_kinds(1, random.Random(SEED))
    for line in trials.lines:
        figure(line)
    assert any(outcome.is_in_writer for outcome in trials.outcomes) is is_second
    assert [outcome for outcome in trials.outcomes if outcome.offences] == [], f"seed {SEED}"


def test_start_that_cannot_read_does_not_report_damage(tmp_path: Path) -> None:
    """The files may be intact: only the shared memory beside them could not be created."""
    shim = Shim(tmp_path)
    shim.data.mkdir(mode=0o700)
    with sqlite3.connect(tmp_path / "made.db", isolation_level=None) as connection:
        connection.execute("PRAGMA journal_mode=wal")
        connection.execute("CREATE TABLE one (n)")
        for name in (DATABASE, f"{DATABASE}-wal"):
            shutil.copyfile(tmp_path / name.replace(DATABASE, "made.db"), shim.data / name)
    connection.close()
    shim.fail(Op.WRITE, 1, errno.EIO, is_sticky=True, name="-shm")
    broker = shimmed_broker(shim)
    with pytest.raises(StartFailedError, match=r"cannot read .*: disk I/O error") as failure:
        broker.start()
    assert failure.value.code == 1
    assert not list(shim.data.glob("damaged-*"))


def test_broker_that_cannot_seal_its_database_stops_cleanly(tmp_path: Path) -> None:
    """The next start checks the structure instead."""
    shim = Shim(tmp_path)
    broker = shimmed_broker(shim)
    broker.start()
    shim.fail(Op.WRITE, 2, errno.EIO, name=".meta.json")  # after the one that records the stop
    assert broker.terminate() == 0
    assert shim.failed == 1
    assert "not_sealed" in broker.log.read_text()


@pytest.mark.parametrize(("op", "name"), [(Op.UNLINK, "control.sock"), (Op.TRUNCATE, "lock")])
def test_stop_is_clean_although_it_cannot_clean_up(tmp_path: Path, op: Op, name: str) -> None:
    """Leftover files are as after a kill, and the next start accepts them."""
    shim = Shim(tmp_path)
    broker = shimmed_broker(shim)
    broker.start()
    shim.fail(op, 1, errno.EIO, name=name)
    assert broker.terminate() == 0
    assert shim.failed == 1


@pytest.mark.parametrize("is_second", [False, True])
def test_failing_calls_find_a_broker_that_carries_on(
    tmp_path: Path, is_second: bool, figure: Callable[[str], None]
) -> None:
    """Which call fails, and what a cut leaves, is random: several seeds are tried."""
    trials = Trials(tmp_path, "CarriesOn", is_second=is_second)
    lives: set[str] = set()
    for seed in range(SEED, SEED + 6):
        trials.try_kinds(4, random.Random(seed), [Op.SYNC], [errno.EIO])
        lives = {
            str(outcome.case)
            for outcome in trials.outcomes
            if outcome.is_in_writer is is_second
            and any("confirmed and lost" in offence for offence in outcome.offences)
        }
        if lives:
            break
    figure(
        f"mutant CarriesOn, seed {seed}: confirmed messages lost in {len(lives)} lives with a "
        f"failed fsync{' of the writer process' * is_second}"
    )
    assert lives
