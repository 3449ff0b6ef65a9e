"""Explains captured bytes: the frames, their framing and revision, and how each is handled.

The functions are pure; the command ``frame explain`` and the pages call them with pasted bytes.
"""

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from phpmq_lite.errors import PhpmqError, RemoteProtocolError
from phpmq_lite.frame_options import (
    PUBLISH,
    OptionError,
    PublishOptions,
    consume_problem,
    facts_of,
    read_options,
    read_settlement,
)
from phpmq_lite.protocol import frames
from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import DESCRIPTIONS, Revision, WireLimits
from phpmq_lite.protocol.frames import Frame as Parsed
from phpmq_lite.server.frame_recorder import CUT_BYTES, DissectedFrame, Dissector, WrongByte

Encoding = Literal["auto", "raw", "hex", "base64"]
_HEX: Final = re.compile(rb"(?:(?:0[xX]|\\x)?[0-9a-fA-F]{2}[\s:,]*)+")
_NO_HEX: Final = re.compile(rb"0[xX]|\\x|[\s:,]")
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/_-]{8,}={0,2}")
_BROKER_TYPES: Final = (b"003", b"007", b"013", b"015")


class UnreadableError(PhpmqError):
    """The text is not valid in the given encoding; the message says why."""


@dataclass(slots=True, frozen=True)
class Explanation:
    """What bytes sent at the start of a connection show about that connection.

    ``outcomes`` contains one text per frame, which says what the receiver does with the frame.
    ``conclusion`` describes the bytes after the last complete frame.
    """

    sender: Literal["client", "broker"]
    framing: str  # display text, such as "line framing, LF"
    packet_header: int  # 32 or 36 bytes
    revision: str  # display text
    frames: tuple[DissectedFrame, ...]
    outcomes: tuple[str, ...]
    begun: DissectedFrame | None  # the pieces of a frame that is incomplete or invalid
    wrong_byte: WrongByte | None
    conclusion: str


def pasted_bytes(text: bytes, encoding: Encoding = "auto") -> bytes:
    """Decode the bytes that a user pasted or stored in a file.

    ``auto`` means raw if the text begins with ``H01``; otherwise hex or base64 if valid, else raw.
    Raises UnreadableError: the text is not in the given encoding.
    """
    bare = b"".join(text.split())
    if encoding == "auto":
        encoding = "raw"
        if not text.lstrip().startswith(b"H01"):
            if _HEX.fullmatch(text.strip()):
                encoding = "hex"
            elif _BASE64.fullmatch(bare) and len(bare) % 4 == 0:
                encoding = "base64"
    if encoding == "hex":
        try:
            return bytes.fromhex(_NO_HEX.sub(b"", text).decode("ascii"))
        except ValueError:
            raise UnreadableError("not valid hex: use pairs of the digits 0-9 and a-f") from None
    if encoding == "base64":
        try:
            return base64.b64decode(bare.translate(bytes.maketrans(b"-_", b"+/")), validate=True)
        except binascii.Error as error:
            raise UnreadableError(f"not valid base64: {error}") from None
    return text


def explain_bytes(data: bytes, limits: WireLimits | None = None) -> Explanation:
    """Explain bytes sent by one side of a connection, starting with the first byte.

    Frames of the broker (003, 007, 013, 015) are recognized by their first message header.
    """
    limits = limits or WireLimits()
    is_from_broker = data.startswith(b"H01") and data[3:6] in _BROKER_TYPES
    side = ClientSide(limits) if is_from_broker else ServerSide(limits)
    parsed: list[Parsed] = list(side.receive(data))
    if isinstance(side, ServerSide):
        parsed += side.release()
    error = side.error
    # Read the bytes before a wrong one again, because the parser drops an incomplete frame there.
    valid = data if error is None else data[: error.offset]
    dissected: list[DissectedFrame] = []
    dissector = Dissector(dissected.append)
    width = side.packet_header
    reader: ServerSide | ClientSide = (
        ClientSide(limits) if is_from_broker else ServerSide(limits, http_guard=False)
    )
    reader.parser.observe(dissector.see)
    reader.receive(valid)
    complete = tuple(dissected[: len(parsed)])
    return Explanation(
        "broker" if is_from_broker else "client",
        _framing(side.parser.framing, data),
        width,
        _revision(parsed, side.parser.revision_seen),
        complete,
        tuple(_outcome(frame) for frame in parsed[: len(complete)]),
        dissector.incomplete(reader),
        None if error is None else WrongByte.of(error, data),
        _conclusion(
            error, side.parser.partial_bytes, is_from_broker=is_from_broker, is_empty=not data
        ),
    )


