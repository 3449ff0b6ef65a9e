"""What the numbers on the pages must be: SQL against the database file, or the kind of a constant.

The statements and formats here are independent of the product's own.
"""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

UNITS_MS: Final = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATION: Final = re.compile(r"(?:\d[\d,]* (?:ms|s|min|h|d) ?){1,2}")
LIVE: Final = "message JOIN queue USING (queue_id)"
READY: Final = "state IN (0, 7)"  # those behind another of their group, too
DLQ: Final = "name LIKE '%.dlq'"
LAST_OFFSET: Final = 'SELECT max("offset") FROM history'
BOTH: Final = (
    "(SELECT seq, queue_id, published_at, trace_id FROM message UNION ALL"
    " SELECT seq, queue_id, published_at, trace_id FROM history)"
)


class Number(NamedTuple):
    """A text with digits, and where it is; ``row`` is the text that identifies its row."""

    route: str
    path: str
    section: str
    row: str
    column: str
    text: str


def count(value: int | None) -> str:
    return f"{value or 0:,}"


def size(value: int | None) -> str:
    """Return a size as pages write it: 1,024 bytes are 1 KiB, with at most one decimal."""
    amount, unit = float(value or 0), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1023.95 or (unit == "B" and amount < 1_024):
            break
        amount, unit = amount / 1_024, larger
    return f"{int(amount)} B" if unit == "B" else f"{amount:.1f}".removesuffix(".0") + f" {unit}"


def is_duration(text: str, low_ms: float, high_ms: float) -> object:
    """Return whether a text such as ``3 h 12 min`` is a duration between the two."""
    if not DURATION.fullmatch(text.strip()):
        return False
    parts = re.findall(r"([\d,]+) (ms|s|min|h|d)", text)
    least = sum(int(number.replace(",", "")) * UNITS_MS[unit] for number, unit in parts)
    unit = parts[-1][1]
    coarse = UNITS_MS["s" if unit == "s" else unit]
    if unit == "h" and len(parts) == 1 and least < 10 * UNITS_MS["h"]:
        coarse = UNITS_MS["min"]
    return least <= high_ms and low_ms < least + coarse


@dataclass
class Known:
    """The database file, and when the page was asked for."""

    file: Path
    constants: frozenset[str]  # texts of templates
    since_ms: float = 0.0
    until_ms: float = 0.0
    database: sqlite3.Connection = field(init=False)

    def __post_init__(self) -> None:
        self.database = sqlite3.connect(f"file:{self.file}?mode=ro", uri=True)
        self.database.row_factory = sqlite3.Row

    def one(self, sql: str, *values: Any) -> Any:
        row = self.database.execute(sql, values).fetchone()
        return None if row is None else row[0]

    def message(self, number: str) -> sqlite3.Row | None:
        """Return the live or the settled message of ``#12``."""
        found = re.match(r"#(\d+)", number)
        for table in ("message", "history"):
            sql = f"SELECT * FROM {table} WHERE seq = ? ORDER BY 1 DESC"
            row: sqlite3.Row | None = (
                found and self.database.execute(sql, (int(found[1]),)).fetchone()
            )
            if row is not None:
                return row
        return None

    def is_age(self, text: str, at_ms: float | None) -> object:
        return at_ms is not None and is_duration(
            text, self.since_ms - at_ms - 1_000, self.until_ms - at_ms + 1_000
        )

    def is_time(self, text: str, at_ms: float | None = None) -> object:
        """Return whether ``ISO|4 min ago`` is consistent, and is ``at_ms`` if that is known."""
        iso, _, shown = text.partition("|")
        if not iso:  # a period, which the links of the chart state
            return bool(re.fullmatch(r"\d\d:\d\d to \d\d:\d\d", shown))
        try:
            stated = datetime.fromisoformat(iso.replace("Z", "+00:00")).timestamp() * 1_000
        except ValueError:
            return False
        if at_ms is not None and abs(stated - at_ms) > 1:
            return False
        if shown.endswith(" ago"):
            return self.is_age(shown.removesuffix(" ago"), stated)
        if shown.startswith("in "):
            low, high = stated - self.until_ms, stated - self.since_ms
            return is_duration(shown[3:], low - 1_000, high + 1_000)
        return f"{datetime.fromtimestamp(stated / 1_000, UTC):%H:%M}" in shown


Check = Callable[[Known, Number], object]  # its truth decides


def ready(known: Known, queue: str) -> int:
    return int(known.one(f"SELECT count(*) FROM {LIVE} WHERE name = ? AND {READY}", queue))


def scheduled(known: Known, queue: str) -> int:
    return int(known.one(f"SELECT count(*) FROM {LIVE} WHERE name = ? AND state = 6", queue))


