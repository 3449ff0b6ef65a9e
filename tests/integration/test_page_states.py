"""Pages in states that are rare or hard to reach, such as an unclean restart or a damaged file.

Each row requests a page of a real broker, replaces some of the values that its handler gives to the
template, and names a text that the user sees.  ``tests.support.template_branches`` counts them.
"""

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
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
from phpmq_lite.admin.pipeline.claims import SubscriptionClaimsView
from phpmq_lite.admin.pipeline.history_readers import ReaderView
from phpmq_lite.admin.pipeline.last_day import TraceCoverage
from phpmq_lite.admin.queues.schedules import RunView
from phpmq_lite.admin.system.attention import Notice
from phpmq_lite.admin.system.facts import Measured, SystemFact, describe_restart
from phpmq_lite.admin.system.frames import bad_byte_row
from phpmq_lite.admin.system.system import ClockView
from phpmq_lite.checks import Check, Level
from phpmq_lite.envelopes.schema_compatibility import SchemaChange
from phpmq_lite.envelopes.schema_registry import RegistryFault
from phpmq_lite.envelopes.validation import EnvelopeProblem
from phpmq_lite.insights_document import DeadLetterTotals, ExpiryTotals, QueueTotals, TracePath
from phpmq_lite.operator_actions import SkipReason
from phpmq_lite.server.frame_recorder import ProtocolErrorRecord
from phpmq_lite.server.tls import Certificate
from phpmq_lite.storage.read.audit import AuditRow
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
    return lambda _values: values


def both(one: Change, other: Change) -> Change:
    def change(values: Values) -> Values:
        first = one(values)
        return first | other(values | first)

    return change


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
    row = ReaderView(
        reader="archive",
        offset=3,
        behind=9,
        seen_at=NOW_MS,
        is_reached=False,
        reached_at=None,
        bound=None,
        owner=None,
    )
    return given(rows=[row.model_copy(update=fields)], total=1)


def nothing(_name: str) -> bool:
    return False


def started(**fields: Any) -> Start:
    expired = {f"queue-{number}": 9 - number for number in range(7)}
    report = StartReport(
        expired=42, expired_by_queue=expired, checks=["the schema"], last_error="boom"
    )
    start = Start(
        2,
        NOW_MS,
        "2.0.0",
        was_clean=False,
        down_from_ms=NOW_MS - 90_000,
        report=report,
        dismissed_by=None,
    )
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
JOB: Final = AuditRow(
    7, NOW_MS, "anna", "ui", "", "message.move", "queue:mail", 3, "", "interrupted", "{}", ""
)
NO_JOB: Final[Values] = {"job": None, "jobs": [], "back": "/bulk"}
EMPTY: Final = given(rows=[], total=0)
EXPIRED: Final = ExpiryTotals(queue="mail", never=2, dispatched=1)
OTHER_DEATHS: Final = DeadLetterTotals(queue="(others)", urn="(others)", reason="(others)", count=7)
PATH: Final = TracePath(path=("orders:urn:a", "mail:"), traces=3, newest="t-1")
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
RUN: Final = RunView(
    tick_at=NOW_MS, at=NOW_MS, outcome="published", detail="", message_id="0" * 32, run_by=None
)
RUNS: Final = given(
    runs=[RUN, copy_of(RUN, outcome="skipped", detail="9 ticks were missed", message_id=None)],
    may=nothing, next="x", is_first=False,
)  # fmt: skip
HELD: Final = SubscriptionClaimsView(
    subscription="spark",
    queue="orders",
    claims=3,
    bytes=9,
    oldest_at=NOW_MS,
    acked=1,
    hi=4,
    created_at=NOW_MS,
)

