"""A real cluster on loopback: a standalone master and workers of the installed PySpark.

pip's Spark has no ``start-master.sh``; ``spark-class`` starts the same classes.  The workers are
machines without our package: a ``sitecustomize`` takes the checkout off their import path.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
START_S = 90.0  # workers took over 8 s to register under load
END_S = 15.0

_BARE = f"""\
import sys

sys.path[:] = [entry for entry in sys.path if entry.rstrip("/") != {str(ROOT)!r}]
"""


@dataclass
class Cluster:
    """A master's URL, and the logs of what belongs to it."""

    url: str
    folder: Path
    workers: int

    def executor_errors(self) -> str:
        """Give what the executors wrote to standard error."""
        logs = sorted(self.folder.glob("work-*/*/*/stderr"))
        return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in logs)


@contextmanager
def standalone_cluster(folder: Path, java_home: Path, workers: int = 2) -> Iterator[Cluster]:
    """Run a master and workers, each of one core; end them by their process ids."""
    folder.mkdir(parents=True)
    bare = folder / "bare"
    bare.mkdir()
    (bare / "sitecustomize.py").write_text(_BARE, encoding="utf-8")
    with ExitStack() as stack:
        master = stack.enter_context(
            _daemon("master.Master", folder / "master.log", java_home, bare, "--port", "0")
        )
        url = master.wait(r"Starting Spark master at (spark://\S+)")[0]
        for number in range(workers):
            stack.enter_context(
                _daemon(
                    "worker.Worker", folder / f"worker-{number}.log", java_home, bare,
                    "--port", "0", "--cores", "1", "--memory", "1g",
                    "--work-dir", str(folder / f"work-{number}"), url,
                )
            )  # fmt: skip
        master.wait(r"Registering worker \S+ with 1 cores", workers)
        yield Cluster(url, folder, workers)


class _Daemon:
    """A process of the cluster, and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def wait(self, pattern: str, count: int = 1) -> list[str]:
        """Wait until the log has so many matches; fail with the log if it does not come to it."""
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            text = self.log.read_text(encoding="utf-8", errors="replace")
            found = re.findall(pattern, text)
            if len(found) >= count:
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
