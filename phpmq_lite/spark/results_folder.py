"""Files and paths in the results folder, which is on this machine or accessed through Hadoop."""

import fcntl
import io
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import quote

from phpmq_lite.errors import PipelineError, RefusedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NO_CLASS: Final = ("ClassNotFoundException", "NoClassDefFoundError", "No FileSystem for scheme")
_AZURE: Final = "org.apache.hadoop:hadoop-azure:{hadoop}"
_JARS: Final = {  # URI scheme -> package with the file system; PySpark from pip has none of these
    "s3a": "org.apache.hadoop:hadoop-aws:{hadoop}",
    "abfs": _AZURE,
    "abfss": _AZURE,
    "wasb": _AZURE,
    "wasbs": _AZURE,
    "gs": "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.26",
}
SYNC_BYTES: Final = 1 << 20
SYNC_REST_S: Final = 0.01
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def open_results(spark: "SparkSession | None", location: str) -> "ResultsFolder":
    """Return the results folder ``location``; a URI other than ``file:`` needs ``spark``."""
    folder = local_folder_of(location)
    return _HadoopResultsFolder(spark, location) if folder is None else LocalResultsFolder(folder)


def local_folder_of(location: str) -> Path | None:
    """Return the folder for a path or a ``file:`` URI, or None for other URIs.

    Percent escapes are kept, because Hadoop does not decode them either.
    """
    if location.startswith("file:"):
        return Path("/", location.removeprefix("file:").lstrip("/"))
    return None if _SCHEME.match(location) else Path(location)


def _is_data(name: str) -> bool:
    """Return whether Spark reads the file as data; hidden files and markers are skipped."""
    return not name.startswith((".", "_"))


def _sync(descriptor: int) -> None:
    """Sync a file in small parts, so that others can sync their files between them.

    A broker's commits on the same disk wait for all that one ``fsync`` writes: the p99 of confirmed
    publishing beside an archive of 300,000 bodies was 81 ms; it is 10 ms with parts of this size.
    """
    if hasattr(os, "posix_fadvise"):  # macOS lacks it
        for begin in range(0, os.fstat(descriptor).st_size, SYNC_BYTES):
            os.posix_fadvise(descriptor, begin, SYNC_BYTES, os.POSIX_FADV_DONTNEED)  # starts it
            time.sleep(SYNC_REST_S)
    os.fsync(descriptor)


class _SyncedFile(io.BufferedWriter):
    """A file that is durable once it is closed."""

    def close(self) -> None:
        if not self.closed:
            self.flush()
            _sync(self.fileno())
        super().close()