def held(known: Known, queue: str) -> int:
    return int(known.one(f"SELECT count(*) FROM {LIVE} WHERE name = ? AND state = 1", queue))


def dead(known: Known, queue: str) -> int:
    """Return the records of a queue's dead letters; those of ``.retry`` count at its queue."""
    return int(known.one(f"SELECT count(*) FROM {LIVE} WHERE name = ?", f"{queue}.dlq"))


def of_queue(known: Known, column: str, queue: str, text: str) -> object:
    """Check one figure of a queue."""
    if column == "Oldest ready" or column == "Oldest":
        since = "SELECT min(coalesce(ready_at, published_at))"
        at = known.one(f"{since} FROM {LIVE} WHERE name = ? AND {READY}", queue)
        return known.is_age(text, at) or text == "0 ms"
    if column == "Bytes":
        return text == size(known.one(f"SELECT sum(size) FROM {LIVE} WHERE name = ?", queue))
    if column == "Consumers":
        held_by = (
            f"SELECT count(DISTINCT consumer) FROM {LIVE} JOIN client ON client = consumer"
            " WHERE name = ? AND state = 1 AND kind = 'tcp'"
        )
        return text == count(known.one(held_by, queue))
    if column == "In flight":
        limit = known.one("SELECT settings ->> 'max_in_flight' FROM queue WHERE name = ?", queue)
        return text in (count(held(known, queue)), f"of at most {count(limit)}")
    if column == "Deliveries per second":
        rate, burst = known.database.execute(
            "SELECT settings ->> 'max_rate', settings ->> 'max_burst' FROM queue WHERE name = ?",
            (queue,),
        ).fetchone()
        return text in (f"at most {rate}", f"burst {count(burst)}")
    figure = {
        "Ready": ready, "Scheduled": scheduled, "Dispatched": held, "Dead": dead,
        "Dead letters": dead,
    }[column]  # fmt: skip
    return text == count(figure(known, queue))


def queue_row(known: Known, at: Number) -> object:
    return of_queue(known, at.column, at.row, at.text)


def queue_page(known: Known, at: Number) -> object:
    return of_queue(known, at.column, queue_of(at.path), at.text)


def queue_of(path: str) -> str:
    return re.split(r"[/?]", path.removeprefix("/queues/"))[0]


ACK_TIMEOUT_S: Final = 1_800  # by default
PROGRAM: Final = (
    rf"phpmq-lite \(Python\) {re.escape(importlib.metadata.version('phpmq-lite'))},"
    rf" process {os.getpid()} on {re.escape(platform.node())}"
)
NUMBER: Final = (1 << 48) - 1  # part of a position below the priority


def is_priority(row: sqlite3.Row, text: str) -> bool:
    return text in (
        f"priority {(row['position'] >> 48) + 128}",
        "0 is delivered first, 255 last; the default is 128",
    )


def is_due(known: Known, row: sqlite3.Row, text: str) -> object:
    """Check when a scheduled message becomes ready: its clock may be off by its start."""
    stated = datetime.fromisoformat(text.partition("|")[0]).timestamp() * 1_000
    due, slack = (row["due_ms"], 10) if row["deliver_at"] is None else (row["deliver_at"], 1)
    return row["state"] == 6 and abs(stated - due) <= slack and known.is_time(text)


def is_life_ahead(row: sqlite3.Row, text: str) -> object:
    """Check the time to live of a scheduled message, which begins when it is ready."""
    life = row["deadline_ms"] - row["due_ms"]
    return life == 1_000 * row["ttl_s"] and is_duration(text, life, life)


def is_retry(known: Known, row: sqlite3.Row, text: str) -> object:
    """Check what a worker said about the last failed attempt of a message."""
    said = json.loads(known.one(
        "SELECT detail FROM event WHERE seq = ? AND kind = 'retry' ORDER BY at_ms DESC", row["seq"]
    ))  # fmt: skip
    short = f"{said['attempt']} of {said['limit']} failed"
    error = f"{said['exception']}: {said['error']}"
    return said["attempt"] == row["retries"] and text in (
        short, error, f"{short}: {error}", f"Attempt {short}: {error}", f"Attempt {short}",
    )  # fmt: skip


def is_hold_end(known: Known, row: sqlite3.Row, text: str) -> object:
    """Check when a held message returns: after the acknowledgement timeout of its queue."""
    own = "SELECT settings ->> 'ack_timeout_s' FROM queue WHERE queue_id = ?"
    timeout_s = known.one(own, row["queue_id"]) or ACK_TIMEOUT_S
    stated = datetime.fromisoformat(text.partition("|")[0]).timestamp() * 1_000
    late = stated - row["last_dispatched_at"] - 1_000 * timeout_s
    return known.is_time(text) and abs(late) <= 5_000  # a busy broker sends it later


