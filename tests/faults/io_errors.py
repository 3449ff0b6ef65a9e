"""The n-th write or fsync of a broker fails, for each n, until a whole life has no failure.

A life is a start, a bit of every kind of work, a checkpoint, and a stop; in a new folder, and in
one whose broker was killed.  A call fails once, or with all calls after it, with EIO, ENOSPC and
EROFS.  Then, without faults, no confirmed message may be lost; neither after a power cut, which may
lose the data of a failed fsync.

``python -m tests.faults.io_errors`` tries every n, and ends with 1 if a promise was broken;
``--sample 4`` tries 4 of each kind; ``--second`` lets a writer process store the batches.
``--seed N`` repeats its random choices.
"""

import argparse
import errno
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count, product
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Final

from phpmq_lite.broker_process import StartFailedError
from phpmq_lite.storage.data_folder import DATABASE
from tests.faults.disk import Disk, Policy
from tests.faults.ledger import IN_MEMORY, KEY_BYTES, MARKS, QUEUES
from tests.faults.power import lay, records_of, recovered
from tests.faults.power_ledger import PowerLedger
from tests.faults.shim import Op, Shim
from tests.faults.shimmed_broker import shimmed_broker
from tests.faults.writer_mutants import wait_until_unlocked
from tests.support.seed import SEED
from tests.support.socket_client import SocketClient

ERRORS: Final = (errno.EIO, errno.ENOSPC, errno.EROFS)
OPS: Final = (Op.SYNC, Op.WRITE)
QUEUE: Final = QUEUES[0]
START, LOAD, STOP = "start", "load", "stop"
KEYS_S: Final = 86_400  # a run takes longer than the default for remembering keys
FAULT_S: Final = 1.5  # duration of a lasting fault, because brokers wait for a full disk
AFTER_S: Final = 30.0  # time limit for replies and exits
AT_ONCE: Final = 4  # lives in parallel: each waits most of the time


@dataclass(frozen=True)
class Case:
    """The call that fails, and how."""

    op: Op
    error: int
    is_sticky: bool
    is_new: bool  # whether the folder is new; otherwise a broker was killed in it
    nth: int = 0

    def __str__(self) -> str:
        where = "new" if self.is_new else "killed"
        how = "on" if self.is_sticky else ""
        return f"{self.op.name} {self.nth}{how} {errno.errorcode[self.error]}, {where} folder"


@dataclass
class Outcome:
    case: Case
    failed: int = 0  # number of calls; 0 if the call was not reached
    name: str = ""  # of the file
    is_in_writer: bool = False  # whether the first failure was in the writer process
    is_in_start: bool = False  # whether the first failure was
    phase: str = START  # in which the broker exited
    code: int = 0
    is_healed: bool = False  # whether the fault was over before the exit
    words: str = ""  # on standard error
    offences: list[str] = field(default_factory=list)


