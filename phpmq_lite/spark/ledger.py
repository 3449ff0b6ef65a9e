"""Ledger of the archive: which files it consists of, and what each change added or removed.

``ledger/00000042.json`` is one version, and the highest number is the current one. It names one
manifest for each date, ``ledger/dates/2026-03-01.42.json``, which lists the files of the date.
Neither is ever changed. A change first writes ``ledger/prepared.json``; from then on, it can only
be completed, which ``repair`` does. Writers hold the lock ``LOCK``; readers need no lock, because
files that a change replaced remain for a grace period, during which older lists stay readable.

Merged and rewritten files are created below ``generations/``, outside of the archive, where the
replaced files stay. After the grace period, ``tidy`` removes those and copies the new files in, so
that ``archive/**/*.parquet`` shows each row once at any time.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Self

from phpmq_lite.spark.prepared import PreparedChange, carry_out, complete
from phpmq_lite.spark.results_folder import ARCHIVE, EVENTS, LEDGER, ResultsFolder

LOCK: Final = "archive"  # held exclusively by every job that changes the archive
STAGED: Final = "staged"
GENERATIONS: Final = "generations"
KEEP_REPLACED_MS: Final = 24 * 3_600_000

_TABLES: Final = (ARCHIVE, EVENTS)
_PREPARED: Final = f"{LEDGER}/prepared.json"
_VERSION: Final = 1

Counts = Mapping[str, Mapping[str, int]]  # queue -> outcome -> rows


def now_ms() -> int:
    """Return the current time in Unix ms."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """A Parquet file; ``path`` is relative to the results folder.

    Days are numbers of days since 1970. They span all times of the rows, not only ``settled_at``.
    """

    path: str
    rows: int
    size_bytes: int
    lo: int  # first offset
    hi: int  # last offset
    first_day: int
    last_day: int
    batch: str
    has_bodies: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DateEntry:
    """The totals of one date's manifest, by which readers skip manifests."""

    manifest: str
    rows: int
    size_bytes: int
    lo: int
    hi: int
    first_day: int
    last_day: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DateManifest:
    """The files of one date, and how many rows were ever archived, pruned and erased."""

    date: str
    files: tuple[ArchiveFile, ...] = ()
    events: tuple[ArchiveFile, ...] = ()  # of the exceptional steps of the same messages
    counts: Counts = field(default_factory=dict)  # all rows that were ever archived
    removed: Counts = field(default_factory=dict)  # rows that prune and erase removed

    def files_of(self, table: str) -> tuple[ArchiveFile, ...]:
        """Return the files of the table ``archive`` or ``events``."""
        return self.events if table == EVENTS else self.files

    def select(self, is_chosen: Callable[[ArchiveFile], bool]) -> Self:
        """Return the manifest with only the chosen files of both tables."""
        files, events = (tuple(filter(is_chosen, part)) for part in (self.files, self.events))
        return replace(self, files=files, events=events)

    def replaced(self, at_ms: int, reason: str) -> "list[ReplacedFile]":
        """Return the files of both tables, which leave the list."""
        paths = [file.path for file in (*self.files, *self.events)]
        return [ReplacedFile(path=path, at_ms=at_ms, reason=reason) for path in paths]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedFile:
    """A file that only readers of older lists still open."""

    path: str
    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLedger:
    """One version of the ledger; dates are UTC dates of ``settled_at``, such as ``2026-03-01``."""

    number: int
    archive_id: str  # 8 hex digits, created with the folder
    history_id: str | None = None
    begin: int | None = None  # offset before the first archived one
    offset: int | None = None  # last archived offset
    batch: str | None = None  # name of the last batch
    at_ms: int = 0
    dates: Mapping[str, DateEntry] = field(default_factory=dict)
    pruned: Mapping[str, str] = field(default_factory=dict)  # date -> manifest with its counts
    replaced: tuple[ReplacedFile, ...] = ()
    leftovers: tuple[str, ...] = ()  # files of a batch that an older version did not commit

    @property
    def rows(self) -> int:
        """Number of rows in the archive."""
        return sum(entry.rows for entry in self.dates.values())

    @property
    def reader(self) -> str:
        """Name under which the broker shows how far the archive is."""
        return f"archive-{self.archive_id}"

    @property
    def size_bytes(self) -> int:
        """Size of all files that the list names."""
        return sum(entry.size_bytes for entry in self.dates.values())


