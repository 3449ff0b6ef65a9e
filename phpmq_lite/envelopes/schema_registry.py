"""Schema registry: a folder whose ``registry.json`` maps URNs to payload schemas.

The file has the format of the BabelQueue SDKs: ``{"schemas": [{"urn", "schema", "owner",
"status"}]}``, where ``schema`` is a file in the folder. ``read_registry`` reads the folder.
``ActiveSchemas`` keeps the last valid version and reloads the folder when a file changes.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
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
from phpmq_lite.envelopes.validation import EnvelopeProblem
from phpmq_lite.errors import PhpmqError
from phpmq_lite.text_files import TextFileError, decode_text

MANIFEST: Final = "registry.json"
FILE_BYTES: Final = 1 << 20  # maximum size of each file in the folder
WATCH_S: Final = 2.0  # seconds between checks for changed files
_VERSION: Final = re.compile(r"[.:]v([0-9]{1,6})\Z")
_LISTED_FAULTS: Final = 3
Stamp = dict[str, tuple[int, int, int]]  # file name -> (modification time, size, inode)


@dataclass(slots=True, frozen=True)
class RegistryFault:
    """An error in a file of the schema folder; an empty ``pointer`` means the file itself."""

    file: str
    pointer: str
    detail: str

    def __str__(self) -> str:
        where = f"{self.file}#{self.pointer}" if self.pointer else self.file
        return f"{where}: {self.detail}"


@dataclass(slots=True, frozen=True)
class RegisteredSchema:
    """The schema registered for a URN, with ``owner`` and ``status`` from ``registry.json``."""

    urn: str
    file: str  # name of the schema file within the folder
    schema: PayloadSchema
    owner: str = ""
    status: str = ""

    @property
    def version(self) -> int:
        """The version number: N for a URN that ends in ``.vN`` or ``:vN``, 1 for all other URNs."""
        match = _VERSION.search(self.urn)
        return int(match[1]) if match else 1


@dataclass(slots=True, frozen=True)
class SchemaRegistry:
    """The contents of the schema folder; ``faults`` is empty if the folder is valid."""

    entries: Mapping[str, RegisteredSchema] = field(default_factory=dict)  # schemas by URN
    faults: tuple[RegistryFault, ...] = ()
    stamp: Stamp = field(default_factory=dict)  # state of the files just before they were read

    def check(self, urn: str, data: Any, *, is_on_wire: bool = False) -> EnvelopeProblem | None:
        """Return the first violation, or None if there is none or no schema of the URN."""
        entry = self.entries.get(urn)
        return None if entry is None else entry.schema.check(data, is_on_wire=is_on_wire)


class RegistryError(PhpmqError):
    """The schema folder is invalid and was not loaded. The message names the file and pointer."""

    def __init__(self, folder: Path, faults: tuple[RegistryFault, ...]) -> None:
        listed = "; ".join(map(str, faults[:_LISTED_FAULTS]))
        more = len(faults) - _LISTED_FAULTS
        super().__init__(f"{folder}: {listed}" + (f"; and {more} more" if more > 0 else ""))
        self.faults = faults


# -- reading


def read_registry(folder: Path) -> SchemaRegistry:
    """Read the schema folder from disk, collecting errors instead of raising them."""
    faults: list[RegistryFault] = []
    manifest_stamp = _stamp(folder, [MANIFEST])
    rows = list(_rows(folder, faults))
    stamp = _stamp(folder, {MANIFEST, *(row["schema"] for row in rows)})
    if stamp[MANIFEST] != manifest_stamp[MANIFEST]:
        stamp = {}  # changed while being read, so the next check reads it again
    schemas: dict[str, PayloadSchema] = {}
    invalid_files: set[str] = set()
    entries: dict[str, RegisteredSchema] = {}
    for row in rows:
        file = row["schema"]
        if file not in schemas and file not in invalid_files:
            try:
                schemas[file] = read_file(folder / file)
            except SchemaError as error:
                invalid_files.add(file)
                faults.append(RegistryFault(file, error.pointer, error.detail))
        if file in schemas:
            owner, status = (str(row.get(key) or "") for key in ("owner", "status"))
            entries[row["urn"]] = RegisteredSchema(row["urn"], file, schemas[file], owner, status)
    return SchemaRegistry(entries, tuple(faults), stamp)


def read_file(path: Path) -> PayloadSchema:
    """Read a schema from a file; a SchemaError locates what is wrong."""
    return read_schema(read_json(_content(path)))


def _content(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise SchemaError("not a regular file")
        with path.open("rb") as file:
            content = file.read(FILE_BYTES + 1)
    except OSError as error:
        raise SchemaError(error.strerror or str(error)) from None
    except ValueError as error:  # raised if the file name contains a NUL character
        raise SchemaError(str(error)) from None
    if len(content) > FILE_BYTES:
        raise SchemaError(f"larger than the limit of {FILE_BYTES} bytes")
    try:
        return decode_text(content).encode()
    except TextFileError as error:
        raise SchemaError(f"it {error}") from None


def _rows(folder: Path, faults: list[RegistryFault]) -> Iterator[dict[str, Any]]:
    urns: set[str] = set()
    try:
        rows = _manifest_rows(folder)
    except SchemaError as error:
        faults.append(RegistryFault(MANIFEST, error.pointer, error.detail))
        return
    for number, row in enumerate(rows):
        try:
            _check_row(row, f"/schemas/{number}", urns)
        except SchemaError as error:
            faults.append(RegistryFault(MANIFEST, error.pointer, error.detail))
        else:
            yield row


def _manifest_rows(folder: Path) -> list[Any]:
    manifest = read_json(_content(folder / MANIFEST))
    if not isinstance(manifest, dict):
        raise SchemaError(f"must be an object, not {type_name(manifest)}")
    rows = manifest.get("schemas", [])
    if not isinstance(rows, list):
        raise SchemaError(f"must be an array, not {type_name(rows)}", "/schemas")
    return rows


def _check_row(row: Any, pointer: str, urns: set[str]) -> None:
    """Raise SchemaError if an entry is invalid, or its URN is in ``urns``; add its URN."""
    if not isinstance(row, dict):
        raise SchemaError(f"must be an object, not {type_name(row)}", pointer)
    urn, file = row.get("urn"), row.get("schema")
    if not isinstance(urn, str) or not urn.strip():
        raise SchemaError("the schema's URN must not be blank", f"{pointer}/urn")
    if len(urn) >= INDEX_CHARACTERS:
        detail = f"the URN has {len(urn)} characters; the limit is {INDEX_CHARACTERS - 1}"
        raise SchemaError(detail, f"{pointer}/urn")
    if urn in urns:
        raise SchemaError(f"{urn} is already registered", f"{pointer}/urn")
    urns.add(urn)
    if not isinstance(file, str) or not file:
        raise SchemaError("must be the name of a file in this folder", f"{pointer}/schema")
    if PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts:
        raise SchemaError(f"{file} is outside the folder", f"{pointer}/schema")


def _stamp(folder: Path, files: Iterable[str]) -> Stamp:
    stamp = {}
    for name in files:
        try:
            status = (folder / name).stat()
        except (OSError, ValueError):
            stamp[name] = (0, -1, 0)
        else:
            stamp[name] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return stamp


# -- active schemas


@dataclass(slots=True)
class ValidationCounts:
    """How many payloads of a URN have passed and how many have failed validation since startup."""

    passed: int = 0
    failed: int = 0
    last: EnvelopeProblem | None = None  # the most recent violation


class ActiveSchemas:
    """The active schema registry; if the folder is None, every payload passes.

    ``check`` and ``is_registered`` can be called from any thread. ``watch`` runs on the event loop
    and reads files in a thread. After an invalid change, the previous version stays in use.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.registry = SchemaRegistry()
        self.faults: tuple[RegistryFault, ...] = ()  # errors found by the most recent read
        self._latest = SchemaRegistry()  # most recently read version, even if invalid
        self._counts: dict[str, ValidationCounts] = {}
        self._lock = threading.Lock()  # guards `_counts`

    def load(self) -> None:
        """Read the folder; raise RegistryError, and keep the previous version, if it is invalid."""
        if self.folder is None:
            return
        self._latest = latest = read_registry(self.folder)
        self.faults = latest.faults
        if latest.faults:
            raise RegistryError(self.folder, latest.faults)
        self.registry = latest

    def refresh(self) -> bool:
        """Call ``load`` if a file has changed; return whether it was reloaded."""
        stamp = self._latest.stamp
        if self.folder is None or _stamp(self.folder, stamp or [MANIFEST]) == stamp:
            return False
        self.load()
        return True

    async def watch(
        self,
        on_reload: Callable[[RegistryError | None], None] = lambda _: None,
        every_s: float = WATCH_S,
    ) -> None:
        """Reload changed files until cancelled; pass the error, or None, to ``on_reload``."""
        while self.folder is not None:
            await asyncio.sleep(every_s)
            try:
                is_changed_now = await asyncio.to_thread(self.refresh)
            except RegistryError as error:
                on_reload(error)
            else:
                if is_changed_now:
                    on_reload(None)

    def is_registered(self, urn: str) -> bool:
        """Return whether a URN has a schema."""
        return urn in self.registry.entries

    def check(self, urn: str, data: Any) -> EnvelopeProblem | None:
        """Check a received payload and count the result; return the first violation or None."""
        if urn not in self.registry.entries:
            return None
        problem = self.registry.check(urn, data, is_on_wire=True)
        with self._lock:
            counts = self._counts.setdefault(urn, ValidationCounts())
            if problem is None:
                counts.passed += 1
            else:
                counts.failed += 1
                counts.last = problem
        return problem

    def counts(self, urn: str) -> ValidationCounts:
        """Return a copy of the validation counts for a URN."""
        with self._lock:
            return replace(self._counts.get(urn, ValidationCounts()))
