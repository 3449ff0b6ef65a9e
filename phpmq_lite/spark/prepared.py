"""Changes of several files that are complete or absent, wherever the process ends.

A change is first stored as one file. From then on, it can only be completed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from phpmq_lite.spark.results_folder import ResultsFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedChange:
    """What to do, in this order; paths are relative to the results folder."""

    writes: Mapping[str, Any] = field(default_factory=dict)  # path -> JSON document
    moves: Mapping[str, str] = field(default_factory=dict)  # source -> target, which is replaced
    copies: Mapping[str, str] = field(default_factory=dict)
    removes: Sequence[str] = ()
    root: tuple[str, Any] | None = None  # the path and document that name all others


def carry_out(files: ResultsFolder, path: str, change: PreparedChange) -> None:
    """Store a change in ``path``, and do what it says; the caller holds the lock for ``path``."""
    files.write(path, json.dumps(asdict(change)))
    complete(files, path)


def complete(files: ResultsFolder, path: str) -> None:
    """Complete the change that is stored in ``path``, if there is one."""
    text = files.read(path)
    if text is None:
        return
    change = PreparedChange(**json.loads(text))
    for target, document in change.writes.items():
        files.write(target, json.dumps(document))
    for source, target in change.moves.items():
        if files.exists(source):
            files.remove(target)
            files.move(source, target)
    for source, target in change.copies.items():
        files.copy(source, target)
    for removed in change.removes:
        files.remove(removed)
    for folder in _parents(change.removes):
        if not files.data_files(folder):
            files.remove(folder)
    if change.root is not None:
        target, document = change.root
        files.write(target, json.dumps(document))
    files.remove(path)


def _parents(paths: Iterable[str]) -> list[str]:
    """Return the folders of files, innermost first, without those directly in the results."""
    folders = set()
    for path in paths:
        parts = path.split("/")
        folders |= {"/".join(parts[:depth]) for depth in range(2, len(parts))}
    return sorted(folders, key=lambda folder: -folder.count("/"))
