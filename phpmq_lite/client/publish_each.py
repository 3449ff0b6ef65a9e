"""Publishes many messages, each under a key of its own, and says of each what became of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phpmq_lite.client.blocking_client import BlockingClient
from phpmq_lite.errors import ClientError, ConnectionLostError, LocalProtocolError, PhpmqError


@dataclass(slots=True, frozen=True)
class KeyedMessage:
    """One message to be sent."""

    queue: str
    content: bytes
    ttl_s: int
    key: bytes  # 1 to 64 bytes


class NoAnswerError(ClientError):
    """The broker was away: the message may or may not be stored.  Send it again by its key."""


Outcome = PhpmqError | None  # None: stored
Send = Callable[[Sequence[KeyedMessage]], list[Outcome]]


def publish_each(
    client: BlockingClient, messages: Sequence[KeyedMessage], timeout_s: float | None = 30.0
) -> list[Outcome]:
    """Publish all, in order and without waiting for one before the next; give what became of each.

    ``PublishRefusedError``: the queue does not take it now.  ``LocalProtocolError``: nothing was
    sent, it is not allowed.  ``ConnectionLostError``: so many connections ended before it was
    answered that one of what was sent may be the cause.  ``NoAnswerError``: nothing is known.
    """
    outcomes: list[Outcome] = [NoAnswerError("the broker did not answer")] * len(messages)
    waiting: set[int] = set()

    def answer_of(place: int) -> Callable[[ClientError | None], None]:
        def answered(error: ClientError | None) -> None:
            waiting.discard(place)
            outcomes[place] = error

        return answered

    try:
        for place, message in enumerate(messages):
            client.raise_if_ended()
            try:
                _, frame = client.session.confirm(
                    message.queue, message.content, message.ttl_s, message.key, answer_of(place)
                )
            except LocalProtocolError as error:
                outcomes[place] = error
                continue
            waiting.add(place)
            client.send_now(frame, may_wait=True)
        client.pump(lambda: not waiting, timeout_s)
    except ConnectionLostError as error:  # who ended the client answered all that waited
        gone = NoAnswerError(str(error))
        for place, outcome in enumerate(outcomes):
            if isinstance(outcome, ConnectionLostError | NoAnswerError):
                outcomes[place] = gone
    finally:
        for place in waiting:
            client.session.pending.drop(messages[place].queue, messages[place].key)
    return outcomes
