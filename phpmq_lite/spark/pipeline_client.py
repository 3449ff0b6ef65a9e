"""Client of the broker's pipeline API, with the standard library alone."""

import io
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from phpmq_lite.spark.errors import BrokerError, DataLossError, OptionError, ShortReadError
from phpmq_lite.spark.source_options import SourceConnection

if TYPE_CHECKING:
    import pyarrow as pa

BASE: Final = "/api/v1/pipeline"
ARROW: Final = "application/vnd.apache.arrow.stream"
JSON: Final[Mapping[str, str]] = {"Content-Type": "application/json"}
TIMEOUT_S: Final = 120  # without a byte
BUSY_PATIENCE_S: Final = 600  # exports run two at a time: the others wait for their turn
GONE_WAITS_S: Final = (0.5, 1, 2, 4, 8)  # a broker that restarts is back in seconds
_WAIT_MAX_S: Final = 30
_BUFFER_BYTES: Final = 1 << 20
_TEXT_MAX: Final = 500

Query = Sequence[tuple[str, str | int]]


@dataclass(frozen=True, slots=True)
class HistoryBounds:
    """What the history has: every row with ``lo < offset <= hi`` but deleted ones.

    Deleted ones are whole above ``lo_deleted``.  ``offset``: the last one settled before the time
    that was asked for, else None.
    """

    history_id: str
    lo: int
    hi: int
    lo_deleted: int
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class ClaimState:
    """A subscription: claims up to ``acked`` are acknowledged, the last one given out is ``hi``."""

    acked: int
    hi: int


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What became of a publish; ``remaining`` rows wait for the same call again.

    ``is_resumed``: it went on with what an earlier call staged, not with the tokens that it named.
    """

    rows: int
    is_repeated: bool
    remaining: int
    is_resumed: bool


class PipelineClient:
    """The pipeline's part of a broker's HTTP API.

    Raises of all calls:
        BrokerError: it refused, or does not answer.
        DataLossError: what was asked for is gone by retention, or is of another history.
    """

    def __init__(
        self, connection: SourceConnection, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        if connection.url is None:
            raise OptionError("this needs a broker: give url")
        parts = urlsplit(connection.url)
        self._url = connection.url
        self._is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Accept": "*/*"}
        if connection.token:
            self._headers["Authorization"] = f"Bearer {connection.token}"
        self._sleep = sleep

    # -- the history

    def bounds(
        self, reader: str | None = None, position: int | None = None, at_ms: int | None = None
    ) -> HistoryBounds:
        """Ask for the ends; ``reader`` has done all up to ``position``, which the broker notes."""
        asked: list[tuple[str, str | int]] = []
        if reader is not None and position is not None:
            asked += [("reader", reader), ("position", position)]
        if at_ms is not None:
            asked.append(("at_ms", at_ms))
        answer = self._json("GET", f"{BASE}/history/bounds", asked)
        return HistoryBounds(
            answer["history_id"],
            answer["lo"],
            answer["hi"],
            answer["lo_deleted"],
            answer.get("offset"),
        )

    def history(self, query: Query, history_id: str) -> Iterator["pa.RecordBatch"]:
        """Yield the rows of a range, in the order of offsets, counted.

        Raises:
            ShortReadError: they are not as many as announced, or the connection broke.
        """
        asked = [*query, ("history", history_id)]
        return self._batches(f"{BASE}/history/arrow", asked, history_id)

    def queues(self) -> list[str]:
        """Give the names of all queues that the history may have and the token may see."""
        return list(self._json("GET", f"{BASE}/history/bounds", [("queues", 1)])["queues"])

    # -- claims

    def claimed(self, subscription: str) -> ClaimState:
        """Give how far a subscription is; one that is not there yet is at 0."""
        try:
            answer = self._json("GET", f"{BASE}/claims/state", [("subscription", subscription)])
        except BrokerError as error:
            if error.status == 404:
                return ClaimState(0, 0)
            raise
        return ClaimState(answer["acked"], answer["hi"])

    def claim(
        self, subscription: str, queue: str, messages: int, size_bytes: int, after: int
    ) -> int:
        """Claim new messages, or find those claimed already above ``after``; return the last."""
        body = {
            "subscription": subscription,
            "queue": queue,
            "max_messages": messages,
            "max_bytes": size_bytes,
            "after": after,
        }
        return int(self._json("POST", f"{BASE}/claims/claim", body=body)["hi"])

    def claims(self, subscription: str, lo: int, hi: int) -> Iterator["pa.RecordBatch"]:
        """Yield the claims of ``(lo, hi]``, in order, counted; see ``history``."""
        asked: Query = [("subscription", subscription), ("lo", lo), ("hi", hi)]
        return self._batches(f"{BASE}/claims/arrow", asked, None)

    def acknowledge(self, subscription: str, upto: int) -> int:
        """Settle all claims up to this one as acked; return how many were not yet."""
        if upto == 0:
            return 0  # before the first claim there is no subscription, and nothing to settle
        body = {"subscription": subscription, "upto": upto}
        return int(self._json("POST", f"{BASE}/claims/ack", body=body)["acked"])

    def ready(self, queue: str) -> int:
        """Give how many messages of a queue wait for a consumer; 0 where there is no such queue."""
        return self.ready_if_there(queue) or 0

    def ready_if_there(self, queue: str) -> int | None:
        """Give the same; None where there is no such queue: its first message makes it."""
        try:
            return int(self._json("GET", f"/api/v1/queues/{queue_segment(queue)}")["ready"])
        except BrokerError as error:
            if error.code == "unknown_queue":  # another 404 comes of a wrong address
                return None
            raise

    # -- publishing

    def stage(self, token: str, stream: bytes, rows: int) -> int:
        """Store rows under a token, without publishing them; return how many the broker read.

        Not repeated by itself after a lost connection: a token is taken once.
        """
        head = {"Content-Type": ARROW, "X-Row-Count": str(rows)}
        query = [("token", token)]
        answer = self._json("POST", f"{BASE}/stage", query, stream, head, is_repeatable=False)
        return int(answer["rows"])

    def publish(
        self, app_id: str, version: int, tokens: Sequence[str], *, is_single: bool = False
    ) -> PublishResult:
        """Publish staged rows, once per key: one transaction's worth, and say how many remain.

        With ``is_single`` nothing else is ever published under this ``app_id``.
        """
        body = {"app_id": app_id, "version": version, "tokens": list(tokens), "in_parts": True}
        body |= {"single_use": True} if is_single else {}
        answer = self._json("POST", f"{BASE}/publish", body=body)
        return PublishResult(
            answer["published"], answer["repeated"], answer["remaining"], answer["resumed"]
        )

    def unstage(self, tokens: Sequence[str]) -> int:
        """Drop staged rows; what was published is not touched."""
        return int(self._json("POST", f"{BASE}/unstage", body={"tokens": list(tokens)})["unstaged"])

    def put_insights(self, summary: bytes) -> None:
        """Hand over the summary that the Insights page shows: JSON, at most 2 MiB."""
        self._text("PUT", f"{BASE}/insights", (), summary)

    # -- below

    def _json(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: Mapping[str, Any] | bytes | None = None,
        head: Mapping[str, str] = JSON,
        *,
        is_repeatable: bool = True,
    ) -> dict[str, Any]:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        text = self._text(method, path, query, content, head, is_repeatable=is_repeatable)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise BrokerError(f"{self._url} answered something else: {text[:_TEXT_MAX]!r}")
        return answer

    def _text(
        self,
        method: str,
        path: str,
        query: Query,
        content: bytes | None,
        head: Mapping[str, str] = JSON,
        *,
        is_repeatable: bool = True,
    ) -> bytes:
        head = head if content is not None else {}
        for wait_s in (*GONE_WAITS_S, None):
            connection, response = self._ask(method, path, query, content, head, is_repeatable)
            with closing(connection):
                try:
                    return response.read()
                except (OSError, HTTPException) as error:
                    if wait_s is None or not is_repeatable:
                        raise BrokerError(f"{self._url} broke off its answer: {error!r}") from error
                    self._sleep(wait_s)
        raise AssertionError  # the last round returned or raised

    def _ask(
        self,
        method: str,
        path: str,
        query: Query,
        content: bytes | None,
        head: Mapping[str, str],
        is_repeatable: bool,
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Send until there is an answer that is not "later"; return it with its head read."""
        target = self._prefix + path + ("?" + urlencode(query) if query else "")
        waited_s = 0.0
        gone = iter(GONE_WAITS_S)
        while True:
            connection = self._connection()
            try:
                connection.request(method, target, content, {**self._headers, **head})
                response = connection.getresponse()
            except (OSError, HTTPException) as error:
                connection.close()
                wait_s = next(gone, None)
                is_unsent = isinstance(error, ConnectionRefusedError | socket.gaierror)
                if wait_s is None or not (is_repeatable or is_unsent):
                    raise BrokerError(f"{self._url} does not answer: {error!r}") from error
                self._sleep(wait_s)
                continue
            if response.status < 300:
                return connection, response
            with closing(connection):
                busy_s = _retry_after_s(response)
                if busy_s is None or waited_s + busy_s > BUSY_PATIENCE_S:
                    raise self._refusal(response)
            waited_s += busy_s
            self._sleep(busy_s)

    def _connection(self) -> HTTPConnection:
        kind = HTTPSConnection if self._is_tls else HTTPConnection
        return kind(self._host, self._port, timeout=TIMEOUT_S)

    def _refusal(self, response: HTTPResponse) -> Exception:
        """Turn an answer that is no success into an exception with the broker's own words."""
        text = response.read(64 << 10)
        try:
            problem = json.loads(text)
            code, detail = str(problem["code"]), str(problem["detail"])
        except (ValueError, TypeError, KeyError):
            code, detail = "no_problem", repr(text[:_TEXT_MAX])
        if code in ("gap", "other_history"):
            return DataLossError(detail)
        hint = {
            401: "; give a token that it knows (option token)",
            403: "; the token's role or queues do not allow it",
        }.get(response.status, "")
        words = f"{self._url} answered {response.status} {code}: {detail}{hint}"
        return BrokerError(words, response.status, code)

    def _batches(
        self, path: str, query: Query, history_id: str | None
    ) -> Iterator["pa.RecordBatch"]:
        connection, response = self._ask("GET", path, query, None, {"Accept": ARROW}, True)
        with closing(connection):
            announced = response.getheader("X-Row-Count")
            if announced is None:
                raise ShortReadError(f"{self._url}{path} does not say how many rows it sends")
            now = response.getheader("X-History-Id", history_id)
            if history_id is not None and now != history_id:
                raise DataLossError(f"the history is {now} now, it was {history_id}")
            yield from check_row_count(_decoded(response, f"{self._url}{path}"), int(announced))


