"""Client for the broker's pipeline API that requires only the standard library."""

import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from phpmq_lite.errors import (
    BrokenStreamError,
    BrokerError,
    DataLossError,
    OptionError,
    ShortReadError,
)
from phpmq_lite.http_client import (
    BUSY_TIMEOUT_S,
    RETRY_DELAYS_S,
    Attempts,
    HttpClient,
    HttpRequest,
    NotConnectedError,
)
from phpmq_lite.spark.source_options import Remedy, SourceConnection
from phpmq_lite.storage.arrow import NO_FILTERS, RowFilters

if TYPE_CHECKING:
    import pyarrow as pa

BASE: Final = "/api/v1/pipeline"
ARROW: Final = "application/vnd.apache.arrow.stream"
JSON: Final[Mapping[str, str]] = {"Content-Type": "application/json"}
TIMEOUT_S: Final = 120  # maximum time to wait for more bytes of a response
_BUFFER_BYTES: Final = 1 << 20
_TEXT_MAX: Final = 500

Query = Sequence[tuple[str, str | int]]


@dataclass(frozen=True, slots=True)
class HistoryBounds:
    """Bounds of the history, which contains all rows with ``lo < offset <= hi``.

    Rows of deleted messages are complete only above ``lo_deleted``. ``offset`` is the last offset
    settled before the requested time, or None. ``allowed`` are the queue globs that limit the
    token; empty means all queues. ``settled_lo`` and ``settled_hi`` are a range of offsets with all
    rows of the requested time.
    """

    history_id: str
    lo: int
    hi: int
    lo_deleted: int
    offset: int | None = None
    allowed: tuple[str, ...] = ()
    settled_lo: int = 0
    settled_hi: int = 1 << 62


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
        headers = {"Authorization": f"Bearer {connection.token}"} if connection.token else {}
        attempts = partial(Attempts, RETRY_DELAYS_S, BUSY_TIMEOUT_S, sleep)
        self._url = connection.url
        self._http = HttpClient(connection.url, headers, timeout_s=TIMEOUT_S, attempts=attempts)

    # -- history

    def bounds(
        self,
        reader: str | None = None,
        position: int | None = None,
        at_ms: int | None = None,
        filters: RowFilters = NO_FILTERS,
    ) -> HistoryBounds:
        """Return the history's bounds; if ``reader`` is given, its ``position`` is recorded."""
        path = f"{BASE}/history/bounds"
        if reader is not None and position is not None:
            bounds = self._post(path, {"reader": reader, "position": position})
        if at_ms is not None or reader is None or position is None:
            settled = [item for item in filters_query(filters) if item[0].startswith("settled")]
            bounds = self._get(path, [*([] if at_ms is None else [("at_ms", at_ms)]), *settled])
        lo, hi, lo_deleted = bounds["lo"], bounds["hi"], bounds["lo_deleted"]
        allowed = tuple(bounds.get("allowed", ()))
        answer = HistoryBounds(
            bounds["history_id"], lo, hi, lo_deleted, bounds.get("offset"), allowed
        )
        if bounds.get("settled_hi") is None:
            return answer
        return replace(answer, settled_lo=bounds["settled_lo"], settled_hi=bounds["settled_hi"])

    def remove_reader(self, reader: str) -> None:
        """Remove a history reader's position, unless it is missing or another user's."""
        try:
            self._post(f"{BASE}/history/readers/remove", {"reader": reader})
        except BrokerError as error:
            if error.code not in ("unknown_reader", "foreign_reader"):
                raise

    def history(
        self,
        query: Query,
        history_id: str,
        allowed: Sequence[str] = (),
        filters: RowFilters = NO_FILTERS,
        has_events: bool = False,
    ) -> Iterator["pa.RecordBatch"]:
        """Yield the rows after ``lo`` in ``query`` in offset order, and check the number of rows.

        With ``has_events``, the rows are exceptional steps of the messages, with all columns.

        The rows must have the column ``offset``. If the connection breaks, for example because the
        broker restarts, continue after the last row.

        Raises:
            ShortReadError: the row count differs from the declared one, or the connection breaks
                repeatedly without new rows.
            OptionError: the token is not limited to the queue globs ``allowed``, but to others; or
                the broker is older and ignores ``filters``.
        """

        def check(response: HTTPResponse) -> None:
            now_id = response.getheader("X-History-Id", history_id)
            if now_id != history_id:
                raise DataLossError(f"the broker's history is {now_id}, not {history_id}")
            if response.getheader("X-Queue-Globs", digest) != digest:
                check_allowed(allowed, self.bounds().allowed)
            if response.getheader("X-Row-Filters", "") != ",".join(filters.names):
                raise OptionError(
                    f"the broker at {self._url} is older and ignores filters"
                    f" ({', '.join(filters.names)}); upgrade it, or set pushFilters to false"
                )

        digest = globs_digest(allowed)
        range_query = [*query, ("history", history_id), *filters_query(filters)]
        if has_events:
            return self._batches(f"{BASE}/history/events", range_query, "history_offset", check)
        return self._batches(f"{BASE}/history/arrow", range_query, "offset", check)

    def queues(self) -> list[str]:
        """Return the queues that may occur in the history and that the token can access."""
        return list(self._get(f"{BASE}/history/bounds", [("queues", 1)])["queues"])

    def schema(self, urn: str) -> str | None:
        """Return the schema registered for a URN as JSON, or None if there is none."""
        try:
            answer = self._get(f"/api/v1/schemas/{queue_segment(urn)}")
        except BrokerError as error:
            if error.code == "unknown_schema":
                return None
            raise
        return json.dumps(answer["document"])

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
        request = HttpRequest("POST", f"{BASE}/stage", query, stream, head, is_repeatable=False)
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

    def erase(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Erase the data of messages; the members are those of ``POST /pipeline/erase``."""
        return self._post(f"{BASE}/erase", request)

    def put_insights(self, summary: bytes) -> None:
        """Send the insights document (JSON, up to 2 MiB) to the broker."""
        self._text(HttpRequest("PUT", f"{BASE}/insights", content=summary, headers=JSON))

    # -- requests

    def _get(self, path: str, query: Query = ()) -> dict[str, Any]:
        return self._json(HttpRequest("GET", path, query))

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._json(
            HttpRequest("POST", path, content=json.dumps(body).encode(), headers=JSON)
        )

    def _json(self, request: HttpRequest) -> dict[str, Any]:
        text = self._text(request)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise BrokerError(f"{self._url} sent an unexpected response: {text[:_TEXT_MAX]!r}")
        return answer

    def _text(self, request: HttpRequest) -> bytes:
        attempts = self._http.attempts()
        while True:
            with self._send(request) as response:
                try:
                    return response.read()
                except (OSError, HTTPException) as error:
                    if not request.is_repeatable or not attempts.pause():
                        raise BrokerError(
                            f"the response from {self._url} ended early: {error!r}"
                        ) from error

    def _send(self, request: HttpRequest) -> HTTPResponse:
        try:
            response = self._http.send(request)
        except (OSError, HTTPException) as error:
            cause = error.reason if isinstance(error, NotConnectedError) else error
            raise BrokerError(f"{self._url} did not respond: {cause!r}") from error
        if response.status < 300:
            return response
        with response:
            raise self._error_of(response)

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
        is_begun, attempts = False, self._http.attempts()
        while True:
            request = HttpRequest("GET", path, query, headers={"Accept": ARROW})
            try:
                for batch in self._stream(request, check):
                    is_begun = True
                    if batch.num_rows:
                        attempts.reset()
                        last_number = batch.column(number)[-1].as_py()
                        query = [item for item in query if item[0] != "lo"] + [("lo", last_number)]
                    yield batch
            except BrokenStreamError:
                if not attempts.pause():
                    raise
            except DataLossError as error:
                if is_begun:  # the rows before it have been passed on
                    raise ShortReadError(f"{self._url} was interrupted, then: {error}") from error
                raise
            else:
                return

    def _stream(
        self, request: HttpRequest, check: Callable[[HTTPResponse], None]
    ) -> Iterator["pa.RecordBatch"]:
        source = f"{self._url}{request.path}"
        with self._send(request) as response:
            announced = response.getheader("X-Row-Count")
            if announced is None:
                raise ShortReadError(f"{source} did not declare the number of rows")
            check(response)
            yield from check_row_count(_decode_stream(response, source), int(announced))


def filters_query(filters: RowFilters) -> list[tuple[str, str | int]]:
    """Return the filters as parameters of a request."""
    values = {
        "settled_from_ms": filters.settled_from,
        "settled_until_ms": filters.settled_until,
        "published_from_ms": filters.published_from,
        "published_until_ms": filters.published_until,
    }
    times: list[tuple[str, str | int]] = [(n, ms) for n, ms in values.items() if ms is not None]
    urns, traces = [("urn", urn) for urn in filters.urns], [("trace_id", t) for t in filters.traces]
    return [*times, *urns, *traces]


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
