"""The next ready messages of one queue, in order; later messages are on disk only."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from operator import attrgetter

from phpmq_lite.model import AFTER_ALL, BEFORE_ALL, Message

_by_position = attrgetter("position")


class BodyCache:
    """Total size of the bodies cached by all windows."""

    def __init__(self) -> None:
        self.total_bytes = 0


class ReadyWindow:
    """A bounded prefix of a queue's ready messages, ordered by position.

    Invariant: it contains every ready message of the queue at or before ``covered_to``.  If
    ``reaches_end``, these are all ready messages, and new ones are appended while there is room.

    The methods first, take, take_run, add and discard need O(1) time per message, or O(log n) for
    messages that return and urgent ones, which are kept in a heap beside the others.
    """

    def __init__(self, limit: int, bodies: BodyCache) -> None:
        self.limit = limit
        self.bodies = bodies
        self.reaches_end = False  # unknown until the first page is loaded
        self.covered_to = BEFORE_ALL  # the highest position covered
        self.is_loading = False  # True while a requested page is pending
        self.body_bytes = 0  # total size of the cached bodies
        self._ready: OrderedDict[int, Message] = OrderedDict()  # keyed by position
        self._returned: dict[int, Message] = {}  # those inserted before the end, by position
        self._positions: list[int] = []  # a heap of their positions, and of some that have left

    def __len__(self) -> int:
        return len(self._ready) + len(self._returned)

    def __iter__(self) -> Iterator[Message]:
        self._merge()
        return iter(self._ready.values())

    @property
    def is_exhausted(self) -> bool:
        """Return whether the queue has no ready messages in memory or on disk."""
        return self.reaches_end and not self._ready and not self._returned

    @property
    def upto(self) -> int:
        """Return the last position of which a ready message belongs into the window."""
        return AFTER_ALL if self.reaches_end else self.covered_to

    def first(self) -> Message | None:
        """Return the next message without removing it, or None if the window is empty."""
        message = next(iter(self._ready.values()), None)
        if self._returned:
            positions = self._positions
            while positions[0] not in self._returned:
                heappop(positions)
            if message is None or positions[0] < message.position:
                return self._returned[positions[0]]
        return message

    def take(self) -> Message:
        """Remove and return the first message.  Call only if ``first`` has returned a message."""
        first = self.first() if self._returned else None
        if first is None or self._returned.pop(first.position, None) is None:
            first = self._ready.popitem(last=False)[1]
        if first.body is not None:
            self._count(-first.size)
        return first

    def take_run(self, count: int, now_ms: int) -> list[Message]:
        """Remove and return up to ``count`` leading messages that can be sent immediately.

        Stops at a message that has expired (``now_ms`` is steady) or has no body in memory.
        """
        taken: list[Message] = []
        while self._returned and len(taken) < count and (first := self.first()) is not None:
            if first.body is None or (
                first.deadline_ms is not None and first.deadline_ms <= now_ms
            ):
                return taken
            taken.append(first)
            self.discard(first)
        count -= len(taken)
        return taken + self._take_ready(count, now_ms) if taken else self._take_ready(count, now_ms)

    def _take_ready(self, count: int, now_ms: int) -> list[Message]:
        ready, size = self._ready, 0
        taken: list[Message] = []
        for message in islice(ready.values(), count):
            deadline_ms = message.deadline_ms
            if message.body is None or (deadline_ms is not None and deadline_ms <= now_ms):
                break
            taken.append(message)
            size += message.size
        for message in taken:
            del ready[message.position]
        self.body_bytes -= size
        self.bodies.total_bytes -= size
        return taken

    def upcoming(self, count: int) -> list[Message]:
        """Return the next ``count`` messages in order, without removing them."""
        return list(islice(iter(self), count))

    def add(self, messages: Sequence[Message]) -> int:
        """Append messages in order and return how many fit; the rest wait on disk."""
        if not self.reaches_end:
            return 0
        room = self.limit - len(self._ready) - len(self._returned)
        if room < len(messages):
            self.reaches_end = False
            messages = messages[: max(0, room)]
        self._ready.update(zip(map(_by_position, messages), messages, strict=True))
        size = sum([message.size for message in messages if message.body is not None])
        if messages:
            self.covered_to = messages[-1].position
            self.body_bytes += size
            self.bodies.total_bytes += size
        return len(messages)

    def insert(self, message: Message) -> bool:
        """Add a message at its place; return False if it does not fit and must wait on disk."""
        if message.position > self.covered_to:
            return self.add((message,)) == 1
        if not self._returned:
            self._positions.clear()
        self._returned[message.position] = message
        heappush(self._positions, message.position)
        if message.body is not None:
            self._count(message.size)
        return True

    def discard(self, message: Message) -> None:
        position = message.position
        present = self._ready.pop(position, None) or self._returned.pop(position, None)
        if present is not None and message.body is not None:
            self._count(-message.size)

    def extend(self, page: list[Message], reaches_end: bool) -> None:
        """Add a page that was requested with ``after=covered_to``."""
        self.is_loading = False
        for message in page:
            self._ready[message.position] = message
            if message.body is not None:
                self._count(message.size)
        if page:
            self.covered_to = page[-1].position
        self.reaches_end = reaches_end

    def set_body(self, message: Message, body: bytes) -> None:
        if message.body is None:
            self._count(message.size)
            message.body = body

    def drop_bodies(self) -> None:
        """Drop the cached bodies, which are also on disk."""
        for message in self:
            message.body = None
        self._count(-self.body_bytes)

    def trim(self) -> list[Message]:
        """Remove and return messages from the end until the window is within its limit."""
        if self._returned:
            self._merge()
        given_up = []
        while len(self._ready) > self.limit:
            message = self._ready.popitem()[1]
            if message.body is not None:
                self._count(-message.size)
            given_up.append(message)
        if given_up:
            self.covered_to = next(reversed(self._ready), BEFORE_ALL)
            self.reaches_end = False
        return given_up

    @property
    def needs_page(self) -> bool:
        return not (self.reaches_end or self.is_loading) and len(self) <= self.limit // 2

    def _count(self, size: int) -> None:
        self.body_bytes += size
        self.bodies.total_bytes += size

    def _merge(self) -> None:
        if not self._returned:
            return
        # The input is nearly sorted, so Timsort takes linear time.
        returned = self._returned.values()
        messages = sorted([*returned, *self._ready.values()], key=_by_position)
        self._ready = OrderedDict((message.position, message) for message in messages)
        self._returned.clear()
        self._positions.clear()