def retried(known: Known, at: Number) -> object:
    """Check the only retry among the events of a queue."""
    seq = known.one("SELECT seq FROM event WHERE kind = 'retry'")
    row = known.message(f"#{seq}")
    return row is not None and is_retry(known, row, at.text)


def timeline(known: Known, at: Number) -> object:
    row = known.message(f"#{int(at.path.split('/')[2][:16], 16)}")
    if row is None:
        return False
    delivery = at.text.removeprefix("Dispatched, delivery ")
    return delivery == count(row["deliveries"]) or is_retry(known, row, at.text)


def head_of_group(known: Known, at: Number) -> object:
    """Check the message that blocks a group."""
    row = known.database.execute(
        f"SELECT message.* FROM {LIVE} WHERE name = ? AND group_name = ?"
        " AND head_since IS NOT NULL", (queue_of(at.path), at.row),
    ).fetchone()  # fmt: skip
    if at.column == "Since":
        return known.is_time(at.text, row["head_since"])
    column = {"Blocked by": "Message"}.get(at.column, at.column)
    return message_row(known, at._replace(row=f"#{row['seq']}", column=column))


def next_ticks(known: Known) -> list[datetime]:
    """Return the next five ticks of ``30 8 * * MON-FRI``, which all schedules have."""
    crons = known.database.execute("SELECT DISTINCT cron, timezone FROM schedule").fetchall()
    assert [tuple(each) for each in crons] == [("30 8 * * MON-FRI", "Europe/Berlin")]
    zone = ZoneInfo("Europe/Berlin")
    now = datetime.fromtimestamp(known.since_ms / 1_000, zone)
    days = (now.date() + timedelta(days=number) for number in range(9))
    ticks = (datetime(each.year, each.month, each.day, 8, 30, tzinfo=zone) for each in days)
    return [each for each in ticks if each.weekday() < 5 and each > now][:5]


def schedule(known: Known, at: Number) -> object:
    """Check a number about a schedule, in the list or on its page."""
    name = at.row if at.route == "schedules" else at.path.split("/")[2]
    row = known.database.execute("SELECT * FROM schedule WHERE name = ?", (name,)).fetchone()
    runs = known.database.execute(
        "SELECT * FROM schedule_run WHERE schedule_id = ? ORDER BY tick_ms DESC",
        (row["schedule_id"],),
    ).fetchall()
    coming = next_ticks(known)
    if at.column == "Next run":
        return row["is_enabled"] and known.is_time(at.text, coming[0].timestamp() * 1_000)
    if at.column == "Last run":
        return known.is_time(at.text, runs[0]["tick_ms"])
    if at.section == "Next runs" and at.row:
        tick = datetime.fromisoformat(at.row)
        said = at.text == at.row or known.is_time(at.text, tick.timestamp() * 1_000)
        return row["is_enabled"] and said and tick in coming
    if at.section == "History of runs":
        stated = datetime.fromisoformat(at.row).timestamp() * 1_000
        run = next(each for each in runs if abs(each["tick_ms"] - stated) < 1_000)
        if at.column == "Message":
            return at.text in (run["message_id"], f"#{int(run['message_id'][:16], 16)}")
        return at.text == at.row or known.is_time(at.text, run["at_ms"])
    if at.column == "Missed ticks":
        return at.text == f"Run the last ones, up to {count(row['missed_max'])}"
    if at.column == "Changed":
        return known.is_time(at.text, row["changed_at"])
    values = (row["priority"], row["missed_max"], row["ttl_s"])
    return at.column.startswith("input") and at.text in map(str, values)


def message_row(known: Known, at: Number) -> object:
    """Check a cell in the row of a message."""
    row = known.message(at.row)
    if row is None:
        return False
    settled = row["settled_at"] if "settled_at" in row.keys() else None  # noqa: SIM118
    column, text = at.column, at.text
    if column == "Size":
        return text == size(row["size"])
    if column in ("Deliveries", "Delivery"):
        if text.startswith("·"):
            return text == f"· {count(row['attempts'])}"
        return text == count(row["deliveries"])
    if column == "Position":
        return text == count(row["position"] & NUMBER) or is_priority(row, text)
    if column == "Lifetime":
        life = settled - row["published_at"]
        return is_duration(text, life, life)
    if column == "Held for":
        return known.is_age(text, row["last_dispatched_at"])
    if column in ("Age", "Published"):
        return known.is_time(text, row["published_at"])
    if column == "Settled":
        return known.is_time(text, settled)
    if column in ("TTL left", "Expires"):
        if text.endswith(" after"):
            return row["state"] == 6 and is_life_ahead(row, text.removesuffix(" after"))
        return known.is_time(text) and row["deadline_ms"] is not None
    if column == "Ready since":
        return known.is_time(text, row["ready_at"] or row["published_at"])
    if column == "Held since":
        return known.is_time(text, row["last_dispatched_at"])
    if column == "Ready":
        return is_due(known, row, text)
    if column == "Message":
        link = (f"#{row['seq']}", f"{row['seq']:016x}{row['token']:016x}")
        return text in link or is_priority(row, text)
    if column == "Attempt":
        return text == count((row["retries"] or 0) + 1) or is_retry(known, row, text)
    if column in ("State", "Outcome"):
        if "|" in text:
            return is_due(known, row, text)
        holder = re.match(rf"(?:to |held by )?client {row['consumer']}\b", text)
        return bool(holder) or is_retry(known, row, text)
    return False


