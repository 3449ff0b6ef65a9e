"""Pages in states that are rare or hard to reach, such as an unclean restart or a damaged file.

Each row requests a page of a real broker, replaces some of the values that its handler gives to the
template, and names a text that the user sees.  ``tests.support.template_branches`` counts them.
"""

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from typing import Any, Final

import jinja2
import pytest
import pytest_asyncio

from phpmq_lite.admin.accounts.audit import SettingChange
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.templates import PageTemplates
from phpmq_lite.admin.messages.bulk import RedrivePlan
from phpmq_lite.admin.messages.envelope_card import JudgeOptions, make_card
from phpmq_lite.admin.messages.jobs import BulkJobState
from phpmq_lite.admin.messages.message_life import RelatedMessage
from phpmq_lite.admin.messages.schemas import SchemaCheck, SchemaFieldView
from phpmq_lite.admin.pipeline.readers import ReaderView, SubscriptionClaimsView
from phpmq_lite.admin.system.attention import Notice
from phpmq_lite.admin.system.frames import bad_byte_row
from phpmq_lite.admin.system.system import ClockView
from phpmq_lite.admin.system.view import SystemFact, describe_restart
from phpmq_lite.checks import Check, Level
from phpmq_lite.envelopes.schema_compatibility import SchemaChange
from phpmq_lite.envelopes.schema_registry import RegistryFault
from phpmq_lite.envelopes.validation import EnvelopeProblem
from phpmq_lite.insights_document import QueueTotals
from phpmq_lite.operator_actions import SkipReason
from phpmq_lite.server.certificates import Certificate
from phpmq_lite.server.frame_recorder import ProtocolErrorRecord
from phpmq_lite.storage.read.audit import BulkJobRow
from phpmq_lite.storage.start_report import Start, StartReport
from tests.integration.test_envelope_pages import envelope, record
from tests.support.full_broker import FullBroker, full_broker
from tests.unit.admin.cases import NOW_MS
from tests.unit.admin.pipeline.cases import summary

pytestmark = pytest.mark.asyncio(loop_scope="module")  # with ``filled``

Values = dict[str, Any]
Change = Callable[[Values], Values]
DAY_MS: Final = 86_400_000


def copy_of(value: Any, **fields: Any) -> Any:
    """Return a value with other fields; of a list, only the first item has them.

    A function returns a field's value from the previous one.
    """
    if isinstance(value, list | tuple):
        return [copy_of(value[0], **fields), *value[1:]]
    fields = {
        name: new(getattr(value, name)) if callable(new) else new for name, new in fields.items()
    }
    if hasattr(value, "model_copy"):
        return value.model_copy(update=fields)
    return replace(value, **fields)


def given(**values: Any) -> Change:
    """Replace values."""
    return lambda _values: values


def changed(name: str, **fields: Any) -> Change:
    """Replace fields of a value, or of the first item of a list."""
    return lambda values: {name: copy_of(values[name], **fields)}


def rows(**fields: Any) -> Change:
    """Replace fields of each listed message."""

    def change(values: Values) -> Values:
        page = values["listed"]
        return {"listed": replace(page, rows=[replace(row, **fields) for row in page.rows])}

    return change


def queues(**fields: Any) -> Change:
    """Replace fields of the status of each listed queue."""

    def change(values: Values) -> Values:
        page = values["listed"]
        statuses = [replace(queue, status=replace(queue.status, **fields)) for queue in page.queues]
        return {"listed": replace(page, queues=statuses)}

    return change


def card(content: str, **fields: Any) -> Change:
    """Replace the envelope of a message."""
    made = make_card(content.encode(), JudgeOptions())
    assert made is not None
    return given(card=replace(made, **fields))


def audited(changes: list[SettingChange], **fields: Any) -> Change:
    """Replace the audit log by one row, of the newest row with other fields and these changes."""

    def change(values: Values) -> Values:
        shown = values["rows"][0]
        return {"rows": [replace(shown, changes=changes, row=replace(shown.row, **fields))]}

    return change


