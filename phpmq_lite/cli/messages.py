"""The ``message`` command group, the ``trace`` command, and bulk jobs."""

import sys
import time
from collections import Counter
from typing import Any, Final
from urllib.parse import quote

import click

from phpmq_lite.admin.urls import encode_name
from phpmq_lite.cli.admin_client import AdminClient, admin_client_options, admin_output_options
from phpmq_lite.cli.errors import NOT_FOUND, REFUSED, CommandError
from phpmq_lite.cli.live_events import wait
from phpmq_lite.cli.output import (
    SPARE,
    Column,
    ColumnOverflow,
    Command,
    add_options,
    columns,
    confirm,
    format_message_count,
    format_utc,
    number_columns,
    output_format,
    print_message,
    write_record,
    write_rows,
    yes_option,
)
from phpmq_lite.cli.parameters import (
    at_option,
    delay_option,
    duration,
    flag,
    messages_per_second,
    number_option,
    option,
)
from phpmq_lite.cli.progress import progress_bar
from phpmq_lite.cli.transfer import export, import_
from phpmq_lite.errors import SearchError
from phpmq_lite.logs import escape
from phpmq_lite.model import ALIVE, STATE_NAMES
from phpmq_lite.operator_actions import ACTIONS, Action, ActionDefinition

LIVE_STATES: Final = [STATE_NAMES[state] for state in sorted(ALIVE)]
_POLL_S: Final = 0.5  # seconds between requests for a job's progress


def bulk_options(command: Command) -> Command:
    """Add ``--query``, ``--dry-run``, ``--selection``, ``--yes`` and ``--reason``."""
    return add_options(
        command,
        option("--reason", "Reason to record in the audit log.", default=""),
        yes_option,
        option(("--selection", "token"), "Selection that --dry-run printed.", metavar="TOKEN"),
        flag("--dry-run", "Print what --query selects and a token for --selection."),
        option("--query", "Select messages by query, not by ID.", metavar="QUERY"),
    )