OUTCOMES: Final = {"Acked": "2", "out": "2", "Not acked": "3, 4, 5", "dead": "3, 4, 5"}


def rate(known: Known, at: Number) -> object:
    """Check a rate: of a row of a chart's data against its window, otherwise against all of time.

    The first and the last window may have been measured for one second only.
    """
    value = float(at.text.replace(",", ""))
    name = at.column.removesuffix("/s") if at.column.endswith("/s") else at.row
    queue = queue_of(at.path) if at.route in ("queue", "client") else "%"
    if at.route == "queues":
        queue = at.row
    if name in OUTCOMES:
        table = (
            f"(SELECT queue_id, settled_at AS at FROM history WHERE outcome IN ({OUTCOMES[name]}))"
        )
    else:
        table = f"(SELECT queue_id, published_at AS at FROM {BOTH})"
    low, high, least = 0.0, known.until_ms, 0
    sql = (
        f"SELECT count(*) FROM {table} JOIN queue USING (queue_id)"
        " WHERE name LIKE ? AND at >= ? AND at < ?"
    )
    if re.match(r"\d\d:\d\d:\d\d$", at.row):
        start = datetime.fromtimestamp(known.until_ms / 1_000, UTC)
        clock = datetime.strptime(at.row, "%H:%M:%S").time()
        low = datetime.combine(start.date(), clock, UTC).timestamp() * 1_000
        high = low + 20_000
        least = known.one(sql, queue, low + 1_500, high - 1_500)
        low, high = low - 1_500, high + 1_500
    # A forwarded message left its first queue, so SQL counts it as published in the second.
    forwarded = known.one("SELECT count(*) FROM event WHERE kind = 'forward'")
    most = known.one(sql, queue, low, high) + (0 if name in OUTCOMES else forwarded)
    return least / 20 - 0.06 <= value <= most


# -- pages


def overview_tile(known: Known, at: Number) -> object:
    """Check the figures at the top of the overview; records of dead letters are counted apart."""
    sql = {
        "ready": f"SELECT count(*) FROM {LIVE} WHERE NOT {DLQ} AND {READY}",
        "scheduled": "SELECT count(*) FROM message WHERE state = 6",
        "given": f"SELECT count(*) FROM {LIVE} WHERE NOT {DLQ} AND state = 1",
        "dead": f"SELECT count(*) FROM {LIVE} WHERE {DLQ}",
    }
    kind = {"dispatched": "given", "bad": "dead"}.get(
        at.row.removeprefix("tile "), at.row.removeprefix("tile ")
    )
    if kind in ("in", "out"):
        return rate(known, at._replace(row=kind))
    if kind == "age":
        since = "SELECT min(coalesce(ready_at, published_at))"
        oldest = f"{since} FROM {LIVE} WHERE NOT {DLQ} AND {READY}"
        return known.is_age(at.text, known.one(oldest))
    queue = queue_of(at.path) if at.route == "queue" else ""
    value = known.one(sql[kind]) if not queue else {
        "ready": ready, "given": held, "dead": dead,
    }[kind](known, queue)  # fmt: skip
    return at.text == count(value)


def attention(known: Known, at: Number) -> object:
    """Check a sentence about a queue that needs attention."""
    day = known.until_ms - 86_400_000
    if found := re.match(r"([\d,]+) (dead-lettered|expired) in the last 24 h", at.text):
        sql = (
            "SELECT count(*) FROM history JOIN queue USING (queue_id)"
            " WHERE name = ? AND outcome = ? AND settled_at > ?"
        )
        outcome = 4 if found[2] == "dead-lettered" else 3
        reasons = re.findall(r"\w+ ([\d,]+)", at.text.partition(": ")[2])
        total = count(known.one(sql, at.row, outcome, day))
        return found[1] == total and (not reasons or reasons == [total])
    found = re.match(r"([\d,]+) ready messages?(?:; the limit is ([\d,]+))?", at.text)
    if found is None:
        return False
    limit = known.one("SELECT settings ->> 'alert_messages' FROM queue WHERE name = ?", at.row)
    return found[1] == count(ready(known, at.row)) and found[2] in (None, count(limit))


