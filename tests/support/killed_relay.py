"""Run the relay of an outbox that kills itself with SIGKILL at a chosen place.

``python -m tests.support.killed_relay PLACE TIMES [mutant] -- ARGUMENTS of phpmq-lite``
"""

import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import patch

from phpmq_lite.cli import outbox as command
from phpmq_lite.cli.main import main
from phpmq_lite.client.blocking_client import PublishOutcome, publish_each
from phpmq_lite.client.publishes import KeyedMessage
from phpmq_lite.envelopes import outbox
from phpmq_lite.envelopes.outbox import OutboxRow, SqliteOutboxStore

BATCH = 10
PLACES = ("leased", "half sent", "sent", "answered", "marked")


def main_of(place: str, times: int, arguments: list[str], *, is_mutant: bool) -> None:
    """Run the command; kill the process when it reaches the place for the ``times``-th time."""
    left = iter(range(times - 1, -1, -1))

    def pass_by(here: str) -> None:
        if here == place and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    real_lease, real_mark = SqliteOutboxStore.lease_rows, SqliteOutboxStore.mark_published

    def lease_rows(self: SqliteOutboxStore, *given: Any) -> list[OutboxRow]:
        rows = real_lease(self, *given)
        pass_by("leased")
        return rows

    def mark(self: SqliteOutboxStore, ids: Sequence[str]) -> None:
        real_mark(self, ids)
        pass_by("marked")

    def send(client: Any, messages: Sequence[KeyedMessage], **given: Any) -> list[PublishOutcome]:
        if place == "half sent":
            publish_each(client, messages[: len(messages) // 2], **given)
            pass_by("half sent")
        elif place == "sent":
            frames = [client.session.side.publish(m.queue, m.content, 0, m.key) for m in messages]
            client.send_now(b"".join(frames))
            pass_by("sent")
        outcomes = publish_each(client, messages, **given)
        pass_by("answered")
        return outcomes

    patch.object(SqliteOutboxStore, "lease_rows", lease_rows).start()
    patch.object(SqliteOutboxStore, "mark_published", mark).start()
    patch.object(command, "publish_each", send).start()
    patch.object(command, "Relay", partial(outbox.Relay, batch=BATCH)).start()
    if place in PLACES:  # the next relay takes over immediately
        patch.object(command, "SqliteOutboxStore", partial(SqliteOutboxStore, lease_s=0)).start()
    if is_mutant:
        numbers = count()
        prefix = os.urandom(8).hex()

        def outgoing(row: OutboxRow) -> KeyedMessage:
            return KeyedMessage(row.queue, row.body, 0, f"{prefix}{next(numbers)}".encode())

        patch.object(outbox, "_keyed_message", outgoing).start()
    sys.argv = ["phpmq-lite", *arguments]
    main()


if __name__ == "__main__":
    split = sys.argv.index("--")
    chosen = sys.argv[1:split]
    main_of(chosen[0], int(chosen[1]), sys.argv[split + 1 :], is_mutant="mutant" in chosen)