# By path: the text or the markup that the page has, and what is replaced for it.
STATES: Final[dict[str, dict[str, Change]]] = {
    "/": {
        'id="broker-text">Draining<': changed("broker", is_draining=True),
        'id="broker-text">Not ready<': changed("broker", write_problem="no disk"),
        'id="broker-text">Starting<': changed("broker", is_ready=False),
        "unclean shutdown": REPORT,
        "TTL ended by queue queue-0 9, queue-1 8, queue-2 7, queue-3 6, queue-4 5"
        " and 2 more queues": REPORT,
        "TTL ended by queue a 1 ": given(
            restart=describe_restart(started(report=StartReport(expired_by_queue={"a": 1})))
        ),
    },
    "/x": {
        "is loading its state. This page reloads automatically.": given(problem=STARTING),
        "Nothing was changed. Details are in the log": given(problem=INTERNAL),
        "Check whether the change was made.": given(problem=INTERNAL, is_change=True),
        'name="create" value="yes" checked><span>Create</span>': SENT,
    },
    "/queues/orders/purge": {
        "is too large. Allowed: 1 to 5.": given(refused=TOO_LARGE),
        'id="limit-error">Too large.</p>': given(
            refused=Problem(422, "invalid", "Too large.", field="limit")
        ),
        'aria-describedby="limit-error"': given(refused=TOO_LARGE),
    },
    "/queues/orders/move": {'name="create" value="yes" checked': given(entered={"create": "yes"})},
    "/schedules": {
        "Paused": changed("schedules", is_enabled=False, last_run_at=NOW_MS, last_outcome="failed"),
        '"dim">none<': changed("schedules", next_at=None),
        "No schedules": given(schedules=[], may=nothing),
    },
    "/schedules/anna": {
        "Content of the next message, in base64": changed("schedule", encoding="base64"),
        '"never" selected': changed("schedule", ttl_s=0, encoding="base64"),
        "no tick within 50 years": changed("schedule", next_runs=[], is_enabled=True, preview=""),
        "Its ticks pass without a run": changed("schedule", next_runs=[], is_enabled=False),
        "9 ticks were missed": RUNS,
    },
    "/tokens": {
        "access only to orders.*, mail. Only an admin": given(limits=("orders.*", "mail")),
        "Expired": changed("tokens", expires_at=1),
    },
    "/queues": {
        '"chip warn">Paused<': queues(delivery_paused=True, publishing_paused=True),
        '"chip warn">Publishing paused<': queues(publishing_paused=True),
        "← Previous Next →": MIDDLE,
        "from your machine. How do I": given(total=0, may=nothing, snippets=[]),
    },
    "/queues/orders": {
        "any moment": rows(deadline_at=1),
        '<a href="https://wiki/orders"': changed(
            "queue", settings=within(link="https://wiki/orders")
        ),
        "Envelopes required schemas: warn": changed(
            "queue", settings=within(payload_policy="envelope", schema_mode="warn")
        ),
    },
    "/queues/orders?tab=held": {"No held messages": NO_LIST},
    "/queues/orders?tab=scheduled": {"No scheduled messages": NO_LIST},
    "/queues/orders?tab=dead": {"← Older Newer →": MIDDLE},
    "/queues/orders?tab=history": {
        "stopped after the newest 500 settled messages.": CUT,
        "← Newer Older →": MIDDLE,
    },
    "/queues/orders?tab=settings": {'id="wrong-note">is unfit<': refused_settings},
    "/queues/orders?tab=consumers": {
        "reading paused: memory": changed("consuming", client=within(paused_reasons=("memory",))),
        '<span class="zero">0</span>': changed("consuming", held=0, holding=None),
    },
    "/messages?q=queue:orders": {
        "any moment": rows(deadline_at=1),
        "Scan limit reached; narrow the search.": CUT,
        "Continue from here": CUT,
    },
    "/history": {
        '<span class="dim">gone<': rows(queue=None),
        "no body": rows(preview=None, urn=None, size=5),
        "too large to show here": rows(preview=None, urn=None, size=100_000),
        "stopped after the newest 500 settled messages. Continue from here": CUT,
        "newest 7 settled messages.": changed("listed", rows=[], is_cut=True, searched=7),
        "← Newer Older →": MIDDLE,
    },
    "/history?outcome=dead": {"No settled messages with the outcome dead": NO_LIST},
    "/history?until=2026-01-01T00:00": {'data-as="chosen" data-until="2026-01-01T00:00Z"': given()},
    "/history?since=2026-01-01T00:00": {'data-as="chosen" data-since="2026-01-01T00:00Z"': given()},
    "/history?queue=orders": {"No settled messages match": NO_LIST},
    "/trash?queue=orders": {"Queue orders ✕": given()},
    "/trash": {
        "Nothing on this page": both(NO_LIST, changed("listed", next="x")),
        "Scan limit reached. Continue from here": CUT,
        "← Newest": changed("query", cursor="x"),
    },
    "/messages": {
        "<span>The search is odd.</span>": given(
            problem=Problem(422, "bad_query", "The search is odd.")
        ),
        "← Newest": changed("query", cursor="x"),
    },
    "/messages/{settled}": {"by control: wrong file": changed("deletion", reason="wrong file")},
    "/messages/{ready}": {
        "Expires at any moment TTL 5 s": changed("row", deadline_at=1, ttl_s=5),
        "URN urn:a": both(changed("row", urn="urn:a"), given(card=None)),
        "Record of #5 in mail": changed(
            "row", source_seq=5, source_token=None, source_queue="mail"
        ),
        "Restored from #0 no longer stored": given(
            relatives=[RelatedMessage("0" * 32, "Restored from", None)]
        ),
        "tolerated data: [] is interpreted as {}": card(envelope(data=[])),
        "Record of ffff": card(record(envelope(), message_id="f" * 32)),
        "stored as text in raw": card(record("plain text")),
        '<li class="warn"><code class="reason">schema_mismatch': card(
            envelope(), problems=(EnvelopeProblem("schema_mismatch", "no id"),)
        ),
    },
    "/messages/{held}": {
        'datetime="1970-01-01T00:00:00.001Z"': changed("row", deadline_at=1),
        "This queue is opaque": both(card(envelope()), given(policy="opaque")),
        "Trace 4bf92f35": both(card(envelope()), changed("row", trace_id=None, meta_id=None)),
    },
    "/publish": {'name="anyway" value="yes" checked': changed("draft", anyway=True)},
    "/messages/{held}/delete": {"Delete the message held by a consumer": given()},
    "/trace/{trace}": {
        'class="dead"': failed_trace,
        "2 more queues are shown only in the table.": failed_trace,
        "No matches so far": both(changed("trace", groups=[]), CUT),
    },
    "/dead": {
        "cover 1 of 9 records, the newest of each queue. Read more records": changed(
            "page", scanned=1, total=9
        ),
        'title="After a redrive">2<': groups(died_again=2),
        'data-label="Last 7 days"><span class="zero">–<': lambda values: {
            "groups": [(*values["groups"][0][:2], "")]
        },
        "3 more groups are not shown.": given(more=3),
        "Read more records, or open a dead-letter queue.": given(groups=[]),
    },
    "/dead?deep=1": {"of each queue. Dead-letter": changed("page", scanned=1, total=9)},
    "/selections/{token}": {
        "none 3 other 2": changed("frozen", by_urn={"": 3, "~other": 2}),
        "5 more 5": changed("frozen", by_state={str(number): 1 for number in range(25)}),
        "More messages match than one selection can contain.": changed("frozen", is_complete=False),
        "2 of these messages have passed their deadline": both(
            changed("frozen", expired=2), given(action="restore")
        ),
        "About 5 previously deleted messages": given(action="delete", leaves=5),
        "This plan for the first 0 messages shows": given(
            plan=RedrivePlan(Counter(), Counter(), Counter()), planned=0
        ),
    },
    "/bulk/{job}": {
        "left Changed": both(changed("job", state=BulkJobState.RUNNING), given(left_s=90.0)),
        "Skipped none": changed("job", state=BulkJobState.RUNNING, skipped=Counter()),
        'max="1" value="1"': changed("job", total=0),
        "The job stopped: No space. Changes to messages": changed("job", error="No space."),
        "Interrupted, 3 of 9.": given(row=JOB, total=9, **NO_JOB),
        "Done, 3. No message": given(row=replace(JOB, result="done"), total=None, **NO_JOB),
        "Skipped 3 already consumed": changed("job", skipped=Counter({SkipReason.CONSUMED: 3})),
        "Reason a typo": changed("job", entry=within(reason="a typo")),
    },
    "/clients/{client}": {
        "Certificate CN=worker": changed("client", certificate="CN=worker"),
        "Reading paused": changed("client", paused_reasons=("memory",)),
        "Holds 500 messages; showing the 1 longest-held": changed("look", held_total=500),
        "Invalid byte at offset 7": given(errors=[protocol_error()]),
    },
    "/clients/{client}?process=1": {"Not visible: the process has ended": given(process=None)},
    "/clients": {
        "Showing the first 1 of 900 connections": given(total=900),
        "reading paused:": changed("clients", paused_reasons=("memory",)),
    },
    "/clients?state=closed": {
        "No connections ended in the last 24 hours": given(closed=[]),
        "Older →": given(next="x"),
    },
    "/clients?state=errors": {
        "No protocol errors since the broker started": given(),
        '<span class="mono">10.0.0.7:4711</span>': given(errors=[protocol_error()]),
    },
    f"/frame?frame=H0100102P01{4:029}mailP02{300:029}{'a' * 300}": {"… 44 more bytes": given()},
    "/audit?since=2020-01-01T00:00:01Z": {"since 2020-01-01 00:00:01 UTC ✕": given()},
    "/audit?result=odd": {'<option value="odd" selected>odd<': given()},
    "/audit": {
        "note not set → changed to new owner me → changed to not set": audited(
            [SettingChange("note", None, "new"), SettingChange("owner", "me", None)]
        ),
        "No matches so far": both(given(rows=[]), changed("listed", searched_to=5)),
        "Nothing on this page": both(given(rows=[]), changed("query", cursor="x")),
        "← Newer Continue from here →": changed("listed", previous="x", next="y", searched_to=5),
        "spring clean": audited([], reason="spring clean"),
    },
    "/system": {
        '<h1>System</h1> <span class="chip bad">Not ready<': changed("checks", is_good=False),
        '"chip warn">Degraded<': changed("checks", is_good=False, is_needed=False),
        '"chip warn">not ok<': changed("checks", is_good=False, is_needed=False),
        "Reading paused 3 connections": given(
            waiting=[SystemFact("Reading paused", "3 connections")]
        ),
        "Rejected since startup": given(refused=[SystemFact("Publish", "3", note="queue full")]),
        '"chip bad">not yet valid<': given(
            certificates=[replace(CERTIFICATE, error="not yet valid")]
        ),
        '<span class="chip">expires': given(
            certificates=[replace(CERTIFICATE, subject="mq", expires_at=NOW_MS + (1 << 44))]
        ),
        "for a, b by": given(
            certificates=[replace(CERTIFICATE, names=("a", "b"), expires_at=NOW_MS)]
        ),
        "100 % full": changed("limits", measured=Measured(bound=1, used=1, reached=4)),
        "nearly full": changed("limits", measured=Measured(bound=10, used=9, reached=4)),
        "The clock is right: count this time": CLOCK,
        "expires because of it. Readiness": both(CLOCK, given(may_decide=False)),
    },
    "/system?tab=settings": {"All settings use their defaults": given(own=[])},
    "/system?tab=starts": {
        "No starts recorded": given(starts=[]),
        "not clean": given(starts=[describe_restart(started())]),
    },
    "/system?tab=log": {
        "No log entries yet": given(lines=[], count=0),
        "of 999 lines.": given(count=999),
    },
    "/system?tab=log&level=error": {"level=error&amp;lines=all": given(count=999)},
    "/system/backups": {
        "in progress": given(making=True),
        "stores in PostgreSQL": changed("store", engine="PostgreSQL"),
        "Stop scrub": given(scrubbing=True),
    },
    "/schemas": {
        "/18, /19 and 2 more.": changed(
            "schemas", unchecked=[f"/{number}" for number in range(22)]
        ),
        "order.json · draft": changed("schemas", status="draft"),
        "4 more are not shown.": given(unlisted=4),
        "a.json not JSON and 2 more": given(faults=[RegistryFault("a.json", "", "not JSON")] * 22),
        "4 more are not shown. Not checked: /x, /y.": CHECKED,
        "1 more. The JSON output lists all fields.": changed("schemas", fields=[FIELD] * 201),
        "id text, required, up to 9 sensitive Number"
        " id text, required, up to 9 sensitive: email": changed(
            "schemas", fields=[FIELD, copy_of(FIELD, sensitive="email", title="")]
        ),
    },
    "/insights?tab=dead": {
        "No message was dead-lettered in this period.": EMPTY,
        "(others) (others) (others) 7": given(rows=[OTHER_DEATHS], total=1),
    },
    "/insights?tab=expired": {
        "No message expired in this period.": EMPTY,
        "Previously dispatched Expired mail 2 1 3": given(rows=[EXPIRED], total=1),
        "Unknown Expired mail 2 1 4 7": given(rows=[copy_of(EXPIRED, unknown=4)], total=1),
    },
    "/insights?tab=paths": {
        "Messages whose envelope has a trace_id are listed here": EMPTY,
        "Traces of the newest 5,000 of 1,250,000 messages": given(
            rows=[PATH], total=1, traces=TraceCoverage(read=5_000, published=1_250_000)
        ),
        "Traces of all 7 messages": given(
            rows=[PATH], total=1, traces=TraceCoverage(read=7, published=7)
        ),
    },
    "/insights?tab=dead&span=30d": {
        "No message was dead-lettered in this period.": EMPTY,
        "Dead letters Last 30 days, up to": given(),
    },
    "/insights?tab=expired&span=30d": {"No message expired in this period.": EMPTY},
    "/insights?tab=urns": {"BabelQueue envelopes are counted here by URN.": EMPTY},
    "/insights?tab=paths&span=30d": {"No traces": EMPTY},
    "/insights?tab=queues&span=30d": {"Nothing was published, delivered or settled": EMPTY},
    "/insights?tab=jobs": {
        "No jobs have run": EMPTY,
        "Newest 2 of 5;": changed("summary", archive=within(gaps=5)),
    },
    "/insights?tab=queues": {
        "No messages Nothing was published": EMPTY,
        "The busiest 40 queues are listed": given(rows=[QueueTotals(queue="(others)")], total=1),
        "Showing the first 1 of 9 rows.": given(rows=[QueueTotals(queue="idle")], total=9),
    },
    "/insights?tab=queues&span=30d&queue=orders": {"the highest value in any hour": given()},
    "/insights?span=30d": {"Each gap was accepted. Show all gaps": changed("summary", gaps=[])},
    "/insights?queue=silent": {"</form>": EMPTY, "silent Last 24 hours, since": EMPTY},
    "/insights": {"All queues Last 24 hours, since": both(EMPTY, given(queues=[]))},
    "/insights?tab=readers": {
        "Overtaken unread messages were removed": reader(is_reached=True),
        "by history.rows": reader(reached_at=NOW_MS + (1 << 44), bound="rows"),
        '<span class="late">': reader(reached_at=NOW_MS, bound="days", lag_s=9, reached_in_s=8),
        "Stopped": reader(is_stopped=True),
    },
}

