"""A ``phpmq-lite`` on the path that starts quickly, because the test process forks it.

The process has the arguments, environment, folder and terminal of its caller; see
``tests/support/fork_server.py``.
"""

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from typing import Final

from tests.support.fork_server import ForkedProcess

_PROGRAM: Final = """\
#!{python} -IS
import json, os, socket, sys

request = json.dumps([os.getcwd(), sys.argv[1:], dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect({path!r})
    socket.send_fds(peer, [len(request).to_bytes(4, "big")], [0, 1, 2])
    peer.sendall(request)
    sys.exit(int(peer.recv(16) or b"1"))
"""


@contextmanager
def quick_command(folder: Path) -> Iterator[None]:
    """Put the program into a new folder; it works inside the ``with`` block."""
    folder.mkdir()
    program = folder / "phpmq-lite"
    path = str(folder / "socket")
    program.write_text(_PROGRAM.format(python=sys.executable, path=path), encoding="utf-8")
    program.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        Thread(target=_serve, args=(listener,), daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket) -> None:
    with suppress(OSError):  # shut down
        while True:
            peer, _ = listener.accept()
            Thread(target=_answer, args=(peer,), daemon=True).start()


def _answer(peer: socket.socket) -> None:
    """Run the requested command, and reply with its exit code."""
    with peer, suppress(ConnectionError):
        length, files, _, _ = socket.recv_fds(peer, 4, 3)
        request = peer.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
        folder, arguments, environment = json.loads(request)
        stdin, stdout, stderr = files
        process = ForkedProcess(
            ["phpmq_lite", *arguments], stdin=stdin, stdout=stdout, stderr=stderr,
            env=environment, cwd=Path(folder),
        )  # fmt: skip
        for number in files:
            os.close(number)
        if process.sentinel not in wait([process.sentinel, peer]):
            process.terminate()  # the caller is gone
        code = process.wait()
        peer.sendall(b"%d" % (code if code >= 0 else 128 - code))
