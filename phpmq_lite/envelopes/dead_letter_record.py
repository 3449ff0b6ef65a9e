"""Dead-letter records: failed content plus a block that states the reason. Pure functions."""

import base64
import binascii
import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Final

import msgspec

from phpmq_lite.envelopes import strict_json
from phpmq_lite.envelopes.indexed_fields import INT64_MAX, INT64_MIN, INTEGER
from phpmq_lite.envelopes.strict_json import JsonMember, edit_members, find_members
from phpmq_lite.envelopes.validation import UNSUPPORTED, validate

_OMITTED: Final = (("detail", None), ("message_id", None))


@dataclass(slots=True, frozen=True, kw_only=True)
class DeadLetterBlock:
    """The ``dead_letter`` member of a record, with its fields in the order they are written."""

    reason: str  # one of failed, unknown_urn, poison
    error: str | None = None  # message of the handler's last exception
    exception: str | None = None  # class of the handler's last exception
    failed_at: int  # Unix time in milliseconds
    original_queue: str  # the queue in which the message failed
    attempts: int  # number of times that workers ran the message
    lang: str = "python"  # language of the program that wrote the record
    detail: str | None = None  # exact cause, such as max_deliveries, expired or too_deep
    message_id: str | None = None  # the failed message's id as sent on the wire


class _ReadBlock(msgspec.Struct):
    """A block as other SDKs write it; a block that contains a float such as 1.0 is ignored."""

    reason: str
    original_queue: str
    failed_at: int | float | None = None
    attempts: int | float | None = None
    error: str | None = None
    exception: str | None = None
    lang: str | None = None
    detail: str | None = None
    message_id: str | None = None


class _Record(msgspec.Struct):
    dead_letter: _ReadBlock | None = None


_RECORD: Final = msgspec.json.Decoder(_Record)


def build_record(content: bytes, block: DeadLetterBlock, *, keeps_content: bool = False) -> bytes:
    """Return failed content with the block added or replaced, or else a wrapper around both.

    The content is returned unchanged if ``keeps_content`` is set (for opaque queues) or its
    ``schema_version`` is unsupported.
    """
    if keeps_content or block.detail == UNSUPPORTED:
        return content
    problem = validate(content).problem
    if problem is not None and problem.reason == UNSUPPORTED:
        return content
    encoded = _encode_block(block)
    try:
        members = find_members(content)
    except ValueError:
        return _wrap(content, encoded)
    names = sorted(member.name for member in members if member.name != "dead_letter")
    has_block = len(names) < len(members)
    if (
        (has_block and problem is not None)
        or names in (["raw"], ["raw", "raw_encoding"])  # a redrive would take it for a wrapper
        or strict_json.has_lone_surrogate(content)
    ):
        return _wrap(content, encoded)
    return edit_members(content, members, {"dead_letter": encoded})


def build_reference(content: bytes, block: DeadLetterBlock) -> bytes:
    """Return a record without its content, which stays with the message that the block names.

    A redrive verifies the content by its checksum; see ``model.RECORD_REFERENCE``.
    """
    digest = hashlib.sha256(content).hexdigest().encode()
    return b'{"raw_sha256":"%b","dead_letter":%b}' % (digest, _encode_block(block))


def _encode_block(block: DeadLetterBlock) -> bytes:
    """Encode a block; omit ``detail`` and ``message_id``, which we added, if they are None."""
    members = asdict(block).items()
    return _encode_json({name: value for name, value in members if (name, value) not in _OMITTED})


