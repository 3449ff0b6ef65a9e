"""The commands ``msg``, ``search`` and ``trace``; actions on messages by id or by query."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import quote

import click

from phpmq_lite.admin.base.urls import encode_name
from phpmq_lite.cli.admin_client import AdminClient, admin_client_options, read_response
from phpmq_lite.cli.errors import NOT_FOUND, REFUSED, CommandError
from phpmq_lite.cli.output import (
    Column,
    ColumnOverflow,
    confirm,
    format_message_count,
    output_option,
    print_message,
    write_record,
    write_rows,
)
from phpmq_lite.cli.parameters import duration
from phpmq_lite.cli.progress import progress_bar
from phpmq_lite.logs import escape

Command = TypeVar("Command", bound=Callable[..., Any])

_LOOK_S: Final = 0.5  # between two looks at the progress


def bulk_options(command: Command) -> Command:
    """Add ``--query``, ``--dry-run``, ``--apply``, ``--yes`` and ``--reason``."""
    for option in (
        click.option("--reason", default="", help="Why, for the audit."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option(
            "--apply", "token", metavar="TOKEN", help="Act on what a --dry-run has selected."
        ),
        click.option(
            "--dry-run", is_flag=True, help="Print what would be concerned, and a token; act not."
        ),
        click.option("--query", metavar="QUERY", help="All that match a search, instead of IDs."),
    ):
        command = option(command)
    return command


def act_on_messages(
    node: AdminClient,
    action: str,
    ids: tuple[str, ...],
    *,
    query: str | None,
    dry_run: bool,
    token: str | None,
    yes: bool,
    reason: str,
    **options: Any,
) -> None:
    """Do one action to messages by id, or to all that match; prints what became of each id.

    ``options`` are members of the request: ``ttl_s``, ``target``, ….
    """
    given = {key: value for key, value in options.items() if value is not None}
    if sum((bool(ids), query is not None, token is not None)) != 1:
        raise click.UsageError("give message ids, or --query, or --apply")
    if ids:
        if dry_run:
            raise click.UsageError("--dry-run goes with --query")
        _act_on_each(node, action, ids, given)
        return
    if token is None:
        selection = node.post("/selections", {"q": query})
        preview_selection(selection)
        if dry_run:
            click.echo(selection["token"])
            return
        if not selection["count"]:
            return
        token, given = selection["token"], given | _confirmed(action, selection, is_yes=yes)
    elif dry_run:
        raise click.UsageError("--dry-run and --apply do not go together")
    elif (selection := read_selection(node, token)) is not None and selection["to_confirm"]:
        given |= _confirmed(action, selection, is_yes=yes)  # else the preview was enough
    run_bulk_job(node, {"token": token, "action": action, "reason": reason} | given)


def _act_on_each(
    node: AdminClient, action: str, ids: tuple[str, ...], given: dict[str, Any]
) -> None:
    """Go on behind a message that cannot be acted on; end with the worst exit code.

    Raises:
        CommandError: the broker does not answer, or has a defect: the next would fare no better.
    """
    worst = 0
    for message_id in ids:
        try:
            done = node.post(f"/messages/{quote(message_id, safe='')}/{action}", given)
        except CommandError as error:
            text = f"{escape(message_id)}: {error}"
            worst = max(worst, error.code)
            if error.code not in (NOT_FOUND, REFUSED):
                raise CommandError(text, worst) from None
            print_message(f"Error: {text}")
        else:
            write_record(done, None)
    if worst:
        click.get_current_context().exit(worst)


def _confirmed(action: str, selection: dict[str, Any], *, is_yes: bool) -> dict[str, str]:
    confirm(f"{action.capitalize()} {format_message_count(selection['count'])}?", is_yes=is_yes)
    return {"confirm": str(selection["count"])}


def read_selection(node: AdminClient, token: str) -> dict[str, Any] | None:
    """Give a selection again; None where it is gone, though its job may still be known."""
    found: dict[str, Any] | None = node.find(f"/selections/{quote(token, safe='')}")
    return found


def preview_selection(selection: dict[str, Any]) -> None:
    """Say on standard error what a selection has: the preview of the pages, in words."""
    print_message(
        format_message_count(selection["count"]) + ("" if selection["is_complete"] else " at least")
    )
    for title, key in (("queue", "by_queue"), ("state", "by_state"), ("URN", "by_urn")):
        for name, count in selection[key].items():
            if name:
                print_message(f"  {title} {escape(name)}: {count:,}")
    print_message("later arrivals are not included")


def run_bulk_job(node: AdminClient, request: dict[str, Any]) -> None:
    """Begin a job, follow it to its end, and print what came of it.

    Raises:
        CommandError: it was stopped before it was done.
    """
    job = follow_bulk_job(node, node.post("/bulk", request))
    write_record(job, None)
    report_bulk_job(job)


def follow_bulk_job(node: AdminClient, job: dict[str, Any]) -> dict[str, Any]:
    """Follow a job to its end; give it as it is then."""
    with progress_bar(str(job["action"]), job["total"]) as advance:
        seen = 0
        while True:
            advance(job["done"] - seen)
            seen = job["done"]
            if job["state"] != "running":
                return job
            time.sleep(_LOOK_S)
            job = node.get(f"/bulk/{job['job']}")


def report_bulk_job(job: dict[str, Any]) -> None:
    """Say what was skipped; raise CommandError where the job did not come to its end."""
    for why, count in job["skipped"].items():
        print_message(f"{count:,} skipped: {why}")
    if job["state"] != "done":
        raise CommandError(f"the work was {job['state']} after {job['done']:,}", REFUSED)


MESSAGE_COLUMNS: Final = (
    Column("id", "ID", fit=ColumnOverflow.WHOLE),
    Column("queue", "QUEUE"),
    Column("state", "STATE"),
    Column("deliveries", "DELIVERIES", is_number=True, fit=ColumnOverflow.SPARE),
    Column("size", "SIZE", is_number=True, fit=ColumnOverflow.SPARE),
    Column("reason", "REASON", fit=ColumnOverflow.SPARE),
    Column("preview", "BODY", fit=ColumnOverflow.REST),
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
@admin_client_options
@output_option
def search(node: AdminClient, query: str, limit: int, output: str | None) -> None:
    """Find messages, alive and settled, the newest first.

    QUERY is what the pages take: `state:dead queue:mail* data.order_id:1042 -urn:test:* "text"`.
    In a narrow terminal the table leaves columns out; `-o jsonl` has all of them.
    """
    rows = list(node.list("/messages", limit, q=query))
    write_rows(rows, MESSAGE_COLUMNS, output, "")
    if not rows:
        _explain_nothing(node, query)


def _explain_nothing(node: AdminClient, query: str) -> None:
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
    print_message(f"nothing matches{hint}")


@click.command()
@click.argument("trace_id")
@_number
@admin_client_options
@output_option
def trace(node: AdminClient, trace_id: str, limit: int, output: str | None) -> None:
    """Show the messages of a trace over all queues, the newest first.

    TRACE_ID is the member trace_id of the envelopes; `search` and `msg get` show it.
    """
    rows = list(node.list(f"/traces/{encode_name(trace_id)}", limit))
    write_rows(rows, MESSAGE_COLUMNS, output, "")
    if not rows:
        raise CommandError(f"no message has the trace id {trace_id!r}", NOT_FOUND)


@click.group()
def msg() -> None:
    """Look at messages; requeue, move, delete or restore them."""


@msg.command()
@click.argument("queue")
@click.option("--state", type=click.Choice(["ready", "dispatched"]), help="Only these.")
@_number
@admin_client_options
@output_option
def ls(node: AdminClient, queue: str, state: str | None, limit: int, output: str | None) -> None:
    """List the messages of a queue in order."""
    path = f"/queues/{encode_name(queue)}/messages"
    write_rows(node.list(path, limit, state=state), MESSAGE_COLUMNS, output, f"{queue} is empty")


@msg.command()
@click.argument("id", metavar="ID")
@click.option("--body", is_flag=True, help="The body alone, as it was sent.")
@admin_client_options
def get(node: AdminClient, id: str, body: bool) -> None:
    """Show one message, alive or settled, as JSON; or its body."""
    path = f"/messages/{quote(id, safe='')}"
    if body:
        asyncio.run(_copy_body(node, f"{path}/body"))
    else:
        click.echo(json.dumps(node.get(path), indent=2))


async def _copy_body(node: AdminClient, path: str) -> None:
    """Write a body to standard output; without ``download`` the broker gives its beginning."""
    async with node.open("GET", path, query={"download": 1}) as response:
        if response.status != 200:
            read_response(response.status, await response.read())
        async for piece in response.content.iter_any():
            sys.stdout.buffer.write(piece)
        named = response.content_disposition
    sys.stdout.buffer.flush()
    if named is not None and (named.filename or "").endswith(".damaged"):
        print_message("the body is damaged: its checksum is another one")


@msg.command()
@_ids
@_ttl
@bulk_options
@admin_client_options
def requeue(node: AdminClient, ids: tuple[str, ...], ttl_s: int | None, **bulk: Any) -> None:
    """Put messages at the end of their queue."""
    act_on_messages(node, "requeue", ids, ttl_s=ttl_s, **bulk)


@msg.command()
@_ids
@bulk_options
@admin_client_options
def release(node: AdminClient, ids: tuple[str, ...], **bulk: Any) -> None:
    """Take dispatched messages back from their consumers, to their old place."""
    act_on_messages(node, "release", ids, **bulk)


@msg.command()
@click.argument("queue")
@_ids
@click.option("--create", is_flag=True, help="Make the queue if it is not there.")
@bulk_options
@admin_client_options
def move(node: AdminClient, queue: str, ids: tuple[str, ...], create: bool, **bulk: Any) -> None:
    """Move messages to the end of QUEUE."""
    act_on_messages(node, "move", ids, target=queue, create=create or None, **bulk)


@msg.command()
@_ids
@click.option("--dispatched", is_flag=True, help="Also what consumers hold.")
@bulk_options
@admin_client_options
def rm(node: AdminClient, ids: tuple[str, ...], dispatched: bool, **bulk: Any) -> None:
    """Delete messages; the history keeps them, `msg restore` brings them back."""
    act_on_messages(node, "delete", ids, dispatched=dispatched or None, **bulk)


@msg.command()
@_ids
@_ttl
@bulk_options
@admin_client_options
def restore(node: AdminClient, ids: tuple[str, ...], ttl_s: int | None, **bulk: Any) -> None:
    """Bring deleted messages back to their old place, as new messages."""
    act_on_messages(node, "restore", ids, ttl_s=ttl_s, **bulk)
