"""The window against a queue that is searched in full: always a prefix of the ready messages."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phpmq_lite.broker.ready_window import BodyCache, ReadyWindow
from phpmq_lite.model import Message
from tests.support import core_rig

sizes = st.integers(0, 9)
picks = st.integers(0, 100)


def message(position: int, size: int, *, has_body: bool) -> Message:
    return core_rig.message(position, size=size, body=b"x" * size if has_body else None)


class WindowAgainstQueue(RuleBasedStateMachine):
    """``ready`` is the queue on disk, ``held`` what was taken; by position."""

    @initialize(limit=st.integers(1, 5), backlog=st.integers(0, 12))
    def make(self, limit: int, backlog: int) -> None:
        self.window = ReadyWindow(limit, BodyCache())
        self.ready = {n: message(n, 1, has_body=False) for n in range(1, backlog + 1)}
        self.held: dict[int, Message] = {}
        self.next = backlog + 1

    def ordered(self) -> list[Message]:
        return [self.ready[position] for position in sorted(self.ready)]

    @rule(size=sizes, has_body=st.booleans())
    def publish(self, size: int, has_body: bool) -> None:
        made = message(self.next, size, has_body=has_body)
        self.next += 1
        self.ready[made.position] = made
        if not self.window.insert(made):
            made.body = None

    @precondition(lambda self: self.window.needs_page)
    @rule(bodies=st.integers(0, 5))
    def load(self, bodies: int) -> None:
        """What the writer answers: the next ones by position, the first with their bodies."""
        count = self.window.limit - len(self.window)
        page = [m for m in self.ordered() if m.position > self.window.covered_to][:count]
        for made in page[:bodies]:
            made.body = b"x" * made.size
        self.window.extend(page, len(page) < count)

    @precondition(lambda self: self.ready)
    @rule(keeps_body=st.booleans())
    def take_first(self, keeps_body: bool) -> None:
        first = self.window.first()
        if first is None:
            assert not self.window.reaches_end
            return
        assert first is self.ordered()[0]
        assert self.window.take() is first
        self.held[first.position] = self.ready.pop(first.position)
        if not keeps_body:
            first.body = None

    @precondition(lambda self: self.held)
    @rule(pick=picks)
    def put_back(self, pick: int) -> None:
        made = self.held.pop(list(self.held)[pick % len(self.held)])
        self.ready[made.position] = made
        if not self.window.insert(made):
            made.body = None

    @precondition(lambda self: self.held)
    @rule(pick=picks)
    def settle(self, pick: int) -> None:
        made = self.held.pop(list(self.held)[pick % len(self.held)])
        self.window.discard(made)  # it is not there: no error

    @precondition(lambda self: self.ready)
    @rule(pick=picks)
    def discard(self, pick: int) -> None:
        made = self.ready.pop(list(self.ready)[pick % len(self.ready)])
        self.window.discard(made)

    @rule()
    def cut(self) -> None:
        given_up = self.window.trim()
        assert [m.position for m in given_up] == sorted(
            (m.position for m in given_up), reverse=True
        )
        for made in given_up:
            made.body = None
        assert len(self.window) <= self.window.limit

    @rule(pick=picks)
    def load_a_body(self, pick: int) -> None:
        inside = list(self.window)
        if inside:
            made = inside[pick % len(inside)]
            self.window.set_body(made, b"x" * made.size)

    @rule()
    def drop_bodies(self) -> None:
        self.window.drop_bodies()

    @rule(count=st.integers(0, 5))
    def look_ahead(self, count: int) -> None:
        assert self.window.upcoming(count) == list(self.window)[:count]

    @invariant()
    def window_is_a_prefix_of_what_is_ready(self) -> None:
        covered = [m for m in self.ordered()
                   if self.window.reaches_end or m.position <= self.window.covered_to]  # fmt: skip
        assert list(self.window) == covered
        assert len(self.window) == len(covered)

    @invariant()
    def bytes_are_those_of_the_bodies_inside(self) -> None:
        expected = sum(m.size for m in self.window if m.body is not None)
        assert self.window.body_bytes == self.window.bodies.total_bytes == expected


TestWindow = WindowAgainstQueue.TestCase
