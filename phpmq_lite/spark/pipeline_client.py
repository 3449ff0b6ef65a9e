"""Client for the broker's pipeline API that requires only the standard library."""

import io
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ssl import SSLCertVerificationError
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from phpmq_lite.sockets import Dialer, prepare
from phpmq_lite.spark.errors import (
    BrokenStreamError,
    BrokerError,
    DataLossError,
    OptionError,
    Remedy,
    ShortReadError,
)
from phpmq_lite.spark.source_options import SourceConnection

if TYPE_CHECKING:
    import pyarrow as pa

BASE: Final = "/api/v1/pipeline"
ARROW: Final = "application/vnd.apache.arrow.stream"
JSON: Final[Mapping[str, str]] = {"Content-Type": "application/json"}
TIMEOUT_S: Final = 120  # maximum time to wait for more bytes of a response
BUSY_TIMEOUT_S: Final = 600  # maximum wait for a busy broker, which runs only two exports at a time
RETRY_DELAYS_S: Final = (0.5, 1, 2, 4, 8)  # a restarting broker is back within seconds
_WAIT_MAX_S: Final = 30
_BUFFER_BYTES: Final = 1 << 20
_TEXT_MAX: Final = 500

Query = Sequence[tuple[str, str | int]]


@dataclass(frozen=True, slots=True)
class _Request:
    """An HTTP request; unless repeatable, it is sent again only if the broker never received it."""

    method: str
    path: str
    query: Query = ()
    content: bytes | None = None
    head: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = True


