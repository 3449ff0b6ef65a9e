"""State of the typed tables: their columns, and the last archived offset that they contain.

``tables/_state/<by>/00000042.json`` is one version, and the highest number is the current one. A
commit writes the next version, which names the files to remove and to move into the tables; from
then on it can only be completed, which ``finish_commit`` does. Writers hold the lock ``LOCK``.
"""

from typing import Final

import msgspec

from phpmq_lite.envelopes.payload_shape import Shape
from phpmq_lite.spark.results_folder import REJECTS, TABLES, ResultsFolder

LOCK: Final = "tables"
GROUPINGS: Final = ("urn", "queue")
_KEPT: Final = 2  # versions that are not removed


class TypedTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A table of one URN or queue."""

    folder: str
    shape: Shape
    version: int = 1  # number of its columns, which grows with each change
    document: str | None = None  # the registered schema as JSON; None: inferred from bodies


class TablesState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of the state; paths are relative to the results folder."""

    archive_id: str
    number: int = 0
    offset: int = 0
    selection: str = ""  # the archive's, as JSON; what a wider one adds is below the offset
    tables: dict[str, TypedTable] = {}  # by URN or queue
    removes: tuple[str, ...] = ()
    moves: dict[str, str] = {}


def read_state(files: ResultsFolder, by: str) -> TablesState | None:
    """Return the current version, or None if there are no tables by ``by`` (of ``GROUPINGS``)."""
    numbers = _numbers(files, by)
    text = files.read(_path(by, numbers[-1])) if numbers else None
    return None if text is None else msgspec.json.decode(text, type=TablesState)


class TableChanges:
    """A commit in the making; ``add`` takes the files that are staged for a table."""

    def __init__(self, files: ResultsFolder, by: str, state: TablesState) -> None:
        self.files, self.by, self.state = files, by, state
        self.number = state.number + 1
        self.tables = dict(state.tables)
        self.moves: dict[str, str] = {}
        self.removes: list[str] = []

    def staged(self, folder: str, kind: str) -> str:
        """Return the folder for a table's ``new`` rows, ``old`` rows or ``rejects``."""
        return f"{_staged(self.by)}/{folder}/{kind}"

    def add(self, name: str, table: TypedTable) -> None:
        """Add a table, or the new version of one, with its staged files."""
        self.tables[name] = table
        for kind, root in (("old", TABLES), ("new", TABLES), ("rejects", REJECTS)):
            for path in self.files.data_files(self.staged(table.folder, kind)):
                name_in_table = f"{self.number:08d}-{len(self.moves):04d}.parquet"
                self.moves[path] = f"{root}/{table.folder}/{name_in_table}"

    def drop(self, name: str) -> None:
        """Remove a table and its rejects."""
        folder = self.tables.pop(name).folder
        for root in (TABLES, REJECTS):
            self.removes += self.files.data_files(f"{root}/{folder}")


def commit_changes(changes: TableChanges, offset: int, selection: str) -> TablesState:
    """Store the changes atomically, and do what they say; return the new version."""
    files, by = changes.files, changes.by
    state = msgspec.structs.replace(
        changes.state,
        number=changes.number,
        offset=offset,
        selection=selection,
        tables=changes.tables,
        removes=tuple(changes.removes),
        moves=changes.moves,
    )
    files.sync(_staged(by))
    files.write(_path(by, state.number), msgspec.json.encode(state).decode())
    finish_commit(files, by, state)
    return state


def finish_commit(files: ResultsFolder, by: str, state: TablesState | None) -> None:
    """Complete a commit that was interrupted, and remove what a killed run has staged."""
    if state is not None:
        for path in state.removes:
            files.remove(path)
        for source, target in state.moves.items() if files.exists(_staged(by)) else ():
            if files.exists(source):
                files.move(source, target)
    files.remove(_staged(by))
    for number in _numbers(files, by)[:-_KEPT]:
        files.remove(_path(by, number))


def _staged(by: str) -> str:
    """Return the folder for new files; tables have other names, which are percent-encoded."""
    return f"{TABLES}/_staged/{by}"


def _path(by: str, number: int) -> str:
    return f"{TABLES}/_state/{by}/{number:08d}.json"


def _numbers(files: ResultsFolder, by: str) -> list[int]:
    names = (name.removesuffix(".json") for name in files.names(f"{TABLES}/_state/{by}"))
    return sorted(int(name) for name in names if name.isdecimal())