def in_table_of_depths(known: Known, at: Number) -> object:
    """Check a row of a chart's table: only the newest is what the database holds now."""
    total = known.one(f"SELECT max(seq) FROM {BOTH}")
    return int(at.text.replace(",", "")) <= total


def described(known: Known, at: Number) -> object:
    """Check a chart's description: each range contains its last value."""
    if at.text.startswith("The ") and "from" not in at.text:
        return True  # the period, before its time
    number = r"([\d,.]+(?: (?:ms|s|min|h|d))*)"
    ranges = re.findall(rf"from {number} to {number}, last {number}", at.text)
    values = [[known_value(each) for each in one] for one in ranges]
    return bool(values) and all(low <= last <= high for low, high, last in values)


def known_value(text: str) -> float:
    parts = re.findall(r"([\d,.]+)(?: (ms|s|min|h|d))?", text.rstrip(","))
    return sum(float(n.strip(",.").replace(",", "")) * UNITS_MS.get(u, 1) for n, u in parts)


def axis(known: Known, at: Number) -> object:
    """Check a mark: a clock, a day, or 1, 2 or 5 times a power of ten, or a multiple of it."""
    if re.fullmatch(r"\d\d:\d\d|[A-Z][a-z]{2} \d{1,2}", at.text):
        return True
    found = re.fullmatch(r"([\d,.]+)(?: (?:ms|s|min|h|d))?", at.text)
    return (
        found is not None
        and re.fullmatch(r"\d{1,2}0*(?:\.\d)?", found[1].replace(",", "")) is not None
    )


def history_sum(known: Known, at: Number) -> object:
    """Check a number of settled messages, of a row of the chart's data in its window."""
    outcome = {"acked": 2, "expired": 3, "dead": 4, "deleted": 5}[at.column.lower()
        if at.column != "b" else at.row]  # fmt: skip
    sql = "SELECT count(*) FROM history WHERE outcome = ? AND settled_at >= ? AND settled_at < ?"
    low, high = 0.0, known.until_ms
    if window := re.fullmatch(r"(\d\d:\d\d) to (\d\d:\d\d)", at.row):
        day = datetime.fromtimestamp(known.until_ms / 1_000, UTC).strftime("%Y-%m-%dT")
        low, high = (
            datetime.fromisoformat(f"{day}{clock}+00:00").timestamp() * 1_000
            for clock in window.groups()
        )
    least = known.one(sql, outcome, low + 1_000, high - 1_000)
    most = known.one(sql, outcome, low - 1_000, high + 1_000)
    return least <= int(at.text.replace(",", "")) <= most


def history_text(known: Known, at: Number) -> object:
    if at.column == "title":
        most = known.one("SELECT count(*) FROM history")
        return int(re.findall(r"[\d,]+", at.text)[-1].replace(",", "")) <= most
    sums = dict(known.database.execute("SELECT outcome, count(*) FROM history GROUP BY 1"))
    said = {
        word: number
        for number, word in re.findall(r"([\d,]+) (acked|expired|dead|deleted)", at.text)
    }
    outcomes = {"acked": 2, "expired": 3, "dead": 4, "deleted": 5}
    settled = re.search(r": ([\d,]+) settled", at.text)
    most = settled is None or int(settled[1].replace(",", "")) <= sum(sums.values())
    return (
        most
        and bool(said or settled)
        and all(number == count(sums.get(outcomes[word])) for word, number in said.items())
    )


def searched(known: Known, at: Number) -> object:
    """Check how many messages a search has read: all, or a rounded number."""
    total = known.one(f"SELECT count(*) FROM {BOTH}")
    numbers = [int(one.replace(",", "")) for one in re.findall(r"\d[\d,]*", at.text)]
    return numbers[0] <= 1.01 * total and abs(numbers[-1] - total) <= 0.01 * total


def form_count(known: Known, at: Number) -> object:
    """Check the count in a form that acts on all ready messages or records of a queue."""
    queue = queue_of(at.path)
    found = re.search(r"([\d,]+) (?:messages?|records?)", at.text)
    if found is None:
        return False
    if "held by" in at.text:
        return found[1] == count(held(known, queue))
    if "redrive" in at.route:
        return found[1] == count(dead(known, queue.removesuffix(".dlq")))
    return found[1] == count(ready(known, queue) + scheduled(known, queue))


