"""``expect``: waits for a message, for tests and scripts that must not sleep and count."""

import asyncio
import json
import time
from typing import Any

import click

from phpmq_lite.admin.base.search_query import queue_search
from phpmq_lite.cli.main import TIMED_OUT, CommandError
from phpmq_lite.cli.node import Node, node_options, read_answer
from phpmq_lite.cli.options import duration

_TURN_S = 60  # the longest that one request waits


@click.command()
@click.argument("queue")
@click.argument("query", default="")
@click.option(
    "--until", type=click.Choice(["published", "settled"]), default="published", show_default=True,
    help="What has to happen.",
)  # fmt: skip
@click.option("--after", metavar="CURSOR", help="Only what happened after this moment.")
@click.option(
    "--timeout", "timeout_s", type=duration, default="30s", show_default=True, help="Then exit 5."
)
@click.option("--cursor", is_flag=True, help="Print the cursor of now, for --after, and end.")
@node_options
def expect(
    node: Node,
    queue: str,
    query: str,
    until: str,
    after: str | None,
    timeout_s: int,
    cursor: bool,
) -> None:
    """Wait until a message of QUEUE matches QUERY; print it.

    Without --after only what happens from now on counts.
    """
    if cursor:
        _, now = asyncio.run(_wait(node, {"until": until, "timeout": 0}, 0))
        click.echo(now)
        return
    ends_s = time.monotonic() + timeout_s
    text = f"{queue_search(queue)} {query}".strip()  # the name alone, whatever marks it has
    while (left_s := ends_s - time.monotonic()) > 0:
        turn_s = min(_TURN_S, max(1, round(left_s)))
        asked: dict[str, Any] = {"q": text, "until": until, "after": after, "timeout": turn_s}
        found, after = asyncio.run(_wait(node, asked, turn_s))
        if found is not None:
            click.echo(json.dumps(found))
            return
    raise CommandError(f"nothing matched within {timeout_s} s", TIMED_OUT)


async def _wait(node: Node, asked: dict[str, Any], turn_s: int) -> tuple[object | None, str | None]:
    async with node.open("GET", "/wait", query=asked, timeout_s=turn_s + 30) as response:
        content = await response.read()
        if response.status == 204:
            return None, response.headers.get("X-Cursor")
        return read_answer(response.status, content), None
