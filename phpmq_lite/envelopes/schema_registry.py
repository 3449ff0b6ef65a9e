"""The registry: a folder with ``registry.json`` that says which schema the payload of a URN has.

The form is that of the BabelQueue SDKs: ``{"schemas": [{"urn", "schema", "owner", "status"}]}``,
where ``schema`` is a file of the folder.  ``read_registry`` reads it whole; ``ActiveSchemas``
keeps the last one that was right and reads the folder anew when a file of it has changed.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from phpmq_lite.envelopes.indexed_fields import INDEX_CHARACTERS
from phpmq_lite.envelopes.payload_schema import (
    PayloadSchema,
    SchemaError,
    read_json,
    read_schema,
    type_name,
)
from phpmq_lite.envelopes.verdict import EnvelopeProblem
from phpmq_lite.errors import PhpmqError

MANIFEST: Final = "registry.json"
FILE_BYTES: Final = 1 << 20  # of one file
WATCH_S: Final = 2.0  # between two looks at the times of the files
_VERSION: Final = re.compile(r"[.:]v([0-9]{1,6})")
_SHOWN_FAULTS: Final = 3
Stamp = tuple[tuple[str, int, int, int], ...]


@dataclass(slots=True, frozen=True)
class RegistryFault:
    """What is wrong with one file of the folder; ``pointer`` is empty for all of it."""

    file: str
    pointer: str
    detail: str  # in words

    def __str__(self) -> str:
        where = f"{self.file}#{self.pointer}" if self.pointer else self.file
        return f"{where}: {self.detail}"


@dataclass(slots=True, frozen=True)
class RegisteredSchema:
    """One registered ``urn``, with ``owner`` and ``status`` as ``registry.json`` has them."""

    urn: str
    file: str  # in the folder
    schema: PayloadSchema  # of its payloads
    owner: str = ""
    status: str = ""

    @property
    def version(self) -> int:
        """The N of a URN that ends in ``.vN`` or ``:vN``; 1 without."""
        found = _VERSION.search(self.urn)
        return int(found[1]) if found and found.end() == len(self.urn) else 1


@dataclass(slots=True, frozen=True)
class SchemaRegistry:
    """All that was read; ``faults`` is empty where the folder is right."""

    entries: Mapping[str, RegisteredSchema] = field(default_factory=dict)  # by URN
    faults: tuple[RegistryFault, ...] = ()
    stamp: Stamp = ()  # of the files, as they were before they were read

    def check(self, urn: str, data: Any, *, is_sent: bool = False) -> EnvelopeProblem | None:
        """Give the first thing that is wrong with a payload; None also for a URN without a schema.

        ``is_sent`` is as in ``PayloadSchema.check``.
        """
        entry = self.entries.get(urn)
        return None if entry is None else entry.schema.check(data, is_sent=is_sent)


class RegistryError(PhpmqError):
    """The folder is not right; nothing of it is in force.  The message names file and pointer."""

    def __init__(self, folder: Path, faults: tuple[RegistryFault, ...]) -> None:
        shown = "; ".join(map(str, faults[:_SHOWN_FAULTS]))
        more = len(faults) - _SHOWN_FAULTS
        super().__init__(f"{folder}: {shown}" + (f"; and {more} more" if more > 0 else ""))
        self.faults = faults


# -- reading


def read_registry(folder: Path) -> SchemaRegistry:
    """Read the whole folder; what is wrong is gathered, not raised.  Blocks on the disk."""
    faults: list[RegistryFault] = []
    before = _stamp(folder, (MANIFEST,))
    rows = list(_rows(folder, faults))
    files = sorted({MANIFEST, *(row["schema"] for row in rows)})
    stamp = _stamp(folder, files)
    if dict(_times(before)).items() - dict(_times(stamp)).items():
        stamp = ()  # it changed while it was read: the next look reads it again
    read: dict[str, PayloadSchema] = {}
    broken: set[str] = set()
    entries: dict[str, RegisteredSchema] = {}
    for row in rows:
        file = row["schema"]
        if file not in read and file not in broken:
            try:
                read[file] = read_file(folder / file)
            except SchemaError as error:
                broken.add(file)
                faults.append(RegistryFault(file, error.pointer, error.detail))
        if file in read:
            owner, status = (str(row.get(key) or "") for key in ("owner", "status"))
            entries[row["urn"]] = RegisteredSchema(row["urn"], file, read[file], owner, status)
    return SchemaRegistry(entries, tuple(faults), stamp)


def _times(stamp: Stamp) -> Iterator[tuple[str, tuple[int, int, int]]]:
    return ((name, (time, size, node)) for name, time, size, node in stamp)


def read_file(path: Path) -> PayloadSchema:
    """Read the schema in a file.

    Raises:
        SchemaError: it cannot be read, or is none; the pointer says where.
    """
    return read_schema(read_json(_content(path)))


def _content(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise SchemaError("it is no file")
        with path.open("rb") as file:
            content = file.read(FILE_BYTES + 1)
    except OSError as error:
        raise SchemaError(error.strerror or str(error)) from None
    except ValueError as error:  # a NUL in the name
        raise SchemaError(str(error)) from None
    if len(content) > FILE_BYTES:
        raise SchemaError(f"it is longer than {FILE_BYTES} bytes")
    return content


def _rows(folder: Path, faults: list[RegistryFault]) -> Iterator[dict[str, Any]]:
    """Yield the entries of the manifest that are right."""

    def fault(pointer: str, detail: str) -> None:
        faults.append(RegistryFault(MANIFEST, pointer, detail))

    try:
        manifest = read_json(_content(folder / MANIFEST))
    except SchemaError as error:
        fault(error.pointer, error.detail)
        return
    if not isinstance(manifest, dict):
        fault("", f"it is {type_name(manifest)}, not an object")
        return
    rows = manifest.get("schemas", [])
    if not isinstance(rows, list):
        fault("/schemas", f"it is {type_name(rows)}, not an array")
        return
    seen: set[str] = set()
    for number, row in enumerate(rows):
        at = f"/schemas/{number}"
        if not isinstance(row, dict):
            fault(at, f"it is {type_name(row)}, not an object")
            continue
        wrong = _wrong_urn(row.get("urn"), seen)
        if wrong:
            fault(f"{at}/urn", wrong)
            continue
        seen.add(row["urn"])
        wrong = _wrong_file(row.get("schema"))
        if wrong:
            fault(f"{at}/schema", wrong)
            continue
        yield row


def _wrong_urn(urn: object, seen: set[str]) -> str:
    if not isinstance(urn, str) or not urn.strip():
        return "it is the URN that the schema is for, and may not be blank"
    if len(urn) >= INDEX_CHARACTERS:
        return f"it has {len(urn)} characters, the limit is {INDEX_CHARACTERS - 1}"
    return f"{urn} is registered twice" if urn in seen else ""


def _wrong_file(name: object) -> str:
    if not isinstance(name, str) or not name:
        return "it is the name of a file in this folder"
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return f"{name} leaves the folder"
    return ""


def _stamp(folder: Path, files: tuple[str, ...] | list[str]) -> Stamp:
    found = []
    for name in files:
        try:
            status = (folder / name).stat()
        except (OSError, ValueError):
            found.append((name, 0, -1, 0))
        else:
            found.append((name, status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


def is_changed(folder: Path, registry: SchemaRegistry) -> bool:
    """Tell whether a file of the folder is another than the one that was read."""
    files = [name for name, *_ in registry.stamp] or [MANIFEST]
    return _stamp(folder, files) != registry.stamp


# -- in force


@dataclass(slots=True)
class ValidationCounts:
    """How many payloads of one URN ``passed`` and ``failed`` since the start."""

    passed: int = 0
    failed: int = 0
    last: EnvelopeProblem | None = None  # the newest failure


class ActiveSchemas:
    """The registry in force; None as folder: nothing is registered and everything passes.

    ``check`` and ``is_registered`` may be called from any thread, ``watch`` runs on the loop and
    reads in a thread of its own.  A change that is not right leaves what was in force.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.registry = SchemaRegistry()  # in force
        self.faults: tuple[RegistryFault, ...] = ()  # of the newest reading
        self._read = SchemaRegistry()  # the newest reading, right or not
        self._tallies: dict[str, ValidationCounts] = {}
        self._lock = threading.Lock()  # of the tallies

    def load(self) -> None:
        """Read the folder; blocks on the disk.

        Raises:
            RegistryError: it is not right; what was in force stays.
        """
        if self.folder is None:
            return
        self._read = read = read_registry(self.folder)
        self.faults = read.faults
        if read.faults:
            raise RegistryError(self.folder, read.faults)
        self.registry = read

    def refresh(self) -> bool:
        """Read the folder if a file of it has changed, and tell whether it did; as ``load``."""
        if self.folder is None or not is_changed(self.folder, self._read):
            return False
        self.load()
        return True

    async def watch(
        self,
        tell: Callable[[RegistryError | None], None] = lambda _: None,
        every_s: float = WATCH_S,
    ) -> None:
        """Read anew what changes, until cancelled; ``tell`` gets None or why it is not in force."""
        while self.folder is not None:
            await asyncio.sleep(every_s)
            try:
                is_new = await asyncio.to_thread(self.refresh)
            except RegistryError as error:
                tell(error)
            else:
                if is_new:
                    tell(None)

    def is_registered(self, urn: str) -> bool:
        """Tell whether a URN has a schema: a look into a dict."""
        return urn in self.registry.entries

    def check(self, urn: str, data: Any) -> EnvelopeProblem | None:
        """Judge a payload as it is on the wire, and count it; None: fine, or no schema."""
        if urn not in self.registry.entries:
            return None
        problem = self.registry.check(urn, data, is_sent=True)
        with self._lock:
            tally = self._tallies.setdefault(urn, ValidationCounts())
            if problem is None:
                tally.passed += 1
            else:
                tally.failed += 1
                tally.last = problem
        return problem

    def tally(self, urn: str) -> ValidationCounts:
        """Give what became of the payloads of a URN."""
        with self._lock:
            found = self._tallies.get(urn, ValidationCounts())
            return ValidationCounts(found.passed, found.failed, found.last)