@dataclass(frozen=True, slots=True)
class HistoryBounds:
    """Bounds of the history, which contains all rows with ``lo < offset <= hi``.

    Rows of deleted messages are complete only above ``lo_deleted``. ``offset`` is the last offset
    settled before the requested time, or None. ``allowed`` are the queue globs that limit the
    token; empty means all queues.
    """

    history_id: str
    lo: int
    hi: int
    lo_deleted: int
    offset: int | None = None
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimState:
    """State of a subscription: ``acked`` is its last acknowledged claim, ``hi`` its last claim."""

    acked: int
    hi: int


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Result of a publish; repeat the call while ``remaining`` is not 0.

    ``is_resumed`` means that the call continued with an earlier call's tokens instead of its own.
    """

    rows: int
    is_repeated: bool
    remaining: int
    is_resumed: bool


class PipelineClient:
    """Client for the pipeline endpoints of a broker's HTTP API.

    All methods raise:
        BrokerError: the broker refused the request or did not reply.
        DataLossError: the rows were removed by retention or belong to another history.
    """

    def __init__(
        self, connection: SourceConnection, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        if connection.url is None:
            raise OptionError(f"this operation requires a broker; {Remedy.SET_OPTION_URL}")
        parts = urlsplit(connection.url)
        self._url = connection.url
        self._is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._dialer = Dialer(self._host, parts.port or (443 if self._is_tls else 80))
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Accept": "*/*"}
        if connection.token:
            self._headers["Authorization"] = f"Bearer {connection.token}"
        self._sleep = sleep

    # -- history

    def bounds(
        self, reader: str | None = None, position: int | None = None, at_ms: int | None = None
    ) -> HistoryBounds:
        """Return the history's bounds; if ``reader`` is given, its ``position`` is recorded."""
        path = f"{BASE}/history/bounds"
        if reader is not None and position is not None:
            bounds = self._post(path, {"reader": reader, "position": position})
        if at_ms is not None or reader is None or position is None:
            bounds = self._get(path, [] if at_ms is None else [("at_ms", at_ms)])
        lo, hi, lo_deleted = bounds["lo"], bounds["hi"], bounds["lo_deleted"]
        allowed = tuple(bounds.get("allowed", ()))
        return HistoryBounds(
            bounds["history_id"], lo, hi, lo_deleted, bounds.get("offset"), allowed
        )

    def history(
        self, query: Query, history_id: str, allowed: Sequence[str] = ()
    ) -> Iterator["pa.RecordBatch"]:
        """Yield the rows after ``lo`` in ``query`` in offset order, and check the number of rows.

        The rows must have the column ``offset``. If the connection breaks, for example because the
        broker restarts, continue after the last row.

        Raises:
            ShortReadError: the row count differs from the declared one, or the connection breaks
                repeatedly without new rows.
            OptionError: the token is not limited to the queue globs ``allowed``, but to others.
        """

        def check(response: HTTPResponse) -> None:
            now_id = response.getheader("X-History-Id", history_id)
            if now_id != history_id:
                raise DataLossError(f"the broker's history is {now_id}, not {history_id}")
            if response.getheader("X-Queue-Globs", digest) != digest:
                check_allowed(allowed, self.bounds().allowed)

        digest = globs_digest(allowed)
        range_query = [*query, ("history", history_id)]
        return self._batches(f"{BASE}/history/arrow", range_query, "offset", check)

    def queues(self) -> list[str]:
        """Return the queues that may occur in the history and that the token can access."""
        return list(self._get(f"{BASE}/history/bounds", [("queues", 1)])["queues"])

    # -- claims

    def claimed(self, subscription: str) -> ClaimState:
        """Return the state of a subscription; a new subscription starts at 0."""
        try:
            answer = self._get(f"{BASE}/claims/state", [("subscription", subscription)])
        except BrokerError as error:
            if error.status == 404:
                return ClaimState(0, 0)
            raise
        return ClaimState(answer["acked"], answer["hi"])

    def claim(
        self, subscription: str, queue: str, messages: int, size_bytes: int, after: int
    ) -> int:
        """Claim new messages or reuse claims above ``after``; return the last claim's number."""
        body = {
            "subscription": subscription,
            "queue": queue,
            "max_messages": messages,
            "max_bytes": size_bytes,
            "after": after,
        }
        return int(self._post(f"{BASE}/claims/claim", body)["hi"])

    def claims(self, subscription: str, lo: int, hi: int) -> Iterator["pa.RecordBatch"]:
        """Yield the messages of claims ``(lo, hi]`` in order, and check the number of rows."""
        query: Query = [("subscription", subscription), ("lo", lo), ("hi", hi)]
        return self._batches(f"{BASE}/claims/arrow", query, "claim")

    def acknowledge(self, subscription: str, upto: int) -> int:
        """Acknowledge all claims up to ``upto``; return how many were newly acknowledged."""
        if upto == 0:
            return 0  # a subscription without claims has nothing to acknowledge
        body = {"subscription": subscription, "upto": upto}
        return int(self._post(f"{BASE}/claims/ack", body)["acked"])

    def ready(self, queue: str) -> int:
        """Return the number of ready messages in a queue, or 0 if the queue does not exist."""
        return self.ready_or_none(queue) or 0

    def ready_or_none(self, queue: str) -> int | None:
        """Return the number of ready messages, or None if the queue does not exist yet."""
        try:
            return int(self._get(f"/api/v1/queues/{queue_segment(queue)}")["ready"])
        except BrokerError as error:
            if error.code == "unknown_queue":  # any other 404 means a wrong address
                return None
            raise

    # -- publishing

    def stage(self, token: str, stream: bytes, rows: int) -> int:
        """Store rows under a token without publishing them; return how many rows the broker read.

        The request is not retried after a lost connection, because a token can be used only once.
        """
        head = {"Content-Type": ARROW, "X-Row-Count": str(rows)}
        query = [("token", token)]
        request = _Request("POST", f"{BASE}/stage", query, stream, head, is_repeatable=False)
        return int(self._json(request)["rows"])

    def publish(
        self, app_id: str, version: int, tokens: Sequence[str], *, is_single: bool = False
    ) -> PublishResult:
        """Publish staged rows in one transaction, once per key; report how many rows remain.

        With ``is_single``, nothing else is ever published with this ``app_id``.
        """
        body = {"app_id": app_id, "version": version, "tokens": list(tokens), "in_parts": True}
        body |= {"single_use": True} if is_single else {}
        answer = self._post(f"{BASE}/publish", body)
        return PublishResult(
            answer["published"], answer["repeated"], answer["remaining"], answer["resumed"]
        )

    def unstage(self, tokens: Sequence[str]) -> int:
        """Drop staged rows; published messages are not affected."""
        return int(self._post(f"{BASE}/unstage", {"tokens": list(tokens)})["unstaged"])

    def put_insights(self, summary: bytes) -> None:
        """Send the insights document (JSON, up to 2 MiB) to the broker."""
        self._text(_Request("PUT", f"{BASE}/insights", content=summary, head=JSON))

    # -- requests

    def _get(self, path: str, query: Query = ()) -> dict[str, Any]:
        return self._json(_Request("GET", path, query))

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._json(_Request("POST", path, content=json.dumps(body).encode(), head=JSON))

    def _json(self, request: _Request) -> dict[str, Any]:
        text = self._text(request)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise BrokerError(f"{self._url} sent an unexpected response: {text[:_TEXT_MAX]!r}")
        return answer

    def _text(self, request: _Request) -> bytes:
        for wait_s in (*RETRY_DELAYS_S, None):
            connection, response = self._send(request)
            with closing(connection):
                try:
                    return response.read()
                except (OSError, HTTPException) as error:
                    if wait_s is None or not request.is_repeatable:
                        raise BrokerError(
                            f"the response from {self._url} ended early: {error!r}"
                        ) from error
                    self._sleep(wait_s)
        raise AssertionError  # the last attempt returns or raises

    def _send(self, request: _Request) -> tuple[HTTPConnection, HTTPResponse]:
        """Send the request, repeating it while the broker is busy; return once headers arrive."""
        query = "?" + urlencode(request.query) if request.query else ""
        target, headers = self._prefix + request.path + query, {**self._headers, **request.head}
        waited_s = 0.0
        delays = iter(RETRY_DELAYS_S)
        while True:
            connection = self._connection()
            try:
                connection.request(request.method, target, request.content, headers)
                response = connection.getresponse()
            except (OSError, HTTPException) as error:
                connection.close()
                wait_s = None if isinstance(error, SSLCertVerificationError) else next(delays, None)
                is_unsent = isinstance(error, ConnectionRefusedError | socket.gaierror)
                if wait_s is None or not (request.is_repeatable or is_unsent):
                    raise BrokerError(f"{self._url} did not respond: {error!r}") from error
                self._sleep(wait_s)
                continue
            if response.status < 300:
                return connection, response
            with closing(connection):
                busy_s = _retry_after_s(response)
                if busy_s is None or waited_s + busy_s > BUSY_TIMEOUT_S:
                    raise self._error_of(response)
            waited_s += busy_s
            self._sleep(busy_s)

    def _connection(self) -> HTTPConnection:
        kind = HTTPSConnection if self._is_tls else HTTPConnection
        connection = kind(self._host, self._port, timeout=TIMEOUT_S)
        connection._create_connection = self._dial  # type: ignore[attr-defined]
        return connection

    def _dial(self, _address: object, timeout_s: float, _source: object) -> socket.socket:
        """Connect for ``http.client``, within one time limit for all addresses of the host."""
        connected = self._dialer.connect(timeout_s)
        connected.settimeout(timeout_s)
        prepare(connected)
        return connected

    def _error_of(self, response: HTTPResponse) -> Exception:
        """Return the exception for an error response, with the broker's message."""
        text = response.read(64 << 10)
        try:
            problem = json.loads(text)
            code, detail = str(problem["code"]), str(problem["detail"])
        except (ValueError, TypeError, KeyError):
            code, detail = "no_problem", repr(text[:_TEXT_MAX])
        if code in ("gap", "other_history"):
            return DataLossError(detail)
        hint = {
            401: f"; set a valid token {Remedy.SET_TOKEN}",
            403: "; the token's role or queues do not allow this",
        }.get(response.status, "")
        words = f"{self._url} responded with {response.status} {code}: {detail}{hint}"
        return BrokerError(words, response.status, code)

    def _batches(
        self,
        path: str,
        query: Query,
        number: str,
        check: Callable[[HTTPResponse], None] = lambda _: None,
    ) -> Iterator["pa.RecordBatch"]:
        """Yield the rows after ``lo`` in ``query``, in the order of the column ``number``."""
        is_begun, delays = False, iter(RETRY_DELAYS_S)
        while True:
            request = _Request("GET", path, query, head={"Accept": ARROW})
            try:
                for batch in self._stream(request, check):
                    is_begun = True
                    if batch.num_rows:
                        last_number, delays = batch.column(number)[-1].as_py(), iter(RETRY_DELAYS_S)
                        query = [item for item in query if item[0] != "lo"] + [("lo", last_number)]
                    yield batch
            except BrokenStreamError:
                wait_s = next(delays, None)
                if wait_s is None:
                    raise
                self._sleep(wait_s)
            except DataLossError as error:
                if is_begun:  # the rows before it have been passed on
                    raise ShortReadError(f"{self._url} was interrupted, then: {error}") from error
                raise
            else:
                return

    def _stream(
        self, request: _Request, check: Callable[[HTTPResponse], None]
    ) -> Iterator["pa.RecordBatch"]:
        connection, response = self._send(request)
        source = f"{self._url}{request.path}"
        with closing(connection):
            announced = response.getheader("X-Row-Count")
            if announced is None:
                raise ShortReadError(f"{source} did not declare the number of rows")
            check(response)
            yield from check_row_count(_decode_stream(response, source), int(announced))