# Path, its state, what is then missing, and because of what.
ABSENT: Final[tuple[tuple[str, Change, str, Change], ...]] = (
    ("/", REPORT, "Dismiss", given(may=nothing)),
    (
        "/",
        REPORT,
        "Show all starts",
        given(restart=describe_restart(started(report=StartReport()))),
    ),
    ("/", given(notices=[FULL]), "Open: orders", given(may=nothing)),
    (
        "/selections/{token}",
        given(),
        "</code></li>",
        changed("frozen", samples=within(preview=None)),
    ),
    (
        "/bulk/{job}",
        changed("job", undo=None, is_undone=True),
        "Undone",
        changed("job", is_undone=False),
    ),
    ("/queues/orders?tab=consumers", given(subscriptions=[HELD]), "Release…", given(may=nothing)),
    ("/audit", audited([], address="10.0.0.7"), "http · 10.0.0.7", audited([], address="")),
)


class ChangedTemplate:
    """A template whose values are changed before it is rendered."""

    def __init__(self, template: jinja2.Template, change: Change) -> None:
        self._template = template
        self._change = change

    def generate(self, values: Values) -> Iterator[str]:
        return self._template.generate(values | self._change(values))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filled(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FullBroker]:
    async with full_broker(tmp_path_factory.mktemp("states") / "data") as filled:
        filled.places |= dict(
            zip(("ready", "held", "settled", "dead"), filled.message_ids, strict=True)
        )
        assert (await filled.me.call("PUT", "/pipeline/insights", summary(NOW_MS))).status < 300
        yield filled


async def page_text(filled: FullBroker, path: str, change: Change) -> str:
    """Return the text of a page, and the page, each in one line."""
    get = PageTemplates.get

    async def get_changed(templates: PageTemplates, name: str) -> Any:
        return ChangedTemplate(await get(templates, name), change)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PageTemplates, "get", get_changed)
        reply = await filled.me.get(path.format(**filled.places))
    assert reply.status == (404 if path == "/x" else 200), reply.text
    page = reply.text
    text = re.sub(r"\s+(?=[,.;:])", "", re.sub(r"(<[^>]+>|\s)+", " ", page))
    return f"{unescape(text)}\n{' '.join(page.split())}"


@pytest.mark.parametrize(
    ("path", "text", "change"),
    [(path, text, change) for path in STATES for text, change in STATES[path].items()],
)
async def test_page_says_its_state(
    filled: FullBroker, path: str, text: str, change: Change
) -> None:
    assert text in await page_text(filled, path, change)


@pytest.mark.parametrize(("path", "change", "text", "further"), ABSENT)
async def test_page_omits_what_does_not_apply(
    filled: FullBroker, path: str, change: Change, text: str, further: Change
) -> None:
    assert text in await page_text(filled, path, change)
    assert text not in await page_text(filled, path, both(change, further))
