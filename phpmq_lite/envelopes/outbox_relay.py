"""Outbox relay: publishes the rows unchanged and in order, with each row's id as publish key.

What happens to a row::

    stored                    marked as sent
    refused by the queue      kept with the reason; the queue pauses for 1 to 30 s, others continue
    invalid, or the broker
      closes the connection   kept with the error, retried after 5 to 300 s; other rows continue
    no reply                  kept; the broker is unreachable, and the next pass sends it again

Rows after a failed row overtake it. All other rows keep their commit order within a queue, even
if the relay or the broker crashes and with several relays.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from itertools import compress
from typing import Final

from phpmq_lite.client.keyed_publishes import NoReplyError, PublishOutcome, Send
from phpmq_lite.client.publishes import KeyedMessage
from phpmq_lite.envelopes.outbox import OutboxRow, SqliteOutboxStore
from phpmq_lite.errors import ConnectionLostError, PublishRefusedError

BATCH_ROWS: Final = 500  # number of rows to send before waiting for replies
PAUSE_FIRST_S: Final = 1.0  # first pause of a queue that rejects a message; doubles each time
PAUSE_MAX_S: Final = 30.0

Report = Callable[[OutboxRow, str], None]


@dataclass(slots=True)
class RelayPass:
    """The result of a relay's pass over all queues."""

    sent: int = 0
    failed: int = 0  # number of rows that failed and were kept
    is_unreachable: bool = False  # whether the pass ended early because the broker did not reply
    refused: set[str] = field(default_factory=set)  # queues that currently reject messages


@dataclass(slots=True)
class Relay:
    """Sends a store's unsent rows; must be used by a single thread.

    ``send`` is ``publish_each`` bound to a client. ``report`` is called with each failed row and
    the reason. ``now_s`` is a monotonic clock. ``is_stopped`` is checked between batches.
    """

    store: SqliteOutboxStore
    send: Send
    now_s: Callable[[], float]
    _: KW_ONLY
    batch: int = BATCH_ROWS
    report: Report = lambda _row, _reason: None
    is_stopped: Callable[[], bool] = lambda: False
    # queue -> (end and length of the pause)
    _pauses: dict[str, tuple[float, float]] = field(init=False, default_factory=dict)

    def run(self) -> RelayPass:
        """Send due rows until none are left or the broker is unreachable.

        Raises:
            sqlite3.Error: the file is broken, or locked for too long; rows that were sent but not
                marked are sent again with the same key.
        """
        result = RelayPass()
        for queue in self.store.queues():
            if self._pauses.get(queue, (0.0, 0.0))[0] > self.now_s():
                result.refused.add(queue)
                continue
            while not self.is_stopped() and (rows := self.store.lease_rows(queue, self.batch)):
                if not self._send_rows(queue, rows, result):
                    break
            if result.is_unreachable or self.is_stopped():
                break
        return result

    def _send_rows(self, queue: str, rows: list[OutboxRow], result: RelayPass) -> bool:
        """Send one batch of rows; return whether the queue accepts more rows."""
        outcomes = self.send([_keyed_message(row) for row in rows])
        if len(rows) > 1 and any(_is_lost(outcome) for outcome in outcomes):
            # Send rows one by one to find which one makes the broker close the connection.
            self._settle(rows, outcomes, result, is_blamed=False)
            lost_rows = compress(rows, map(_is_lost, outcomes))
            return all(self._send_rows(queue, [row], result) for row in lost_rows)
        self._settle(rows, outcomes, result, is_blamed=True)
        if any(isinstance(outcome, PublishRefusedError) for outcome in outcomes):
            last_s = self._pauses.get(queue, (0.0, 0.0))[1]
            pause_s = min(max(PAUSE_FIRST_S, 2 * last_s), PAUSE_MAX_S)
            self._pauses[queue] = (self.now_s() + pause_s, pause_s)
            result.refused.add(queue)
            return False
        if any(isinstance(outcome, NoReplyError) for outcome in outcomes):
            result.is_unreachable = True
            return False
        self._pauses.pop(queue, None)
        return True

    def _settle(
        self,
        rows: list[OutboxRow],
        outcomes: list[PublishOutcome],
        result: RelayPass,
        *,
        is_blamed: bool,
    ) -> None:
        """Record each row's result; a lost connection counts as a failure only if ``is_blamed``."""
        results = list(zip(rows, outcomes, strict=True))
        sent_ids = [row.row_id for row, outcome in results if outcome is None]
        self.store.mark_published(sent_ids)
        result.sent += len(sent_ids)
        for row, outcome in results:
            if outcome is None or isinstance(outcome, NoReplyError):
                continue
            if isinstance(outcome, ConnectionLostError) and not is_blamed:
                continue
            delays_row = not isinstance(outcome, PublishRefusedError)
            self.store.mark_failed(row.row_id, str(outcome), delays_row=delays_row)
            result.failed += 1
            self.report(row, str(outcome))


def _keyed_message(row: OutboxRow) -> KeyedMessage:
    return KeyedMessage(row.queue, row.body, row.ttl_s, row.row_id.encode())


def _is_lost(outcome: PublishOutcome) -> bool:
    return isinstance(outcome, ConnectionLostError)