def check_allowed(planned: Sequence[str], current: Sequence[str]) -> None:
    """Check that the token is limited to the queues for which the range was planned.

    Raises:
        OptionError: the queue globs differ; a smaller set would omit rows without an error.
    """
    if sorted(planned) != sorted(current):
        raise OptionError(
            f"the rows were planned with a token for {globs_text(planned)}, but the token is now"
            f" for {globs_text(current)}; use a token with the same queues"
        )


def globs_digest(globs: Sequence[str]) -> str:
    """Return the digest of queue globs, like ``globs_digest`` in the admin package."""
    return sha256(json.dumps(sorted(globs)).encode()).hexdigest()[:16]


def globs_text(globs: Sequence[str]) -> str:
    """Describe a set of queue globs."""
    return f"the queues {', '.join(sorted(globs))}" if globs else "all queues"


def queue_segment(queue: str) -> str:
    """Encode a queue name as a URL path segment, like ``encode_name`` in the admin package.

    The code is duplicated because executors do not have the admin package.
    """
    return quote(f"~{queue}" if queue.startswith("~") or not queue.strip(".") else queue, safe="")


def check_row_count(
    batches: Iterator["pa.RecordBatch"], announced: int
) -> Iterator["pa.RecordBatch"]:
    """Yield batches, and check that they contain ``announced`` rows in total.

    Raises:
        ShortReadError: the numbers differ, even if the stream ended normally.
    """
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        yield batch
    if rows != announced:
        raise ShortReadError(f"received {rows} rows but expected {announced}")


def _decode_stream(response: HTTPResponse, source: str) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa
    from pyarrow import ipc

    # Buffered because Arrow reads a few bytes at a time.
    buffered = io.BufferedReader(response, _BUFFER_BYTES)
    try:
        with ipc.open_stream(buffered) as stream:
            yield from stream
            # Continue reading, because a body cut off after Arrow's end mark is also incomplete.
            if buffered.read(1):
                raise ShortReadError(f"{source} sent more than one Arrow stream")
    except (OSError, HTTPException, pa.ArrowInvalid) as error:
        raise BrokenStreamError(f"{source} ended early: {error!r}") from error


def _retry_after_s(response: HTTPResponse) -> float | None:
    """Return how many seconds to wait for a busy broker, or None if the broker is not busy."""
    retry_after = response.getheader("Retry-After", "")
    if response.status != 503 or not retry_after.isdigit():
        return None
    return min(max(float(retry_after), 0.1), _WAIT_MAX_S)
