"""State of the typed tables: their columns, and the last archived offset that they contain.

``tables/_state/urn.json`` is the state of the tables by URN, ``queue.json`` that of those by queue.
Both change together with the files of the tables (see ``prepared``). Writers hold the lock
``LOCK``, and first call ``repair_tables``.
"""

import json
from typing import Any, Final

import msgspec

from phpmq_lite.envelopes.payload_shape import Shape
from phpmq_lite.errors import RefusedError
from phpmq_lite.spark.ledger import ArchiveFile, ArchiveLedger, archive_files, read_ledger
from phpmq_lite.spark.prepared import PreparedChange, carry_out, complete
from phpmq_lite.spark.results_folder import QUEUE_TABLES, REJECTS, TABLES, ResultsFolder
from phpmq_lite.spark.selection import ArchiveSelection, read_selection

LOCK: Final = "tables"
FOLDERS: Final = {"urn": TABLES, "queue": QUEUE_TABLES}  # where the tables are
STAGED: Final = f"{TABLES}/_staged"  # tables have other names, which are percent-encoded
ARCHIVE_COMMAND: Final = "`phpmq-lite pipeline archive --bodies`"
COUNTED: Final = ("rejects", "misfits", "erased", "without_body", "without_urn")  # by a run
_PREPARED: Final = f"{TABLES}/_state/prepared.json"


class TypedTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A table of one URN or queue."""

    folder: str
    shape: Shape
    version: int = 1  # number of its columns, which grows with each change
    document: str | None = None  # the registered schema as JSON; None: inferred from bodies


class TablesState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the tables contain; ``number`` counts the changes."""

    archive_id: str
    number: int = 0
    offset: int = 0
    selection: str = ""  # the archive's, as JSON; what a wider one adds is below the offset
    tables: dict[str, TypedTable] = {}  # by URN or queue


def read_state(files: ResultsFolder, by: str) -> TablesState | None:
    """Return the state, or None if there are no tables by ``by`` (of ``FOLDERS``)."""
    text = files.read(_state_file(by))
    return None if text is None else msgspec.json.decode(text, type=TablesState)


def repair_tables(files: ResultsFolder) -> None:
    """Complete a change that was interrupted, and remove what a killed run has staged."""
    complete(files, _PREPARED)
    files.remove(STAGED)


def replace_files(files: ResultsFolder, change: PreparedChange) -> None:
    """Change files of tables; those to move are below ``STAGED``."""
    files.sync(STAGED)
    carry_out(files, _PREPARED, change)
    files.remove(STAGED)


def new_files(
    files: ResultsFolder, state: TablesState | None
) -> tuple[ArchiveLedger, list[ArchiveFile]]:
    """Return the archive, and its files with rows that the tables lack.

    Raises:
        RefusedError: ``no_archive``; ``no_bodies``; ``other_archive``: the tables belong to another
            archive.
    """
    ledger = read_ledger(files)
    if ledger is None or ledger.offset is None:
        raise RefusedError(
            "no_archive",
            f"there is no archive in {files.url('')}: run {ARCHIVE_COMMAND} first",
        )
    if state is not None and state.archive_id != ledger.archive_id:
        raise RefusedError(
            "other_archive",
            f"the tables in {files.url(TABLES)} belong to the archive {state.archive_id}, not to"
            f" {ledger.archive_id}; remove the folder to create them again",
        )
    chosen = archive_files(files, ledger, after_offset=0 if state is None else state.offset)
    if chosen and not any(file.has_bodies for file in chosen):
        raise RefusedError(
            "no_bodies",
            f"the archive has no bodies of offsets {min(file.lo for file in chosen)} to"
            f" {max(file.hi for file in chosen)}: run {ARCHIVE_COMMAND}; bodies are then there from"
            f" offset {ledger.offset + 1} on",
        )
    return ledger, chosen


def is_current(files: ResultsFolder, by: str) -> bool:
    """Return whether a run would find nothing to do; raises as ``new_files`` does."""
    state = read_state(files, by)
    ledger, new = new_files(files, state)
    if state is None:
        return not new
    is_read = (state.offset, state.selection) == (ledger.offset, stored_selection(files))
    return is_read and not (files.exists(_PREPARED) or files.exists(STAGED))


def stored_selection(files: ResultsFolder) -> str:
    """Return the archive's selection as JSON."""
    return json.dumps((read_selection(files) or ArchiveSelection()).document())


class TableChanges:
    """A change of tables by ``by``; ``add`` takes the files that are staged for a table."""

    def __init__(self, files: ResultsFolder, by: str, state: TablesState) -> None:
        self.files, self.by, self.state = files, by, state
        self.tables = dict(state.tables)
        self.moves: dict[str, str] = {}
        self.removes: list[str] = []

    def add(self, name: str, table: TypedTable) -> None:
        """Add a table, or the new version of one, with its staged ``old``, ``new``, ``rejects``."""
        self.tables[name] = table
        for kind in ("old", "new", "rejects"):
            root = REJECTS if kind == "rejects" else FOLDERS[self.by]
            for path in self.files.data_files(staged(table, kind)):
                file = f"{self.state.number + 1:08d}-{len(self.moves):04d}.parquet"
                self.moves[path] = f"{root}/{table.folder}/{file}"

    def drop(self, name: str) -> None:
        """Remove a table and its rejects."""
        folder = self.tables.pop(name).folder
        roots = (TABLES, REJECTS) if self.by == "urn" else (QUEUE_TABLES,)
        self.removes += [p for root in roots for p in self.files.data_files(f"{root}/{folder}")]

    def commit(self, **changes: Any) -> TablesState:
        """Do what was collected; return the new state, with other ``changes`` of it."""
        state = msgspec.structs.replace(
            self.state, number=self.state.number + 1, tables=self.tables, **changes
        )
        root = (_state_file(self.by), msgspec.to_builtins(state))
        replace_files(self.files, PreparedChange(moves=self.moves, removes=self.removes, root=root))
        return state


def staged(table: TypedTable, kind: str) -> str:
    """Return the folder for a table's ``new`` rows, ``old`` rows or ``rejects``."""
    return f"{STAGED}/{table.folder}/{kind}"


def _state_file(by: str) -> str:
    return f"{TABLES}/_state/{by}.json"
