"""Which check decides about which number of which page; see ``number_checks``."""

import re
import sqlite3
import time
from pathlib import Path
from typing import Final

from tests.browser.number_checks import (
    AUDITED,
    BYTES,
    CHARTS,
    LAST_OFFSET,
    LENGTH,
    LIMIT_HELP,
    LIVE,
    MESSAGE_COLUMNS,
    PROGRAM,
    QUEUE_COLUMNS,
    Check,
    Known,
    Number,
    attention,
    audit_count,
    axis,
    backup,
    bulk,
    claimed,
    client_figure,
    consumer_row,
    count,
    dead_group,
    described,
    form_count,
    head_of_group,
    history_sum,
    history_text,
    in_audit,
    in_table_of_depths,
    is_prose,
    lag,
    listed_queues,
    matches,
    measured,
    message_page,
    message_row,
    now_used,
    overview_tile,
    queue_of,
    queue_page,
    queue_row,
    rate,
    retention,
    retried,
    schedule,
    searched,
    size,
    started,
    storage,
    stored,
    summary_number,
    tab_counts,
    timeline,
    trace_count,
    version,
)

# Route, section, row, column, check: the first that fits decides, and what fits none is unknown.
RULES: Final[tuple[tuple[str, str, str, str, Check], ...]] = (
    # a setting's value, its bounds; prose
    ("docs.*|reference", ".*", ".*", ".*", is_prose),
    ("system", ".*settings", ".*", "Value|Description|Setting|Default", is_prose),
    ("queue", "About this queue", ".*", r"p\.help.*|input|span", is_prose),
    (".*", "foot", ".*", ".*",
     matches(r"PHPMQ Lite \d+\.\d+\.\d+.*|127\.0\.0\.1:\d+( · 127\.0\.0\.1:\d+)*")),
    (".*", ".*", ".*", r"p\.help.*", matches(LIMIT_HELP)),
    ("publish|message-edit-form", "Message", ".*", "input", matches("1")),
    ("sessions|account|login", ".*[Ss]essions", ".*", "From", matches(r"127\.0\.0\.1")),
    ("messages", "Messages", ".*", r"p\.searched",
     searched),
    ("messages", "", ".*", r"span\.dim", matches("Allowed: a number: 3, >3, <=3")),
    # messages, wherever they are listed
    (".*", ".*", r"#\d+.*", MESSAGE_COLUMNS, message_row),
    # queues
    ("overview|login", "Queues", ".*", QUEUE_COLUMNS, queue_row),
    ("queues", "select", ".*", QUEUE_COLUMNS, queue_row),
    ("queues", "Queues|select", ".*", r"b|p\.count", listed_queues),
    ("overview|login", "Queues", ".*", r"a\.more", listed_queues),
    ("queues", "select", ".*", "In/s|Out/s", lambda known, at: rate(known, at._replace(
        column={"In/s": "Published/s", "Out/s": "Acked/s"}[at.column]))),
    (".*", "Time range|Connections", ".*", "a",
     matches(r"(?:Ended in the last )?(?:1|24) h|(?:7|30) d")),
    ("overview|login", "Needs attention", "tile .*", r"span.*", overview_tile),
    ("overview|login", "Needs attention", ".*", "span", attention),
    ("overview|login", "Needs attention", "", "summary",
     lambda known, at: at.text.split(" ")[0] == at.text.split("|")[1]),
    ("overview|login", "Needs attention", "", "Clients",
     stored("SELECT count(*) FROM client WHERE closed_at IS NULL AND kind = 'tcp'")),
    ("overview|login", "Needs attention", "", "Held by consumers",
     stored("SELECT sum(size) FROM message JOIN client ON client = consumer"
            " WHERE state = 1 AND kind = 'tcp'", size)),
    ("overview|login", "Needs attention", "", "Last commit|Loop lag|Uptime",
     measured(r"[\d.,]+ ms|" + LENGTH)),
    ("queue", "|Charts|About this queue|Blocked groups", "", QUEUE_COLUMNS, queue_page),
    ("queue", "Blocked groups", ".*", "Blocked by|State|Since", head_of_group),
    ("queue", "select", ".*", r"caption\.sr",
     lambda known, at: f" messages in {queue_of(at.path)}, in queue order" in at.text),
    ("queue", ".*", ".*", r"span|span\.chart-note", matches(r"(?:Grows|Shrinks|Empty).*")),
    (".*", ".*", ".*", "Free credit", matches("0")),  # all consumers hold as many as they may
    ("queue", "Consumers", ".*", "Client|Address|Acked", consumer_row),
    ("queue", "Sections of this page", ".*", r"span\.badge",
     lambda known, at: at.text in tab_counts(known, queue_of(at.path))),
    ("queue", "Consumers", ".*", "Credit|Held",
     lambda known, at: at.text == count(known.one(
         f"SELECT count(*) FROM {LIVE} WHERE name = ? AND state = 1", queue_of(at.path)))),
    ("queue", "Consumers", ".*", "Bytes held",
     lambda known, at: at.text == size(known.one(
         f"SELECT sum(size) FROM {LIVE} WHERE name = ? AND state = 1", queue_of(at.path)))),
    ("queue-.*-form", ".*", ".*", r"h1|button.*|span", form_count),
    ("queue-.*-form", "", ".*", "a", lambda known, at: at.text == queue_of(at.path)),
    # charts
    (".*", CHARTS, ".*", "text", axis),
    (".*", "Settled|Acked|Expired|Dead", ".*", r"p\.sr|title", history_text),
    (".*", CHARTS, ".*", "desc", described),
    (".*", CHARTS, ".*", r"li\.p\d\d|title|span.*",
     matches(r"9[59] %|(?:Last )?(?:1 h|24 h|7 d|30 d).*|.* per 6 min|\S+Z\|.*")),
    ("overview|login|queue", "Depth", ".*", "b", overview_tile),
    ("overview|login|queue", "Rates/s", ".*", "b", rate),
    ("queue", "Wait for a consumer|Held by consumers", ".*", "b", matches(LENGTH)),
    ("overview|login|queue", ".*", ".*", ".*/s", rate),
    ("overview|login|queue", "All queues|Charts", r"\d\d:\d\d.*|[A-Z].*",
     "Ready|Dispatched|Dead letters", in_table_of_depths),
    ("queue", "Charts", ".*", "Wait.*|Hold.*|Oldest ready", matches(LENGTH)),
    (".*", ".*", ".*", r"th\.n|caption\.sr", matches(
        r".*9[59] %|(?:Values for|Messages settled in) the last (?:1 h|24 h|7 d|30 d), newest"
        r" first; times are in|Queues active in the last (?:24h|30d), .*|Messages in .*")),
    # history
    ("history", "Settled|Acked|Expired|Dead", ".*", "b", history_sum),
    ("history", "All queues", ".*", r"Time \(UTC\)", matches(r"\d\d:\d\d to \d\d:\d\d")),
    ("history", "All queues", ".*", "Acked|Expired|Dead|Deleted",
     history_sum),
    ("trace", "Across queues", ".*", r"(?!p\.|time).*", trace_count),
    ("trace", "Messages of this trace", ".*", "Message", trace_count),
    ("trace", ".*", ".*", r"p\.dim|time", matches(rf",? ?took {LENGTH}|\S+Z\|.*")),
    # a message
    ("message.*", ".*", ".*", r"a|a\.id|span\.id|span\.dim|Record of|Dead-letter record of",
     lambda known, at: known.message(at.text.removeprefix("Message ")) is not None
     or at.text in at.path),
    ("message", "Details|Envelope", ".*", "(?!Schema version|Created|Failed).*", message_page),
    ("message", "Envelope", ".*", "Schema version", matches("1")),
    ("message", "Timeline", ".*", r"p\.life-title", timeline),
    ("message", "Timeline", "dead", r"p\.dim", lambda known, at:
     known.is_time(at.text) if "|" in at.text else timeline(known, at)),
    ("message", "Timeline", ".*", ".*",
     matches(rf"\+{LENGTH}|(?:by|to) client \d+ · tcp 127\.0\.0\.1:\d+.*|\S+Z\|.*")),
    # schedules
    ("schedules", "form", "", "input", matches("128|10")),  # a new one
    ("schedules?", ".*", ".*", "Next run|Last run|Missed ticks|Changed|input.*", schedule),
    ("schedule", "Next runs|History of runs", ".*", "Time in.*|When|Tick in.*|Message|Decided",
     schedule),
    # connections
    ("clients", "Clients", ".*", "Address", matches(rf"{PROGRAM}|127\.0\.0\.1:\d+|tcp \d+")),
    ("client", "Connection details", ".*", "Program", matches(PROGRAM)),
    ("clients?", "Clients|", ".*", "Published|Acked|Held|Held / credit|Credit", client_figure),
    ("clients?", "Clients|", ".*", r"In|Out|.*/s|span\.mono|Protocol|Address",
     measured(rf"{BYTES}|[\d.,]+|127\.0\.0\.1:\d+|compact 32.*|tcp \d+")),
    ("client", "Connection details", ".*", "Client|Protocol|Consumes",
     matches(r"\d+ · tcp|compact 32.*|: 25 held, credit 25|\d+")),
    ("client", "Held messages", ".*", r"p\.count",
     matches("messages; showing the 50 longest-held")),
    ("client", "Held messages", ".*", "b",
     lambda known, at: client_figure(known, at._replace(column="Held"))),
    # dead letters
    ("dead", ".*", ".*", r"span\.badge|p\.inset|Records|Failed again|Newest|Oldest", dead_group),
    ("dead", ".*", ".*", "Last 7 days", matches("Arrivals in the last 7 days")),
    # claims and readers
    ("insights", "Claims", ".*", "Claims|Claimed up to|Bytes", claimed),
    ("insights", "Release.*|form", ".*", "h1|button.*",
     lambda known, at: claimed(known, at._replace(row="nightly", column="Claims"))),
    ("insights", "Readers", ".*", "Read up to", stored('SELECT "offset" FROM reader')),
    ("insights", "Readers", ".*", "Behind",
     stored('SELECT (SELECT max("offset") FROM history) - "offset" FROM reader')),
    ("insights", ".*", ".*", "Current lag|Lag now", lag),
    ("insights", "Readers", ".*", r"p\.inset\.after",
     lambda known, at: f"offsets 1 to {count(known.one(LAST_OFFSET))}." in at.text),
    ("insights", ".*", ".*", ".*", summary_number),
    # operations
    ("audit", "Audit log", ".*", "Count", audit_count),
    ("audit", "Audit log", ".*", "Target", in_audit),
    ("audit", "Audit log", ".*", "Who|Result", matches(AUDITED)),
    ("bulk.*", ".*", ".*", ".*", lambda known, at: bulk(known, at)),
    ("backups", "Backups", ".*", "Live|Settled", backup),
    ("backups", ".*", ".*", ".*", measured(
        rf"{BYTES}|{LENGTH}|\d{{8}}T\d{{6}}Z|newest \d+|every \d+ h|structure every 7 days|/.*"
        rf"|[\d,]+ bodies, {BYTES}|\S+Z\|.*")),
    ("system", "Retention", ".*", "Settled messages|Deleted messages|Audit rows|Body size",
     lambda known, at: at.text.startswith("at most ") or retention(known, at)),
    ("system", "Limits", "Connections", "Now",
     stored("SELECT count(*) FROM client WHERE closed_at IS NULL AND kind = 'tcp'")),
    ("system", "Limits", ".*", "Now", now_used),
    ("system", "Limits", ".*", "Reached", matches("0")),
    ("system", "Limits", ".*", "Limit", matches(rf"[1-9][\d,]*|{BYTES}|{LENGTH}")),
    ("system", "Limits", ".*", "Used", matches(r"\d{1,2}(?: %)?")),
    ("system", "Limits", ".*", "Resource|When exceeded", matches(
        r"Inactivity when 80 % .*|.*HTTP 4(?:08|13|29).*|.* 429 or 503|.* up to 25 % more")),
    ("system", "Versions", ".*", ".*", version),
    ("system", "Storage", ".*", ".*", storage),
    ("system", "Listeners", ".*", ".*", matches(r"127\.0\.0\.1:\d+")),
    ("system", "Retention", ".*", "Removed messages", matches("0")),
    ("system", "Retention", ".*", "Oldest.*", lambda known, at: at.text.startswith("at most ")
     or known.is_time(at.text, known.one({
         "Oldest": "SELECT min(settled_at) FROM history",
         "Oldest audit row": "SELECT min(at_ms) FROM audit"}[at.column]))),
    ("system", "Readiness", ".*", "Listeners", matches("2 of 2 open")),
    ("system", "Readiness|Process", ".*", "Disk|.*[Bb]atch.*|Loop lag|Uptime|Last commit",
     measured(rf"{BYTES} free|.*[\d.]+ s|{LENGTH}|[\d.]+ ms|[1-9]\d* since startup|\S+Z\|.*")),
    ("system", "Process", ".*", "Commands waiting|Clock jumps", matches("0")),
    ("system", "Start history", ".*", r"span\.chip|Schema|Found|Startup time", started),
    ("tail", "Events", "retry", "span", retried),
    ("tail", "Events", ".*", ".*",
     matches(r"#\d+|(?:by|to) client \d+.*|.*\{.*|\S+Z\|.*|\d\d:\d\d.*")),
    ("schemas", "Registered schemas", ".*", "Version|Fields|Passed|Failed",
     matches(r"12|1|0|2 fields\|2")),
    ("schemas", ".*", ".*", r"span\.badge", matches("3")),
    ("frame|selection|setup|error", ".*", ".*", ".*", matches(".*")),
)  # fmt: skip


