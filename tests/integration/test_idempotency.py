"""Idempotency claims in a file that several processes and threads share."""

import multiprocessing
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
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


def test_claims_survive_a_crash_of_their_process(tmp_path: Path) -> None:
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
        assert claims.claim("begun") is IdempotencyDecision.IN_FLIGHT


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
