"""Bulk work from the command line: a frozen selection, its preview, then the job."""

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import quote

import click

from phpmq_lite.cli.main import NOT_FOUND, REFUSED, CommandError
from phpmq_lite.cli.node import Node
from phpmq_lite.cli.options import confirm, message_count, talk
from phpmq_lite.cli.output import counting, write_one
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


def act(
    node: Node,
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
        show(selection)
        if dry_run:
            click.echo(selection["token"])
            return
        if not selection["count"]:
            return
        token, given = selection["token"], given | _confirmed(action, selection, is_yes=yes)
    elif dry_run:
        raise click.UsageError("--dry-run and --apply do not go together")
    elif (selection := kept(node, token)) is not None and selection["to_confirm"]:
        given |= _confirmed(action, selection, is_yes=yes)  # else the preview was enough
    run(node, {"token": token, "action": action, "reason": reason} | given)


def _act_on_each(node: Node, action: str, ids: tuple[str, ...], given: dict[str, Any]) -> None:
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
            talk(f"Error: {text}")
        else:
            write_one(done, None)
    if worst:
        click.get_current_context().exit(worst)


def _confirmed(action: str, selection: dict[str, Any], *, is_yes: bool) -> dict[str, str]:
    confirm(f"{action.capitalize()} {message_count(selection['count'])}?", is_yes=is_yes)
    return {"confirm": str(selection["count"])}


def kept(node: Node, token: str) -> dict[str, Any] | None:
    """Give a selection again; None where it is gone, though its job may still be known."""
    found: dict[str, Any] | None = node.find(f"/selections/{quote(token, safe='')}")
    return found


def show(selection: dict[str, Any]) -> None:
    """Say on standard error what a selection has: the preview of the pages, in words."""
    talk(message_count(selection["count"]) + ("" if selection["is_complete"] else " at least"))
    for title, key in (("queue", "by_queue"), ("state", "by_state"), ("URN", "by_urn")):
        for name, count in selection[key].items():
            if name:
                talk(f"  {title} {escape(name)}: {count:,}")
    talk("later arrivals are not included")


def run(node: Node, request: dict[str, Any]) -> None:
    """Begin a job, follow it to its end, and print what came of it.

    Raises:
        CommandError: it was stopped before it was done.
    """
    job = followed(node, node.post("/bulk", request))
    write_one(job, None)
    finish(job)


def followed(node: Node, job: dict[str, Any]) -> dict[str, Any]:
    """Follow a job to its end; give it as it is then."""
    with counting(str(job["action"]), job["total"]) as advance:
        seen = 0
        while True:
            advance(job["done"] - seen)
            seen = job["done"]
            if job["state"] != "running":
                return job
            time.sleep(_LOOK_S)
            job = node.get(f"/bulk/{job['job']}")


def finish(job: dict[str, Any]) -> None:
    """Say what was skipped; raise CommandError where the job did not come to its end."""
    for why, count in job["skipped"].items():
        talk(f"{count:,} skipped: {why}")
    if job["state"] != "done":
        raise CommandError(f"the work was {job['state']} after {job['done']:,}", REFUSED)