class Trial:
    """One life with a fault."""

    def __init__(
        self,
        folder: Path,
        case: Case,
        killed: "Killed | None",
        mutant: str = "",
        *,
        is_second: bool = False,
    ) -> None:
        self.case = case
        self.shim = Shim(folder)
        self.log = folder / "log"
        self.killed = None if case.is_new else killed
        if self.killed is not None:
            shutil.copytree(
                self.killed.data, self.shim.data, ignore=shutil.ignore_patterns("*.sock")
            )
        flags = "--log-format", "json", "--set", f"receipts.window_s={KEYS_S}"
        self.broker = shimmed_broker(
            self.shim, *flags, mutant=mutant, is_hasty=True, is_second=is_second
        )
        self.outcome = Outcome(case)
        self.calls_to_ready: dict[Op, int] = {}
        self._is_over = threading.Event()
        self._broker_pid = 0
        self._keys = 0

    def run(self) -> Outcome:
        """Run the life, and compare the folder with the promises."""
        case, outcome, shim = self.case, self.outcome, self.shim
        shim.record(self.log)
        shim.fail(case.op, case.nth, case.error, is_sticky=case.is_sticky)
        ending = threading.Thread(target=self._end_fault)
        ending.start()
        try:
            outcome.code = self._live()
        finally:
            self._is_over.set()
            ending.join()
            self.broker.kill()
        wait_until_unlocked(shim.data)
        outcome.failed, outcome.name = shim.failed, shim.failed_name
        if self._broker_pid:  # it has started
            outcome.is_in_writer = shim.failed_pid not in (0, self._broker_pid)
        shim.stop_recording()
        outcome.words = self.broker.log.read_text(encoding="utf-8")
        self._compare()
        return outcome

    # -- the life

    def _live(self) -> int:
        """Start, load and stop; return the exit code."""
        broker, outcome = self.broker, self.outcome
        try:
            broker.start()
        except StartFailedError as error:
            return error.code
        finally:
            outcome.is_in_start = self.shim.failed > 0
        self._broker_pid = broker.pid
        outcome.phase = LOAD
        self.calls_to_ready = self.shim.counts()
        try:
            self._load()
        except (OSError, AssertionError) as error:
            if (code := self._ended()) is not None:
                return code
            outcome.offences.append(f"the broker lives, but: {error!r}")
        outcome.phase = STOP
        return broker.terminate()

    def _ended(self) -> int | None:
        """Return the exit code of a broker that exits by itself, or None."""
        process = self.broker.process
        assert process is not None
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=AFTER_S)
        return None

    def _end_fault(self) -> None:
        while not self._is_over.wait(0.05):
            if self.shim.failed:
                if not self._is_over.wait(FAULT_S):
                    self.outcome.is_healed = True
                    self.shim.heal()
                return

    def _load(self) -> None:
        with SocketClient(self.broker.port) as read_owner, SocketClient(self.broker.port) as taker:
            read_owner.socket.settimeout(AFTER_S)
            taker.socket.settimeout(AFTER_S)
            for _ in range(3):
                self._confirm(read_owner, QUEUE)
            taker.consume(QUEUE, 10)
            first, second, third = taker.dispatches(3)
            taker.ack(first)
            taker.requeue(second)
            taker.dead_letter(third)
            self._confirm(taker, MARKS)
            for _ in range(3):
                read_owner.publish(QUEUE, self._new_key() + b"plain")
            self._confirm(read_owner, QUEUE, 20_000)
            self._confirm(read_owner, QUEUE, 10, ttl_s=1)
            self._await_checkpoint()
            self._confirm(read_owner, QUEUE)

    def _new_key(self) -> bytes:
        self._keys += 1
        return b"%0*d" % (KEY_BYTES, (0 if self.killed is None else 1_000) + self._keys)

    def _confirm(self, peer: SocketClient, queue: str, size: int = 100, ttl_s: int = 0) -> None:
        """Publish until confirmed: it is rejected while the disk is full."""
        key = self._new_key()
        until = time.monotonic() + AFTER_S
        while True:
            peer.publish(queue, key + b"c" * size, ttl_s, key)
            answer = peer.receipt()
            assert answer.key == key
            if answer.reason is None:
                return
            if time.monotonic() > until:
                raise AssertionError(f"still rejected: {answer.reason}")
            time.sleep(0.02)

    def _await_checkpoint(self) -> None:
        """Wait for a checkpoint, but not for long, because it may fail."""
        database = self.shim.data / DATABASE
        before_ns, until = database.stat().st_mtime_ns, time.monotonic() + 1.0
        while time.monotonic() < until and database.stat().st_mtime_ns == before_ns:
            time.sleep(0.01)

    # -- the folder after it

    def _compare(self) -> None:
        """Start without faults, on the files as they are and as after a power cut."""
        disk, ledger = Disk(), PowerLedger()
        logs = [self.log] if self.killed is None else [self.killed.log, self.log]
        for record in records_of(logs):
            disk.take(record)
            ledger.take(record)
        offences = self.outcome.offences
        offences += (f"as it is: {found}" for found in recovered(self.shim.data, ledger))
        rng = random.Random(self.case.nth)
        for policy in Policy:
            with TemporaryDirectory(dir=IN_MEMORY) as folder:
                found = recovered(lay(Path(folder), disk.left(policy, rng)), ledger)
                offences += (f"{policy}: {each}" for each in found)
        offences += _misbehaviour(self.outcome)


