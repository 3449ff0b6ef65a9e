"""Received messages, and how a client settles them."""

import traceback
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Any, Final, Protocol

from phpmq_lite.client.publishes import AnswerCallback, KeyedMessage
from phpmq_lite.client.session import ClientSession, OldForm
from phpmq_lite.errors import (
    KEY_CONFLICT,
    ConnectionLostError,
    LocalProtocolError,
    PhpmqError,
    PublishRefusedError,
)
from phpmq_lite.frame_options import SETTLE as ACTIONS
from phpmq_lite.frame_options import OptionError, check_options, read_object, write_options
from phpmq_lite.protocol.frames import SETTLE, Dispatch, DispatchWithInfo, WireLimits
from phpmq_lite.queue_settings import name_problem, retry_name

_TRACEBACK_LINES: Final = 20
_OPTIONS_BYTES: Final = WireLimits().max_options


class Settler(Protocol):
    """A client, as seen by its deliveries."""

    session: ClientSession

    def settle(
        self, delivery: "Delivery", frame: bytes, old_form: OldForm | None, *, is_kept: bool
    ) -> None:
        """Send the settlement of a delivery; see ``ClientSession.settlement_to_send``."""

    def confirm(self, message: KeyedMessage, answer: AnswerCallback) -> None:
        """Begin a confirmed publish."""


