"""The archive's ledger with small text files; ``tests/spark`` has the jobs."""

import json
import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from phpmq_lite.spark import ledger as ledgers
from phpmq_lite.spark.ledger import (
    ArchiveFile,
    ArchiveLedger,
    DateManifest,
    ReplacedFile,
    add_counts,
    archive_files,
    commit,
    create_ledger,
    manifest_of,
    read_ledger,
    read_manifest,
    repair,
    tidy,
)
from tests.support.crashing_folder import CrashError, CrashingFolder

HOUR_MS = 3_600_000
TABLES = ("archive", "events")
DATES = ("2026-03-01", "2026-03-02", "2026-03-03")


class Archive:
    """An archive whose files contain one offset a line, and what should be in it.

    Each message has one event.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = CrashingFolder(root)
        self.now_ms = 1_000 * HOUR_MS
        self.offset = 0

    @property
    def ledger(self) -> ArchiveLedger:
        return read_ledger(self.files) or create_ledger()

    def stage(self, path: str, offsets: list[int], date: str) -> ArchiveFile:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("".join(f"{offset}\n" for offset in offsets))
        day = 20_513 + DATES.index(date)
        return ArchiveFile(
            path=path,
            rows=len(offsets),
            size_bytes=target.stat().st_size,
            lo=offsets[0],
            hi=offsets[-1],
            first_day=day,
            last_day=day,
            batch=path.split("/")[1],
            has_bodies=False,
        )

    def add_batch(self, dates: tuple[str, ...]) -> None:
        """Archive five rows for each date."""
        ledger, moves, manifests = self.ledger, {}, []
        name = f"b-{ledger.number + 1}"
        for date in dates:
            offsets = list(range(self.offset + 1, self.offset + 6))
            self.offset += 5
            path = manifest_of(ledger, date)
            before = DateManifest(date=date) if path is None else read_manifest(self.files, path)
            added = {}
            for table in TABLES:
                file = self.stage(f"staged/{name}/{table}/{date}/part.parquet", offsets, date)
                target = f"{table}/date={date}/batch={name}/part.parquet"
                moves[file.path] = target
                added[table] = (*before.files_of(table), replace(file, path=target))
            counts = add_counts(before.counts, {"q": {"acked": 5}})
            manifests.append(
                replace(before, files=added["archive"], events=added["events"], counts=counts)
            )
        commit(
            self.files,
            ledger,
            now_ms=self.now_ms,
            manifests=manifests,
            moves=moves,
            batch=name,
            offset=self.offset,
        )

    def merge(self, date: str) -> None:
        ledger = self.ledger
        path = manifest_of(ledger, date)
        if path is None or len(read_manifest(self.files, path).files) < 2:
            return
        manifest = read_manifest(self.files, path)
        number, moves, merged = ledger.number + 1, {}, {}
        for table in TABLES:
            old = manifest.files_of(table)
            offsets = sorted(o for f in old for o in self.offsets_in(self.root / f.path))
            file = self.stage(f"staged/merged/{table}/part.parquet", offsets, date)
            folder = f"generations/{number}/{table}/date={date}/batch=merged-{number}"
            moves[file.path] = f"{folder}/part.parquet"
            merged[table] = (replace(file, path=moves[file.path]),)
        commit(
            self.files,
            ledger,
            now_ms=self.now_ms,
            manifests=[replace(manifest, files=merged["archive"], events=merged["events"])],
            moves=moves,
            replaced=[ReplacedFile(path=f.path, at_ms=self.now_ms, reason="compact")
                      for f in (*manifest.files, *manifest.events)],
        )  # fmt: skip

    def prune(self, date: str) -> None:
        ledger = self.ledger
        if date not in ledger.dates:
            return
        manifest = read_manifest(self.files, ledger.dates[date].manifest)
        commit(
            self.files,
            ledger,
            now_ms=self.now_ms,
            manifests=[replace(manifest, files=(), events=(), removed=manifest.counts)],
            replaced=[ReplacedFile(path=f.path, at_ms=self.now_ms, reason="prune")
                      for f in (*manifest.files, *manifest.events)],
        )  # fmt: skip

    @staticmethod
    def offsets_in(file: Path) -> list[int]:
        return [int(line) for line in file.read_text().split()]

    def listed(self, dates: list[str] | None = None, table: str = "archive") -> Counter[int]:
        files = archive_files(self.files, self.ledger, dates=dates, table=table)
        paths = [self.root / file.path for file in files]
        return Counter(offset for path in paths for offset in self.offsets_in(path))

    def visible(self, table: str = "archive") -> Counter[int]:
        paths = (self.root / table).glob("**/*.parquet")
        return Counter(offset for path in paths for offset in self.offsets_in(path))


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path)


class Interrupted:
    """Random changes of an archive, each of which may be interrupted, also while it is repaired."""

    def __init__(self, archive: Archive, seed: int) -> None:
        self.archive = archive
        self.dice = random.Random(seed)
        self.expected: Counter[int] = Counter()
        self.pruned: set[int] = set()
        self.old_lists: list[tuple[int, list[list[ArchiveFile]], Counter[int]]] = []

    def step(self) -> None:
        archive, dice = self.archive, self.dice
        action = dice.choice(["batch", "batch", "merge", "prune", "tidy"])
        dates = tuple(sorted(dice.sample(DATES, dice.randint(1, 3))))
        first, number = archive.offset, archive.ledger.number
        rows_of_date = archive.listed([dates[0]])
        archive.files.left = dice.choice([None, *range(18)])
        with suppress(CrashError):
            if action == "batch":
                archive.add_batch(dates)
            elif action == "merge":
                archive.merge(dates[0])
            elif action == "prune":
                archive.prune(dates[0])
            else:
                tidy(archive.files, archive.ledger, now_ms=archive.now_ms)
        archive.files.left = dice.choice([None, *range(6)])
        with suppress(CrashError):
            repair(archive.files)
        archive.files.left = None
        repair(archive.files)
        archive.files.remove("staged")
        is_done = archive.ledger.number > number
        if action == "batch" and is_done:
            self.expected.update(range(first + 1, archive.offset + 1))
        elif action == "batch":
            archive.offset = first
        elif action == "prune" and is_done:
            self.pruned |= set(rows_of_date)
            self.expected -= rows_of_date

    def check(self) -> None:
        archive = self.archive
        assert archive.ledger.rows == self.expected.total()
        for table in TABLES:
            assert archive.listed(table=table) == self.expected
            visible = archive.visible(table)
            assert visible - self.expected <= Counter(self.pruned)  # until the grace period ends
            assert self.expected <= visible
        for at_ms, lists, rows in self.old_lists:
            if at_ms + ledgers.KEEP_REPLACED_MS > archive.now_ms:
                for files in lists:
                    paths = [archive.root / file.path for file in files]
                    assert Counter(o for path in paths for o in archive.offsets_in(path)) == rows
        listed = [archive_files(archive.files, archive.ledger, table=table) for table in TABLES]
        self.old_lists.append((archive.now_ms, listed, archive.listed()))


@pytest.mark.parametrize("seed", range(12))
def test_list_and_glob_have_each_row_once_whatever_is_interrupted(
    archive: Archive, seed: int
) -> None:
    """Old lists stay readable for 24 hours, and nothing stays behind for good."""
    changes = Interrupted(archive, seed)
    for _ in range(40):
        changes.step()
        changes.check()
        archive.now_ms += changes.dice.randint(0, 8) * HOUR_MS
    for _ in range(2):
        archive.now_ms += 25 * HOUR_MS
        tidy(archive.files, archive.ledger, now_ms=archive.now_ms)
    for table in TABLES:
        assert archive.listed(table=table) == archive.visible(table) == changes.expected
    assert archive.files.names("generations") == []
    manifests = {entry.manifest for entry in archive.ledger.dates.values()}
    stored = {f"ledger/dates/{name}" for name in archive.files.names("ledger/dates")}
    assert stored == manifests | set(archive.ledger.pruned.values())
    counts = [read_manifest(archive.files, path).counts["q"]["acked"] for path in stored]
    assert sum(counts) == len(changes.pruned) + changes.expected.total()


def test_readers_open_only_the_manifests_they_need(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    for date in DATES:
        archive.add_batch((date,))
    ledger = archive.ledger
    opened: list[str] = []
    read = archive.files.read

    def read_noted(path: str) -> str | None:
        opened.append(path)
        return read(path)

    monkeypatch.setattr(archive.files, "read", read_noted)

    def found(**given: int | list[str]) -> list[int]:
        opened.clear()
        return [file.lo for file in archive_files(archive.files, ledger, **given)]  # type: ignore[arg-type]

    assert found() == [1, 6, 11]
    assert len(opened) == 3
    assert (found(after_offset=10), len(opened)) == ([11], 1)
    assert (found(dates=["2026-03-02", "2026-03-09"]), len(opened)) == ([6], 1)
    assert (found(first_day=20_514, last_day=20_514), len(opened)) == ([6], 1)
    assert (found(after_offset=15), len(opened)) == ([], 0)


def test_manifest_of_an_archive_without_events_is_read(archive: Archive) -> None:
    archive.add_batch(DATES[:1])
    path = archive.ledger.dates[DATES[0]].manifest
    document = json.loads(archive.files.read(path) or "")
    del document["events"]
    archive.files.write(path, json.dumps(document))
    assert archive.listed() == Counter(range(1, 6))
    assert archive.listed(table="events") == Counter()


def test_files_are_copied_where_links_are_impossible(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Operation not permitted")

    archive.files.write("a/x", "1")
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    for _ in range(2):
        archive.files.copy("a/x", "b/c/x")
    assert archive.files.read("b/c/x") == "1"
    assert archive.files.names("b/c") == ["x"]
