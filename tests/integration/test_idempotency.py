"""Idempotency claims in a file that several processes and threads share."""

import errno
import importlib
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from phpmq_lite.envelopes.idempotency import IdempotencyDecision, SqliteIdempotencyStore

KEYS = 60
PROCESSES = 4
FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")


def claim_all(path: Path, results: "multiprocessing.queues.Queue[tuple[str, str]]") -> None:
    """Claim every key; remember the keys that this process runs."""
    claims = SqliteIdempotencyStore(path)
    for number in range(KEYS):
        answer = claims.claim(str(number))
        if answer is IdempotencyDecision.RUN:
            claims.remember(str(number))
        results.put((str(number), answer.value))
    claims.close()


def claim_of_a_child(
    claims: SqliteIdempotencyStore, results: "multiprocessing.queues.Queue[str]"
) -> None:
    results.put(claims.claim("a").value)
    claims.remember("b")


def test_of_several_processes_exactly_one_runs_each_key(tmp_path: Path) -> None:
    results = SPAWN.Queue()
    path = tmp_path / "claims.sqlite"
    processes = [SPAWN.Process(target=claim_all, args=(path, results)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    answers = [results.get(timeout=60) for _ in range(KEYS * PROCESSES)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    runs = [key for key, answer in answers if answer == "run"]
    assert sorted(runs) == sorted(map(str, range(KEYS)))


def test_of_several_threads_exactly_one_runs_each_key(tmp_path: Path) -> None:
    with (
        closing(SqliteIdempotencyStore(tmp_path / "claims.sqlite")) as claims,
        ThreadPoolExecutor(4) as threads,
    ):
        answers = list(threads.map(claims.claim, [str(n) for n in range(KEYS)] * 4))
    assert answers.count(IdempotencyDecision.RUN) == KEYS


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_store_made_before_a_fork_works_in_both_processes(tmp_path: Path) -> None:
    results = FORK.Queue()
    with closing(SqliteIdempotencyStore(tmp_path / "claims.sqlite")) as claims:
        assert claims.claim("a") is IdempotencyDecision.RUN
        process = FORK.Process(target=claim_of_a_child, args=(claims, results))
        process.start()
        assert results.get(timeout=60) == "in flight"
        process.join()
        assert claims.claim("b") is IdempotencyDecision.DONE
        assert claims.claim("c") is IdempotencyDecision.RUN


def test_done_keys_survive_a_crash_of_their_process_and_claims_end(tmp_path: Path) -> None:
    path = tmp_path / "claims.sqlite"
    pid = os.fork()
    if pid == 0:
        claims = SqliteIdempotencyStore(path)
        claims.claim("done")
        claims.remember("done")
        claims.claim("begun")
        os._exit(0)  # closes nothing
    os.waitpid(pid, 0)
    with closing(SqliteIdempotencyStore(path)) as claims:
        assert claims.claim("done") is IdempotencyDecision.DONE
        assert claims.claim("begun") is IdempotencyDecision.RUN


def test_failed_commit_leaves_nothing_open(tmp_path: Path) -> None:
    path = tmp_path / "claims.sqlite"
    with closing(SqliteIdempotencyStore(path)) as claims:
        claims.claim("a")
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("DROP TABLE claim")
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            claims.claim("a")
        claims.close()  # the next claim opens the file again and creates the table
        assert claims.claim("a") is IdempotencyDecision.RUN


# A lease that is far shorter than the work of its holder

LEASE_S = 0.2
HOLDER = """
import ctypes, sys, time
from phpmq_lite.envelopes.idempotency import SqliteIdempotencyStore

claims = SqliteIdempotencyStore(sys.argv[1], lease_s=float(sys.argv[2]))
assert claims.claim("job").value == "run"
print("claimed", flush=True)
if sys.argv[3] == "busy":
    ctypes.PyDLL(None).usleep(int(1e6 * float(sys.argv[4])))  # holds the interpreter lock
    print("worked", flush=True)
sys.stdin.read()
claims.remember("job")
"""


@contextmanager
def holder(path: Path, work: str = "wait", work_s: float = 0) -> Iterator[subprocess.Popen[str]]:
    """Run a process that holds the claim until its input ends; it then marks the job as done."""
    arguments = [str(path), str(LEASE_S), work, str(work_s)]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "claimed\n"
            yield process
        finally:
            process.kill()


def wait_for_leases(path: Path) -> None:
    """Wait until three leases have passed since the claim, by the times in the file."""
    with closing(sqlite3.connect(path)) as connection:
        (until_ms,) = connection.execute("SELECT until_ms FROM claim").fetchone()
    while time.time() * 1_000 <= until_ms + 2 * LEASE_S * 1_000:
        time.sleep(LEASE_S / 4)


def test_stopped_holder_keeps_its_claim_for_three_leases(tmp_path: Path) -> None:
    path = tmp_path / "claims.sqlite"
    with holder(path) as process, closing(SqliteIdempotencyStore(path, lease_s=LEASE_S)) as claims:
        process.send_signal(signal.SIGSTOP)
        wait_for_leases(path)
        assert claims.claim("job") is IdempotencyDecision.IN_FLIGHT
        assert claims.purge() == 0
        assert claims.claim("job") is IdempotencyDecision.IN_FLIGHT
        process.send_signal(signal.SIGCONT)
        process.communicate("")
        assert claims.claim("job") is IdempotencyDecision.DONE


def test_holder_keeps_its_claim_while_c_code_is_busy(tmp_path: Path) -> None:
    path = tmp_path / "claims.sqlite"
    with (
        holder(path, "busy", 10 * LEASE_S) as process,
        closing(SqliteIdempotencyStore(path, lease_s=LEASE_S)) as claims,
    ):
        wait_for_leases(path)
        assert claims.claim("job") is IdempotencyDecision.IN_FLIGHT
        process.communicate("")
        assert claims.claim("job") is IdempotencyDecision.DONE


def test_killed_holder_loses_its_claim_long_before_its_lease_ends(tmp_path: Path) -> None:
    path = tmp_path / "claims.sqlite"
    with closing(SqliteIdempotencyStore(path, lease_s=3_600)) as claims:
        with holder(path) as process:
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                connection.execute("UPDATE claim SET until_ms = until_ms + 3600000")
            assert claims.claim("job") is IdempotencyDecision.IN_FLIGHT
            process.kill()
            process.wait()
        assert claims.claim("job") is IdempotencyDecision.RUN


def test_child_process_does_not_keep_the_claim_of_its_dead_parent(tmp_path: Path) -> None:
    """A handler may have started programs and forked processes that outlive it."""
    path = tmp_path / "claims.sqlite"
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        SqliteIdempotencyStore(path, lease_s=3_600).claim("job")
        child = os.fork()
        if child:
            os.write(writing, b"%d" % child)
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    child = int(os.read(reading, 20))
    os.waitpid(pid, 0)
    try:
        with closing(SqliteIdempotencyStore(path, lease_s=3_600)) as claims:
            assert claims.claim("job") is IdempotencyDecision.RUN
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(reading)
        os.close(writing)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the holder is on another machine than this process."""
    locks = importlib.import_module("phpmq_lite.envelopes.sqlite_file")
    monkeypatch.setattr(locks, "_machine", lambda: "another")
    monkeypatch.setattr(locks.LOCKS, "_held", {})


@pytest.mark.usefixtures("elsewhere")
def test_holder_on_another_machine_renews_its_claim(tmp_path: Path) -> None:
    path = tmp_path / "claims.sqlite"
    with holder(path) as process, closing(SqliteIdempotencyStore(path, lease_s=LEASE_S)) as claims:
        first_ms = 0
        for _ in range(3):  # three renewals, each after a third of the lease
            with closing(sqlite3.connect(path)) as connection:
                while True:
                    (until_ms,) = connection.execute("SELECT until_ms FROM claim").fetchone()
                    if until_ms > first_ms:
                        break
                    time.sleep(LEASE_S / 20)
            first_ms = until_ms
        process.send_signal(signal.SIGSTOP)
        while claims.claim("job") is IdempotencyDecision.IN_FLIGHT:  # as if its machine had died
            time.sleep(LEASE_S / 20)
        assert time.time() * 1_000 >= until_ms


def test_claims_of_an_earlier_version_are_leases(tmp_path: Path) -> None:
    path = tmp_path / "claims.sqlite"
    with closing(SqliteIdempotencyStore(path)) as claims:
        claims.open()
        now_ms = time.time_ns() // 1_000_000
        with closing(sqlite3.connect(path)) as connection, connection:
            rows = [("old", "0" * 32, now_ms - 1), ("young", "0" * 32, now_ms + 100_000)]
            connection.executemany("INSERT INTO claim VALUES (?, ?, ?)", rows)
        assert claims.claim("old") is IdempotencyDecision.RUN
        assert claims.claim("young") is IdempotencyDecision.IN_FLIGHT


def test_stores_of_one_process_share_its_lock(tmp_path: Path) -> None:
    """Closing any descriptor of a file ends all POSIX locks of the process on it."""
    path = tmp_path / "claims.sqlite"
    with closing(SqliteIdempotencyStore(path, lease_s=3_600)) as first:
        first.claim("job")
        with closing(SqliteIdempotencyStore(path, lease_s=3_600)) as second:
            assert second.claim("job") is IdempotencyDecision.IN_FLIGHT
            second.claim("other")
        assert run_in_child(path, "job") == "in flight"
        first.forget("job")
        assert run_in_child(path, "job") == "run"


def run_in_child(path: Path, key: str) -> str:
    results = SPAWN.Queue()
    process = SPAWN.Process(target=claim_in_a_child, args=(path, key, results))
    process.start()
    answer: str = results.get(timeout=60)
    process.join()
    return answer


def claim_in_a_child(path: Path, key: str, results: "multiprocessing.queues.Queue[str]") -> None:
    with closing(SqliteIdempotencyStore(path)) as claims:
        results.put(claims.claim(key).value)
        claims.forget(key)


def test_claims_are_leases_where_no_lock_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = importlib.import_module("phpmq_lite.envelopes.sqlite_file")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(locks.fcntl, "lockf", refuse)
    with closing(SqliteIdempotencyStore(tmp_path / "claims.sqlite")) as claims:
        assert claims.claim("a") is IdempotencyDecision.RUN
        assert claims.claim("a") is IdempotencyDecision.IN_FLIGHT
