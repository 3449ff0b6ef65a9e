"""A process that stores one batch of the core, and is killed with SIGKILL meanwhile."""

import marshal
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any, Final

from phpmq_lite.model import Batch
from tests.support.stores import Database, open_place

_server: Final = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload([__name__])


def store_and_kill(database: Database, steps: bytes, delay_s: float) -> None:
    """Store encoded steps in a process of its own, killed ``delay_s`` after it has begun."""
    ours, theirs = _server.Pipe()
    process = _server.Process(target=_store, args=(database.place, steps, theirs), daemon=True)
    process.start()
    theirs.close()
    ours.recv()
    time.sleep(delay_s)
    process.kill()
    process.join()
    ours.close()
    database.wait_for_killed()


def _store(place: Any, steps: bytes, parent: Connection) -> None:
    store = open_place(place)
    parent.send(None)
    store.begin(marshal.loads(steps))
    store.end(Batch(0))  # requests nothing
    parent.recv()  # until it is killed