def groups(**fields: Any) -> Change:
    """Replace fields of each group of dead letters."""
    return lambda values: {
        "groups": [(replace(group, **fields), q, points) for group, q, points in values["groups"]]
    }


def failed_trace(values: Values) -> Values:
    """Return a trace whose attempts all failed, without a URN and without some queues."""
    view = values["trace"]
    lanes = [
        replace(lane, bars=[replace(bar, is_failed=True) for bar in lane.bars])
        for lane in view.lanes
    ]
    steps = [
        replace(step, bar=replace(step.bar, row=replace(step.row, urn=None)))
        for step in view.groups[0].steps
    ]
    return {
        "trace": replace(view, lanes=lanes, groups=[copy_of(view.groups[0], steps=steps)], hidden=2)
    }


def within(**fields: Any) -> Callable[[Any], Any]:
    """Return a function that replaces fields of a value within another."""
    return lambda value: copy_of(value, **fields)


def reader(**fields: Any) -> Change:
    """List one reader of the history."""
    row = ReaderView(
        reader="archive", offset=3, behind=9, seen_at=NOW_MS, is_reached=False,
        reached_at=None, bound=None, owner=None,
    )  # fmt: skip
    return given(rows=[row.model_copy(update=fields)], total=1)


def nothing(_name: str) -> bool:
    """Return that the viewer may not do anything."""
    return False


def started(**fields: Any) -> Start:
    """Return an unclean start."""
    expired = {f"queue-{number}": 9 - number for number in range(7)}
    report = StartReport(
        expired=42, expired_by_queue=expired, checks=["the schema"], last_error="boom"
    )
    start = Start(2, NOW_MS, "2.0.0", was_clean=False, down_from_ms=NOW_MS - 90_000,
                  report=report, dismissed_by=None)  # fmt: skip
    return replace(start, **fields)


def protocol_error(**fields: Any) -> dict[str, Any]:
    """Return a protocol error of a connection whose bytes the caller may not see."""
    error = ProtocolErrorRecord(
        "bad-header", "no number", "a header", 7, b"ab", b"c", NOW_MS, None, "10.0.0.7:4711"
    )
    return bad_byte_row(error, is_whole=False) | fields


def refused_settings(values: Values) -> Values:
    """Return the settings form with an error at each field."""
    return {
        "fields": [
            (title, [replace(field, error="is unfit") for field in group])
            for title, group in values["fields"]
        ]
    }


REPORT: Final = given(restart=describe_restart(started()))
TOO_LARGE: Final = Problem(422, "invalid", "The limit is too large.", field="limit", bound="1 to 5")
SENT: Final = given(kept=("/publish", [("create", "yes"), ("urn", "urn:a")]), is_change=True)
STARTING: Final = Problem(503, "starting", "The broker is starting.")
INTERNAL: Final = Problem(500, "internal", "Something failed.")
CHECK: Final = SchemaCheck("urn:a", "{}", (SchemaChange("note", "/data", "new"),) * 9, ("/x", "/y"))
CHECKED: Final = given(check=CHECK, max_changes=5)
JOB: Final = BulkJobRow(NOW_MS, "anna", "message.move", "queue:mail", 3, "interrupted", "{}")
NO_JOB: Final[Values] = {"job": None, "jobs": [], "back": "/bulk"}
EMPTY: Final = given(rows=[], total=0)
CUT: Final = changed("listed", rows=[], is_cut=True, searched=500, next="x")
CERTIFICATE: Final = Certificate("tcp", "/etc/cert.pem")
MIDDLE: Final = changed("listed", previous="x", next="y")
NO_LIST: Final = changed("listed", rows=[], next=None, previous=None)
FULL: Final = Notice(
    Check.BACKLOG, Level.WARN, "orders", "is full", "queue", {"q": "orders"}, "Open"
)
CLOCK: Final = given(
    clock=ClockView(now_ms=NOW_MS, jumps=1, last_jump_ms=DAY_MS, doubt_ms=DAY_MS, would_expire=0)
)
FIELD: Final = SchemaFieldView.model_validate(
    {"path": "id", "types": "text", "is_required": True, "limits": "up to 9", "sensitivity": ""}
    | {"title": "Number"}
)
HELD: Final = SubscriptionClaimsView(
    subscription="spark", queue="orders", claims=3, bytes=9,
    oldest_at=NOW_MS, acked=1, hi=4, created_at=NOW_MS,
)  # fmt: skip

