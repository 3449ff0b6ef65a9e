"""Publishes that wait for the broker's answer, without I/O."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Any, Final, Literal, TypedDict

from phpmq_lite.errors import (
    KEY_CONFLICT,
    ClientError,
    ConnectionLostError,
    LocalProtocolError,
    PhpmqError,
    PublishRefusedError,
)
from phpmq_lite.frame_options import PUBLISH, OptionError, PublishOptions, check_options
from phpmq_lite.queue_settings import home_of, name_problem, retry_name

Options = Mapping[str, Any]  # of a 010, checked
AnswerCallback = Callable[[PhpmqError | None], None]  # receives None if the message was stored


@contextmanager
def storing_once() -> Iterator[None]:
    """Within the block, let the refusal of a known key pass: its message was stored before.

    For keys that stand for an event, such as a failure, whose message has other bytes (a time, an
    id) when a publish is repeated.
    """
    try:
        yield
    except PublishRefusedError as error:
        if error.reason != KEY_CONFLICT:
            raise


class PublishFields(TypedDict, total=False):
    """Options of a publish, with the names and bounds of the HTTP API."""

    delay_s: float  # seconds until the message is ready; its time to live begins then
    deliver_at: datetime | int | str  # or a date: with a UTC offset, or in Unix ms
    priority: int  # 0 (first) to 255; the default is 128
    group: str  # of which a queue with ``group_by`` delivers one message at a time
    unique_key: str  # under which the queue holds at most one live message
    if_exists: Literal["keep", "replace"]  # the live message with this unique key


def check_fields(ttl_s: float, fields: PublishFields) -> Options | None:
    """Return the options of a 010, or None if a 001 will do; raise LocalProtocolError."""
    if not fields and isinstance(ttl_s, int):
        return None
    named = {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in fields.items()
    }
    try:
        options = check_options({"ttl_s": ttl_s, **named}, PUBLISH)
        PublishOptions.of(options)
    except OptionError as error:
        raise LocalProtocolError(str(error)) from None
    if not options.get("delay_s", 1):
        del options["delay_s"]
    return None if options.keys() == {"ttl_s"} and ttl_s == int(ttl_s) else options


def delayed_copy(queue: str, options: Options) -> tuple[str, int]:
    """Return queue and TTL that mean a delay to a broker that knows no 010.

    Raises:
        ClientError: they cannot express the options.
    """
    delay_s, target = options.get("delay_s"), retry_name(queue)
    unknown = [name for name in options if name != "ttl_s"] if options["ttl_s"] else []
    unknown = unknown or [name for name in options if name not in ("ttl_s", "delay_s")]
    if unknown or not delay_s or name_problem(target) is not None:
        names = ", ".join(unknown or options)
        raise ClientError(
            f"the broker is older than this client and does not know {names}; upgrade it, or "
            "publish without"
        )
    return target, ceil(delay_s)


@dataclass(slots=True, frozen=True)
class KeyedMessage:
    """A message to be published, with its publish key."""

    queue: str
    content: bytes
    ttl_s: int
    key: bytes  # publish key of 1 to 64 bytes
    options: Options | None = None


@dataclass(slots=True)
class UnansweredPublish:
    """An unanswered publish request."""

    queue: str
    content: bytes
    ttl_s: int
    key: bytes
    answer: AnswerCallback
    options: Options | None = None
    is_copy: bool = False  # sent with the TTL as its delay; repeated so, since keys are per queue
    sent: int = 0  # connections that had it since the broker last answered any


_LARGE_BYTES: Final = 65_536  # a larger body may be above the broker's limits.max_content
_LARGE_SENDS: Final = 3  # limit of ``max_sends`` for such a body
PROBE_S: Final = 0.2  # a proxy whose broker is away closes new connections within this time


class PendingPublishes:
    """Unanswered publish requests by queue and key, in the order in which they were made.

    The broker stores each key only once, so all requests can be repeated on the next connection.
    The client gives up on a publish after ``max_sends`` connections in a row have ended without an
    answer to any publish, because that publish may be why the broker closes connections: it closes
    one as soon as it reads the size of a body above its limit.  For the largest body, if it has
    more than 64 KiB, three such connections are therefore enough.
    """

    def __init__(self, max_sends: int = 10) -> None:
        self._max_sends = max_sends
        self._waiting: dict[tuple[str, bytes], UnansweredPublish] = {}
        self._has_answers = False  # whether the broker has answered on the current connection

    def __len__(self) -> int:
        return len(self._waiting)

    def largest(self) -> int:
        """Return the number of bytes of the largest unanswered message."""
        return max((len(entry.content) for entry in self._waiting.values()), default=0)

    def add(
        self,
        queue: str,
        content: bytes,
        ttl_s: int,
        key: bytes,
        answer: AnswerCallback,
        options: Options | None = None,
    ) -> UnansweredPublish:
        """Remember a publish; raise LocalProtocolError if one with this key is unanswered."""
        if (queue, key) in self._waiting:
            raise LocalProtocolError(
                f"a publish with key {key!r} is already waiting for its receipt"
            )
        entry = UnansweredPublish(queue, content, ttl_s, key, answer, options)
        self._waiting[queue, key] = entry
        return entry

    def answered(self, queue: str, key: bytes, reason: str | None) -> bool:
        """Report a publish as stored or refused (``reason``); return False if it is unknown."""
        entry = self._waiting.pop((queue, key), None)
        if entry is None and (home := home_of(queue)) is not None:  # of a delayed copy
            entry = self._waiting.pop((home, key), None)
        if entry is None:
            return False
        self._has_answers = True
        entry.answer(None if reason is None else PublishRefusedError(reason))
        return True

    def forget(self, queue: str, key: bytes) -> None:
        """Forget a publish whose sender has stopped waiting; the message may still be stored."""
        self._waiting.pop((queue, key), None)

    def forget_all(self, answer: AnswerCallback) -> None:
        """Forget all unanswered publish requests whose callback is ``answer``."""
        for place in [at for at, entry in self._waiting.items() if entry.answer == answer]:
            del self._waiting[place]

    def to_repeat(self) -> list[UnansweredPublish]:
        """Return the publish requests to repeat, oldest first; fail any sent too often."""
        if self._has_answers:
            self._has_answers = False
            for entry in self._waiting.values():
                entry.sent = 0
        suspect = self.suspect()
        for entry in list(self._waiting.values()):
            if entry.sent < (_LARGE_SENDS if entry is suspect else self._max_sends):
                continue
            del self._waiting[entry.queue, entry.key]
            detail = f"{entry.sent} connections ended before the broker answered a publish"
            if entry is suspect:
                detail += (
                    f" of {len(entry.content)} bytes; if that is above the broker's "
                    "limits.max_content, raise the limit, or make the body smaller"
                )
            entry.answer(ConnectionLostError(detail))
        return list(self._waiting.values())

    def suspect(self) -> UnansweredPublish | None:
        """Return the largest publish if it was sent and may be above the broker's limit.

        The next connection must stay open for ``PROBE_S`` before it is sent again, so that only
        ends that it may have caused are counted.
        """
        largest = max(self._waiting.values(), key=lambda entry: len(entry.content), default=None)
        if largest is None or not largest.sent or len(largest.content) <= _LARGE_BYTES:
            return None
        return largest

    def fail(self, detail: str) -> None:
        """Fail all unanswered publish requests, because the client will not connect again."""
        waiting, self._waiting = self._waiting, {}
        for entry in waiting.values():
            entry.answer(ConnectionLostError(detail))


class PublishBatch:
    """Counts the answers to a batch of publishes; ``answered`` is the callback of each publish.

    ``notify`` is called after each answer; at most ``window`` publishes are unanswered at a time.
    """

    def __init__(self, window: int = 1, notify: Callable[[], None] = lambda: None) -> None:
        self._window = window
        self._notify = notify
        self.stored = 0
        self.unanswered = 0
        self.error: PhpmqError | None = None  # the first error among the answers

    def bound(self) -> int:
        """Return below how many unanswered publishes to wait; 0: do not wait, 1: after an error."""
        if self.error is not None:
            return 1
        return max(1, self._window // 2) if self.unanswered >= self._window else 0

    def begin(self) -> AnswerCallback:
        """Count one more publish; return the callback for its answer, which is always the same."""
        self.unanswered += 1
        return self.answered

    def answered(self, error: PhpmqError | None) -> None:
        """Count one answer to a publish."""
        self.unanswered -= 1
        if error is None:
            self.stored += 1
        elif self.error is None:
            self.error = error
        self._notify()
