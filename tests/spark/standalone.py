"""A real cluster on loopback: a standalone master and workers of the installed PySpark.

pip's Spark has no ``start-master.sh``; ``spark-class`` starts the same classes.  Its executors
are machines without our package: a ``sitecustomize`` takes the checkout off their import path.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

START_S = 90.0  # workers took over 8 s to register under load
END_S = 15.0

# Zips go too, as in conf/sitecustomize.py.
_BARE = """\
import os.path, sys

sys.path[:] = [
    entry
    for entry in sys.path
    if not os.path.isfile(f"{entry}/phpmq_lite/__init__.py")
    and not entry.endswith(("pyspark.zip", "-src.zip"))
]
"""


@dataclass
class Cluster:
    """A master's URL and the cluster's folder."""

    url: str
    folder: Path

    def executors(self) -> set[Path]:
        """Return the folders of all executors, including those that have exited."""
        return set(self.folder.glob("work/app-*/*"))


@contextmanager
def standalone_cluster(folder: Path, java_home: Path) -> Iterator[Cluster]:
    """Run a master and a worker of two cores; end them by their process ids."""
    folder.mkdir(parents=True)
    bare = folder / "bare"
    bare.mkdir()
    (bare / "sitecustomize.py").write_text(_BARE, encoding="utf-8")
    with ExitStack() as stack:
        master = stack.enter_context(
            _daemon("master.Master", folder / "master.log", java_home, bare, "--port", "0")
        )
        url = master.wait(r"Starting Spark master at (spark://\S+)")[0]
        stack.enter_context(
            _daemon(
                "worker.Worker", folder / "worker.log", java_home, bare, "--port", "0",
                "--cores", "2", "--memory", "1g", "--work-dir", str(folder / "work"), url,
            )
        )  # fmt: skip
        master.wait(r"Registering worker \S+ with 2 cores")
        yield Cluster(url, folder)


class _Daemon:
    """A process of the cluster, and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def wait(self, pattern: str) -> list[str]:
        """Return the matches once the log has one; fail with the log otherwise."""
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            text = self.log.read_text(encoding="utf-8", errors="replace")
            found = re.findall(pattern, text)
            if found:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.1)  # a log file has no event to wait for
        raise AssertionError(f"{pattern} is not in {self.log}:\n{text[-4_000:]}")


@contextmanager
def _daemon(
    name: str, log: Path, java_home: Path, bare: Path, *arguments: str
) -> Iterator[_Daemon]:
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {key: value for key, value in os.environ.items() if "SPARK" not in key}
    environment |= {
        "JAVA_HOME": str(java_home),
        "PYTHONPATH": str(bare),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}",
             "--host", "127.0.0.1", "--webui-port", "0", *arguments],
            stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment, cwd=log.parent,
        )  # fmt: skip
    try:
        yield _Daemon(process, log)
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