class LocalResultsFolder:
    """What jobs need besides reading and writing tables, on a file system of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def url(self, path: str) -> str:
        """Return a ``file:`` URI without percent-encoding, because Hadoop would not decode it."""
        return f"file://{self._root / path}"

    def path(self, path: str) -> Path:
        """Return a file or folder on this machine."""
        return self._root / path

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return (self._root / path).exists()

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder, or an empty list if the folder does not exist."""
        try:
            return sorted(entry.name for entry in (self._root / path).iterdir())
        except FileNotFoundError:
            return []

    def data_files(self, path: str) -> dict[str, int]:
        """Return the data files below ``path`` and their sizes in bytes, except hidden ones.

        Paths are relative to the results folder, and sorted.
        """
        sizes: dict[str, int] = {}
        for folder, folders, names in os.walk(self._root / path):
            folders[:] = [name for name in folders if _is_data(name)]
            files = (Path(folder) / name for name in names if _is_data(name))
            sizes |= {str(file.relative_to(self._root)): file.stat().st_size for file in files}
        return dict(sorted(sizes.items()))

    def read(self, path: str) -> str | None:
        """Return the text of a UTF-8 file, or None if the file does not exist."""
        try:
            return (self._root / path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def write(self, path: str, content: str | bytes) -> None:
        """Write and sync a temporary file, then rename it, creating its folder if necessary."""
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.new")  # unique for each process
        with temporary.open("wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)

    def create(self, path: str) -> IO[bytes]:
        """Open a new file, which is durable once it is closed; create its folder if necessary."""
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return _SyncedFile(io.FileIO(target, "x"))

    def move(self, source: str, target: str) -> None:
        """Rename a file or folder; the target must not exist, but its folder is created."""
        (self._root / target).parent.mkdir(parents=True, exist_ok=True)
        (self._root / source).rename(self._root / target)

    def copy(self, source: str, target: str) -> None:
        """Link a file to a second path, or copy it if the file system has no links."""
        to = self._root / target
        to.parent.mkdir(parents=True, exist_ok=True)
        to.unlink(missing_ok=True)
        try:
            to.hardlink_to(self._root / source)
        except OSError:
            temporary = to.with_name(f".{to.name}.new")
            shutil.copyfile(self._root / source, temporary)
            temporary.replace(to)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its contents; do nothing if it does not exist."""
        target = self._root / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    def sync(self, path: str) -> None:
        """Sync all files in a folder and the folder itself."""
        for folder, _, names in os.walk(self._root / path):
            for name in (*names, "."):
                descriptor = os.open(Path(folder) / name, os.O_RDONLY)
                try:
                    _sync(descriptor)
                finally:
                    os.close(descriptor)

    @contextmanager
    def lock(self, name: str, *, is_shared: bool = False) -> Iterator[None]:
        """Hold a kernel lock until the block or the process ends, or refuse (``is_locked``)."""
        self._root.mkdir(parents=True, exist_ok=True)
        with (self._root / f".{name}.lock").open("w") as stream:
            try:
                kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
                fcntl.flock(stream, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RefusedError(
                    "is_locked",
                    f"another job is working on {name} in {self._root}; wait until it finishes",
                ) from None
            yield


def missing_jar(root: str, error: str, hadoop: str) -> PipelineError | None:
    """Return an error that says how to install a URI's file system, or None for other errors."""
    if not any(word in error for word in _NO_CLASS):
        return None
    scheme = root.partition(":")[0].lower()
    if scheme in ("s3", "s3n"):
        return PipelineError(f"{root}: Spark has no file system for {scheme}://; use s3a://")
    package = _JARS.get(scheme)
    if package is None:
        return PipelineError(
            f"{root}: Spark has no file system for {scheme}://; add its package:"
            " --conf spark.jars.packages=GROUP:NAME:VERSION"
        )
    name = package.split(":")[1]
    return PipelineError(
        f"{root}: {scheme}:// requires the package {name}; add --conf"
        f" spark.jars.packages={package.format(hadoop=hadoop)}"
    )


class _UploadedFile(io.BytesIO):
    """A file in memory that a results folder has once it is closed."""

    def __init__(self, files: "_HadoopResultsFolder", path: str) -> None:
        super().__init__()
        self._files, self._target = files, path

    def close(self) -> None:
        if not self.closed:
            self._files.write(self._target, self.getvalue())
        super().close()


class _HadoopResultsFolder:
    """The same on any storage that Spark's Hadoop libraries support: HDFS, S3 and others.

    ``lock`` has no effect here, so only one run at a time may write to such a folder.
    """

    def __init__(self, spark: Any, root: str) -> None:
        self._root = root.rstrip("/")
        self._hadoop = spark._jvm.org.apache.hadoop.fs
        self._io = spark._jvm.org.apache.commons.io.IOUtils
        try:
            self._fs = self._path("").getFileSystem(spark._jsc.hadoopConfiguration())
        except Exception as error:  # an error of py4j whose text contains the Java exception
            hadoop = spark._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
            jar_error = missing_jar(self._root, str(error), hadoop)
            if jar_error is None:
                raise
            raise jar_error from error

    def _path(self, path: str) -> Any:
        return self._hadoop.Path(self.url(path))

    def url(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def names(self, path: str) -> list[str]:
        if not self.exists(path):
            return []
        return sorted(
            status.getPath().getName() for status in self._fs.listStatus(self._path(path))
        )

    def data_files(self, path: str) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for status in self._fs.listStatus(self._path(path)) if self.exists(path) else ():
            name = status.getPath().getName()
            inner = f"{path}/{name}"
            if _is_data(name) and status.isDirectory():
                sizes |= self.data_files(inner)
            elif _is_data(name):
                sizes[inner] = int(status.getLen())
        return dict(sorted(sizes.items()))

    def read(self, path: str) -> str | None:
        if not self.exists(path):
            return None
        stream = self._fs.open(self._path(path))
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, content: str | bytes) -> None:
        """Write a temporary file, then rename it. The target may be missing for a moment."""
        temporary = self._path(f"{path}.new")
        stream = self._fs.create(temporary, True)
        try:
            stream.write(bytearray(content.encode() if isinstance(content, str) else content))
        finally:
            stream.close()
        self._fs.delete(self._path(path), False)
        self._rename(temporary, self._path(path))

    def create(self, path: str) -> IO[bytes]:
        """Open a file in memory, which is written when it is closed."""
        return _UploadedFile(self, path)

    def move(self, source: str, target: str) -> None:
        to = self._path(target)
        self._fs.mkdirs(to.getParent())
        self._rename(self._path(source), to)

    def copy(self, source: str, target: str) -> None:
        util, conf = self._hadoop.FileUtil, self._fs.getConf()
        util.copy(self._fs, self._path(source), self._fs, self._path(target), False, True, conf)

    def _rename(self, source: Any, target: Any) -> None:
        if not self._fs.rename(source, target):
            raise OSError(f"cannot rename {source} to {target}")

    def remove(self, path: str) -> None:
        self._fs.delete(self._path(path), True)

    def sync(self, path: str) -> None:
        """Do nothing, because closed files are already durable."""

    @contextmanager
    def lock(self, name: str, *, is_shared: bool = False) -> Iterator[None]:
        """Do nothing, because Hadoop has no lock that is released when its holder dies."""
        yield


ResultsFolder = LocalResultsFolder | _HadoopResultsFolder

ARCHIVE: Final = "archive"
EVENTS: Final = "events"  # the exceptional steps of the archived messages
LEDGER: Final = "ledger"
METRICS: Final = "metrics"
METRICS_STATE: Final = "metrics/state.json"
METRICS_BEGUN: Final = "metrics/begun.json"
ARCHIVE_CHECKPOINT: Final = "checkpoints/archive"
ARCHIVE_SELECTION: Final = "archive.json"
GAPS: Final = "gaps"
REPLAYS: Final = "replays"
JOBS: Final = "jobs.json"
SUMMARY: Final = "summary.json"
TABLES: Final = "tables"
QUEUE_TABLES: Final = "queue_tables"
REJECTS: Final = "rejects"

_NAME_MAX: Final = 255  # maximum length of file names on common file systems, including HDFS
_KEPT_BYTES: Final = 128  # number of bytes kept from a longer name
_TEMPORARY_BYTES: Final = len("..json.4194304.new")  # suffix added while the file is written
_LOCK: Final = len(".consume-.lock")


def consumed_folder(queue: str) -> str:
    """Return the folder for messages consumed from a queue."""
    return f"consumed/{file_name(queue)}"


def consume_checkpoint_folder(subscription: str) -> str:
    """Return a subscription's checkpoint folder."""
    return f"checkpoints/consume/{file_name(subscription)}"


def consume_lock_name(subscription: str) -> str:
    """Return a subscription's lock name."""
    return f"consume-{file_name(subscription, _LOCK)}"


def replay_plan_file(name: str) -> str:
    """Return the file that stores a replay's plan."""
    return f"{REPLAYS}/{file_name(name, _TEMPORARY_BYTES)}.json"


def replay_progress_file(name: str) -> str:
    """Return the file that stores the number of a replay's published pieces."""
    return f"{REPLAYS}/{file_name(name, _TEMPORARY_BYTES)}.done"


def file_name(text: str, extra: int = 0) -> str:
    """Return a unique file name for any text; the file is never hidden.

    The name leaves room for ``extra`` more bytes. Only shortened names contain ``%-``.
    """
    name = quote(text, safe="")
    if name[:1] in {".", "_"}:
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name) + extra > _NAME_MAX:
        name = f"{name[:_KEPT_BYTES]}%-{sha256(text.encode()).hexdigest()}"
    return name


def read_json_files(files: ResultsFolder, folder: str) -> list[Any]:
    """Return the contents of all JSON files in a folder, except hidden ones."""
    texts = (
        files.read(f"{folder}/{name}")
        for name in files.names(folder)
        if name.endswith(".json") and not name.startswith(".")
    )
    return [json.loads(text) for text in texts if text is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveGap:
    """An accepted gap: offsets ``(lo, hi]`` of a batch with rows removed before being archived.

    Each batch has a file, ``gaps/<batch>.json``, written before Spark commits the batch; a repeated
    batch replaces its own file. Files are never appended to, because object stores do not support
    it.
    """

    at_ms: int  # time when the gap was accepted, in Unix ms
    history_id: str
    lo: int
    hi: int
    rows: int | None  # number of missing rows; None if the archive excludes queues or outcomes
    batch: str

    @property
    def rows_at_most(self) -> int:
        """Maximum number of missing rows."""
        return self.hi - self.lo if self.rows is None else self.rows


def store_gap(files: ResultsFolder, gap: ArchiveGap) -> None:
    """Store a gap in the file of its batch."""
    files.write(f"{GAPS}/{gap.batch}.json", json.dumps(asdict(gap)))


def read_gaps(files: ResultsFolder) -> list[ArchiveGap]:
    """Return all stored gaps, newest first."""
    gaps = [ArchiveGap(**document) for document in read_json_files(files, GAPS)]
    return sorted(gaps, key=lambda gap: (-gap.at_ms, -gap.lo))


def gap_text(gap: ArchiveGap) -> str:
    """Describe an accepted gap for the output of a run."""
    rows = f"{'up to ' if gap.rows is None else ''}{gap.rows_at_most:,} rows"
    return (
        f"offsets {gap.lo + 1} to {gap.hi} lack {rows}, which retention removed; the gap was"
        " accepted and recorded (phpmq-lite pipeline status --gaps)"
    )