def _framing(framing: str | None, data: bytes) -> str:
    if framing is None:
        return "unknown; the byte after the first message header determines it"
    if framing == "compact":
        return "compact: no line breaks"
    return "line framing, " + ("CR LF" if data[8:10] == b"\r\n" else "LF")


def _revision(parsed: list[Parsed], revision: Revision | None) -> str:
    dispatches = [frame for frame in parsed if isinstance(frame, frames.Dispatch)]
    if revision is None and dispatches:
        revision = "legacy" if dispatches[0].ttl_s is None else "ttl"
    if any(isinstance(frame, frames.ReceiptFrame) for frame in parsed):
        return "newer, with confirmed publishing (007 is an extension of this broker)"
    if any(isinstance(frame, frames.DispatchWithInfo | frames.Welcome) for frame in parsed):
        return "newer, with options (013 and 015 are extensions of this broker)"
    return DESCRIPTIONS[revision]


def _outcome(frame: Parsed) -> str:
    """Return how the receiver handles a frame, as described in ``docs/reference/protocol.md``."""
    match frame:
        case frames.Publish(queue, content, ttl_s, key):
            if ttl_s is None:
                expiry = "it expires after the queue's default_ttl_s, if set"
            else:
                expiry = f"it expires after {ttl_s:,} s" if ttl_s else "it never expires"
            size = f"{len(content):,} byte{'' if len(content) == 1 else 's'}"
            stored = f"Store a message of {size} at the end of {queue!r}; {expiry}. "
            if key is None:
                return stored + "There is no reply."
            return stored + (
                f"Reply after the commit with a receipt (007) for the key {_text(key)};"
                " a message that repeats the key gets a receipt, but is not stored."
            )
        case frames.Consume(queue, 0):
            return f"Stop dispatching {queue!r} to this connection; messages it holds are returned."
        case frames.Consume(queue, count):
            return (
                f"Dispatch messages from {queue!r}, at most {count:,} unacknowledged at a time (and"
                " at most limits.credit). This replaces the previous count; the queue is created if"
                " it does not exist."
            )
        case frames.Acknowledge(queue, message_id):
            return f"Settle {_text(message_id)} in {queue!r} as acked. {_HELD}"
        case frames.Requeue(queue, message_id, ttl_s):
            expiry = f"expires after {ttl_s:,} s" if ttl_s else "never expires"
            where = f"Move {_text(message_id)} to the end of {queue!r}"
            return f"{where}, keeping its id; it then {expiry}. {_HELD}"
        case frames.DeadLetter(queue, message_id):
            where = f"Remove {_text(message_id)} from {queue!r}, regardless of its TTL"
            return f"{where}, and store a record in the dead-letter queue. {_HELD}"
        case frames.Dispatch(queue, _, message_id, ttl_s):
            left = "" if ttl_s is None else f" ({ttl_s:,} s left)" if ttl_s else " (never expires)"
            return (
                f"The client holds {_text(message_id)} from {queue!r}{left} until it sends 004,"
                " 005 or 006, or until the connection ends."
            )
        case frames.ReceiptFrame(queue, key, None):
            return f"The message published to {queue!r} with the key {_text(key)} is on disk."
        case frames.ReceiptFrame(queue, key, reason):
            return f"Nothing was stored in {queue!r} for the key {_text(key)}: {reason}."
        case _:
            return _outcome_with_options(frame)


def _outcome_with_options(frame: Parsed) -> str:
    """Return how the receiver handles a frame of this broker's extension."""
    match frame:
        case frames.PublishWithOptions(queue, content, options, key):
            return _outcome_of_publish(queue, content, options, key)
        case frames.Settle(queue, message_id, options, content):
            return _outcome_of_settlement(queue, message_id, options, content)
        case frames.ConsumeWithOptions(queue, count, options):
            if problem := consume_problem(options):
                return f"Close the connection, because the options are invalid: {problem}."
            return (
                f"Dispatch messages from {queue!r}, at most {count:,} unacknowledged at a time, as"
                f" the options say: {_brief(options)}."
            )
        case frames.Hello(key, options):
            facts = ", ".join(f"{name} {value}" for name, value in facts_of(options).items())
            client = f"says of itself: {facts}" if facts else "says nothing of itself"
            return f"Reply with a welcome (015) for the key {_text(key)}. The client {client}."
        case frames.DispatchWithInfo(queue, _, message_id, ttl_s, info):
            left = f"{ttl_s:,} s left" if ttl_s else "never expires"
            return (
                f"The client holds {_text(message_id)} from {queue!r} ({left}) until it settles it"
                f" or the connection ends. Of this delivery it learns {_brief(info)}."
            )
        case frames.Welcome(key, options):
            return f"The broker answers the hello with the key {_text(key)}: {_brief(options)}."
        case _:
            raise TypeError(f"{type(frame).__name__} has no options")