class Killed:
    """A folder whose broker was killed, and the log of its life."""

    def __init__(self, folder: Path) -> None:
        trial = Trial(folder, Case(Op.SYNC, errno.EIO, False, True), None)
        self.data, self.log = trial.shim.data, trial.log
        trial.shim.record(self.log)
        trial.broker.start()
        trial._load()
        trial.broker.kill()
        self.calls = trial.shim.counts()


def _misbehaviour(outcome: Outcome) -> Iterator[str]:
    """Compare the exit with the documented ones (``docs/operate/reliability.md``)."""
    allowed = _documented(outcome)
    if outcome.code not in allowed:
        ended = f"exit code {outcome.code} in the {outcome.phase}"
        yield f"{ended}, not one of {sorted(allowed)}: {outcome.words.strip()[-300:]}"
    if outcome.code and not outcome.words.strip():
        yield f"exit code {outcome.code} without output"
    if "Traceback" in outcome.words:
        yield f"a traceback: {outcome.words[-300:]}"


def _documented(outcome: Outcome) -> set[int]:
    case = outcome.case
    if not outcome.failed:
        return {0}
    if outcome.phase == START:
        return {1, 74}  # 74 once it has begun to write
    if outcome.name == "seal":  # written after a checkpoint, but before one it must be erased
        return {0, 74}
    if not outcome.name.startswith(DATABASE):  # no promise depends on other files
        return {0, 74} if case.is_sticky else {0}  # a lasting fault may reach the database, too
    if outcome.name.endswith("-shm"):  # a reader's, or the writer's
        return {0, 74}
    if case.op is not Op.WRITE or case.error == errno.EIO:
        return {74}  # the content of the disk is unknown
    if case.error == errno.ENOSPC:
        return {0}  # it waits for room
    return {0, 74} if case.is_sticky else {74}  # read-only: it waits for a limited time