def message_page(known: Known, at: Number) -> object:
    """Check a fact of the page of a message."""
    row = known.message(f"#{int(at.path.split('/')[2][:16], 16)}")
    if row is None:
        return False
    kinds = {
        "Size": size(row["size"]),
        "Position": count(row["position"] & NUMBER),
        "Deliveries": count(row["deliveries"]),
        "Attempts": count(row["attempts"]),
        "Attempts at failure": count(row["attempts"]),
        "Id": at.text if at.text in at.path else "",
        "SHA-256": at.text if re.fullmatch("[0-9a-f]{64}", at.text) else "",
    }
    if "offset" in row.keys():  # noqa: SIM118
        kinds["History offset"] = count(row["offset"])
        if at.column == "Settled" and at.text.startswith("after "):
            life = row["settled_at"] - row["published_at"]
            return is_duration(at.text[6:], life, life)
        if at.column == "Settled":
            return known.is_time(at.text, row["settled_at"])
    if at.column == "Published":
        return known.is_time(at.text, row["published_at"])
    if at.column == "Attempts" and "the broker counted" in at.text:
        return f"counted {count(row['deliveries'])} deliver" in at.text
    if at.column == "Holder" and "|" in at.text:
        held_from = row["last_dispatched_at"]
        return known.is_time(at.text, held_from) or is_hold_end(known, row, at.text)
    if at.column == "Ready":
        return is_due(known, row, at.text)
    if at.column in ("Ready since", "Group"):
        since = row["ready_at" if at.column == "Ready since" else "head_since"]
        return since is not None and known.is_time(at.text, since)
    if at.column == "Expires":
        if at.text.startswith("TTL "):
            return is_duration(at.text[4:], row["ttl_s"] * 1_000, row["ttl_s"] * 1_000)
        if at.text.endswith(" after it is ready"):
            return is_life_ahead(row, at.text.removesuffix(" after it is ready"))
        return row["deadline_ms"] is not None and known.is_time(at.text)
    if at.text.endswith(" counted toward the limit"):
        return at.text.startswith(f"{count(row['charged'])} ")
    if at.column == "Attempt":
        failed = f"{count(row['retries'])} reported as failed"
        return at.text in (count((row["retries"] or 0) + 1), failed)
    if at.column == "Position" and is_priority(row, at.text):
        return True
    if at.column in ("Publisher", "Holder", "Last consumer"):
        client = row["publisher" if at.column == "Publisher" else "consumer"]
        address = known.one("SELECT address FROM client WHERE client = ?", client)
        return at.text.startswith(f"client {client} · ") and address in at.text
    return kinds.get(at.column) == at.text


def client_figure(known: Known, at: Number) -> object:
    """Check a figure of a connection; bytes and rates are not in the database."""
    number = re.search(r"/clients/(\d+)", at.path)
    client = int(number[1]) if number else int(re.findall(r"tcp (\d+)", at.row)[0])
    sql = {
        "Published": "SELECT"
        " (SELECT count(*) FROM message WHERE publisher = ?1 AND source_seq IS NULL)"
        " + (SELECT count(*) FROM history WHERE publisher = ?1 AND source_seq IS NULL)",
        "Acked": "SELECT count(*) FROM history WHERE consumer = ? AND outcome = 2",
        "Held": "SELECT count(*) FROM message WHERE consumer = ? AND state = 1",
    }
    if at.column in ("Held / credit", "Credit"):  # every consumer holds as many as it may
        return at.text == count(known.one(sql["Held"], client))
    return at.text == count(known.one(sql[at.column], client))


def dead_group(known: Known, at: Number) -> object:
    """Check a badge, a sentence and the groups of the page of dead letters."""
    records = known.one(f"SELECT count(*) FROM {LIVE} WHERE {DLQ}")
    if at.column == "span.badge":
        return at.text == count(records)
    if at.column == "p.inset":  # on a busy machine, 1.5 s may not suffice for all
        end = f" of {count(records)} records, the newest of each queue."
        return at.text.startswith("These groups cover ") and at.text.endswith(end)
    if "|" in at.text:
        return known.is_time(at.text)
    if at.column == "Newest" and at.text.startswith("#"):
        return known.message(at.text) is not None
    return int(at.text.replace(",", "")) <= records


def backup(known: Known, at: Number) -> object:
    now = known.one(f"SELECT count(*) FROM {LIVE}"), known.one("SELECT count(*) FROM history")
    # Claims and holds change no counts; the backup was made after everything was published.
    return at.text in (count(now[0]), count(now[1]))


def stored(sql: str, write: Callable[[int | None], str] = count) -> Check:
    return lambda known, at: at.text == write(known.one(sql))