def _outcome_of_publish(queue: str, content: bytes, options: bytes, key: bytes | None) -> str:
    receipt = (
        "There is no reply." if key is None else f"Reply with a receipt (007) for {_text(key)}."
    )
    try:
        PublishOptions.of(read_options(options, PUBLISH))
    except OptionError as error:
        return f"Store nothing, because the options are invalid: {error}. {receipt}"
    size = f"{len(content):,} byte{'' if len(content) == 1 else 's'}"
    return (
        f"Store a message of {size} in {queue!r} as the options say: {_brief(options)}. {receipt}"
    )


def _outcome_of_settlement(
    queue: str, message_id: bytes, options: bytes, content: bytes | None
) -> str:
    action, named, problem = read_settlement(options, has_content=content is not None)
    message = f"{_text(message_id)} in {queue!r}"
    if problem and action == "extend":
        return f"Change nothing, because the options are invalid: {problem}."
    if problem:
        return f"Return {message} as 005 does, because the options are invalid: {problem}. {_HELD}"
    match action:
        case "retry":
            replaced = "" if content is None else f", with {len(content):,} bytes of new content"
            due = f"in {named.get('delay_s', 0):,} s"
            return f"Deliver {message} again {due}{replaced}. {_HELD}"
        case "extend":
            return f"End the hold of {message} {named['hold_s']:,} s from now. {_HELD}"
        case _:
            where = f"Remove {message}, and store a record in the dead-letter queue"
            return f"{where}; the reason is {named.get('reason', 'client')}. {_HELD}"


_HELD: Final = (
    "If another connection holds the message, the frame is counted; a 005 or an extend is ignored,"
    " and others wait until that hold ends without a settlement."
)


def _brief(options: bytes) -> str:
    return _text(options[:CUT_BYTES]) + ("…" if len(options) > CUT_BYTES else "")


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")


def _conclusion(
    error: RemoteProtocolError | None, partial_bytes: int, *, is_from_broker: bool, is_empty: bool
) -> str:
    if error is not None and is_from_broker:
        return "This broker never sends these bytes; its clients would close the connection."
    if error is not None and error.code == frames.HTTP_REQUEST:
        return "This is HTTP, so the broker ignores the request and closes the connection."
    if error is not None:
        return (
            "The broker closes the connection without a reply. Complete frames before the "
            "invalid byte are processed, nothing after it is read, and the messages that the "
            "connection held return to their queues."
        )
    if is_empty:
        return "No bytes were given."
    if partial_bytes:
        return (
            f"The last frame is incomplete: only {partial_bytes:,} bytes have arrived. The"
            " receiver waits for the rest; the broker closes the connection after"
            " limits.frame_timeout_s."
        )
    return "Every frame is complete; the connection stays open."


def as_data(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as JSON values, with bytes as escaped text."""
    wrong_byte = explanation.wrong_byte
    return {
        "sender": explanation.sender,
        "framing": explanation.framing,
        "packet_header": explanation.packet_header,
        "revision": explanation.revision,
        "frames": [
            _frame_data(frame) | {"outcome": outcome}
            for frame, outcome in zip(explanation.frames, explanation.outcomes, strict=True)
        ],
        "begun": None if explanation.begun is None else _frame_data(explanation.begun),
        "wrong": None
        if wrong_byte is None
        else {
            "code": wrong_byte.code,
            "detail": wrong_byte.detail,
            "expected": wrong_byte.expected,
            "offset": wrong_byte.offset,
            "before": _text(wrong_byte.before),
            "bad": _text(wrong_byte.received[:1]),
            "after": _text(wrong_byte.received[1:]),
        },
        "conclusion": explanation.conclusion,
    }


def _frame_data(frame: DissectedFrame) -> dict[str, Any]:
    return {
        "kind": frame.kind,
        "queue": frame.queue,
        "size": frame.size,
        "pieces": [
            {"bytes": _text(piece.raw), "cut": piece.cut, "meaning": piece.meaning}
            for piece in frame.pieces
        ],
    }