def judge(known: Known, at: Number) -> str:
    """Return why a number is not right: empty, ``wrong`` or ``unknown``."""
    if at.text in known.constants or at.text.rstrip("0123456789|") in known.constants:
        return ""
    for route, section, row, column, check in RULES:
        if all(
            re.fullmatch(pattern, value, re.S)
            for pattern, value in zip(
                (route, section, row, column),
                (at.route, at.section, at.row, at.column),
                strict=True,
            )
        ):
            try:
                return "" if check(known, at) else "wrong"
            except (KeyError, IndexError, TypeError, ValueError, sqlite3.Error) as error:
                return f"wrong ({error!r})"
    if "|" in at.text:
        return "" if known.is_time(at.text) else "wrong"
    return "unknown"


def now_ms() -> float:
    return time.time() * 1_000


def template_texts(folder: Path) -> frozenset[str]:
    """Return the texts of the templates that no value is inserted into."""
    found = set()
    for file in folder.rglob("*.html"):
        text = re.sub(
            r"<[^>]+>|\{[{%#].*?[}%#]\}", "\0", file.read_text(encoding="utf-8"), flags=re.S
        )
        found |= {" ".join(each.split()) for each in text.split("\0")}
    return frozenset(each for each in found if re.search("[A-Za-z]{3}|^[1-9]+ [hd]$", each))