def summary_number(known: Known, at: Number) -> object:
    """Recognise a figure of the pipeline's summary, which is a file and not in the database."""
    return (known.file.parent / "pipeline" / "summary.json").is_file()


def lag(known: Known, at: Number) -> object:
    """Check how far a job is behind the end of the history; its position is in its summary."""
    last = int(known.one(LAST_OFFSET))
    text = (known.file.parent / "pipeline" / "summary.json").read_text(encoding="utf-8")
    return re.search(rf"\b{last - int(at.text.replace(',', ''))}\b", text) is not None


def listed_queues(known: Known, at: Number) -> object:
    total = known.one("SELECT count(*) FROM queue")
    if "has=backlog" in at.path and at.column == "b":
        total = known.one(f"SELECT count(DISTINCT name) FROM {LIVE} WHERE {READY}")
    if "q=zzz" in at.path and at.column == "b":
        total = 0
    return re.findall(r"[\d,]+", at.text)[-1] == count(total)


def consumer_row(known: Known, at: Number) -> object:
    client = int(at.row.removeprefix("Client "))
    if at.column == "Acked":
        return client_figure(known, at._replace(path=f"/clients/{client}"))
    address = known.one("SELECT address FROM client WHERE client = ?", client)
    return at.text in (f"Client {client}", f"tcp {address}")


def trace_count(known: Known, at: Number) -> object:
    trace = at.path.rsplit("/", 1)[-1].split("?")[0]
    condition: tuple[str, tuple[str, ...]] = "trace_id = ? AND name = ?", (trace, at.column)
    if at.section != "Across queues":
        condition = "trace_id = ?", (trace,)
    total = known.one(
        f"SELECT count(*) FROM {BOTH} AS t JOIN queue USING (queue_id) WHERE {condition[0]}",
        *condition[1],
    )
    shown = int(at.text.split()[0].replace(",", ""))
    return shown == total if at.section == "Across queues" else shown <= total


def audit_count(known: Known, at: Number) -> object:
    return bool(
        known.one("SELECT count(*) FROM audit WHERE count = ?", int(at.text.replace(",", "")))
    )


AUDITED: Final = r"\d+|\d+ changes?\|\d+|ui · 127.*|Request [0-9a-f]{16}|[0-9a-f]{16}…?"


def in_audit(known: Known, at: Number) -> object:
    """Check an old or new value of what was changed, or recognise how the change is named."""
    sql = (
        "SELECT count(*) FROM audit, json_tree(iif(json_valid(detail), detail, '[]'))"
        " WHERE atom || '' = ?"
    )
    return known.one(sql, at.text) or re.fullmatch(AUDITED, at.text)


def is_prose(known: Known, at: Number) -> object:
    """Recognise prose, a setting and its bounds: nothing here comes from the database."""
    return True


def matches(pattern: str) -> Check:
    return lambda _, at: re.fullmatch(pattern, at.text) is not None


def measured(pattern: str) -> Check:
    """Recognise a figure of the process or the machine by its form."""
    return matches(pattern)


LIMIT_HELP: Final = (
    r"The file is published unchanged, in place of the body. Maximum size: 8 MiB.*"
    r"|Maximum size: 1 MiB\..*|At least 12 characters\..*"
    r"|Minute, hour, day of the month, month and day of the week, such as 30 8 .*"
)
LENGTH: Final = DURATION.pattern
BYTES: Final = r"[\d,.]+ (?:B|KiB|MiB|GiB|TiB)"
PERCENT: Final = r"(?:under )?[\d.]+ ?%"
MESSAGE_COLUMNS: Final = (
    "Size|Deliver(?:y|ies)|Position|Lifetime|Held for|Age|Published|Settled|TTL left|Expires|"
    "Message|State|Outcome|Attempt|Ready|Ready since|Held since"
)
QUEUE_COLUMNS: Final = (
    "Ready|Scheduled|Dispatched|Dead|Dead letters|Bytes|Oldest|Oldest ready|Consumers|In flight|"
    "Deliveries per second"
)
CHARTS: Final = (
    "Depth|Rates/s|Wait for a consumer|Held by consumers|Settled|Acked|Expired|Dead|.* per 6 min"
)


def tab_counts(known: Known, queue: str) -> set[str]:
    return {
        count(ready(known, queue) + held(known, queue)), count(ready(known, queue)),
        count(dead(known, queue)), count(held(known, queue)), count(scheduled(known, queue)),
        count(known.one(
            f"SELECT count(DISTINCT consumer) FROM {LIVE} WHERE name = ? AND state = 1", queue
        )),
    }  # fmt: skip


