"""A real cluster on loopback: a standalone master and workers of the installed PySpark.

pip's Spark has no ``start-master.sh``; ``spark-class`` starts the same classes.  Its executors
are machines without our package: a ``sitecustomize`` takes the checkout off their import path.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from phpmq_lite.spark.session import ALWAYS, LOCAL

START_S = 90.0  # workers took over 8 s to register under load
END_S = 15.0
_LOOPBACK = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")

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
def standalone_cluster(folder: Path, java_home: Path, workers: int = 1) -> Iterator[Cluster]:
    """Run a master and workers of two cores in all; end them by their process ids."""
    folder.mkdir(parents=True)
    bare = folder / "bare"
    bare.mkdir()
    (bare / "sitecustomize.py").write_text(_BARE, encoding="utf-8")
    with ExitStack() as stack:
        master = stack.enter_context(
            _daemon("deploy.master.Master", folder / "master.log", java_home, bare, *_LOOPBACK)
        )
        url = master.wait(r"Starting Spark master at (spark://\S+)")[0]
        for number in range(workers):
            stack.enter_context(
                _daemon(
                    "deploy.worker.Worker", folder / f"worker-{number}.log", java_home, bare,
                    *_LOOPBACK, "--cores", str(2 // workers), "--memory", "1g",
                    "--work-dir", str(folder / "work"), url,
                )
            )  # fmt: skip
        master.wait(r"Registering worker \S+ with \d cores" + r"[\s\S]*Registering" * (workers - 1))
        yield Cluster(url, folder)


@contextmanager
def connect_server(folder: Path, java_home: Path, code: Path) -> Iterator[str]:
    """Run a Spark Connect server that gets our code as a zip; return its ``sc://`` URL."""
    folder.mkdir(parents=True)
    bare = folder / "bare"
    bare.mkdir()
    (bare / "sitecustomize.py").write_text(_BARE, encoding="utf-8")
    settings = {
        **ALWAYS, **LOCAL,
        "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": "0",
    }  # fmt: skip
    words = [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    with _daemon(
        "deploy.SparkSubmit", folder / "connect.log", java_home, bare,
        "--master", "local[2]", *words, "--class", server, "spark-internal",
        PYSPARK_PYTHON=sys.executable, PYTHONPATH=f"{bare}:{code}",
    ) as daemon:  # fmt: skip
        yield "sc://" + daemon.wait(r"Spark Connect server started at: (\S+)")[0]


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
    name: str, log: Path, java_home: Path, bare: Path, *arguments: str, **variables: str
) -> Iterator[_Daemon]:
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {key: value for key, value in os.environ.items() if "SPARK" not in key}
    environment |= {
        "JAVA_HOME": str(java_home),
        "PYTHONPATH": str(bare),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "1g",
        **variables,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [home / "bin" / "spark-class", f"org.apache.spark.{name}", *arguments],
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
