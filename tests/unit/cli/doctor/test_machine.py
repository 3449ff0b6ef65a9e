"""The machine, judged by made-up facts."""

import pytest

from phpmq_lite.cli.doctor import host
from phpmq_lite.cli.doctor.findings import BAD, OK, WARN

NOW_MS = 1_800_000_000_000
GIB = 1 << 30


@pytest.mark.parametrize(
    ("files", "state", "words"),
    [
        (None, OK, "no limit"),
        (4_096, OK, "4,096 may be open, enough for 500 connections"),
        (564, OK, "564 may be open"),
        (563, WARN, "563 may be open, so 499 of limits.connections, 500, can connect"),
    ],
)
def test_open_files_are_judged(files: int | None, state: str, words: str) -> None:
    found = host.open_files_finding(500, 100, files)
    assert (found.state, words in found.found) == (state, True), found
    assert ("LimitNOFILE=664" in found.hint) == (state == WARN)


@pytest.mark.parametrize(
    ("bound", "of_machine", "state", "words"),
    [
        (GIB, 8 * GIB, OK, "limits.memory, 1 GiB, of 8 GiB"),
        (GIB, 0, OK, "limits.memory, 1 GiB"),
        (GIB // 2, 8 * GIB, WARN, "the container's limit leaves 512 MiB of limits.memory, 1 GiB"),
        (GIB, GIB, WARN, "more than three quarters of the 1 GiB"),
    ],
)
def test_memory_is_judged(bound: int, of_machine: int, state: str, words: str) -> None:
    found = host.memory_finding(GIB, bound, of_machine)
    assert (found.state, words in found.found) == (state, True), found


@pytest.mark.parametrize(
    ("now_ms", "made_ms", "kept", "state", "words"),
    [
        (NOW_MS, 0, True, OK, "2027-01-15 08:00:00 UTC, synchronized by a time service"),
        (NOW_MS, 0, None, OK, "2027-01-15 08:00:00 UTC"),
        (NOW_MS, 0, False, WARN, "not synchronized by a time service"),
        (NOW_MS, NOW_MS + 59_000, True, OK, "UTC"),
        (NOW_MS, NOW_MS + 7_200_000, True, BAD, "the data folder was created 2 h later"),
        (0, 0, True, BAD, "1970-01-01 00:00:00 UTC is impossible"),
        (5_000_000_000_000, 0, True, BAD, "is impossible"),
    ],
)
def test_clock_is_judged(
    now_ms: int, made_ms: int, kept: bool | None, state: str, words: str
) -> None:
    found = host.clock_finding(now_ms, made_ms, kept)
    assert (found.state, words in found.found) == (state, True), found


def test_kernel_is_asked_for_the_clock() -> None:
    assert host.is_clock_synchronized() in (True, False, None)


@pytest.mark.parametrize(("hard", "words"), [(None, "`ulimit -n 664`"), (1_000, "`ulimit -n 664`")])
def test_limit_that_the_account_may_raise_is_its_own_to_raise(hard: int | None, words: str) -> None:
    assert words in host.open_files_finding(500, 100, 200, hard).hint


def test_limit_that_only_root_may_raise_is_not_recommended_to_others() -> None:
    hint = host.open_files_finding(500, 100, 200, 300).hint
    assert "ulimit -n" not in hint
    assert "this account may have 300 at most: ask root for LimitNOFILE=664" in hint
    assert "or set limits.connections = 136" in hint
