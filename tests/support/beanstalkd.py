"""A beanstalkd process, as the source of imports."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest

from phpmq_lite.client.core import parse_address
from phpmq_lite.importers.beanstalkd import BeanstalkdClient, BeanstalkdError, connect_beanstalkd

needs_beanstalkd = pytest.mark.skipif(
    shutil.which("beanstalkd") is None, reason="beanstalkd is missing: apt install beanstalkd"
)


class BeanstalkdServer:
    """A beanstalkd process with a binlog, and a connection to it."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._folder = folder
        self.start()

    def start(self) -> None:
        port = self.address.rpartition(":")[2]
        self.process = subprocess.Popen(
            ["beanstalkd", "-l", "127.0.0.1", "-p", port, "-b", str(self._folder), "-F"],
            stderr=subprocess.DEVNULL,
        )
        self.reach()

    def reach(self) -> None:
        ends_at = monotonic() + 10
        while True:
            self._opened = connect_beanstalkd(parse_address(self.address))
            try:
                self.server: BeanstalkdClient = self._opened.__enter__()
            except BeanstalkdError:
                assert monotonic() < ends_at
                sleep(0.01)
            else:
                return

    def stop(self) -> None:
        self._opened.__exit__(None, None, None)
        self.process.kill()
        self.process.wait()

    def put(self, tube: str, *bodies: bytes, priority: int = 100, delay_s: int = 0) -> list[int]:
        commands = [b"use %s" % tube.encode()]
        commands += [
            b"put %d %d 60 %d\r\n%s" % (priority, delay_s, len(body), body) for body in bodies
        ]
        return [int(answer.words[1]) for answer in self.server.ask(commands)[1:]]

    def bury(self, job_id: int) -> None:
        self.server.ask([b"reserve-job %d" % job_id, b"bury %d 1" % job_id])


@contextmanager
def beanstalkd_process(folder: Path) -> Iterator[BeanstalkdServer]:
    source = BeanstalkdServer(folder)
    try:
        yield source
    finally:
        source.stop()