class Delivery:
    """A received message, to be settled once with one of its methods; later calls are ignored.

    A delivery from an earlier connection can still be settled: the broker has returned the message
    to its queue, and accepts the settlement once no other client holds the message.  What may not
    have arrived is sent again on the next connection, before anything is consumed there.

    With ``consume(…, info=True)``, it also has what the broker knows of the delivery: ``attempt``
    (1, plus 1 for each failure before), ``deliveries``, ``hold_s`` (until the broker takes the
    message back; None if it does not), ``priority``, ``group`` and ``age_s``.  Otherwise, and from
    a broker of an earlier release, these are None.
    """

    __slots__ = ("_client", "_id", "body", "generation", "is_settled", "queue", "ttl_s")
    attempt: int | None = None
    deliveries: int | None = None
    hold_s: float | None = None
    priority: int | None = None
    group: str | None = None
    age_s: float | None = None

    def __init__(self, client: Settler, frame: Dispatch | DispatchWithInfo, number: int) -> None:
        self.queue = frame.queue
        self.body = frame.content
        self.ttl_s = frame.ttl_s  # time left when the broker sent the message; 0 means no expiry
        self.is_settled = False
        self._id = frame.message_id
        self._client = client
        self.generation = number  # of the connection over which the message came

    @property
    def message_id(self) -> str:
        """Return the message id (32 hex digits), which redelivery does not change."""
        return self._id.decode("latin-1")

    def ack(self) -> None:
        """Acknowledge the message as processed."""
        self._end(self._client.session.side.acknowledge(self.queue, self._id))

    def requeue(self, ttl_s: int = 0) -> None:
        """Move the message to the end of its queue with a new TTL in seconds (0: no expiry)."""
        self._end(self._client.session.side.requeue(self.queue, self._id, ttl_s), is_kept=False)

    def retry(
        self,
        delay_s: float = 0,
        *,
        error: str | None = None,
        exception: BaseException | str | None = None,
        attempt: int | None = None,
        limit: int | None = None,
        content: bytes | None = None,
        failed: bool = True,
    ) -> None:
        """Schedule the next attempt of the message, which keeps its id, its queue and its TTL.

        A broker of an earlier release stores a copy in ``<queue>.retry`` instead, without the TTL.

        Args:
            delay_s: seconds until the next attempt.
            error: text to show; by default that of the exception.
            exception: the exception, or the name of its class.
            attempt: number of the attempt that failed, by default that of the delivery, if known.
            limit: number of attempts after which the caller gives up; only shown.
            content: replaces the message's content.
            failed: if False, this was no attempt: the message only returns after the delay.

        Raises:
            LocalProtocolError: an argument is out of bounds.
            ConnectionLostError: the client has ended.
        """
        attempt = self.attempt if attempt is None else attempt
        options: dict[str, Any] = {"delay_s": delay_s, "attempt": attempt, "limit": limit}
        options |= describe_failure(error, exception) | ({} if failed else {"failed": False})
        frame = self._frame("retry", options, content)
        copy = partial(self._copy, delay_s, attempt, content)
        self._end(frame, copy, is_kept=failed and attempt is not None)

    def dead_letter(
        self,
        reason: str | None = None,
        *,
        error: str | None = None,
        exception: BaseException | str | None = None,
    ) -> None:
        """Dead-letter the message; a broker of an earlier release does not keep the texts.

        With an ``exception``, this was a failed attempt, which the record counts.
        """
        plain = self._client.session.side.dead_letter(self.queue, self._id)
        options = describe_failure(error, exception) | {"reason": reason}
        if any(options.values()):
            self._end(self._frame("dead_letter", options), lambda: plain)
        else:
            self._end(plain)

    def extend(self, hold_s: float) -> bool:
        """Set the end of the hold to ``hold_s`` from now, sooner or later; return whether sent.

        The broker's ``limits.max_hold_s``, from the dispatch on, is the longest.  Without a
        connection there is no hold, and a broker of an earlier release cannot extend one.
        """
        frame = self._frame("extend", {"hold_s": hold_s})
        session = self._client.session
        is_held = session.is_connected and self.generation == session.generation
        if self.is_settled or not is_held or not session.knows(SETTLE):
            return False
        self._client.settle(self, frame, None, is_kept=False)
        return True

    def _frame(self, action: str, options: dict[str, Any], content: bytes | None = None) -> bytes:
        """Return an 011, or raise LocalProtocolError if an option is out of bounds."""
        named = {name: value for name, value in options.items() if value is not None}
        try:
            checked = check_options(named, ACTIONS[action])
        except OptionError as error:
            raise LocalProtocolError(str(error)) from None
        written = write_options({"action": action} | checked)
        for name in ("traceback", "error", "exception", "reason"):  # a control takes 6 bytes
            if len(written) > _OPTIONS_BYTES:
                checked.pop(name, None)
                written = write_options({"action": action} | checked)
        return self._client.session.side.settle(self.queue, self._id, written, content)

    def _end(self, frame: bytes, old_form: OldForm | None = None, *, is_kept: bool = True) -> None:
        if not self.is_settled:
            self._client.settle(self, frame, old_form, is_kept=is_kept)
            self.is_settled = True

    def _copy(self, delay_s: float, attempt: int | None, content: bytes | None) -> bytes:
        """Retry without an 011: publish a copy, and acknowledge the message once it is stored."""
        target, ttl_s = self.queue, self.ttl_s or 0
        if delay_s > 0 and name_problem(retry_name(target)) is None:
            target, ttl_s = retry_name(target), ceil(delay_s)
        body = self.body if content is None else content
        key = b"%s:%d" % (self._id, attempt or 0)
        self._client.confirm(KeyedMessage(target, body, ttl_s, key), self._copied)
        return b""

    def _copied(self, error: PhpmqError | None) -> None:
        """Settle the message whose copy was stored, or return it if the copy was refused."""
        side = self._client.session.side
        frame = side.acknowledge(self.queue, self._id)
        if isinstance(error, PublishRefusedError) and error.reason != KEY_CONFLICT:
            frame = side.requeue(self.queue, self._id, self.ttl_s or 0)
        if not isinstance(error, ConnectionLostError):
            with suppress(ConnectionLostError):
                self._client.settle(self, frame, None, is_kept=False)

    def __repr__(self) -> str:
        return f"<Delivery {self.message_id} of {self.queue}, {len(self.body)} bytes>"


class InformedDelivery(Delivery):
    """A delivery with what the broker knows of it."""

    __slots__ = ("age_s", "attempt", "deliveries", "group", "hold_s", "priority")

    def __init__(self, client: Settler, frame: DispatchWithInfo, number: int) -> None:
        super().__init__(client, frame, number)
        info = read_object(frame.info)
        for name in InformedDelivery.__slots__:
            setattr(self, name, info.get(name))


def delivery_of(client: Settler, frame: Dispatch | DispatchWithInfo, number: int) -> Delivery:
    """Return a received message; ``number`` is that of the connection."""
    if isinstance(frame, DispatchWithInfo):
        return InformedDelivery(client, frame, number)
    return Delivery(client, frame, number)


def describe_failure(
    error: str | None, exception: BaseException | str | None
) -> dict[str, str | None]:
    """Return the texts of a failure, as options of an 011."""
    if not isinstance(exception, BaseException):
        return {"error": error, "exception": exception}
    lines = traceback.format_exception(exception, limit=-_TRACEBACK_LINES)
    return {
        "error": str(exception) if error is None else error,
        "exception": type(exception).__name__,
        "traceback": "".join(lines),
    }