# Path, what is replaced, and the text or the markup that the page then has.
STATES: Final[tuple[tuple[str, tuple[Change, ...], str], ...]] = (
    # the layout
    ("/", (changed("broker", is_draining=True),), 'id="broker-text">Draining<'),
    ("/", (changed("broker", write_problem="no disk"),), 'id="broker-text">Not ready<'),
    ("/", (changed("broker", is_ready=False),), 'id="broker-text">Starting<'),
    # errors and refused forms
    ("/x", (given(problem=STARTING),), "is loading its state. This page reloads automatically."),
    ("/x", (given(problem=INTERNAL),), "Nothing was changed. Details are in the log"),
    ("/x", (given(problem=INTERNAL, is_change=True),), "Check whether the change was made."),
    ("/x", (SENT,), 'name="create" value="yes" checked><span>Create</span>'),
    ("/queues/orders/purge", (given(refused=TOO_LARGE),), "is too large. Allowed: 1 to 5."),
    ("/queues/orders/purge", (given(refused=Problem(422, "invalid", "Too large.", field="limit")),),
     'id="limit-error">Too large.</p>'),
    ("/queues/orders/purge", (given(refused=TOO_LARGE),), 'aria-describedby="limit-error"'),
    ("/queues/orders/move", (given(entered={"create": "yes"}),),
     'name="create" value="yes" checked'),
    # users and tokens
    ("/tokens", (given(limits=("orders.*", "mail")),),
     "access only to orders.*, mail. Only an admin"),
    ("/tokens", (changed("tokens", expires_at=1),), "Expired"),
    # the overview
    ("/", (REPORT,), "unclean shutdown"),
    ("/", (REPORT,),
     "TTL ended by queue queue-0 9, queue-1 8, queue-2 7, queue-3 6, queue-4 5 and 2 more queues"),
    ("/",
     (given(restart=describe_restart(started(report=StartReport(expired_by_queue={"a": 1})))),),
     "TTL ended by queue a 1 "),
    # queues
    ("/queues", (queues(delivery_paused=True, publishing_paused=True),), '"chip warn">Paused<'),
    ("/queues", (queues(publishing_paused=True),), '"chip warn">Publishing paused<'),
    ("/queues", (MIDDLE,), "← Previous Next →"),
    ("/queues", (given(total=0, may=nothing, snippets=[]),), "from your machine. How do I"),
    ("/queues/orders", (rows(deadline_at=1),), "any moment"),
    ("/queues/orders?state=dispatched", (NO_LIST,), "No messages are dispatched."),
    ("/queues/orders?tab=dead", (MIDDLE,), "← Older Newer →"),
    ("/queues/orders?tab=history", (CUT,), "stopped after the newest 500 settled messages."),
    ("/queues/orders?tab=history", (MIDDLE,), "← Newer Older →"),
    ("/queues/orders?tab=settings", (refused_settings,), 'id="wrong-note">is unfit<'),
    ("/queues/orders", (changed("queue", settings=within(link="https://wiki/orders")),),
     '<a href="https://wiki/orders"'),
    ("/queues/orders",
     (changed("queue", settings=within(payload_policy="envelope", schema_mode="warn")),),
     "Envelopes required schemas: warn"),
    ("/queues/orders?tab=consumers", (changed("consuming", client=within(paused_reason="memory")),),
     "reading paused: memory"),
    ("/queues/orders?tab=consumers", (changed("consuming", held=0, holding=None),),
     '<span class="zero">0</span>'),
    # messages
    ("/messages?q=queue:orders", (rows(deadline_at=1),), "any moment"),
    ("/messages?q=queue:orders", (CUT,), "Scan limit reached; narrow the search."),
    ("/messages?q=queue:orders", (CUT,), "Continue from here"),
    ("/history", (rows(queue=None),), '<span class="dim">gone<'),
    ("/history", (rows(preview=None, urn=None, size=5),), "no body"),
    ("/history", (rows(preview=None, urn=None, size=100_000),), "too large to show here"),
    ("/history", (CUT,), "stopped after the newest 500 settled messages. Continue from here"),
    ("/history", (changed("listed", rows=[], is_cut=True, searched=7),),
     "newest 7 settled messages."),
    ("/history", (MIDDLE,), "← Newer Older →"),
    ("/history?outcome=dead", (NO_LIST,), "No settled messages with the outcome dead"),
    ("/history?until=2026-01-01T00:00", (), 'data-as="chosen" data-until="2026-01-01T00:00Z"'),
    ("/history?since=2026-01-01T00:00", (), 'data-as="chosen" data-since="2026-01-01T00:00Z"'),
    ("/history?queue=orders", (NO_LIST,), "No settled messages match"),
    ("/trash?queue=orders", (), "Queue orders ✕"),
    ("/trash", (NO_LIST, changed("listed", next="x")), "Nothing on this page"),
    ("/trash", (CUT,), "Scan limit reached. Continue from here"),
    ("/trash", (changed("query", cursor="x"),), "← Newest"),
    ("/messages", (given(problem=Problem(422, "bad_query", "The search is odd.")),),
     "<span>The search is odd.</span>"),
    ("/messages", (changed("query", cursor="x"),), "← Newest"),
    # one message and its envelope
    ("/messages/{settled}", (changed("deletion", reason="wrong file"),), "by control: wrong file"),
    ("/messages/{ready}", (changed("row", deadline_at=1, ttl_s=5),),
     "Expires at any moment TTL 5 s"),
    ("/messages/{held}", (changed("row", deadline_at=1),), 'datetime="1970-01-01T00:00:00.001Z"'),
    ("/messages/{ready}", (changed("row", urn="urn:a"), given(card=None)), "URN urn:a"),
    ("/messages/{ready}", (changed("row", source_seq=5, source_token=None, source_queue="mail"),),
     "Record of #5 in mail"),
    ("/messages/{ready}", (given(relatives=[RelatedMessage("0" * 32, "Restored from", None)]),),
     "Restored from #0 no longer stored"),
    ("/messages/{ready}", (card(envelope(data=[])),), "tolerated data: [] is interpreted as {}"),
    ("/messages/{held}", (card(envelope()), given(policy="opaque")), "This queue is opaque"),
    ("/messages/{ready}", (card(record(envelope(), message_id="f" * 32)),), "Record of ffff"),
    ("/messages/{ready}", (card(record("plain text")),), "stored as text in raw"),
    ("/messages/{ready}",
     (card(envelope(), problems=(EnvelopeProblem("schema_mismatch", "no id"),)),),
     '<li class="warn"><code class="reason">schema_mismatch'),
    ("/publish", (changed("draft", anyway=True),), 'name="anyway" value="yes" checked'),
    ("/messages/{held}/delete", (), "Delete the message held by a consumer"),
    ("/messages/{held}", (card(envelope()), changed("row", trace_id=None, meta_id=None)),
     "Trace 4bf92f35"),
    # traces
    ("/trace/{trace}", (failed_trace,), 'class="dead"'),
    ("/trace/{trace}", (failed_trace,), "2 more queues are shown only in the table."),
    ("/trace/{trace}", (changed("trace", groups=[]), CUT), "No matches so far"),
    # dead letters
    ("/dead", (changed("page", scanned=1, total=9),),
     "cover 1 of 9 records, the newest of each queue. Read more records"),
    ("/dead?deep=1", (changed("page", scanned=1, total=9),), "of each queue. Dead-letter"),
    ("/dead", (groups(died_again=2),), 'title="After a redrive">2<'),
    ("/dead", (lambda values: {"groups": [(*values["groups"][0][:2], "")]},),
     'data-label="Last 7 days"><span class="zero">–<'),
    ("/dead", (given(more=3),), "3 more groups are not shown."),
    ("/dead", (given(groups=[]),), "Read more records, or open a dead-letter queue."),
    # selections and bulk jobs
    ("/selections/{token}", (changed("frozen", by_urn={"": 3, "~other": 2}),), "none 3 other 2"),
    ("/selections/{token}", (changed("frozen", by_state={str(number): 1 for number in range(25)}),),
     "5 more 5"),
    ("/selections/{token}", (changed("frozen", is_complete=False),),
     "More messages match than one selection can contain."),
    ("/selections/{token}", (changed("frozen", expired=2), given(action="restore")),
     "2 of these messages have passed their deadline"),
    ("/selections/{token}", (given(action="delete", leaves=5),),
     "About 5 previously deleted messages"),
    ("/selections/{token}", (given(plan=RedrivePlan(Counter(), Counter(), Counter()), planned=0),),
     "This plan for the first 0 messages shows"),
    ("/bulk/{job}", (changed("job", state=BulkJobState.RUNNING), given(left_s=90.0)),
     "left Changed"),
    ("/bulk/{job}", (changed("job", state=BulkJobState.RUNNING, skipped=Counter()),),
     "Skipped none"),
    ("/bulk/{job}", (changed("job", total=0),), 'max="1" value="1"'),
    ("/bulk/{job}", (changed("job", error="No space."),),
     "The job stopped: No space. Changes to messages"),
    ("/bulk/{job}", (given(row=JOB, total=9, **NO_JOB),), "Interrupted, 3 of 9."),
    ("/bulk/{job}", (given(row=replace(JOB, result="done"), total=None, **NO_JOB),),
     "Done, 3. No message"),
    ("/bulk/{job}", (changed("job", skipped=Counter({SkipReason.CONSUMED: 3})),),
     "Skipped 3 already consumed"),
    ("/bulk/{job}", (changed("job", entry=within(reason="a typo")),), "Reason a typo"),
    # connections
    ("/clients/{client}", (changed("client", certificate="CN=worker"),), "Certificate CN=worker"),
    ("/clients/{client}", (changed("client", paused_reason="memory"),), "Reading paused"),
    ("/clients/{client}?process=1", (given(process=None),), "Not visible: the process has ended"),
    ("/clients/{client}", (changed("look", held_total=500),),
     "Holds 500 messages; showing the 1 longest-held"),
    ("/clients/{client}", (given(errors=[protocol_error()]),), "Invalid byte at offset 7"),
    ("/clients", (given(total=900),), "Showing the first 1 of 900 connections"),
    ("/clients", (changed("clients", paused_reason="memory"),), "reading paused:"),
    ("/clients?state=closed", (given(closed=[]),), "No connections ended in the last 24 hours"),
    ("/clients?state=closed", (given(next="x"),), "Older →"),
    ("/clients?state=errors", (), "No protocol errors since the broker started"),
    ("/clients?state=errors", (given(errors=[protocol_error()]),),
     '<span class="mono">10.0.0.7:4711</span>'),
    (f"/frame?frame=H0100102P01{4:029}mailP02{300:029}{'a' * 300}", (), "… 44 more bytes"),
    # the audit log
    ("/audit?since=2020-01-01T00:00:01Z", (), "since 2020-01-01 00:00:01 UTC ✕"),
    ("/audit?result=odd", (), '<option value="odd" selected>odd<'),
    ("/audit", (audited([SettingChange("note", None, "new"), SettingChange("owner", "me", None)]),),
     "note not set → changed to new owner me → changed to not set"),
    ("/audit", (given(rows=[]), changed("listed", searched_to=5)), "No matches so far"),
    ("/audit", (given(rows=[]), changed("query", cursor="x")), "Nothing on this page"),
    ("/audit", (changed("listed", previous="x", next="y", searched_to=5),),
     "← Newer Continue from here →"),
    ("/audit", (audited([], reason="spring clean"),), "spring clean"),
    # the system page and backups
    ("/system", (changed("checks", is_good=False),),
     '<h1>System</h1> <span class="chip bad">Not ready<'),
    ("/system", (changed("checks", is_good=False, is_needed=False),), '"chip warn">Degraded<'),
    ("/system", (changed("checks", is_good=False, is_needed=False),), '"chip warn">not ok<'),
    ("/system", (given(waiting=[SystemFact("Reading paused", "3 connections")]),),
     "Reading paused 3 connections"),
    ("/system", (given(refused=[SystemFact("Publish", "3", note="queue full")]),),
     "Rejected since startup"),
    ("/system", (given(certificates=[replace(CERTIFICATE, error="not yet valid")]),),
     '"chip bad">not yet valid<'),
    ("/system",
     (given(certificates=[replace(CERTIFICATE, subject="mq", expires_at=NOW_MS + (1 << 44))]),),
     '<span class="chip">expires'),
    ("/system", (given(certificates=[replace(CERTIFICATE, names=("a", "b"), expires_at=NOW_MS)]),),
     "for a, b by"),
    ("/system", (changed("limits", used=1, bound=1, reached=4),), "100 % full"),
    ("/system", (changed("limits", used=9, bound=10, reached=4),), "nearly full"),
    ("/system", (CLOCK,), "The clock is right: count this time"),
    ("/system?tab=settings", (given(own=[]),), "All settings use their defaults"),
    ("/system?tab=starts", (given(starts=[]),), "No starts recorded"),
    ("/system?tab=starts", (given(starts=[describe_restart(started())]),), "not clean"),
    ("/system?tab=log", (given(lines=[], count=0),), "No log entries yet"),
    ("/system?tab=log", (given(count=999),), "of 999 lines."),
    ("/system?tab=log&level=error", (given(count=999),), "level=error&amp;lines=all"),
    ("/system/backups", (given(making=True),), "in progress"),
    ("/system/backups", (changed("store", engine="PostgreSQL"),), "stores in PostgreSQL"),
    ("/system/backups", (given(scrubbing=True),), "Stop scrub"),
    ("/system", (CLOCK, given(may_decide=False)), "expires because of it. Readiness"),
    # schemas
    ("/schemas", (changed("schemas", unchecked=[f"/{number}" for number in range(22)]),),
     "/18, /19 and 2 more."),
    ("/schemas", (changed("schemas", status="draft"),), "order.json · draft"),
    ("/schemas", (given(unlisted=4),), "4 more are not shown."),
    ("/schemas", (given(faults=[RegistryFault("a.json", "", "not JSON")] * 22),),
     "a.json not JSON and 2 more"),
    ("/schemas", (CHECKED,), "4 more are not shown. Not checked: /x, /y."),
    ("/schemas", (changed("schemas", fields=[FIELD] * 201),),
     "1 more. The JSON output lists all fields."),
    ("/schemas", (changed("schemas", fields=[FIELD, copy_of(FIELD, sensitive="email", title="")]),),
     "id text, required, up to 9 sensitive Number id text, required, up to 9 sensitive: email"),
    # the results of the pipeline
    ("/insights?tab=dead", (EMPTY,), "No message was dead-lettered in the archived days."),
    ("/insights?tab=urns", (EMPTY,), "BabelQueue envelopes are counted here by URN."),
    ("/insights?tab=paths", (EMPTY,), "No traces"),
    ("/insights?tab=jobs", (EMPTY,), "No jobs have run"),
    ("/insights?tab=queues", (given(rows=[QueueTotals(queue="idle")], total=9),),
     "Showing the first 1 of 9 rows."),
    ("/insights?tab=queues&span=30d&queue=orders", (), "the highest value in any hour"),
    ("/insights?tab=jobs", (changed("summary", archive=within(gaps=5)),), "Newest 2 of 5;"),
    ("/insights", (changed("summary", gaps=[]),), "Each gap was accepted. Show all gaps"),
    ("/insights?tab=readers", (reader(is_reached=True),), "Overtaken unread messages were removed"),
    ("/insights?tab=readers", (reader(reached_at=NOW_MS + (1 << 44), bound="rows"),),
     "by history.rows"),
    ("/insights?tab=readers", (reader(reached_at=NOW_MS, bound="days"),), '<span class="late">'),
)  # fmt: skip

