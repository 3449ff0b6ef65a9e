"""The group ``dead``: list, redrive and delete dead letters."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import click

from phpmq_lite.admin.base.urls import encode_name
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
    Column,
    format_message_count,
    output_option,
    print_message,
    write_rows,
)
from phpmq_lite.cli.parameters import duration, parse_rate
from phpmq_lite.logs import escape

DEAD_LETTER_COLUMNS: Final = (
    Column("queue", "QUEUE"),
    Column("origin", "FROM"),
    Column("reason", "REASON"),
    Column("count", "COUNT", is_number=True),
)
GROUP_COLUMNS: Final = (
    Column("count", "COUNT", is_number=True),
    Column("origin", "FROM"),
    Column("urn", "URN"),
    Column("reason", "REASON"),
    Column("cause", "CAUSE"),
)
PLAN_COLUMNS: Final = (
    Column("what", "WOULD BE"),
    Column("name", "QUEUE OR REASON"),
    Column("count", "COUNT", is_number=True),
)


@click.group()
def dead() -> None:
    """List dead letters, send them back to their queue."""


@dead.command()
@admin_client_options
@output_option
def ls(node: AdminClient, output: str | None) -> None:
    """List the dead letters by queue, origin and reason."""
    shown = ("queue", "origin", "reason")
    counts: Counter[tuple[str | None, ...]] = Counter()
    for group in _groups(node):  # those have URN and cause apart too
        counts[tuple(group[name] for name in shown)] += group["count"]
    rows = [{**dict(zip(shown, key, strict=True)), "count": n} for key, n in counts.items()]
    write_rows(rows, DEAD_LETTER_COLUMNS, output, "no dead letters")


@dead.command()
@admin_client_options
@output_option
def groups(node: AdminClient, output: str | None) -> None:
    """Group the dead letters by cause; numbers and ids in the reasons count as one."""
    write_rows(_groups(node), GROUP_COLUMNS, output, "no dead letters")


@dead.command()
@click.argument("queue")
@click.option("--to", "target", metavar="QUEUE", help="Another queue than the one they died in.")
@click.option(
    "--ttl",
    "ttl_s",
    type=duration,
    metavar="DURATION",
    help="Their new time to live; without: the default of the queue they come to.",
)
@click.option("-n", "--limit", type=click.IntRange(min=1), help="At most so many, oldest first.")
@click.option("--rate", metavar="N/s", type=str, help="At most so many a second, as 20/s.")
@click.option("--filter", "q", default="", metavar="SEARCH", help="Only records that match.")
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@admin_client_options
@output_option
def redrive(
    node: AdminClient,
    queue: str,
    target: str | None,
    ttl_s: int | None,
    limit: int | None,
    rate: str | None,
    q: str,
    dry_run: bool,
    output: str | None,
) -> None:
    """Publish the dead letters of QUEUE again; QUEUE is theirs, or the one that they lie in."""
    path = f"/dead/{encode_name(queue)}/redrive"
    body = {"target": target, "ttl_s": ttl_s, "limit": limit, "rate": parse_rate(rate)}
    body |= {"q": q or None, "dry_run": dry_run or None}
    answer = node.post(path, {key: value for key, value in body.items() if value is not None})
    if answer.get("plan") is not None:
        write_rows(list(_plan_rows(answer["plan"])), PLAN_COLUMNS, output, "no dead letters")
        return
    if answer.get("job") is None:
        print_message(f"{format_message_count(answer['redriven'])} published again")
        return
    job = follow_bulk_job(node, node.get(f"/bulk/{answer['job']}"))
    print_message(f"{format_message_count(job['done'])} published again")
    report_bulk_job(job)


@dead.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@bulk_options
@admin_client_options
def rm(node: AdminClient, ids: tuple[str, ...], **bulk: Any) -> None:
    """Delete dead letters, and nothing else; the history keeps them.

    What a program itself published to a dead-letter queue goes with msg rm.
    """
    if bulk["query"] is not None:
        bulk["query"] = _of_records(bulk["query"])
    if bulk["token"] is not None:
        _check_selection(node, bulk["token"])
    records = tuple(message_id for message_id in ids if _is_record(node, message_id))
    if records or not ids:
        act_on_messages(node, "delete", records, **bulk)
    if len(records) < len(ids):
        click.get_current_context().exit(REFUSED)


def _groups(node: AdminClient) -> list[dict[str, Any]]:
    """Give the groups; says on standard error where not all records were looked at."""
    found = node.get("/dead/groups", deep="true")
    if found["looked"] < found["total"]:
        print_message(f"counts are of the newest {found['looked']:,} of {found['total']:,} records")
    items: list[dict[str, Any]] = found["items"]
    return items


def _is_record(node: AdminClient, message_id: str) -> bool:
    """Tell whether a message may be deleted here, and why not; what is gone is told by the act."""
    found = node.find(f"/messages/{quote(message_id, safe='')}")
    is_record = found is None or found["origin"] is not None
    if not is_record:
        print_message(f"Error: {escape(message_id)} is no dead letter; msg rm deletes any message")
    return is_record


def _check_selection(node: AdminClient, token: str) -> None:
    """Refuse a selection that has more than records; one that is gone may still have its job."""
    selection = read_selection(node, token)
    if selection is not None and _of_records(selection["q"]) != selection["q"]:
        raise CommandError("the selection has more than dead letters; msg rm acts on it", REFUSED)


def _of_records(q: str) -> str:
    """Narrow a search to records.  Two origins are either of them, so one that is there stays."""
    from phpmq_lite.admin.base.problems import Problem
    from phpmq_lite.admin.base.search_query import parse_search

    try:
        terms = parse_search(q).of("origin")
    except Problem as problem:
        raise CommandError(problem.detail, REFUSED) from None
    return q if any(not term.is_negated for term in terms) else f"{q} origin:*".strip()


def _plan_rows(plan: dict[str, dict[str, int]]) -> Iterator[dict[str, Any]]:
    for member, what in (
        ("targets", "published again to"),
        ("quarantined", "of them quarantined again:"),
        ("skipped", "stay:"),
    ):
        for name, count in plan[member].items():
            yield {"what": what, "name": name, "count": count}