class Trials:
    """Runs cases, some in parallel, in ``folder``."""

    def __init__(self, folder: Path, mutant: str = "", *, is_second: bool = False) -> None:
        self.folder = folder
        self.mutant = mutant
        self.is_second = is_second
        self.killed = Killed(folder / "killed")
        self.outcomes: list[Outcome] = []
        self._pool = ThreadPoolExecutor(AT_ONCE)

    def run(self, cases: Iterable[Case]) -> list[Outcome]:
        """Try cases; folders of those without offences are removed."""
        found = list(self._pool.map(self._try, cases))
        self.outcomes += found
        return found

    def _try(self, case: Case) -> Outcome:
        folder = Path(mkdtemp(dir=self.folder))
        trial = Trial(folder, case, self.killed, self.mutant, is_second=self.is_second)
        outcome = trial.run()
        if not outcome.offences:
            shutil.rmtree(folder)
        return outcome

    def try_kinds(
        self,
        number: int,
        rng: random.Random,
        ops: Iterable[Op] = OPS,
        errors: Iterable[int] = ERRORS,
    ) -> None:
        """Try ``number`` cases of each kind, or all of them if it is 0."""
        for each in product(ops, errors, (False, True), (False, True)):
            case = Case(*each)
            if number:
                self._try_some(case, number, rng)
            else:
                self._try_all(case)
            if sys.stderr.isatty():
                print(f"{case}: {len(self.outcomes)} lives so far", file=sys.stderr)

    def _try_all(self, case: Case) -> None:
        """Try every n until a life has no failure, or none in the start of a new folder."""
        for first in count(1 + self._range(case).start, AT_ONCE):
            found = self.run(replace(case, nth=nth) for nth in range(first, first + AT_ONCE))
            is_start_only = case.is_new and not self.is_second
            if any(not one.failed or (is_start_only and not one.is_in_start) for one in found):
                return

    def _try_some(self, case: Case, number: int, rng: random.Random) -> None:
        """Try ``number`` of the calls of a life without faults."""
        calls = self._range(case)
        step = len(calls) / number
        numbers = (1 + calls.start + int(step * (at + rng.random())) for at in range(number))
        self.run(replace(case, nth=nth) for nth in numbers)

    def _range(self, case: Case) -> range:
        """Return the calls to try: in a new folder, those of the start.

        With a writer process, these are the calls after the start, which is the same without it.
        """
        to_ready, all_calls = (calls[case.op] for calls in self.calls(is_new=case.is_new))
        if self.is_second:
            return range(to_ready, all_calls)
        return range(to_ready if case.is_new else all_calls)

    @cache  # noqa: B019 - few objects
    def calls(self, *, is_new: bool) -> tuple[dict[Op, int], dict[Op, int]]:
        """Count the calls of a life without faults: until it is ready, and all."""
        folder = Path(mkdtemp(dir=self.folder))
        case = Case(Op.SYNC, errno.EIO, False, is_new)
        trial = Trial(folder, case, self.killed, is_second=self.is_second)
        outcome = trial.run()
        assert outcome.offences == [], outcome
        return trial.calls_to_ready, trial.shim.counts()

    @property
    def lines(self) -> Iterator[str]:
        """Figures: a line for each kind, and one for each offence."""
        for op, error in sorted({(each.case.op, each.case.error) for each in self.outcomes}):
            of = [each for each in self.outcomes if (each.case.op, each.case.error) == (op, error)]
            hit = [each for each in of if each.failed]
            codes = Counter(f"{each.phase} {each.code}" for each in hit)
            exits = ", ".join(f"{number} x {text}" for text, number in sorted(codes.items()))
            bad = sum(bool(each.offences) for each in of)
            writer = sum(each.is_in_writer for each in hit)
            where = f", in {writer} of them in the writer process" if self.is_second else ""
            yield (
                f"I/O errors, {op.name} {errno.errorcode[error]}: {len(hit)} lives with a failure"
                f"{where}, up to call {max((each.case.nth for each in hit), default=0)}; "
                f"ended in the {exits}; {bad} with a broken promise"
            )
        ends = Counter(_end_of(each) for each in self.outcomes if each.failed)
        for (what, name, phase, code), number in sorted(ends.items()):
            yield f"I/O errors: {number:5} x {what} of {name} in the {phase}: exit code {code}"
        for outcome in self.outcomes:
            for offence in outcome.offences:
                yield f"I/O errors: {outcome.case}, {outcome.name}: {offence}"[:700]


def _end_of(outcome: Outcome) -> tuple[str, str, str, int]:
    """Return the failure and its result, for counting."""
    case = outcome.case
    what = f"{case.op.name} {errno.errorcode[case.error]} {'on' if case.is_sticky else 'once'}"
    phase = outcome.phase + (", healed" if outcome.is_healed else "")
    return what, outcome.name or ".", phase, outcome.code


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.io_errors", description=__doc__)
    parser.add_argument("--sample", type=int, default=0, help="cases of each kind; 0: all")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--mutant", default="", help="a broker with a defect, see mutants.py")
    parser.add_argument("--second", action="store_true", help="with a writer process")
    parser.add_argument("--ops", default=",".join(op.name for op in OPS))
    parser.add_argument("--errors", default=",".join(errno.errorcode[each] for each in ERRORS))
    given = parser.parse_args()
    began = time.monotonic()
    ops = [Op[name] for name in given.ops.split(",")]
    errors = [getattr(errno, name) for name in given.errors.split(",")]
    with TemporaryDirectory(prefix="phpmq-io-") as folder:
        trials = Trials(Path(folder), given.mutant, is_second=given.second)
        trials.try_kinds(given.sample, random.Random(given.seed), ops, errors)
    print("\n".join(trials.lines))
    lives = len(trials.outcomes)
    print(f"I/O errors: {lives} lives, seed {given.seed}, {time.monotonic() - began:.0f} s")
    return int(any(outcome.offences for outcome in trials.outcomes))


if __name__ == "__main__":
    sys.exit(main())
