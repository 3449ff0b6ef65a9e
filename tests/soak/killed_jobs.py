"""Jobs of the pipeline, killed at random moments, and what the next ones find.

    python -m tests.soak.killed_jobs [--kills 160] [--seed 1] [--short]

A process runs the jobs of an archive, and is killed by SIGKILL: all of it, only its Python, or only
its JVM. The next process runs each job once. Then DuckDB must find the rows of the broker's SQLite,
each once, ``verify`` no difference, and nothing may be left of the killed process. Archives with
and without a Delta log take turns, on ``local[2]`` and on a standalone master with two workers.
Each kill waits for the job that it is meant for; most hit a process before it has repaired all.
"""

import argparse
import faulthandler
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

from phpmq_lite.spark.executor_zip import build_zip
from phpmq_lite.spark.session import find_java, session
from tests.soak.archive_site import JOBS, MESSAGES, ChangedArchive, SettlingBroker
from tests.soak.shifted_broker import shifted_broker
from tests.spark import conftest as _cheap_java  # noqa: F401 - sets what each JVM inherits
from tests.spark.standalone import standalone_cluster

ROOT: Final = Path(__file__).parents[2]
WAIT_S: Final = 400.0
END_S: Final = 60.0  # until Python notices that its JVM is gone
FORMATS: Final = ("parquet", "delta")
EARLY: Final = 0.7  # share of kills during a repair
WARM_S: Final = 3.0  # a job takes longer only if it is the first one of its process
KINDS: Final = ("all", "all", "python", "java")
ON_CLUSTER: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