# Path, its state, what is then missing, and because of what.
ABSENT: Final[tuple[tuple[str, tuple[Change, ...], str, Change], ...]] = (
    ("/", (REPORT,), "Dismiss", given(may=nothing)),
    ("/", (REPORT,), "Show all starts",
     given(restart=describe_restart(started(report=StartReport())))),
    ("/", (given(notices=[FULL]),), "Open: orders", given(may=nothing)),
    ("/selections/{token}", (), "</code></li>", changed("frozen", samples=within(preview=None))),
    ("/bulk/{job}", (changed("job", undo=None, is_undone=True),), "Undone",
     changed("job", is_undone=False)),
    ("/queues/orders?tab=consumers", (given(subscriptions=[HELD]),), "Release…",
     given(may=nothing)),
    ("/audit", (audited([], address="10.0.0.7"),), "http · 10.0.0.7", audited([], address="")),
)  # fmt: skip


class ChangedTemplate:
    """A template whose values are changed before it is rendered."""

    def __init__(self, template: jinja2.Template, changes: tuple[Change, ...]) -> None:
        self._template = template
        self._changes = changes

    def generate(self, values: Values) -> Iterator[str]:
        """Render the template in pieces."""
        for change in self._changes:
            values = values | change(values)
        return self._template.generate(values)


