"""Sends the rows of an outbox: stored bytes, the row's id as receipt key, queue by queue in order.

What becomes of a row::

    stored                   marked as sent
    the queue takes it not   stays, with the reason; its queue waits 1 s to 30 s, others go on
    not allowed, or the
      broker hangs up on it  stays, with the error, and waits 5 s to 300 s; the rest goes on
    no answer                stays as it is: the broker is away; the next pass sends it again

A row that failed is overtaken by those behind it.  All others keep the order of their commits
within a queue, also over crashes of relay and broker and with several relays.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from phpmq_lite.client.publish_each import KeyedMessage, NoAnswerError, Outcome, Send
from phpmq_lite.envelopes.outbox import OutboxRow, SqliteOutboxStore
from phpmq_lite.errors import ConnectionLostError, PublishRefusedError

BATCH_ROWS: Final = 500  # rows sent without waiting for an answer
PAUSE_FIRST_S: Final = 1.0  # of a queue that takes nothing; doubles
PAUSE_LONGEST_S: Final = 30.0

Report = Callable[[OutboxRow, str], None]


@dataclass(slots=True)
class RelayPass:
    """What one pass over all queues did."""

    sent: int = 0
    failed: int = 0  # rows that stay with an error
    is_away: bool = False  # the broker did not answer: the rest was not tried
    refused: set[str] = field(default_factory=set)  # queues that take nothing now


class Relay:
    """Sends what waits in a store; for one thread.

    ``send`` is ``keyed.publish_each`` with its client.  ``report`` gets each row that failed,
    and why.  ``now_s`` is monotonic.  ``is_stopped`` is asked between two batches.
    """

    def __init__(
        self,
        store: SqliteOutboxStore,
        send: Send,
        now_s: Callable[[], float],
        *,
        batch: int = BATCH_ROWS,
        report: Report = lambda _row, _why: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._send = send
        self._now_s = now_s
        self._batch = batch
        self._report = report
        self._is_stopped = is_stopped
        self._pauses: dict[str, tuple[float, float]] = {}  # queue -> (until, how long)

    def run(self) -> RelayPass:
        """Send what is due until nothing is left, or the broker is away.

        Raises:
            sqlite3.Error: the file is locked for too long or broken; rows sent and not marked
                are sent again under the same key.
        """
        done = RelayPass()
        for queue in self._store.queues():
            if self._pauses.get(queue, (0.0, 0.0))[0] > self._now_s():
                done.refused.add(queue)
                continue
            while not self._is_stopped() and (rows := self._store.take(queue, self._batch)):
                if not self._send_rows(queue, rows, done):
                    break
            if done.is_away or self._is_stopped():
                break
        return done

    def _send_rows(self, queue: str, rows: list[OutboxRow], done: RelayPass) -> bool:
        """Send one batch; tell whether the queue takes more."""
        outcomes = self._send([_outgoing(row) for row in rows])
        if len(rows) > 1 and any(_is_lost(outcome) for outcome in outcomes):
            # the broker hung up on one of them, again and again: each alone shows which
            self._settle(rows, outcomes, done, is_blamed=False)
            lost = [row for row, outcome in zip(rows, outcomes, strict=True) if _is_lost(outcome)]
            return all(self._send_rows(queue, [row], done) for row in lost)
        self._settle(rows, outcomes, done, is_blamed=True)
        if any(isinstance(outcome, PublishRefusedError) for outcome in outcomes):
            self._pause(queue)
            done.refused.add(queue)
            return False
        if any(isinstance(outcome, NoAnswerError) for outcome in outcomes):
            done.is_away = True
            return False
        self._pauses.pop(queue, None)
        return True

    def _settle(
        self, rows: list[OutboxRow], outcomes: list[Outcome], done: RelayPass, *, is_blamed: bool
    ) -> None:
        """Write down what became of each row; ``is_blamed``: also of those hung up on."""
        sent = [row.row_id for row, out in zip(rows, outcomes, strict=True) if out is None]
        self._store.mark_published(sent)
        done.sent += len(sent)
        for row, outcome in zip(rows, outcomes, strict=True):
            if outcome is None or isinstance(outcome, NoAnswerError):
                continue
            if isinstance(outcome, ConnectionLostError) and not is_blamed:
                continue
            is_row = not isinstance(outcome, PublishRefusedError)
            self._store.fail(row.row_id, str(outcome), is_row=is_row)
            done.failed += 1
            self._report(row, str(outcome))

    def _pause(self, queue: str) -> None:
        """Leave a queue alone for a while, twice as long each time."""
        last_s = self._pauses.get(queue, (0.0, 0.0))[1]
        pause_s = min(max(PAUSE_FIRST_S, 2 * last_s), PAUSE_LONGEST_S)
        self._pauses[queue] = (self._now_s() + pause_s, pause_s)


def _outgoing(row: OutboxRow) -> KeyedMessage:
    return KeyedMessage(row.queue, row.body, row.ttl_s, row.row_id.encode())


def _is_lost(outcome: Outcome) -> bool:
    return isinstance(outcome, ConnectionLostError)
