"""``msg`` and ``search``: messages found, looked at, moved, deleted, brought back."""

import asyncio
import json
import sys
from typing import Any, Final
from urllib.parse import quote

import click

from phpmq_lite.admin.base.urls import encode_name
from phpmq_lite.cli.bulk import act, bulk_options
from phpmq_lite.cli.main import NOT_FOUND, CommandError
from phpmq_lite.cli.node import Node, node_options, read_answer
from phpmq_lite.cli.options import duration, talk
from phpmq_lite.cli.output import Column, Fit, output_option, write

COLUMNS: Final = (
    Column("id", "ID", fit=Fit.WHOLE),
    Column("queue", "QUEUE"),
    Column("state", "STATE"),
    Column("deliveries", "DELIVERIES", is_number=True, fit=Fit.SPARE),
    Column("size", "SIZE", is_number=True, fit=Fit.SPARE),
    Column("reason", "REASON", fit=Fit.SPARE),
    Column("preview", "BODY", fit=Fit.REST),
)

_ids = click.argument("ids", nargs=-1, metavar="[ID]...")
_ttl = click.option(
    "--ttl", "ttl_s", type=duration, metavar="DURATION", help="New time to live; 0: never expires."
)
_number = click.option(
    "-n", "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most."
)


@click.command()
@click.argument("query", default="")
@_number
@node_options
@output_option
def search(node: Node, query: str, limit: int, output: str | None) -> None:
    """Find messages, alive and settled, the newest first.

    QUERY is what the pages take: `state:dead queue:mail* data.order_id:1042 -urn:test:* "text"`.
    In a narrow terminal the table leaves columns out; `-o jsonl` has all of them.
    """
    rows = list(node.list("/messages", limit, q=query))
    write(rows, COLUMNS, output, "")
    if not rows:
        _explain_nothing(node, query)


def _explain_nothing(node: Node, query: str) -> None:
    """Print that nothing matches and, for plain words, that they are searched in bodies."""
    word = query.strip()
    hint = ""
    if word and not any(sign in word for sign in ':" '):
        is_queue = node.find(f"/queues/{encode_name(word)}") is not None
        hint = (
            f"; to list the messages of that queue: queue:{word}"
            if is_queue
            else (f"; a word is looked for in bodies, queue:{word}* in names of queues")
        )
    talk(f"nothing matches{hint}")


@click.command()
@click.argument("trace_id")
@_number
@node_options
@output_option
def trace(node: Node, trace_id: str, limit: int, output: str | None) -> None:
    """Show the messages of a trace over all queues, the newest first.

    TRACE_ID is the member trace_id of the envelopes; `search` and `msg get` show it.
    """
    rows = list(node.list(f"/traces/{encode_name(trace_id)}", limit))
    write(rows, COLUMNS, output, "")
    if not rows:
        raise CommandError(f"no message has the trace id {trace_id!r}", NOT_FOUND)


@click.group()
def msg() -> None:
    """Look at messages; requeue, move, delete or restore them."""


@msg.command()
@click.argument("queue")
@click.option("--state", type=click.Choice(["ready", "dispatched"]), help="Only these.")
@_number
@node_options
@output_option
def ls(node: Node, queue: str, state: str | None, limit: int, output: str | None) -> None:
    """List the messages of a queue in order."""
    path = f"/queues/{encode_name(queue)}/messages"
    write(node.list(path, limit, state=state), COLUMNS, output, f"{queue} is empty")


@msg.command()
@click.argument("id", metavar="ID")
@click.option("--body", is_flag=True, help="The body alone, as it was sent.")
@node_options
def get(node: Node, id: str, body: bool) -> None:
    """Show one message, alive or settled, as JSON; or its body."""
    path = f"/messages/{quote(id, safe='')}"
    if body:
        asyncio.run(_copy_body(node, f"{path}/body"))
    else:
        click.echo(json.dumps(node.get(path), indent=2))


async def _copy_body(node: Node, path: str) -> None:
    """Write a body to standard output; without ``download`` the broker gives its beginning."""
    async with node.open("GET", path, query={"download": 1}) as response:
        if response.status != 200:
            read_answer(response.status, await response.read())
        async for piece in response.content.iter_any():
            sys.stdout.buffer.write(piece)
        named = response.content_disposition
    sys.stdout.buffer.flush()
    if named is not None and (named.filename or "").endswith(".damaged"):
        talk("the body is damaged: its checksum is another one")


@msg.command()
@_ids
@_ttl
@bulk_options
@node_options
def requeue(node: Node, ids: tuple[str, ...], ttl_s: int | None, **bulk: Any) -> None:
    """Put messages at the end of their queue."""
    act(node, "requeue", ids, ttl_s=ttl_s, **bulk)


@msg.command()
@_ids
@bulk_options
@node_options
def release(node: Node, ids: tuple[str, ...], **bulk: Any) -> None:
    """Take dispatched messages back from their consumers, to their old place."""
    act(node, "release", ids, **bulk)


@msg.command()
@click.argument("queue")
@_ids
@click.option("--create", is_flag=True, help="Make the queue if it is not there.")
@bulk_options
@node_options
def move(node: Node, queue: str, ids: tuple[str, ...], create: bool, **bulk: Any) -> None:
    """Move messages to the end of QUEUE."""
    act(node, "move", ids, target=queue, create=create or None, **bulk)


@msg.command()
@_ids
@click.option("--dispatched", is_flag=True, help="Also what consumers hold.")
@bulk_options
@node_options
def rm(node: Node, ids: tuple[str, ...], dispatched: bool, **bulk: Any) -> None:
    """Delete messages; the history keeps them, `msg restore` brings them back."""
    act(node, "delete", ids, dispatched=dispatched or None, **bulk)


@msg.command()
@_ids
@_ttl
@bulk_options
@node_options
def restore(node: Node, ids: tuple[str, ...], ttl_s: int | None, **bulk: Any) -> None:
    """Bring deleted messages back to their old place, as new messages."""
    act(node, "restore", ids, ttl_s=ttl_s, **bulk)