@contextmanager
def changes_of(changes: tuple[Change, ...]) -> Iterator[None]:
    """Change the values of all templates."""
    get = PageTemplates.get

    async def get_changed(templates: PageTemplates, name: str) -> Any:
        return ChangedTemplate(await get(templates, name), changes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PageTemplates, "get", get_changed)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filled(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FullBroker]:
    """Run a broker with one resource of each kind for all tests."""
    async with full_broker(tmp_path_factory.mktemp("states") / "data") as filled:
        filled.places |= dict(
            zip(("ready", "held", "settled", "dead"), filled.message_ids, strict=True)
        )
        assert (await filled.me.call("PUT", "/pipeline/insights", summary(NOW_MS))).status < 300
        yield filled


async def page_text(filled: FullBroker, path: str, *changes: Change) -> str:
    """Return the text of a page, and the page, each in one line."""
    with changes_of(changes):
        reply = await filled.me.get(path.format(**filled.places))
    assert reply.status == (404 if path == "/x" else 200), reply.text
    page = reply.text
    text = re.sub(r"\s+(?=[,.;:])", "", re.sub(r"(<[^>]+>|\s)+", " ", page))
    return f"{unescape(text)}\n{' '.join(page.split())}"


@pytest.mark.parametrize(("path", "changes", "text"), STATES)
async def test_page_says_its_state(
    filled: FullBroker, path: str, changes: tuple[Change, ...], text: str
) -> None:
    assert text in await page_text(filled, path, *changes)


@pytest.mark.parametrize(("path", "changes", "text", "further"), ABSENT)
async def test_page_omits_what_does_not_apply(
    filled: FullBroker, path: str, changes: tuple[Change, ...], text: str, further: Change
) -> None:
    assert text in await page_text(filled, path, *changes)
    assert text not in await page_text(filled, path, *changes, further)