def act_on_messages(
    admin: AdminClient,
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
    """Apply an action, with ``options`` of the request, to messages, and print the results."""
    fields = {
        name: value for name, value in options.items() if value is not None and value is not False
    }
    if sum((bool(ids), query is not None, token is not None)) != 1:
        raise click.UsageError("use exactly one of message ids, --query and --selection")
    if ids:
        if dry_run:
            raise click.UsageError("--dry-run requires --query")
        _act_on_each(admin, action, ids, fields)
        return
    if token is None:
        selection = admin.post("/selections", {"q": query})
        preview_selection(selection)
        if dry_run:
            click.echo(selection["token"])
            return
        if not selection["count"]:
            return
        token, fields = selection["token"], fields | _confirm_count(action, selection, is_yes=yes)
    elif dry_run:
        raise click.UsageError("--dry-run and --selection cannot be combined")
    elif (selection := read_selection(admin, token)) is not None and selection["to_confirm"]:
        fields |= _confirm_count(action, selection, is_yes=yes)  # only this case needs confirmation
    request = {"token": token, "action": action, "reason": reason} | fields
    _finish_job(admin, admin.post("/bulk", request))


def _finish_job(admin: AdminClient, job: dict[str, Any]) -> None:
    job = follow_bulk_job(admin, job)
    _write_result(job)
    report_bulk_job(job)


def _write_result(result: dict[str, Any]) -> None:
    write_record(result, None)
    if result["undo"]:
        print_message(f"to undo it: phpmq-lite message undo {result['undo']}")


def _act_on_each(
    admin: AdminClient, action: str, ids: tuple[str, ...], fields: dict[str, Any]
) -> None:
    """Apply an action to each message; report all errors, and exit with the highest exit code."""
    exit_code = 0
    for message_id in ids:
        try:
            result = admin.post(f"{_path(message_id)}/{action}", fields)
        except CommandError as error:
            text = f"{escape(message_id)}: {error}"
            exit_code = max(exit_code, error.code)
            if error.code not in (NOT_FOUND, REFUSED):  # other messages would fail, too
                raise CommandError(text, exit_code) from None
            print_message(f"Error: {text}")
        else:
            _write_result(result)
    if exit_code:
        click.get_current_context().exit(exit_code)


def _path(message_id: str) -> str:
    return f"/messages/{quote(message_id, safe='')}"


def _confirm_count(action: str, selection: dict[str, Any], *, is_yes: bool) -> dict[str, str]:
    confirm(f"{action.capitalize()} {format_message_count(selection['count'])}?", is_yes=is_yes)
    return {"confirm": str(selection["count"])}


def read_selection(admin: AdminClient, token: str) -> dict[str, Any] | None:
    """Return a stored selection, or None if it no longer exists, even if its job still does."""
    selection: dict[str, Any] | None = admin.find(f"/selections/{quote(token, safe='')}")
    return selection


def preview_selection(selection: dict[str, Any]) -> None:
    """Print to standard error how many messages a selection contains."""
    print_message(
        ("" if selection["is_complete"] else "at least ") + format_message_count(selection["count"])
    )
    for title, key in (("queue", "by_queue"), ("state", "by_state"), ("URN", "by_urn")):
        for name, count in selection[key].items():
            if name:
                print_message(f"  {title} {escape(name)}: {count:,}")
    print_message("messages that arrive later are not included")


def follow_bulk_job(admin: AdminClient, job: dict[str, Any]) -> dict[str, Any]:
    """Show the progress of a job until it has ended, and return its final state."""
    with progress_bar(str(job["action"]), job["total"]) as advance:
        reported = 0
        while True:
            advance(job["done"] - reported)
            reported = job["done"]
            if job["state"] != "running":
                return job
            time.sleep(_POLL_S)
            job = admin.get(f"/bulk/{job['job']}")


def report_bulk_job(job: dict[str, Any]) -> None:
    """Print how many messages were skipped and why; raise CommandError if the job was stopped."""
    for reason, count in job["skipped"].items():
        print_message(f"{count:,} skipped: {reason}")
    if job["state"] != "done":
        raise CommandError(
            f"the job was {job['state']} after {format_message_count(job['done'])}", REFUSED
        )


MESSAGE_COLUMNS: Final = (
    Column("id", "ID", fit=ColumnOverflow.WHOLE),
    *columns("queue", "state"),
    *number_columns("deliveries", "size", fit=SPARE),
    *columns("reason", fit=SPARE),
    Column("preview", "BODY", fit=ColumnOverflow.REST, below=60),
)

_ids = click.argument("ids", nargs=-1, metavar="[ID]...")
_ttl = option(("--ttl", "ttl_s"), "New time to live; 0 means no expiry.", duration)
_limit = number_option(("-n", "--limit"), "Print at most N messages.", default=50)


@click.group()
def message() -> None:
    """Search, show, move, delete, export and import messages."""


@message.command()
@click.argument("query", default="")
@_limit
@admin_output_options
def search(admin: AdminClient, query: str, limit: int, output: str | None) -> None:
    """Search live and settled messages, newest first.

    QUERY uses the syntax of the web pages: `state:dead queue:mail* data.order_id:1042 -urn:test:*`.
    Other words are text of the body, in any JSON spelling; upper and lower case differ.
    A narrow terminal hides some columns of the table; `-o jsonl` prints every field.
    """
    rows = list(admin.list("/messages", limit, q=query))
    write_rows(rows, MESSAGE_COLUMNS, output, "")
    if rows:
        return
    word, hint = query.strip(), ""
    if word and not any(sign in word for sign in ':" '):
        hint = f"; a plain word searches bodies, queue:{word}* searches queue names"
        if admin.find(f"/queues/{encode_name(word)}") is not None:
            hint = f"; to list the messages of that queue: queue:{word}"
    print_message(f"nothing matches{hint}")


@click.command()
@click.argument("trace_id")
@_limit
@admin_output_options
def trace(admin: AdminClient, trace_id: str, limit: int, output: str | None) -> None:
    """Show a trace's messages from all queues, newest first.

    TRACE_ID is an envelope's trace_id field, which `message show` prints.
    """
    rows = list(admin.list(f"/traces/{encode_name(trace_id)}", limit))
    write_rows(rows, MESSAGE_COLUMNS, output, "")
    if not rows:
        raise CommandError(f"no message has the trace id {trace_id!r}", NOT_FOUND)


@message.command(name="list")
@click.argument("queue")
@option("--state", "State to list.", click.Choice(LIVE_STATES))
@_limit
@admin_output_options
def list_(
    admin: AdminClient, queue: str, state: str | None, limit: int, output: str | None
) -> None:
    """List the live messages in a queue, in delivery order."""
    rows = list(admin.list(f"/queues/{encode_name(queue)}/messages", limit, state=state))
    listed = MESSAGE_COLUMNS
    if state == "scheduled":
        listed = (*listed[:3], Column("deliver_at", "READY (UTC)"), *listed[3:])
        if output_format(output) == "table":
            rows = [row | {"deliver_at": format_utc(row["deliver_at"])} for row in rows]
    write_rows(
        rows, listed, output, f"{queue} has no {state} messages" if state else f"{queue} is empty"
    )


@message.command()
@click.argument("id", metavar="ID")
@flag("--body", "Print only the body, byte for byte.")
@admin_output_options
def show(admin: AdminClient, id: str, body: bool, output: str | None) -> None:
    """Show a message by its id or its number, or print its body."""
    if not body:
        write_record(admin.get(_path(id)), output_format(output, "json"))
        return
    with admin.open("GET", f"{_path(id)}/body", query={"download": 1}) as response:
        for piece in admin.pieces(response):
            sys.stdout.buffer.write(piece)
        file_name = response.headers.get_filename("")
    sys.stdout.buffer.flush()
    if file_name.endswith(".damaged"):
        print_message("the body is damaged: its checksum does not match")


_OPTIONS: Final = {
    "ttl_s": (_ttl,),
    "time": (delay_option, at_option),
    "create": (flag("--create", "Create QUEUE if it does not exist."),),
    "dispatched": (flag("--dispatched", "Also delete messages that consumers hold."),),
}
_target: Final = click.argument("target", metavar="QUEUE")


def _add_command(action: Action, definition: ActionDefinition) -> None:
    @admin_client_options
    def run(admin: AdminClient, ids: tuple[str, ...], **options: Any) -> None:
        act_on_messages(admin, action, ids, **options)

    run.__doc__ = definition.cli
    options = [added for name in definition.options for added in _OPTIONS.get(name, ())]
    target = [_target] if "target" in definition.options else []
    command = add_options(bulk_options(run), *reversed([*target, _ids, *options]))
    message.command(str(action))(command)


for _action, _definition in ACTIONS.items():
    if _definition.cli:
        _add_command(_action, _definition)


@message.command()
@click.argument("token")
@admin_client_options
def undo(admin: AdminClient, token: str) -> None:
    """Undo an action by the TOKEN that it printed as `undo`."""
    _finish_job(admin, admin.post(f"/undo/{quote(token, safe='')}"))


message.add_command(wait)
message.add_command(export)
message.add_command(import_)


DEAD_LETTER_COLUMNS: Final = (
    *columns("queue", fit=SPARE),
    *columns(origin="FROM", reason="REASON"),
    *number_columns("count"),
)
CAUSE_COLUMNS: Final = (
    *number_columns("count"),
    *columns(origin="FROM"),
    *columns(urn="URN", reason="REASON", fit=SPARE),
    *columns(cause="CAUSE"),
)
_PLAN_EFFECTS: Final = {
    "targets": "published to",
    "quarantined": "of these, quarantined again:",
    "skipped": "skipped:",
}
PLAN_COLUMNS: Final = (*columns(what="WOULD BE", name="QUEUE OR REASON"), *number_columns("count"))


@click.group("dead-letter")
def dead_letter() -> None:
    """List, redrive and delete dead letters."""


@dead_letter.command(name="list")
@flag("--by-cause", "Also count by URN and cause, ignoring numbers and ids in reasons.")
@admin_output_options
def list_dead_letters(admin: AdminClient, by_cause: bool, output: str | None) -> None:
    """Count dead letters by queue, origin and reason."""
    page = admin.get("/dead/groups", deep="true")
    if page["looked"] < page["total"]:
        counted = f"{page['looked']:,} of {page['total']:,} dead letters"
        print_message(f"counted {counted}, the newest of each queue")
    groups = page["items"]
    if by_cause:
        write_rows(groups, CAUSE_COLUMNS, output, "no dead letters")
        return
    members = ("queue", "origin", "reason")
    counts: Counter[tuple[str | None, ...]] = Counter()
    for group in groups:
        counts[tuple(group[name] for name in members)] += group["count"]
    rows = [{**dict(zip(members, key, strict=True)), "count": n} for key, n in counts.items()]
    write_rows(rows, DEAD_LETTER_COLUMNS, output, "no dead letters")


@dead_letter.command()
@click.argument("queue")
@option(("--to", "target"), "Redrive to this queue, not the origin.", metavar="QUEUE")
@option(("--ttl", "ttl_s"), "New time to live.  [default: the target queue's default]", duration)
@delay_option
@at_option
@number_option(("-n", "--limit"), "Redrive only the N oldest.")
@option("--rate", "Maximum rate, such as 20/s.", messages_per_second, metavar="N/s")
@option(("--query", "q"), "Only matching dead letters.", default="", metavar="QUERY")
@flag("--dry-run", "Print the plan without publishing.")
@admin_output_options
def redrive(
    admin: AdminClient,
    queue: str,
    target: str | None,
    ttl_s: int | None,
    delay_s: int | None,
    deliver_at: int | None,
    limit: int | None,
    rate: float | None,
    q: str,
    dry_run: bool,
    output: str | None,
) -> None:
    """Publish dead letters again.

    QUEUE is the queue they came from, or the dead-letter queue that contains them.
    """
    path = f"/dead/{encode_name(queue)}/redrive"
    body = {"target": target, "ttl_s": ttl_s, "limit": limit, "rate": rate}
    if rate is not None and rate.is_integer():
        body["rate"] = int(rate)
    body |= {"delay_s": delay_s, "deliver_at": deliver_at}
    body |= {"q": q or None, "dry_run": dry_run or None}
    answer = admin.post(path, {key: value for key, value in body.items() if value is not None})
    if answer.get("plan") is not None:
        rows = [
            {"what": effect, "name": name, "count": count}
            for member, effect in _PLAN_EFFECTS.items()
            for name, count in answer["plan"][member].items()
        ]
        write_rows(rows, PLAN_COLUMNS, output, "no dead letters")
        return
    if answer.get("job") is None:
        print_message(f"{format_message_count(answer['redriven'])} redriven")
        return
    job = follow_bulk_job(admin, admin.get(f"/bulk/{answer['job']}"))
    print_message(f"{format_message_count(job['done'])} redriven")
    report_bulk_job(job)


@dead_letter.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@bulk_options
@admin_client_options
def delete(admin: AdminClient, ids: tuple[str, ...], **bulk: Any) -> None:
    """Delete dead letters, but no other messages. Deleted ones remain in the history.

    `message delete` also deletes messages that a program published to a dead-letter queue.
    """
    if bulk["query"] is not None:
        bulk["query"] = _narrow_to_dead_letters(bulk["query"])
    selection = None if bulk["token"] is None else read_selection(admin, bulk["token"])
    if selection is not None and _narrow_to_dead_letters(selection["q"]) != selection["q"]:
        raise CommandError(
            "the selection is not limited to dead letters; use `message delete`", REFUSED
        )
    records = tuple(message_id for message_id in ids if _is_dead_letter(admin, message_id))
    if records or not ids:
        act_on_messages(admin, "delete", records, **bulk)
    if len(records) < len(ids):
        click.get_current_context().exit(REFUSED)


def _is_dead_letter(admin: AdminClient, message_id: str) -> bool:
    """Return whether a message is a dead letter or missing; otherwise, print an error."""
    message = admin.find(f"/messages/{quote(message_id, safe='')}")
    is_record = message is None or message["origin"] is not None
    if not is_record:
        print_message(
            f"Error: {escape(message_id)} is not a dead letter; "
            "use `message delete` to delete other messages"
        )
    return is_record


def _narrow_to_dead_letters(q: str) -> str:
    """Return the search limited to dead letters, or unchanged if it already names an origin."""
    from phpmq_lite.storage.search.language import parse_search

    try:
        terms = parse_search(q).of("origin")
    except SearchError as error:
        raise CommandError(str(error), REFUSED) from None
    return q if any(not term.is_negated for term in terms) else f"{q} origin:*".strip()
