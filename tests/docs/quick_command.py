"""A ``phpmq-lite`` on the path that starts quickly, because the test process forks it.

The process has the arguments, environment, folder and terminal of its caller, gets its SIGINT and
SIGTERM, and is killed with it; see ``tests/support/fork_server.py``.
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
import json, os, signal, socket, sys

request = json.dumps([os.getcwd(), sys.argv[1:], dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect({path!r})
    socket.send_fds(peer, [len(request).to_bytes(4, "big")], [0, 1, 2])
    peer.sendall(request)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: peer.send(bytes([number])))
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
    threads: dict[socket.socket, Thread] = {}
    with suppress(OSError):  # shut down
        while True:
            peer, _ = listener.accept()
            for caller, thread in threads.items():
                if _is_gone(caller):
                    thread.join()  # what it started may still hold a lock
            threads[peer] = Thread(target=_answer, args=(peer,), daemon=True)
            threads[peer].start()


def _is_gone(caller: socket.socket) -> bool:
    try:
        return not caller.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:  # closed after the reply
        return True


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
        while process.sentinel not in wait([process.sentinel, peer]):
            if not (signals := peer.recv(1)):
                process.kill()  # as its caller
                break
            process.send_signal(signals[0])
        code = process.wait()
        peer.sendall(b"%d" % (code if code >= 0 else 128 - code))
