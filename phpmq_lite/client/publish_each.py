"""Publishes many messages, each with its own key, and returns the outcome of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phpmq_lite.client.blocking_client import BlockingClient
from phpmq_lite.errors import ClientError, ConnectionLostError, LocalProtocolError, PhpmqError


@dataclass(slots=True, frozen=True)
class KeyedMessage:
    """One message to publish."""

    queue: str
    content: bytes
    ttl_s: int
    key: bytes  # 1 to 64 bytes


class NoReplyError(ClientError):
    """The broker did not answer: the message may or may not be stored.  Repeat it with its key."""


PublishOutcome = PhpmqError | None  # None: stored
Send = Callable[[Sequence[KeyedMessage]], list[PublishOutcome]]


def publish_each(
    client: BlockingClient, messages: Sequence[KeyedMessage], timeout_s: float | None = 30.0
) -> list[PublishOutcome]:
    """Publish all messages, in order and pipelined; return the outcome of each.

    ``PublishRefusedError``: its queue does not accept it now.  ``LocalProtocolError``: it is not
    allowed and was not sent.  ``ConnectionLostError``: too many connections ended before an answer
    that one of the sent messages may be the cause.  ``NoReplyError``: its outcome is unknown.
    """
    outcomes: list[PublishOutcome] = [NoReplyError("the broker did not answer")] * len(messages)
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
    except ConnectionLostError as error:  # what ended the client has answered all that waited
        gone = NoReplyError(str(error))
        for place, outcome in enumerate(outcomes):
            if isinstance(outcome, ConnectionLostError | NoReplyError):
                outcomes[place] = gone
    finally:
        for place in waiting:
            client.session.pending.forget(messages[place].queue, messages[place].key)
    return outcomes
