"""The HTTP API asked by schemathesis: what its document allows, what it forbids, and oddities.

``python -m tests.fuzz.api --minutes 10`` asks for so long, somewhere else in each round, and ends
with 1 at the first answer of 5xx, or where the broker's log has a traceback.  ``--seed`` repeats a
run.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.request import urlopen

import click
import hypothesis
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.postgres_server import postgres_server
from tests.support.socket_client import SocketClient

schemathesis.serializer.alias("application/vnd.apache.arrow.stream", "application/octet-stream")

FLAGS: Final = ("--admin", "127.0.0.1:0", "--set", "limits.max_content=1MiB")
LONG: Final = ("/events", "/wait")  # they answer when something happens
ROUND: Final = 20  # requests to one operation, in one round of a long run


@contextmanager
def store_flags(engine: str) -> Iterator[list[str]]:
    """Yield the flags with which a broker uses an engine: on PostgreSQL, with a new server."""
    if engine == "sqlite":
        yield []
        return
    with postgres_server() as server, server.database() as name:
        yield ["--store", server.url(name), "--set", "store.allow_asynchronous=true"]


def wait_until_active(broker: BrokerProcess) -> None:
    """Wait until a broker, which may begin as a standby, answers requests itself."""
    while True:
        with suppress(OSError), urlopen(f"{broker.admin[0].rstrip('/')}/readyz", timeout=10) as one:
            if one.status == 200 and b"role: standby" not in one.read():
                return
        time.sleep(0.05)


def operations_of(broker: BrokerProcess) -> list[Any]:
    """Return the operations of the broker's document that reply at once."""
    base = broker.admin[0].rstrip("/")
    schema = schemathesis.openapi.from_url(f"{base}/api/v1/openapi.json")
    schema.config.update(base_url=f"{base}/api/v1")
    found: list[Any] = [one.ok() for one in schema.get_all_operations()]  # type: ignore[union-attr]
    return [operation for operation in found if operation.path not in LONG]


@dataclass
class Asked:
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def failed(self) -> int:
        """Answers that tell of a defect."""
        return sum(count for status, count in self.statuses.items() if status >= 500)

    def __str__(self) -> str:
        by_class = Counter({f"{status // 100}xx": 0 for status in (200, 400, 500)})
        for status, count in self.statuses.items():
            by_class[f"{status // 100}xx"] += count
        return f"{self.statuses.total():,} requests: " + ", ".join(
            f"{count:,} x {name}" for name, count in sorted(by_class.items())
        )

    def ask(
        self, operation: Any, mode: GenerationMode, examples: int, seed: int | None = None
    ) -> None:
        """Send generated requests to one operation; without a seed always the same."""

        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=seed is None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        def send(case: Any) -> None:
            answer = case.call(timeout=30)
            self.statuses[answer.status_code] += 1
            case.validate_response(answer, checks=[not_a_server_error])

        if seed is not None:
            send = hypothesis.seed(seed)(send)
        try:
            send()
        except hypothesis.errors.Unsatisfiable:  # this operation has no such requests
            assert mode is GenerationMode.NEGATIVE


@click.command(help=__doc__)
@click.option("--minutes", default=10.0, show_default=True)
@click.option("--store", "engine", type=click.Choice(["sqlite", "postgres"]), default="sqlite")
@click.option("--seed", type=int, help="Repeats a run; a number of chance without.")
def main(minutes: float, engine: str, seed: int | None) -> None:
    """Send requests until the time is over."""
    seed = random.SystemRandom().randrange(1, 10**9) if seed is None else seed
    asked, rounds = Asked(), 0
    ends_s = time.monotonic() + minutes * 60
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        flags = [*FLAGS, *stack.enter_context(store_flags(engine))]
        broker = stack.enter_context(broker_process(Path(folder) / "data", *flags))
        wait_until_active(broker)
        with SocketClient(broker.port) as peer:  # so that there is something to be found
            peer.store("0", *(b'{"job":"urn:a","n":%d}' % number for number in range(100)))
        operations = operations_of(broker)
        try:
            while time.monotonic() < ends_s:
                for operation in operations:
                    for mode in GenerationMode:
                        asked.ask(operation, mode, ROUND, seed + rounds)
                    if time.monotonic() >= ends_s:
                        break
                rounds += 1
        finally:
            click.echo(
                f"api: {asked}; {len(operations)} operations, {rounds} whole rounds, seed {seed}"
            )
            log = broker.log.read_text(encoding="utf-8").splitlines()
    # Of what runs beside requests; aiohttp's own are about requests that it cannot parse: 400.
    tracebacks = [one for one in log if "Traceback" in one and "http_exceptions" not in one]
    click.echo("\n".join(tracebacks[:5]), nl=bool(tracebacks))
    sys.exit(bool(asked.failed or tracebacks))


if __name__ == "__main__":
    main()
