"""What tests with a driver share: making them, asking, and reading what is in a queue."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from phpmq_lite.errors import RefusedError
from tests.driving import Client, Driver

MakeDriver = Callable[..., Driver]


@contextmanager
def drivers_in(folder: Path) -> Iterator[MakeDriver]:
    """Give what makes a driver on the file in ``folder``; in the end all of them are closed."""
    with ExitStack() as stack:

        def make(*given: Any, **named: Any) -> Driver:
            driver = Driver(folder, *given, **named)
            stack.callback(driver.close)
            return driver

        yield make


def order(driver: Driver, queue: str = "orders") -> list[bytes]:
    """Return the bodies of a queue in the order in which they will be dispatched."""
    rows = driver.rows(
        "SELECT content FROM message JOIN body USING (seq) JOIN queue USING (queue_id)"
        " WHERE name = ? ORDER BY position", queue,
    )  # fmt: skip
    return [content for (content,) in rows]


def taken_in_order(driver: Driver, worker: Client) -> list[bytes]:
    """Let a client acknowledge whatever it gets; return the bodies in their order."""
    got = []
    while deliveries := worker.take():
        got += [delivery.body for delivery in deliveries]
        for delivery in deliveries:
            worker.acknowledge("orders", delivery.message_id)
        driver.step()
    return got


def ask(driver: Driver, verb: str, *arguments: Any, **options: Any) -> Any:
    """Give a command, come to rest, and return the answer; a refusal as its code."""
    question = driver.ask(verb, *arguments, **options)
    driver.step()
    answer = question.answer
    return answer.code if isinstance(answer, RefusedError) else answer
