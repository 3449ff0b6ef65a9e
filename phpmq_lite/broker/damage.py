"""Settles messages whose body on disk is damaged, before anybody would get them."""

from collections.abc import Callable, Sequence
from typing import Any

from phpmq_lite.broker.core import Broker
from phpmq_lite.model import Message, RowsRequest, State


def bury(core: Broker, seqs: Sequence[int], answer: Callable[[Any], None]) -> None:
    """Settle as dead, reason ``crc``, those that are ready and really damaged.

    Their bodies are read once more.  Who holds one has its content already; should it come back it
    is looked at when it is dispatched again, as is one whose content is in memory.  ``answer`` gets
    how many were settled.
    """
    _Burial(core, list(seqs), answer).ask()


class _Burial:
    def __init__(self, core: Broker, seqs: list[int], answer: Callable[[Any], None]) -> None:
        self._lives = core.lives
        self._seqs = seqs
        self._answer = answer
        self._done = 0

    def ask(self) -> None:
        self._lives.batch.rows.append(RowsRequest(self.take, tuple(self._seqs), bodies=True))

    def take(self, page: list[Message], is_last: bool) -> None:
        for row in page:
            self._bury(row)
        if is_last or not page:
            self._lives.batch.answers.append((self._answer, self._done))
            return
        self._seqs = self._seqs[self._seqs.index(page[-1].seq) + 1 :]
        self.ask()

    def _bury(self, row: Message) -> None:
        lives, seq = self._lives, row.seq
        if row.body is not None or seq in lives.dying or seq in lives.gone:
            return
        message = lives.known.get(seq, row)
        if message.state == State.DISPATCHED or message.body is not None:
            return
        lives.bury(message, "crc", None)
        lives.gone.add(seq)
        self._done += 1
