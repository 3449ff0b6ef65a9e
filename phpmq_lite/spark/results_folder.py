"""Files and paths below the folder of the results: on this machine or by Hadoop."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NO_CLASS: Final = ("ClassNotFoundException", "NoClassDefFoundError", "No FileSystem for scheme")
_AZURE: Final = "org.apache.hadoop:hadoop-azure:{hadoop}"
_JARS: Final = {  # scheme -> the package with its file system; pip's Spark has none of them
    "s3a": "org.apache.hadoop:hadoop-aws:{hadoop}",
    "abfs": _AZURE,
    "abfss": _AZURE,
    "wasb": _AZURE,
    "wasbs": _AZURE,
    "gs": "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.26",
}
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class ResultsFolder(Protocol):
    """What jobs do with files besides reading and writing tables."""

    def url(self, path: str) -> str:
        """Give what Spark takes for ``path``."""

    def exists(self, path: str) -> bool:
        """Tell whether a file or folder is there."""

    def names(self, path: str) -> list[str]:
        """List a folder, sorted; empty where there is none."""

    def files(self, path: str) -> list[int]:
        """Give the sizes in bytes of the data files anywhere below, hidden ones left out."""

    def read(self, path: str) -> str | None:
        """Read a whole file as UTF-8; None where there is none."""

    def write(self, path: str, text: str) -> None:
        """Write a whole file: under another name, then renamed.  Makes its folder."""

    def move(self, source: str, target: str) -> None:
        """Rename a file or folder; the target must not be there.  Makes its folder."""

    def remove(self, path: str) -> None:
        """Remove a file or a whole folder; nothing where there is none."""

    def sync(self, path: str) -> None:
        """Bring all files of a folder to the disk, where the storage does not do that itself."""

    def lock(self, name: str, *, is_shared: bool = False) -> AbstractContextManager[None]:
        """Keep out who wants the same lock; shared ones keep out only those that are not.

        Raises:
            RefusedError: ``is_locked``: another run holds it.
        """


def open_results(spark: "SparkSession | None", out: str) -> ResultsFolder:
    """Give the files below ``out``; a URI other than ``file:`` needs ``spark``."""
    folder = local_folder_of(out)
    return HadoopResultsFolder(spark, out) if folder is None else LocalResultsFolder(folder)


def local_folder_of(out: str) -> Path | None:
    """Give the folder of a path or a ``file:`` URI; None for a URI that only Spark reaches.

    Nothing is decoded, for Hadoop does not do so either.
    """
    if out.startswith("file:"):
        return Path("/", out.removeprefix("file:").lstrip("/"))
    return None if _SCHEME.match(out) else Path(out)


def _is_data(name: str) -> bool:
    """Tell whether Spark would read it: neither hidden nor a marker."""
    return not name.startswith((".", "_"))


class LocalResultsFolder:
    """Files on this machine, or on a file system that it mounts."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def url(self, path: str) -> str:
        """Give a ``file:`` URI; not percent-encoded, for Hadoop does not decode it."""
        return f"file://{self._root / path}"

    def exists(self, path: str) -> bool:
        """Tell whether a file or folder is there."""
        return (self._root / path).exists()

    def names(self, path: str) -> list[str]:
        """List a folder, sorted; empty where there is none."""
        try:
            return sorted(entry.name for entry in (self._root / path).iterdir())
        except FileNotFoundError:
            return []

    def files(self, path: str) -> list[int]:
        """Give the sizes of the data files below."""
        sizes: list[int] = []
        for folder, folders, names in os.walk(self._root / path):
            folders[:] = [name for name in folders if _is_data(name)]
            sizes += [(Path(folder) / name).stat().st_size for name in names if _is_data(name)]
        return sizes

    def read(self, path: str) -> str | None:
        """Read a whole file; None where there is none."""
        try:
            return (self._root / path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def write(self, path: str, text: str) -> None:
        """Write a whole file by rename; on disk before it has its name."""
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}.new")  # two commands, one summary
        with beside.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(target)

    def move(self, source: str, target: str) -> None:
        """Rename a file or folder."""
        (self._root / target).parent.mkdir(parents=True, exist_ok=True)
        (self._root / source).rename(self._root / target)

    def remove(self, path: str) -> None:
        """Remove a file or a whole folder."""
        place = self._root / path
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)

    def sync(self, path: str) -> None:
        """Bring all files of a folder, and the names of it, to the disk."""
        for folder, _, names in os.walk(self._root / path):
            for place in (*names, "."):
                descriptor = os.open(Path(folder) / place, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    @contextmanager
    def lock(self, name: str, *, is_shared: bool = False) -> Iterator[None]:
        """Hold a lock of the kernel: it ends with this process, however it ends."""
        self._root.mkdir(parents=True, exist_ok=True)
        with (self._root / f".{name}.lock").open("w") as stream:
            try:
                kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
                fcntl.flock(stream, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RefusedError(
                    "is_locked", f"another job works on {name} in {self._root}: wait for its end"
                ) from None
            yield


def missing_jar(root: str, error: str, hadoop: str) -> PipelineError | None:
    """Return what to do where Java has no file system for a URI; None for another error."""
    if not any(word in error for word in _NO_CLASS):
        return None
    scheme = root.partition(":")[0].lower()
    if scheme in ("s3", "s3n"):
        return PipelineError(f"{root}: Spark has no file system for {scheme}://, write s3a://")
    package = _JARS.get(scheme)
    if package is None:
        return PipelineError(
            f"{root}: Spark has no file system for {scheme}://; name the package that has one:"
            " --conf spark.jars.packages=GROUP:NAME:VERSION"
        )
    name = package.split(":")[1]
    return PipelineError(
        f"{root}: Spark lacks the package {name}, which {scheme}:// needs: add --conf"
        f" spark.jars.packages={package.format(hadoop=hadoop)}"
    )


class HadoopResultsFolder:
    """Files on any storage that Spark's Hadoop libraries reach: HDFS, S3 and the like.

    ``lock`` keeps nobody out here: see to it that one run at a time writes to such a root.
    """

    def __init__(self, spark: Any, root: str) -> None:
        self._root = root.rstrip("/")
        self._hadoop = spark._jvm.org.apache.hadoop.fs
        self._io = spark._jvm.org.apache.commons.io.IOUtils
        try:
            self._fs = self._path("").getFileSystem(spark._jsc.hadoopConfiguration())
        except Exception as error:  # py4j's: what Java threw is in its text
            hadoop = spark._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
            refusal = missing_jar(self._root, str(error), hadoop)
            if refusal is None:
                raise
            raise refusal from error

    def _path(self, path: str) -> Any:
        return self._hadoop.Path(self.url(path))

    def url(self, path: str) -> str:
        """Give the URI."""
        return f"{self._root}/{path}" if path else self._root

    def exists(self, path: str) -> bool:
        """Tell whether a file or folder is there."""
        return bool(self._fs.exists(self._path(path)))

    def names(self, path: str) -> list[str]:
        """List a folder, sorted; empty where there is none."""
        if not self.exists(path):
            return []
        return sorted(
            status.getPath().getName() for status in self._fs.listStatus(self._path(path))
        )

    def files(self, path: str) -> list[int]:
        """Give the sizes of the data files below."""
        if not self.exists(path):
            return []
        sizes: list[int] = []
        for status in self._fs.listStatus(self._path(path)):
            name = status.getPath().getName()
            if _is_data(name):
                below = f"{path}/{name}"
                sizes += self.files(below) if status.isDirectory() else [int(status.getLen())]
        return sizes

    def read(self, path: str) -> str | None:
        """Read a whole file; None where there is none."""
        if not self.exists(path):
            return None
        stream = self._fs.open(self._path(path))
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Write a whole file beside, then rename.  Between the two steps there may be none."""
        beside = self._path(f"{path}.new")
        stream = self._fs.create(beside, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self._fs.delete(self._path(path), False)
        self._rename(beside, self._path(path))

    def move(self, source: str, target: str) -> None:
        """Rename a file or folder."""
        to = self._path(target)
        self._fs.mkdirs(to.getParent())
        self._rename(self._path(source), to)

    def _rename(self, source: Any, target: Any) -> None:
        if not self._fs.rename(source, target):
            raise OSError(f"cannot rename {source} to {target}")

    def remove(self, path: str) -> None:
        """Remove a file or a whole folder."""
        self._fs.delete(self._path(path), True)

    def sync(self, path: str) -> None:
        """Do nothing: what is closed there is kept."""

    @contextmanager
    def lock(self, name: str, *, is_shared: bool = False) -> Iterator[None]:
        """Keep nobody out: there is no lock that ends with its holder."""
        yield


ARCHIVE: Final = "archive"
METRICS: Final = "metrics"
METRICS_STATE: Final = "metrics/state.json"
METRICS_BEGUN: Final = "metrics/begun.json"
ARCHIVE_CHECKPOINT: Final = "checkpoints/archive"
ARCHIVE_SELECTION: Final = "archive.json"
COMPACT: Final = "compact"
GAPS: Final = "gaps"
REPLAYS: Final = "replays"
JOBS: Final = "jobs.json"
SUMMARY: Final = "summary.json"

_NAME_MAX: Final = 255  # bytes that file systems take; HDFS too
_KEPT: Final = 128  # of a name that is too long
_WRITING: Final = len("..json.4194304.new")  # what a file is called besides while it is written
_LOCK: Final = len(".consume-.lock")


def consumed_folder(queue: str) -> str:
    """Give the folder of what was consumed of a queue."""
    return f"consumed/{_name(queue)}"


def consume_checkpoint_folder(subscription: str) -> str:
    """Give the folder of a subscription's checkpoint."""
    return f"checkpoints/consume/{_name(subscription)}"


def consume_lock_name(subscription: str) -> str:
    """Give the lock of a subscription."""
    return f"consume-{_name(subscription, _LOCK)}"


def replay_plan_file(name: str) -> str:
    """Give the file of a replay's plan."""
    return f"{REPLAYS}/{_name(name, _WRITING)}.json"


def replay_progress_file(name: str) -> str:
    """Give the file with the number of pieces that are sent."""
    return f"{REPLAYS}/{_name(name, _WRITING)}.done"


def _name(text: str, besides: int = 0) -> str:
    """Make a file name of any text, two texts never the same one; no hidden one.

    It leaves room for ``besides`` more bytes.  No name that is short enough has a ``%-``.
    """
    name = quote(text, safe="")
    if name[:1] in {".", "_"}:
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name) + besides > _NAME_MAX:
        name = f"{name[:_KEPT]}%-{sha256(text.encode()).hexdigest()}"
    return name


def read_archive(spark: "SparkSession", files: ResultsFolder) -> "DataFrame":
    """Read the archive; ``body`` is null where it was archived without bodies.

    Raises:
        RefusedError: ``no_archive``: nothing was archived yet.
    """
    from phpmq_lite.spark.columns import ARCHIVE_SCHEMA

    if not any(name.startswith("date=") for name in files.names(ARCHIVE)):
        raise RefusedError(
            "no_archive", f"there is no archive in {files.url('')}: run the job archive first"
        )
    return spark.read.schema(ARCHIVE_SCHEMA).parquet(files.url(ARCHIVE))
