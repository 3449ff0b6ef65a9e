"""The ``dead-letter`` command group: list, redrive and delete dead letters."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import click

from phpmq_lite.admin.urls import encode_name
from phpmq_lite.cli.admin_client import AdminClient, admin_client_options
from phpmq_lite.cli.errors import REFUSED, CommandError
from phpmq_lite.cli.messages import (
    act_on_messages,
    bulk_options,
    follow_bulk_job,
    read_selection,
    report_bulk_job,
)
from phpmq_lite.cli.output import (
    SPARE,
    Column,
    columns,
    format_message_count,
    output_option,
    print_message,
    write_rows,
)
from phpmq_lite.cli.parameters import duration, flag, messages_per_second, number_option, option
from phpmq_lite.errors import SearchError
from phpmq_lite.logs import escape

DEAD_LETTER_COLUMNS: Final = (
    *columns("queue", fit=SPARE),
    *columns(origin="FROM", reason="REASON"),
    Column("count", "COUNT", is_number=True),
)
CAUSE_COLUMNS: Final = (
    Column("count", "COUNT", is_number=True),
    *columns(origin="FROM"),
    *columns(urn="URN", reason="REASON", fit=SPARE),
    *columns(cause="CAUSE"),
)
PLAN_COLUMNS: Final = (
    *columns(what="WOULD BE", name="QUEUE OR REASON"),
    Column("count", "COUNT", is_number=True),
)


@click.group("dead-letter")
def dead_letter() -> None:
    """List, redrive and delete dead letters."""


@dead_letter.command(name="list")
@flag("--by-cause", "Also count by URN and cause, ignoring numbers and ids in reasons.")
@admin_client_options
@output_option
def list_(admin: AdminClient, by_cause: bool, output: str | None) -> None:
    """Count dead letters by queue, origin and reason."""
    groups = _groups(admin)
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
@number_option(("-n", "--limit"), "Redrive only the N oldest.")
@option("--rate", "Maximum rate, such as 20/s.", messages_per_second, metavar="N/s")
@option(("--query", "q"), "Only matching dead letters.", default="", metavar="QUERY")
@flag("--dry-run", "Print the plan without publishing.")
@admin_client_options
@output_option
def redrive(
    admin: AdminClient,
    queue: str,
    target: str | None,
    ttl_s: int | None,
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
    body |= {"q": q or None, "dry_run": dry_run or None}
    answer = admin.post(path, {key: value for key, value in body.items() if value is not None})
    if answer.get("plan") is not None:
        write_rows(list(_plan_rows(answer["plan"])), PLAN_COLUMNS, output, "no dead letters")
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
    if bulk["token"] is not None:
        _check_selection(admin, bulk["token"])
    records = tuple(message_id for message_id in ids if _is_dead_letter(admin, message_id))
    if records or not ids:
        act_on_messages(admin, "delete", records, **bulk)
    if len(records) < len(ids):
        click.get_current_context().exit(REFUSED)


def _groups(admin: AdminClient) -> list[dict[str, Any]]:
    """Return the dead letters grouped by cause; print a note if some were not counted."""
    page = admin.get("/dead/groups", deep="true")
    if page["looked"] < page["total"]:
        counted = f"{page['looked']:,} of {page['total']:,} dead letters"
        print_message(f"counted {counted}, the newest of each queue")
    items: list[dict[str, Any]] = page["items"]
    return items


def _is_dead_letter(admin: AdminClient, message_id: str) -> bool:
    """Return whether a message is a dead letter, and print an error if it is not.

    Also return True for a missing message, because the deletion will report it.
    """
    message = admin.find(f"/messages/{quote(message_id, safe='')}")
    is_record = message is None or message["origin"] is not None
    if not is_record:
        print_message(
            f"Error: {escape(message_id)} is not a dead letter; "
            "use `message delete` to delete other messages"
        )
    return is_record


def _check_selection(admin: AdminClient, token: str) -> None:
    """Reject a selection that is not limited to dead letters; accept one that no longer exists."""
    selection = read_selection(admin, token)
    if selection is not None and _narrow_to_dead_letters(selection["q"]) != selection["q"]:
        raise CommandError(
            "the selection is not limited to dead letters; use `message delete`", REFUSED
        )


def _narrow_to_dead_letters(q: str) -> str:
    """Return the search limited to dead letters, or unchanged if it already names an origin."""
    from phpmq_lite.storage.search.language import parse_search

    try:
        terms = parse_search(q).of("origin")
    except SearchError as error:
        raise CommandError(str(error), REFUSED) from None
    return q if any(not term.is_negated for term in terms) else f"{q} origin:*".strip()


def _plan_rows(plan: dict[str, dict[str, int]]) -> Iterator[dict[str, Any]]:
    for member, effect in (
        ("targets", "published to"),
        ("quarantined", "of these, quarantined again:"),
        ("skipped", "skipped:"),
    ):
        for name, count in plan[member].items():
            yield {"what": effect, "name": name, "count": count}