def claimed(known: Known, at: Number) -> object:
    figure = {"Claims": "count(*)", "Bytes": "sum(size)", "Claimed up to": "max(claim)"}[at.column]
    value = known.one(
        f"SELECT {figure} FROM claim JOIN subscription USING (subscription_id)"
        " JOIN message USING (seq) WHERE name = ?", at.row,
    )  # fmt: skip
    return at.text.removesuffix(" claims of").removeprefix("Release ").removesuffix(" claims") == (
        size(value) if at.column == "Bytes" else count(value)
    )


def bulk(known: Known, at: Number) -> object:
    found = re.findall(r"[\d,]+", at.text)
    deleted = count(known.one("SELECT count(*) FROM history WHERE outcome = 5"))
    return "|" in at.text or at.text.startswith(", after") or all(each == deleted for each in found)


def retention(known: Known, at: Number) -> object:
    sql = {
        "Settled messages": "SELECT count(*) FROM history",
        "Deleted messages": "SELECT count(*) FROM history WHERE outcome = 5",
        "Audit rows": "SELECT count(*) FROM audit",
        "Body size": "SELECT sum(size) FROM history",
    }
    value = known.one(sql[at.column])
    total = known.one("SELECT count(*) FROM history")
    if "of settled" in at.text:
        share = 100 * value / total
        return at.text.startswith((f"{share:.1f}% of settled", f"{share:.0f}% of settled"))
    return at.text == (size(value) if at.column == "Body size" else count(value))


def now_used(known: Known, at: Number) -> object:
    """Check how much of a limit is used; what only the process knows has the form of a size."""
    tcp = "FROM message JOIN client ON client = consumer WHERE state = 1 AND kind = 'tcp'"
    sql = {
        "Queues": "SELECT count(*) FROM queue",
        "Held by all consumers": f"SELECT count(*) {tcp}",
        "Held by all consumers, bytes": f"SELECT sum(message.size) {tcp}",
        "Held by one consumer of a queue": f"SELECT max(n) FROM (SELECT count(*) AS n {tcp}"
        " GROUP BY consumer, queue_id)",
        "Held by one consumer, bytes": f"SELECT max(n) FROM (SELECT sum(message.size) AS n {tcp}"
        " GROUP BY consumer, queue_id)",
        "Connections from one address": "SELECT count(*) FROM client"
        " WHERE closed_at IS NULL AND kind = 'tcp'",
        # Keys of confirmed publishes: each of a message, none was forgotten.
        "Remembered publish keys": f"SELECT count(*) FROM {BOTH}",
    }.get(at.row)
    if sql is None:
        return re.fullmatch(rf"[\d,]+|{BYTES}", at.text) is not None
    if at.row == "Remembered publish keys":  # messages without a key, and copies, have none
        return 0 < int(at.text.replace(",", "")) <= known.one(sql)
    return at.text == (size if at.row.endswith("bytes") else count)(known.one(sql))


def version(known: Known, at: Number) -> object:
    said = {
        "PHPMQ Lite": importlib.metadata.version("phpmq-lite"),
        "aiohttp": importlib.metadata.version("aiohttp"),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "Event loop": f"uvloop {importlib.metadata.version('uvloop')}",
        "System": f"{platform.system()} {platform.release()}",
    }
    also = (platform.machine(), "older than 3.51.3, which is safe here because only one connection"
            " writes")  # fmt: skip
    return at.text in (said[at.column], *also)


def storage(known: Known, at: Number) -> object:
    """Check a figure of the database file."""
    pages = int(known.one("PRAGMA page_count"))
    page_bytes = int(known.one("PRAGMA page_size"))
    disk = shutil.disk_usage(known.file.parent)
    exact = {
        "Schema": f"version {known.one('PRAGMA user_version')}",
        "Free space in the file": size(known.one("PRAGMA freelist_count") * page_bytes),
        "Folder": str(known.file.parent),
        "Database": size(pages * page_bytes),
    }
    if at.column == "Pages":
        return at.text in (count(pages), f"of {size(page_bytes)} each")
    if at.column == "Free disk space":
        return at.text == f"of {size(disk.total)}" or re.fullmatch(BYTES, at.text) is not None
    if at.column == "Write-ahead log":
        return re.fullmatch(rf"{BYTES}|truncated above 64 MiB", at.text) is not None
    return at.text == exact[at.column]


def started(known: Known, at: Number) -> object:
    """Check the only start, which found an empty database."""
    if at.column == "Found":
        return at.text in ("0 messages", "in 0 queues")
    if at.column == "Schema":
        migrations = at.text.split(", ")
        count = known.one("PRAGMA user_version")
        return (migrations[0], len(migrations)) == ("0001_initial", count)
    if at.column == "Startup time":
        return is_duration(at.text, 0, 60_000)
    return at.text == known.one("SELECT version FROM start")