def queue_segment(queue: str) -> str:
    """Make a segment of a path of a queue's name, as ``admin.urls.encode_name`` does and explains.

    It stands here again, for an executor loads nothing of the admin.
    """
    return quote(f"~{queue}" if queue.startswith("~") or not queue.strip(".") else queue, safe="")


def check_row_count(
    batches: Iterator["pa.RecordBatch"], announced: int
) -> Iterator["pa.RecordBatch"]:
    """Pass batches on and compare their rows with what was announced.

    Raises:
        ShortReadError: there were fewer or more, also where the stream itself ended well.
    """
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        yield batch
    if rows != announced:
        raise ShortReadError(f"{rows} rows came, {announced} were announced")


def _decoded(response: HTTPResponse, source: str) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa
    from pyarrow import ipc

    # Arrow reads a few bytes at a time.
    buffered = io.BufferedReader(response, _BUFFER_BYTES)
    try:
        with ipc.open_stream(buffered) as stream:
            yield from stream
            # A body that is cut after the end mark of Arrow is broken all the same.
            if buffered.read(1):
                raise ShortReadError(f"{source} sent more than one Arrow stream")
    except (OSError, HTTPException, pa.ArrowInvalid) as error:
        raise ShortReadError(f"{source} broke off: {error!r}") from error


def _retry_after_s(response: HTTPResponse) -> float | None:
    """Give how long a busy broker wants to be left alone; None where it is not busy."""
    given = response.getheader("Retry-After", "")
    if response.status != 503 or not given.isdigit():
        return None
    return min(max(float(given), 0.1), _WAIT_MAX_S)


def put_insights(connection: SourceConnection, body: bytes) -> None:
    """Hand a summary to the broker (``PipelineClient.put_insights``)."""
    PipelineClient(connection).put_insights(body)