def _encode_json(value: object) -> bytes:
    """Encode as compact UTF-8; replace lone surrogates from exception messages with ``?``."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace")


def _wrap(content: bytes, block: bytes) -> bytes:
    try:
        raw = _encode_json(content.decode())
        encoding = b""
    except UnicodeDecodeError:
        raw = b'"' + base64.b64encode(content) + b'"'
        encoding = b',"raw_encoding":"base64"'
    return b'{"raw":' + raw + encoding + b',"dead_letter":' + block + b"}"


def read_block(content: bytes) -> DeadLetterBlock | None:
    """Return a record's block, or None if it is missing or has a member of the wrong type.

    ``reason`` and ``original_queue`` are required; other missing members are 0 or empty.
    """
    try:
        block = _RECORD.decode(content).dead_letter
    except (ValueError, RecursionError):
        return None
    if block is None:
        return None
    failed_at = 0 if block.failed_at is None else block.failed_at
    attempts = 0 if block.attempts is None else block.attempts
    if type(failed_at) is not int or type(attempts) is not int:
        return None
    filled = {"failed_at": failed_at, "attempts": attempts, "lang": block.lang or ""}
    return DeadLetterBlock(**(msgspec.structs.asdict(block) | filled))


def redrive_content(content: bytes) -> bytes:
    """Return a record's content for a redrive: unwrapped, without the block and with 0 attempts.

    Wrapped content is restored byte for byte. Unsupported schema versions are left unchanged.
    ``attempts`` changes only if it is an integer, because invalid content is not repaired.
    """
    try:
        members = find_members(content)
    except ValueError:
        return content
    raw = _unwrap(content, members)
    if raw is not None:
        return raw
    has_block = any(member.name == "dead_letter" for member in members)
    problem = validate(content).problem
    if problem is not None and (not has_block or problem.reason == UNSUPPORTED):
        return content
    changes: dict[str, bytes | None] = {"dead_letter": None} if has_block else {}
    if _has_other_attempts(content, members, b"0"):
        changes["attempts"] = b"0"
    return edit_members(content, members, changes)


def with_attempts(content: bytes, attempts: int) -> bytes:
    """Return an object with its ``attempts`` replaced, if an integer, or raise ValueError."""
    members = find_members(content)
    encoded = b"%d" % attempts
    is_changed = _has_other_attempts(content, members, encoded)
    return edit_members(content, members, {"attempts": encoded}) if is_changed else content


def with_attempt_added(content: bytes) -> bytes | None:
    """Return an object with one attempt more, None if it counts none, or raise ValueError."""
    members = find_members(content)
    attempts = _attempts_of(content, members)
    if attempts is None:
        return None
    return edit_members(content, members, {"attempts": b"%d" % (int(attempts) + 1)})


def _has_other_attempts(content: bytes, members: list[JsonMember], encoded: bytes) -> bool:
    """Return whether the last ``attempts`` member is an integer other than ``encoded``."""
    return _attempts_of(content, members) not in (None, encoded)


def _attempts_of(content: bytes, members: list[JsonMember]) -> bytes | None:
    """Return the last ``attempts`` member, or None if it is not a 64-bit integer."""
    for member in reversed(members):
        if member.name == "attempts":
            value = content[member.value_start : member.end]
            is_short_integer = INTEGER.match(value) is not None and len(value) <= 20
            return value if is_short_integer and INT64_MIN <= int(value) <= INT64_MAX else None
    return None


def _unwrap(content: bytes, members: list[JsonMember]) -> bytes | None:
    names = sorted(member.name for member in members)
    if names not in (["dead_letter", "raw"], ["dead_letter", "raw", "raw_encoding"]):
        return None
    texts = {
        member.name: content[member.value_start : member.end]
        for member in members
        if member.name != "dead_letter"
    }
    if not all(text.startswith(b'"') for text in texts.values()):
        return None  # compared as text: int() raises ValueError above 4,300 digits
    values: dict[str, str] = {name: json.loads(text) for name, text in texts.items()}
    raw = values["raw"]
    try:
        if "raw_encoding" not in values:
            return raw.encode()
        if values["raw_encoding"] != "base64":
            return None
        return base64.b64decode(raw, validate=True)
    except (UnicodeEncodeError, binascii.Error):
        return None
