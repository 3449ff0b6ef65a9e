"""A fake of the broker's pipeline API, with faults on demand.

It follows the HTTP contract as far as the readers and writers go, in memory, and can do what a
real broker does only in trouble: end a stream too early but politely, break off, be busy, or lose
an answer after it did what was asked.
"""

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
from pyarrow import ipc

from phpmq_lite.spark.pipeline_client import globs_digest
from phpmq_lite.storage import arrow
from phpmq_lite.storage.arrow import arrow_schema

HISTORY = arrow_schema((*arrow.COLUMNS, arrow.BODY))
CLAIMS = arrow_schema(arrow.CLAIM_COLUMNS)
EVENTS = arrow_schema(arrow.EVENT_COLUMNS)
START_MS = 1_700_000_000_000


@dataclass
class Faults:
    """Number of requests that fail next, by fault; each failed request counts one down."""

    busy: int = 0  # exports that get 503
    short: int = 0  # exports that omit the second half of the rows, but end normally
    broken: int = 0  # exports that break off in the middle
    stage: int = 0  # stagings that are refused
    lost_publish: int = 0  # publishes that succeed, but whose reply is an error


@dataclass
class FakeBroker:
    """The state; ``settle`` makes history, ``publish`` puts messages on a queue."""

    url: str = ""
    token: str | None = None
    history_id: str = "a" * 32
    lo: int = 0
    lo_deleted: int = 0  # rows of deleted messages up to here are gone too
    allowed: list[str] = field(default_factory=list)  # queue globs of the token; empty: all
    rows: list[dict[str, Any]] = field(default_factory=list)  # of the history, by offset
    ready: list[bytes] = field(default_factory=list)  # bodies on the one queue
    missing: set[str] = field(default_factory=set)  # queues that are not there
    held: dict[int, bytes] = field(default_factory=dict)  # claim -> body
    last_claim: int = 0
    acked_upto: int = 0
    staged: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    published: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    sealed: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=dict)
    publish_rows: int = 100_000  # of one call
    ignores_filters: bool = False  # as earlier versions do
    schemas: dict[str, Any] = field(default_factory=dict)  # registered documents by URN
    notes: list[tuple[str, int]] = field(default_factory=list)  # of readers
    asked: list[str] = field(default_factory=list)  # paths with their query
    faults: Faults = field(default_factory=Faults)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def settle(
        self, count: int, queue: str = "orders", body: bytes = b"body", outcome: str = "acked"
    ) -> None:
        """Add rows to the history; row n settled n ms after the start."""
        for offset in range(len(self.rows) + 1, len(self.rows) + count + 1):
            at = datetime.fromtimestamp((START_MS + offset) / 1_000, UTC)
            row: dict[str, Any] = dict.fromkeys(HISTORY.names)
            row |= {
                "offset": offset, "seq": offset * 2, "message_id": f"{offset:032x}",
                "queue": queue, "position": offset, "outcome": outcome, "published_at": at,
                "settled_at": at, "deliveries": 1, "size": len(body), "body": body,
            }  # fmt: skip
            self.rows.append(row)

    @property
    def hi(self) -> int:
        """The last offset."""
        return len(self.rows)

    # -- called by the handler

    def bounds(self, asked: dict[str, str]) -> dict[str, Any]:
        if "reader" in asked:
            self.notes.append((asked["reader"], int(asked["position"])))
        answer: dict[str, Any] = {
            "history_id": self.history_id, "lo": self.lo, "hi": self.hi,
            "lo_deleted": max(self.lo, self.lo_deleted), "offset": None, "queues": None,
            "allowed": self.allowed,
        }  # fmt: skip
        if "at_ms" in asked:
            before = int(asked["at_ms"]) - START_MS - 1
            answer["offset"] = max(self.lo, min(before, self.hi))
        if "settled_from_ms" in asked or "settled_until_ms" in asked:
            begin, until = int(asked.get("settled_from_ms", 0)), asked.get("settled_until_ms")
            answer["settled_lo"] = max(begin - START_MS - 1, 0)
            answer["settled_hi"] = self.hi if until is None else int(until) - START_MS - 1
        if "queues" in asked:
            answer["queues"] = sorted({row["queue"] for row in self.rows})
        return answer

    def claim(self, asked: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            if self.last_claim <= asked["after"]:
                for body in self.ready[: asked["max_messages"]]:
                    self.last_claim += 1
                    self.held[self.last_claim] = body
                del self.ready[: asked["max_messages"]]
            return {"hi": self.last_claim}

    def acknowledge(self, asked: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            done = [claim for claim in self.held if claim <= asked["upto"]]
            for claim in done:
                del self.held[claim]
            self.acked_upto = max(self.acked_upto, asked["upto"])
            return {"acked": len(done)}

    def publish(self, asked: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            rows = [row for token in asked["tokens"] for row in self.staged.pop(token, [])]
            answer = {"published": 0, "repeated": False, "remaining": 0, "resumed": False}
            if asked["version"] <= self.versions.get(asked["app_id"], -1):
                return answer | {"repeated": True}
            key = asked["app_id"], asked["version"]
            answer["resumed"] = key in self.sealed
            rows = self.sealed.pop(key, rows)
            rows, rest = rows[: self.publish_rows], rows[self.publish_rows :]
            if rest:
                self.sealed[key] = rest
            else:
                self.versions[asked["app_id"]] = asked["version"]
            self.published += rows
            return answer | {"published": len(rows), "remaining": len(rest)}


def event_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return the event of a settled message; each with an even offset has one."""
    copied = {name: row[name] for name in ("seq", "message_id", "queue", "settled_at")}
    return copied | {
        "history_offset": row["offset"], "event_id": row["offset"], "event_at": row["settled_at"],
        "kind": "failure", "detail": "a report", "count": 1, "last_at": None,
    }  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    broker: FakeBroker

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        path, asked = self._begin()
        broker = self.broker
        match path:
            case "/history/bounds":
                self._json(broker.bounds(asked))
            case "/history/arrow" | "/history/events":
                self._history(asked)
            case "/claims/state":
                state = {"acked": broker.acked_upto, "hi": broker.last_claim, "queue": "work"}
                self._json(state)
            case "/claims/arrow":
                self._claims(asked)
            case _ if path.startswith("/api/v1/queues/"):
                name = path.removeprefix("/api/v1/queues/").removeprefix("~")
                if name in broker.missing:
                    self._problem(404, "unknown_queue", f"there is no queue {name!r}")
                else:
                    self._json({"ready": len(broker.ready)})
            case _ if path.startswith("/api/v1/schemas/"):
                urn = path.removeprefix("/api/v1/schemas/").removeprefix("~")
                if urn in broker.schemas:
                    self._json({"urn": urn, "document": broker.schemas[urn]})
                else:
                    self._problem(404, "unknown_schema", f"no schema is registered for {urn!r}")
            case _:
                self._problem(404, "unknown_route", path)

    def do_POST(self) -> None:
        path, asked = self._begin()
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        broker = self.broker
        if path == "/stage":
            self._stage(asked["token"], content)
            return
        body = json.loads(content)
        match path:
            case "/claims/claim":
                self._json(broker.claim(body))
            case "/claims/ack":
                self._json(broker.acknowledge(body))
            case "/history/bounds":
                self._json(broker.bounds(body))
            case "/publish":
                answer = broker.publish(body)
                if broker.faults.lost_publish:
                    broker.faults.lost_publish -= 1
                    self._problem(500, "lost", "published, but the reply is lost")
                else:
                    self._json(answer)
            case "/unstage":
                gone = [broker.staged.pop(token, None) for token in body["tokens"]]
                self._json({"unstaged": sum(rows is not None for rows in gone)})
            case _:
                self._problem(404, "unknown_route", path)

    def _begin(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        self.broker.asked.append(self.path)
        self.many = parse_qs(parts.query)
        path = unquote(parts.path).removeprefix("/api/v1/pipeline")
        if len(self.requestline) > 8_190:  # as aiohttp does
            return "/too-long", {}
        token = self.broker.token
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            return "/refused", {}
        return path, {name: values[-1] for name, values in self.many.items()}

    def _history(self, asked: dict[str, str]) -> None:
        broker = self.broker
        lo, hi = int(asked["lo"]), int(asked["hi"])
        if asked.get("history", broker.history_id) != broker.history_id:
            self._problem(409, "other_history", f"the history id is {broker.history_id}")
        elif lo < broker.lo and asked.get("gap") != "ok":
            self._problem(409, "gap", f"rows up to {broker.lo} were removed")
        else:
            queues = self.many.get("queue", [])
            outcomes = [*filter(None, asked.get("outcomes", "").split(","))]
            needs_deleted = not outcomes or "deleted" in outcomes
            if needs_deleted and lo < broker.lo_deleted and asked.get("gap") != "ok":
                self._problem(409, "gap", f"deleted ones up to {broker.lo_deleted} left")
                return
            rows = [
                row
                for row in broker.rows[max(lo, broker.lo) : hi]
                if (not queues or row["queue"] in queues)
                and (not broker.allowed or row["queue"] in broker.allowed)
                and (not outcomes or row["outcome"] in outcomes)
                and (row["outcome"] != "deleted" or row["offset"] > broker.lo_deleted)
                and self._is_match(row, asked)
            ]
            if self.path.split("?")[0].endswith("/events"):
                self._arrow(EVENTS, [event_of(row) for row in rows if row["offset"] % 2 == 0])
                return
            names = asked["columns"].split(",") + (["body"] if asked.get("body") == "1" else [])
            schema = pa.schema([field for field in HISTORY if field.name in names])
            self._arrow(schema, rows)

    def _is_match(self, row: dict[str, Any], asked: dict[str, str]) -> bool:
        settled_ms = round(row["settled_at"].timestamp() * 1_000)
        return self.broker.ignores_filters or (
            int(asked.get("settled_from_ms", 0)) <= settled_ms
            and settled_ms < int(asked.get("settled_until_ms", 1 << 62))
            and ("urn" not in asked or row["urn"] in self.many["urn"])
        )

    def _claims(self, asked: dict[str, str]) -> None:
        broker = self.broker
        lo, hi = int(asked["lo"]), int(asked["hi"])
        if lo < broker.acked_upto:
            self._problem(409, "gap", f"claims up to {broker.acked_upto} are acknowledged")
            return
        at = datetime.fromtimestamp(START_MS / 1_000, UTC)
        rows = [
            {"claim": n, "message_id": f"{n:032x}", "queue": "work", "body": body,
             "published_at": at, "deliveries": 1}
            for n, body in sorted(broker.held.items()) if lo < n <= hi
        ]  # fmt: skip
        self._arrow(CLAIMS, rows)

    def _arrow(self, schema: pa.Schema, rows: list[dict[str, Any]]) -> None:
        faults = self.broker.faults
        if faults.busy:
            faults.busy -= 1
            self._problem(503, "busy", "two exports run", {"Retry-After": "1"})
            return
        count = len(rows)
        if faults.short:
            faults.short -= 1
            rows = rows[: count // 2]
        sink = io.BytesIO()
        with ipc.new_stream(sink, schema) as stream:
            for at in range(0, len(rows), 500):
                stream.write_batch(pa.RecordBatch.from_pylist(rows[at : at + 500], schema))
        content = sink.getvalue()
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.apache.arrow.stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("X-Row-Count", str(count))
        self.send_header("X-History-Id", self.broker.history_id)
        self.send_header("X-Queue-Globs", globs_digest(self.broker.allowed))
        filters = {
            "settled_from_ms": "settled_from", "settled_until_ms": "settled_until", "urn": "urns"
        }  # fmt: skip
        if not self.broker.ignores_filters:
            named = [name for query, name in filters.items() if query in self.many]
            self.send_header("X-Row-Filters", ",".join(named))
        self.end_headers()
        if faults.broken:
            faults.broken -= 1
            self._chunk(content[: len(content) // 2])
            self.close_connection = True
            return
        self._chunk(content)
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")

    def _stage(self, token: str, content: bytes) -> None:
        broker = self.broker
        if broker.faults.stage:
            broker.faults.stage -= 1
            self._problem(507, "disk_full", "no space")
            return
        with ipc.open_stream(io.BytesIO(content)) as stream:
            rows = stream.read_all().to_pylist()
        with broker.lock:
            broker.staged[token] = rows
        self._json({"rows": len(rows), "bytes": len(content)})

    def _json(self, answer: Any) -> None:
        self._send(200, "application/json", json.dumps(answer).encode(), {})

    def _problem(
        self, status: int, code: str, detail: str, headers: dict[str, str] | None = None
    ) -> None:
        if code == "unknown_route" and detail == "/refused":
            status, code, detail = 401, "unauthorized", "no such token"
        body = json.dumps({"status": status, "code": code, "detail": detail}).encode()
        self._send(status, "application/problem+json", body, headers or {})

    def _send(self, status: int, media: str, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (
            {"Content-Type": media, "Content-Length": str(len(body))} | headers
        ).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore peers that disconnect early; tests cause that."""


@contextmanager
def fake_broker() -> Iterator[FakeBroker]:
    """Run a fake broker on a free port of loopback."""
    broker = FakeBroker()
    handler = type("BoundHandler", (Handler,), {"broker": broker})
    server = _Server(("127.0.0.1", 0), handler)
    broker.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield broker
    finally:
        with suppress(OSError):
            server.shutdown()
        server.server_close()
        thread.join(10)
