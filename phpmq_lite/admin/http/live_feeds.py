"""Live feeds; each is evaluated once a second for all of its viewers together."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.errors import PhpmqError
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.model import has_room

EVERY_S: Final = 1.0  # interval between two evaluations of a feed
STREAMS: Final = 64
STREAMS_PER_SESSION: Final = 4  # a browser opens at most six connections to a host
STREAMS_OF_CONTROL: Final = 16  # all streams of the control socket share one limit
STREAM_S: Final = 600.0  # a browser must then reconnect, so that permissions are checked
IDLE_FEEDS: Final = 64  # number of feeds kept without a stream, for polling and reconnecting
ROWS: Final = 500  # number of rows kept per feed
FIRST_ROWS: Final = 100  # number of rows sent to a viewer who has no event id
CONTROL: Final = "control"  # used as the session key for the control socket

_log = get_logger(__name__)


@dataclass(slots=True, frozen=True)
class LiveValues:
    """A topic's current values, which ``system.live.LiveView`` describes; None if it has none."""

    shown: dict[str, str] = field(default_factory=dict)
    points: dict[str, str] = field(default_factory=dict)
    new: int | None = None
    says: str | None = None
    rows: list[dict[str, Any]] | None = None  # only rows that are new since the last evaluation
    missed: int = 0  # number of rows omitted before these


EvaluateFeed = Callable[[], Awaitable[LiveValues]]


class FeedPosition(NamedTuple):
    """A viewer's position in a feed, which is sent as the id of an event."""

    feed: int
    version: int
    row: int

    def __str__(self) -> str:
        return f"{self.feed}-{self.version}-{self.row}"


def parse_position(text: str) -> FeedPosition | None:
    """Parse the id of an event; return None if it is not valid."""
    parts = text.split("-")
    if len(parts) != 3 or not all(p.isascii() and p.isdigit() and len(p) < 19 for p in parts):
        return None
    return FeedPosition(*map(int, parts))


@dataclass(slots=True, frozen=True)
class FeedUpdate:
    """The changes since a position, and the new position."""

    position: FeedPosition
    data: dict[str, Any]