def read_ledger(files: ResultsFolder) -> ArchiveLedger | None:
    """Return the current version, or None if the archive has no ledger."""
    numbers = [name.removesuffix(".json") for name in files.names(LEDGER)]
    latest = max((int(number) for number in numbers if number.isdecimal()), default=None)
    text = None if latest is None else files.read(_root_path(latest))
    return None if text is None else _parse_root(json.loads(text))


def create_ledger(**fields: Any) -> ArchiveLedger:
    """Return version 0 for a new archive, which ``commit`` does not write."""
    return ArchiveLedger(number=0, archive_id=secrets.token_hex(4), **fields)


def archive_files(
    files: ResultsFolder,
    ledger: ArchiveLedger,
    *,
    table: str = ARCHIVE,
    dates: Iterable[str] | None = None,
    after_offset: int | None = None,
    first_day: int | None = None,
    last_day: int | None = None,
) -> list[ArchiveFile]:
    """Return the files that may have matching rows, by date; reads only the manifests needed.

    Args:
        files: the results folder.
        ledger: the version to read.
        table: ``archive``, or ``events``, which has the exceptional steps of its messages.
        dates: only these dates of ``settled_at``, such as ``2026-03-01``.
        after_offset: only files with rows above this offset.
        first_day: only files with a time on or after this day (days since 1970).
        last_day: only files with a time on or before this day.
    """

    def matches(part: ArchiveFile | DateEntry) -> bool:
        return (
            (after_offset is None or part.hi > after_offset)
            and (first_day is None or part.last_day >= first_day)
            and (last_day is None or part.first_day <= last_day)
        )

    requested = None if dates is None else set(dates)
    return [
        file
        for date, entry in sorted(ledger.dates.items())
        if (requested is None or date in requested) and matches(entry)
        for file in read_manifest(files, entry.manifest).files_of(table)
        if matches(file)
    ]


def manifest_of(ledger: ArchiveLedger, date: str) -> str | None:
    """Return the path of a date's manifest, also if the date was pruned; None for a new date."""
    entry = ledger.dates.get(date)
    return ledger.pruned.get(date) if entry is None else entry.manifest


def read_manifest(files: ResultsFolder, path: str) -> DateManifest:
    """Return a manifest, which must exist."""
    document = json.loads(files.read(path) or "")
    for name in ("files", "events"):
        document[name] = tuple(ArchiveFile(**file) for file in document.get(name, ()))
    return DateManifest(**document)


def first_ms(date: str) -> int:
    """Return the Unix ms at which a UTC date such as ``2026-03-01`` begins."""
    return int(datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()) * 1_000


def add_counts(*counts: Counts) -> Counts:
    """Return the sums by queue and outcome."""
    sums: dict[str, dict[str, int]] = {}
    for queue, outcomes in (item for part in counts for item in part.items()):
        into = sums.setdefault(queue, {})
        for outcome, rows in outcomes.items():
            into[outcome] = into.get(outcome, 0) + rows
    return sums


def commit(
    files: ResultsFolder,
    ledger: ArchiveLedger,
    *,
    now_ms: int,
    manifests: Iterable[DateManifest] = (),
    moves: Mapping[str, str] | None = None,
    copies: Mapping[str, str] | None = None,
    removes: Sequence[str] = (),
    replaced: Iterable[ReplacedFile] = (),
    writes: Mapping[str, Any] | None = None,
    **changes: Any,
) -> ArchiveLedger:
    """Store a new version atomically, and return it.

    Args:
        files: the results folder, whose ``LOCK`` is held.
        ledger: the current version.
        now_ms: Unix ms.
        manifests: the dates that change; a date without files leaves the list.
        moves: source and target of each file to move.
        copies: source and target of each file to copy.
        removes: files that are no longer needed.
        replaced: files that leave the list but stay for the grace period.
        writes: JSON documents that other files get by the same change.
        changes: other fields of ``ArchiveLedger``.
    """
    number, dates, pruned = ledger.number + 1, dict(ledger.dates), dict(ledger.pruned)
    retired = [_root_path(ledger.number)] if ledger.number else []
    documents = dict(writes or {})
    for manifest in manifests:
        path = f"{LEDGER}/dates/{manifest.date}.{number}.json"
        documents[path] = asdict(manifest)
        if before := manifest_of(ledger, manifest.date):
            retired.append(before)
            dates.pop(manifest.date, None)
            pruned.pop(manifest.date, None)
        if manifest.files:
            dates[manifest.date] = _entry(path, manifest.files)
        else:
            pruned[manifest.date] = path
    remaining = [file for file in ledger.replaced if file.path not in set(removes)]
    remaining += (ReplacedFile(path=path, at_ms=now_ms, reason="ledger") for path in retired)
    fields = {"number": number, "at_ms": now_ms, "dates": dates, "pruned": pruned, **changes}
    root = replace(ledger, replaced=(*remaining, *replaced), **fields)
    change = PreparedChange(
        writes=documents,
        moves=moves or {},
        copies=copies or {},
        removes=removes,
        root=(_root_path(number), {"version": _VERSION, **asdict(root)}),
    )
    carry_out(files, _PREPARED, change)
    return root


