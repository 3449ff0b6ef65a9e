"""The app of the tests: its handlers record each run and do what the data requests."""

import json
import os
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from phpmq_lite.envelopes import worker
from phpmq_lite.envelopes.worker_app import connect

worker.run_worker = partial(worker.run_worker, reserve_timeout_s=0.6)  # tests wait less

app = connect(
    f"phpmq://127.0.0.1:{os.environ['TEST_PORT']}", queue=os.environ["TEST_QUEUE"],
    backoff=json.loads(os.environ.get("TEST_BACKOFF", "[1, 2, 3]")), max_attempts=4,
    release_delay_s=3,
)  # fmt: skip
_RUNS = Path(os.environ["TEST_RUNS"])


def note(**run: Any) -> None:
    with _RUNS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"at": time.time(), "pid": os.getpid()} | run) + "\n")


@app.handler("urn:test:do")
def do(data: dict[str, Any], meta: dict[str, Any], envelope: dict[str, Any]) -> None:
    """Fail, exit, sleep, publish or return."""
    note(
        what=data.get("what"), attempts=envelope["attempts"], trace=envelope["trace_id"],
        id=meta["id"],
    )  # fmt: skip
    match data.get("what"):
        case "fail":
            raise ValueError(f"failed at {envelope['attempts']}")
        case "exit":
            sys.exit(3)
        case "sleep":
            time.sleep(data["seconds"])
        case "slow fail":
            time.sleep(data["seconds"])
            raise ValueError("failed")
        case "hang":
            _hang()
        case "forward":
            app.publish("urn:test:hop", {"from": meta["id"]})


@app.handler("urn:test:brief", time_limit_s=0.5)
def brief(data: dict[str, Any], meta: dict[str, Any], envelope: dict[str, Any]) -> None:
    """Hang, in a loop that a time limit interrupts."""
    note(what=data.get("what"), attempts=envelope["attempts"], id=meta["id"])
    _hang()


def _hang() -> None:
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        with suppress(Exception):
            time.sleep(60)


@app.handler("urn:test:hop")
async def hop(data: dict[str, Any], meta: dict[str, Any], envelope: dict[str, Any]) -> None:
    """Record the propagated trace."""
    note(what="hop", trace=envelope["trace_id"], cause=data["from"])
