"""Publishes many messages, each with a key of its own, and returns the outcome of each."""

from collections.abc import Callable, Sequence

from phpmq_lite.client.blocking_client import BlockingClient
from phpmq_lite.client.publishes import KeyedMessage
from phpmq_lite.errors import (
    KEY_CONFLICT,
    ClientError,
    ConnectionLostError,
    LocalProtocolError,
    PhpmqError,
    PublishRefusedError,
)


class NoReplyError(ClientError):
    """The broker did not answer, so the message may be stored.  Repeat the publish with its key."""


PublishOutcome = PhpmqError | None  # None if the message was stored
Send = Callable[[Sequence[KeyedMessage]], list[PublishOutcome]]


def publish_each(
    client: BlockingClient, messages: Sequence[KeyedMessage], timeout_s: float | None = 30.0
) -> list[PublishOutcome]:
    """Publish all messages in order, without waiting for each answer; return each outcome.

    ``PublishRefusedError``: the queue does not accept the message now.  ``LocalProtocolError``: the
    message is invalid and was not sent.  ``ConnectionLostError``: several connections ended
    without any answer, so the message may be the cause.  ``NoReplyError``: the outcome is unknown.
    A message counts as stored if its key is known, even with another body.
    """
    outcomes: list[PublishOutcome] = [NoReplyError("the broker did not answer")] * len(messages)
    waiting: set[int] = set()

    def answer_of(place: int) -> Callable[[ClientError | None], None]:
        def answered(error: ClientError | None) -> None:
            waiting.discard(place)
            is_known = isinstance(error, PublishRefusedError) and error.reason == KEY_CONFLICT
            outcomes[place] = None if is_known else error

        return answered

    try:
        for place, message in enumerate(messages):
            client.raise_if_ended()
            waiting.add(place)
            try:
                client.confirm(message, answer_of(place))
            except LocalProtocolError as error:
                waiting.discard(place)
                outcomes[place] = error
        client.pump(lambda: not waiting, timeout_s)
    except ConnectionLostError as error:  # all unanswered publish requests have failed
        gone = NoReplyError(str(error))
        for place, outcome in enumerate(outcomes):
            if isinstance(outcome, ConnectionLostError | NoReplyError):
                outcomes[place] = gone
    finally:
        for place in list(waiting):
            client.session.pending.forget(messages[place].queue, messages[place].key)
    return outcomes