class Feed:
    """A topic's current values, including the version in which each of them last changed."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._version = 0
        # value and version, by (member, key); the key is None for a single value
        self._fields: dict[tuple[str, str | None], tuple[str | int | None, int]] = {}
        self._rows: deque[tuple[int, dict[str, Any]]] = deque(maxlen=ROWS)  # row number and row
        self._has_rows = False
        self._row = 0  # number of rows so far, including those omitted

    @property
    def position(self) -> FeedPosition:
        """The position of a viewer who has seen everything."""
        return FeedPosition(self.number, self._version, self._row)

    def update(self, values: LiveValues) -> bool:
        """Store newly evaluated values; return whether anything changed."""
        before = self.position
        version = self._version + 1
        fields: dict[tuple[str, str | None], str | int | None] = dict.fromkeys(self._fields)
        fields |= {("shown", key): text for key, text in values.shown.items()}
        fields |= {("points", key): text for key, text in values.points.items()}
        single = {"new": values.new, "says": values.says}
        fields |= {(member, None): value for member, value in single.items() if value is not None}
        for name, value in fields.items():
            if name not in self._fields or self._fields[name][0] != value:
                self._fields[name] = (value, version)
                self._version = version
        self._has_rows |= values.rows is not None
        self._row += values.missed
        for row in values.rows or ():
            self._row += 1
            self._rows.append((self._row, row))
        return self.position != before

    def since(self, position: FeedPosition | None) -> FeedUpdate:
        """Return the changes since a position in this feed, or all data for any other position.

        With another position, rows may be missing before these: ``gap``.
        """
        data: dict[str, Any] = {}
        if position is not None and position.feed != self.number:
            position = None
            if self._has_rows:
                data["gap"] = True
        for (member, key), (value, version) in self._fields.items():
            if position is not None and version <= position.version:
                continue
            if key is None:
                data[member] = value
            else:
                data.setdefault(member, {})[key] = value
        self._add_rows(data, position)
        return FeedUpdate(self.position, data)

    def _add_rows(self, data: dict[str, Any], position: FeedPosition | None) -> None:
        if position is None:
            first = max(0, len(self._rows) - FIRST_ROWS)
            rows = [row for _, row in islice(self._rows, first, None)]
        else:
            rows = [row for number, row in self._rows if number > position.row]
            if missed := self._row - position.row - len(rows):
                data["missed"] = missed
        if rows or "missed" in data:
            data["rows"] = rows


class FeedStream:
    """A viewer's stream of updates; once the stream has ended, ``reason`` says why."""

    def __init__(
        self, session: str, user: str, position: FeedPosition | None, is_alive: Callable[[], bool]
    ) -> None:
        self.session = session
        self.user = user
        self.reason = ""  # once ended: "stopping", "renew" or "gone"
        self.is_alive = is_alive
        self.ends_at = asyncio.get_running_loop().time() + STREAM_S
        self._position = position
        self._is_first = True
        self._feed: Feed | None = None
        self._changed = asyncio.Event()

    @property
    def was_shown(self) -> bool:
        return self._feed is not None

    def show(self, feed: Feed) -> None:
        """Wake up ``next``, because the feed may have changed."""
        self._feed = feed
        self._changed.set()

    def end(self, reason: str) -> None:
        """End the stream, so that ``next`` returns None."""
        self.reason = self.reason or reason
        self._changed.set()

    async def next(self) -> FeedUpdate | None:
        """Wait for the next change and return it, or None when the stream has ended."""
        while not self.reason:
            await self._changed.wait()
            self._changed.clear()
            if self._feed is None or self.reason:
                continue
            update = self._feed.since(self._position)
            self._position = update.position
            if update.data or self._is_first:
                self._is_first = False
                return update
        return None


@dataclass(slots=True, eq=False)
class _Running:
    feed: Feed
    evaluate: EvaluateFeed
    evaluated_at: float = -EVERY_S  # on the event loop's clock
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    streams: set[FeedStream] = field(default_factory=set)
    task: asyncio.Task[None] | None = None


class FeedState:
    """The data that a topic keeps from one evaluation of a feed to the next."""

    def stop(self) -> None:
        """Release all resources, because the feed is being removed."""