@dataclass
class Worker:
    """A process that runs jobs, as told by lines on its standard input."""

    process: "subprocess.Popen[str]"
    log: Path
    job: str = ""  # running now
    began_s: float = field(default_factory=time.monotonic)
    start_s: float = 0.0
    took_s: dict[str, float] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    rest: str = ""

    def read(self, until_s: float) -> dict[str, Any] | None:
        """Return the next message; None at a time, or at the end of the process."""
        stream = self.process.stdout
        assert stream is not None
        while "\n" not in self.rest:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not select.select([stream], [], [], left_s)[0]:
                return None
            text = os.read(stream.fileno(), 65_536).decode()
            if not text:
                return None
            self.rest += text
        line, _, self.rest = self.rest.partition("\n")
        message: dict[str, Any] = json.loads(line)
        if "begin" in message:
            self.start_s = self.start_s or time.monotonic() - self.began_s
            self.job, self.began_s = message["begin"], time.monotonic()
        elif "end" in message:
            now_s = time.monotonic()
            self.took_s[self.job] = now_s - self.began_s
            self.job, self.began_s = "", now_s
        return message

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def kill(self, kind: str) -> None:
        """Kill all of the process, or only a part; return once its Python has ended."""
        pid = self.process.pid
        if kind == "java":
            assert self.process.stdin is not None
            self.process.stdin.close()  # it may wait there
            for java in java_of(pid):
                os.kill(java, signal.SIGKILL)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                os.kill(pid, signal.SIGUSR1)  # where it is, in the log
                time.sleep(1)
                os.killpg(pid, signal.SIGKILL)
                raise AssertionError("Python did not end after its JVM was killed") from None
        elif kind == "python":
            os.kill(pid, signal.SIGKILL)
        else:
            os.killpg(pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def java_of(group: int) -> list[int]:
    """Return the JVMs of a process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        name, _, fields = text.partition("(")[2].rpartition(")")
        if name == "java" and int(fields.split()[2]) == group:
            found.append(int(path.parent.name))
    return found


@dataclass
class Site:
    """An archive that takes part, on one master."""

    archive: ChangedArchive
    master: str
    conf: dict[str, str]
    folder: Path
    erasing: str = ""  # trace whose erase may be incomplete
    took_s: dict[str, float] = field(default_factory=dict)
    kills: int = 0

    @property
    def name(self) -> str:
        return f"{self.archive.format} on {self.master.partition(':')[0]}"

    def start(self) -> Worker:
        """Start a process that runs jobs."""
        specification = {
            "url": self.archive.url,
            "out": str(self.archive.out),
            "format": self.archive.format,
            "master": self.master,
            "conf": self.conf,
            "erasing": self.erasing,
        }
        log = self.folder / "worker.log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.killed_jobs", "--worker",
                 json.dumps(specification)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True,
            )  # fmt: skip
        return Worker(process, log)


@dataclass
class Run:
    """Kills of all sites in turn."""

    broker: SettlingBroker
    sites: list[Site]
    dice: random.Random
    kills: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # site, job, kind
    checks: int = 0
    repairs: int = 0  # processes killed before they had repaired
    errors: list[str] = field(default_factory=list)

    def kill_once(self, number: int) -> None:
        """Start a site's next process, check its repair of the last kill, and kill it."""
        site = self.sites[number % len(self.sites)]
        kind = self.dice.choice(KINDS)
        job = JOBS[site.kills % len(JOBS)]
        site.kills += 1
        is_early = bool(site.took_s) and self.dice.random() < EARLY
        if is_early:  # so that all jobs of the repair have work, too
            self.broker.settle()
            site.erasing = site.erasing or self.trace()
        worker = site.start()
        try:
            if is_early:
                self.await_job(worker, job)
                self.sleep(worker, self.dice.uniform(0, site.took_s.get(job, 2.0)))
                self.repairs += 1
            else:
                self.repair(site, worker)
                self.disturb(site, worker, job)
                self.sleep(worker, self.dice.uniform(0, min(site.took_s.get(job, 2.0), WARM_S)))
            hit = worker.job or "between"
            self.kills[site.name, hit, kind] += 1
            print(f"{number + 1}: {site.name}, {kind} in {hit}{' (repair)' * is_early}",
                  flush=True)  # fmt: skip
            worker.kill(kind)
        except AssertionError as error:
            self.fail(site, worker, f"{kind} of {job}: {error}")

    def await_job(self, worker: Worker, job: str) -> None:
        """Wait until a job begins."""
        until_s = time.monotonic() + WAIT_S
        while message := worker.read(until_s):
            assert "error" not in message, message["error"]
            if message.get("begin") == job:
                return
        raise AssertionError(f"{job} did not begin: {worker.log.read_text()[-3_000:]}")

    def sleep(self, worker: Worker, delay_s: float) -> None:
        until_s = time.monotonic() + delay_s
        while message := worker.read(until_s):
            assert "error" not in message, message["error"]

    def repair(self, site: Site, worker: Worker) -> None:
        """Wait until each job has run once, and check what is there."""
        until_s = time.monotonic() + WAIT_S
        while message := worker.read(until_s):
            assert "error" not in message, message["error"]
            if "verified" in message:
                break
        assert message is not None, f"no end: {worker.log.read_text()[-3_000:]}"
        assert message["verified"] == ""
        worker.took_s |= {"start": worker.start_s, "verify": time.monotonic() - worker.began_s}
        site.took_s |= worker.took_s
        print(" ", {job: round(s, 1) for job, s in worker.took_s.items()}, flush=True)
        if site.erasing:
            site.archive.erased.add(site.erasing)
            site.erasing = ""
        history = self.broker.history()
        site.archive.check_archive(history)
        site.archive.check_results(history)
        site.archive.check_folders()
        self.checks += 1

    def trace(self) -> str:
        """Return a recent trace."""
        settlement = self.broker.settlements - self.dice.randrange(min(self.broker.settlements, 4))
        return f"t{settlement * MESSAGES // 5 + self.dice.randrange(3)}"

    def disturb(self, site: Site, worker: Worker, job: str) -> None:
        """Run the jobs that give ``job`` work, and wait until it runs."""
        self.broker.settle()
        if job == "erase":
            site.erasing = self.trace()
        order = [job] if job in ("archive", "prune", "erase") else ["archive", job]
        after = [name for name in JOBS if name not in ("erase", job)]
        worker.tell(json.dumps([*order, *after, site.erasing]))
        self.await_job(worker, job)

    def fail(self, site: Site, worker: Worker, text: str) -> None:
        """Keep what a failed check found, and begin a new archive."""
        self.errors.append(f"{site.name}: {text}")
        print(f"ERROR {site.name}: {text}", flush=True)
        worker.kill("all")
        kept = site.folder / f"failed-{len(self.errors)}"
        shutil.copytree(site.archive.out, kept, dirs_exist_ok=True)
        shutil.copy(worker.log, kept / "worker.log")
        shutil.rmtree(site.archive.out)
        site.archive.erased.clear()
        site.erasing = ""


def work(specification: dict[str, Any]) -> None:
    """Run each job once, verify, then run the jobs that a line on standard input names."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    tells = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Java prints

    def tell(**message: Any) -> None:
        tells.write(json.dumps(message) + "\n")
        tells.flush()

    out = Path(specification["out"])
    changed = ChangedArchive(specification["url"], out, specification["format"])
    with tempfile.TemporaryDirectory(prefix="phpmq-zip-") as folder:
        zips = [build_zip(Path(folder) / "phpmq_lite.zip")] if specification["conf"] else []
        spark = session(
            "killed", master=specification["master"], conf=specification["conf"], py_files=zips,
            log=out.parent / "spark.log",
        )  # fmt: skip
        erasing = specification["erasing"]
        try:
            run_jobs(spark, changed, [name for name in JOBS if name != "erase" or erasing],
                     erasing, tell)  # fmt: skip
            tell(verified=changed.verify(spark))
            *jobs, erasing = json.loads(sys.stdin.readline())
            run_jobs(spark, changed, jobs, erasing, tell)
        except Exception as error:  # told, unless killed
            tell(error=f"{error!r:.2000}")
            raise
        sys.stdin.readline()


def run_jobs(spark: Any, changed: ChangedArchive, jobs: list[str], erasing: str, tell: Any) -> None:
    """Run jobs in order, and tell when each begins and ends."""
    for job in jobs:
        tell(begin=job)
        tell(end=job, rows=changed.run(spark, job, erasing))


def main(kills: int, seed: int, masters: tuple[str, ...], until: str, folder: Path) -> int:
    """Kill jobs so often, or until a time of the day such as 21:00; return the number of errors."""
    with ExitStack() as stack:
        process = stack.enter_context(shifted_broker(folder / "broker" / "data"))
        broker = SettlingBroker(process)
        broker.settle()
        sites = []
        cluster = None
        for number, (master, form) in enumerate(product(masters, FORMATS)):
            own = folder / f"site-{number}"
            own.mkdir()
            conf: dict[str, str] = {}
            if master == "cluster":
                if cluster is None:
                    cluster = stack.enter_context(
                        standalone_cluster(folder / "cluster", find_java().home, workers=2)
                    )
                master, conf = cluster.url, ON_CLUSTER
            archive = ChangedArchive(broker.url, own / "out", form)
            sites.append(Site(archive, master, conf, own))
        run = Run(broker, sites, random.Random(seed))
        for number in range(kills):
            if until and time.strftime("%H:%M") >= until:
                break
            run.kill_once(number)
        for site in sites:  # what the last kill left
            worker = site.start()
            try:
                run.repair(site, worker)
                worker.kill("all")
            except AssertionError as error:
                run.fail(site, worker, f"at the end: {error}")
        report(run)
        return len(run.errors)


def report(run: Run) -> None:
    """Print the counts."""
    print(f"{run.kills.total()} kills, {run.repairs} of them during a repair;"
          f" {run.checks} checks, {len(run.errors)} errors")  # fmt: skip
    for place in range(3):
        counts = Counter[str]()
        for key, count in run.kills.items():
            counts[key[place]] += count
        print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    for (name, job, kind), count in sorted(run.kills.items()):
        print(f"{name:20} {job:8} {kind:7} {count}")
    for site in run.sites:
        ledger = site.archive.ledger()
        print(
            f"{site.name}: {ledger.number} versions, {ledger.rows} rows in {len(ledger.dates)}"
            f" dates, {len(ledger.pruned)} pruned, {len(site.archive.erased)} traces erased"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=160)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--until", default="", help="stop at this time of the day, such as 21:00")
    parser.add_argument("--masters", nargs="+", default=["local[2]", "cluster"])
    parser.add_argument("--short", action="store_true", help="four kills on local[2]")
    parser.add_argument("--folder", type=Path, help="keep everything in this folder")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        sys.exit()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # ends broker and cluster, too
    if options.short:
        options.kills, options.masters = 4, ["local[2]"]
    with tempfile.TemporaryDirectory(prefix="phpmq-kills-") as place:
        target = options.folder or Path(place)
        (target / "broker").mkdir(parents=True)
        arguments = (options.kills, options.seed, tuple(options.masters), options.until, target)
        sys.exit(main(*arguments) > 0)