def repair(files: ResultsFolder) -> None:
    """Complete a change that was interrupted; the caller holds ``LOCK``."""
    complete(files, _PREPARED)


def tidy(
    files: ResultsFolder, ledger: ArchiveLedger, *, now_ms: int, keep_ms: int = KEEP_REPLACED_MS
) -> ArchiveLedger:
    """Remove replaced files after ``keep_ms``, and copy the files that replaced them in."""
    expired = {file.path for file in ledger.replaced if file.at_ms + keep_ms <= now_ms}
    visible: dict[str, set[str]] = {}  # date -> replaced files that are still in the archive
    for file in ledger.replaced:
        if file.path.split("/")[0] in _TABLES:
            visible.setdefault(file.path.split("/")[1].removeprefix("date="), set()).add(file.path)
    copies: dict[str, str] = {}
    manifests = []
    for date, paths in visible.items():
        if not paths <= expired:  # removing only some of them would hide rows
            expired -= paths
        elif date in ledger.dates:
            manifest = read_manifest(files, ledger.dates[date].manifest)
            outside = [file.path for file in (*manifest.files, *manifest.events)]
            copies |= {path: target for path in outside if (target := _inside(path)) != path}
            moved, events = map(_moved_inside, (manifest.files, manifest.events))
            manifests.append(replace(manifest, files=moved, events=events))
    if not expired:
        return ledger
    copied = [ReplacedFile(path=path, at_ms=now_ms, reason="copied") for path in copies]
    return commit(
        files,
        ledger,
        now_ms=now_ms,
        manifests=manifests,
        copies=copies,
        removes=sorted(expired),
        replaced=copied,
    )


def is_change_due(
    files: ResultsFolder, ledger: ArchiveLedger, *, now_ms: int, keep_ms: int
) -> bool:
    """Return whether ``repair`` or ``tidy`` has something to do."""
    is_expired = any(file.at_ms + keep_ms <= now_ms for file in ledger.replaced)
    return is_expired or files.exists(_PREPARED)


def _inside(path: str) -> str:
    """Return the path in its table for a file below ``generations/<number>/``."""
    parts = path.split("/")
    return "/".join(parts[2:]) if parts[0] == GENERATIONS else path


def _moved_inside(parts: Sequence[ArchiveFile]) -> tuple[ArchiveFile, ...]:
    return tuple(replace(file, path=_inside(file.path)) for file in parts)


def _entry(path: str, parts: Sequence[ArchiveFile]) -> DateEntry:
    return DateEntry(
        manifest=path,
        rows=sum(file.rows for file in parts),
        size_bytes=sum(file.size_bytes for file in parts),
        lo=min(file.lo for file in parts),
        hi=max(file.hi for file in parts),
        first_day=min(file.first_day for file in parts),
        last_day=max(file.last_day for file in parts),
    )


def _root_path(number: int) -> str:
    return f"{LEDGER}/{number:08d}.json"


def _parse_root(document: dict[str, Any]) -> ArchiveLedger:
    del document["version"]
    dates = {date: DateEntry(**entry) for date, entry in document.pop("dates").items()}
    replaced = tuple(ReplacedFile(**file) for file in document.pop("replaced"))
    leftovers = tuple(document.pop("leftovers"))
    return ArchiveLedger(dates=dates, replaced=replaced, leftovers=leftovers, **document)
