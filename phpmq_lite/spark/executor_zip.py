"""Builds a zip of this package to ship to executors with ``--py-files`` or ``addPyFile``."""

import hashlib
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from phpmq_lite import __version__

_PACKAGES: Final = ("phpmq_lite", "pyspark_phpmq")  # pyspark_phpmq registers format("phpmq")
_EXCLUDED: Final = ("__pycache__", "_data", "admin", "bench", "server")  # not needed by executors
_DATE: Final = (1980, 1, 1, 0, 0, 0)  # earliest date in zips; fixed for reproducible builds


def zip_name() -> str:
    """Return the zip's file name, which includes the version."""
    return f"phpmq_lite-{__version__}.zip"


def build_zip(path: Path) -> Path:
    """Write the zip under a temporary name and rename it; the same code yields the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in zip_files():
            archive.writestr(zipfile.ZipInfo(name, _DATE), file.read_bytes(), zipfile.ZIP_DEFLATED)
    temporary.replace(path)
    return path


def zip_files() -> Iterator[tuple[str, Path]]:
    """Yield each file's name in the zip and its path on disk, sorted within each package."""
    for package in _PACKAGES:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            continue  # only a wheel or an installed checkout has pyspark_phpmq
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*")):
            inner = path.relative_to(root)
            if path.suffix in (".py", ".sql", ".typed") and inner.parts[0] not in _EXCLUDED:
                yield f"{package}/{inner.as_posix()}", path


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hex digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