class LiveFeeds:
    """All feeds and streams; ``close`` immediately ends the streams and all waiting requests."""

    def __init__(self) -> None:
        self.is_closed = False
        # Maps the event of each waiting request, which ``close`` sets, to the caller's identity.
        self.waits: dict[asyncio.Event, str] = {}
        self.states: dict[Hashable, FeedState] = {}  # keyed by the feed's key
        self._feeds: OrderedDict[Hashable, _Running] = OrderedDict()  # least recently used first
        self._number = 0
        self.streams_refused = 0
        self.waits_refused = 0

    @property
    def streams(self) -> int:
        return len(self._open_streams())

    def _open_streams(self) -> list[FeedStream]:
        return [
            stream
            for running in self._feeds.values()
            for stream in running.streams
            if not stream.reason
        ]

    def close(self) -> None:
        """End all streams and wake all waiting requests, because the broker is stopping."""
        self.is_closed = True
        for running in self._feeds.values():
            for stream in running.streams:
                stream.end("stopping")
        for wait in self.waits:
            wait.set()

    # -- streams

    def open(
        self,
        key: Hashable,
        evaluate: EvaluateFeed,
        session: str,
        user: str,
        position: FeedPosition | None,
        is_alive: Callable[[], bool],
    ) -> FeedStream | None:
        """Open a stream, or return None if there are too many, in which case the caller must poll.

        Users share ``STREAMS`` as in ``model.has_room``.

        Args:
            key: identifies the data: streams with the same key share evaluations.
            evaluate: returns the current data; a ``Problem`` ends the streams.
            session: the session toward whose limit the stream counts.
            user: the user toward whose share the stream counts.
            position: the browser's last position.
            is_alive: returns whether the peer is connected and still authorized.
        """
        for running in self._feeds.values():
            _drop_dead(running)
        limit = STREAMS_OF_CONTROL if session == CONTROL else STREAMS_PER_SESSION
        streams = self._open_streams()
        own = sum(stream.user == user for stream in streams)
        is_over = sum(stream.session == session for stream in streams) >= limit
        if self.is_closed or is_over or not has_room(own, len(streams), 1, STREAMS):
            self.streams_refused += 1
            return None
        running = self._feed(key, evaluate)
        stream = FeedStream(session, user, position, is_alive)
        running.streams.add(stream)
        if running.task is None or running.task.done():
            running.task = asyncio.create_task(self._run(running))
        elif running.feed.position.version:  # show the most recent evaluation immediately
            stream.show(running.feed)
        return stream

    def leave(self, key: Hashable, stream: FeedStream) -> None:
        if (running := self._feeds.get(key)) is not None:
            running.streams.discard(stream)
            if not running.streams and running.task is not None:
                running.task.cancel()
                running.task = None

    def drop_unwatched(self, key: Hashable) -> None:
        """Forget a feed and its rows, unless a stream of it is open."""
        if (running := self._feeds.get(key)) is not None:
            _drop_dead(running)
            if any(not stream.reason for stream in running.streams):
                return
            if running.task is not None:  # a stream that has ended may not have left yet
                running.task.cancel()
        self._feeds.pop(key, None)
        if (state := self.states.pop(key, None)) is not None:
            state.stop()

    async def poll(
        self, key: Hashable, evaluate: EvaluateFeed, position: FeedPosition | None
    ) -> FeedUpdate:
        """Return the changes since a position; evaluate the feed at most once a second."""
        running = self._feed(key, evaluate)
        if asyncio.get_running_loop().time() - running.evaluated_at >= EVERY_S:
            await self._evaluate(running)
        return running.feed.since(position)

    # -- feeds

    def _feed(self, key: Hashable, evaluate: EvaluateFeed) -> _Running:
        running = self._feeds.get(key)
        if running is None:
            self._number += 1
            running = self._feeds[key] = _Running(Feed(self._number), evaluate)
        running.evaluate = evaluate
        self._feeds.move_to_end(key)
        idle = [other for other, feed in self._feeds.items() if not feed.streams and other != key]
        for other in idle[: max(0, len(idle) - IDLE_FEEDS)]:
            self.drop_unwatched(other)
        return running

    async def _run(self, running: _Running) -> None:
        loop = asyncio.get_running_loop()
        while running.streams:
            due_s = loop.time() + EVERY_S
            try:
                is_changed = await self._evaluate(running)
                for stream in running.streams:
                    if is_changed or not stream.was_shown:
                        stream.show(running.feed)
                    if loop.time() > stream.ends_at:
                        stream.end("renew")
            except Problem:
                for stream in running.streams:
                    stream.end("gone")
                return
            except PhpmqError as error:  # for example, a slow read; try again in a second
                if not is_quiet("live_failed"):
                    _log.warning("live_failed", reason=str(error))
            except Exception as error:
                if not is_quiet("live_failed"):
                    _log.error("live_failed", reason=repr(error), exc_info=error)
            _drop_dead(running)
            await asyncio.sleep(max(due_s - loop.time(), EVERY_S / 4))

    async def _evaluate(self, running: _Running) -> bool:
        async with running.lock:
            running.evaluated_at = asyncio.get_running_loop().time()
            return running.feed.update(await running.evaluate())


def _drop_dead(running: _Running) -> None:
    """End streams whose peer is gone, because they would still count toward the limits."""
    for stream in running.streams:
        if not stream.reason and not stream.is_alive():
            stream.end("gone")


WAITS: Final = 64  # maximum number of requests that wait at the same time
