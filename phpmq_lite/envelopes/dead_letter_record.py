"""Dead-letter records: the content that died, with a block that says why.  Pure and total."""

import base64
import binascii
import json
import re
from dataclasses import dataclass
from typing import Final

import msgspec

from phpmq_lite.envelopes import strict_json
from phpmq_lite.envelopes.json_edit import JsonMember, edit_members, find_members
from phpmq_lite.envelopes.verdict import judge

_UNSUPPORTED: Final = "unsupported_schema_version"
_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)\Z")


@dataclass(slots=True, frozen=True)
class DeadLetterBlock:
    """The member ``dead_letter`` of a record."""

    reason: str  # failed, unknown_urn or poison
    original_queue: str  # where it failed
    failed_at: int  # Unix ms
    attempts: int  # how often a worker tried
    error: str | None = None  # what the handler said at the end
    exception: str | None = None  # its class
    lang: str = "python"  # of who gave up
    detail: str | None = None  # the exact cause: a reason of a verdict, max_deliveries, expired …
    message_id: str | None = None  # the wire id of what died


class _ReadBlock(msgspec.Struct):
    """The block as others write it; numbers may come as 1.0, which is then not ours."""

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


def build_record(content: bytes, block: DeadLetterBlock, *, is_kept: bool = False) -> bytes:
    """Make the record of a content: spliced, replaced in place, wrapped or (``is_kept``) as it is.

    ``is_kept`` is for opaque queues; an unsupported schema_version is kept as it is too.
    """
    if is_kept or block.detail == _UNSUPPORTED:
        return content
    problem = judge(content).problem
    if problem is not None and problem.reason == _UNSUPPORTED:
        return content
    written = _written(block)
    found = _spliceable(content)
    if found is None:
        return _wrapped(content, written)
    has_block = any(member.name == "dead_letter" for member in found)
    if (has_block and problem is not None) or _is_like_wrapper(found):
        return _wrapped(content, written)
    return edit_members(content, found, {"dead_letter": written})


def _written(block: DeadLetterBlock) -> bytes:
    """Write a block; ``detail`` and ``message_id`` are ours and left out where there is none."""
    members_of_block = {
        "reason": block.reason,
        "error": block.error,
        "exception": block.exception,
        "failed_at": block.failed_at,
        "original_queue": block.original_queue,
        "attempts": block.attempts,
        "lang": block.lang,
    }
    if block.detail is not None:
        members_of_block["detail"] = block.detail
    if block.message_id is not None:
        members_of_block["message_id"] = block.message_id
    return _json(members_of_block)


def _json(value: object) -> bytes:
    """Write compact UTF-8; half of a surrogate pair, as an error's text may hold, as ``?``."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace")


def _spliceable(content: bytes) -> list[JsonMember] | None:
    """Find the members of what can take a block; None where it has to be wrapped."""
    try:
        found = find_members(content)
    except ValueError:
        return None
    return None if strict_json.has_lone_surrogate(content) else found


def _is_like_wrapper(found: list[JsonMember]) -> bool:
    """Tell whether a splice would look like a wrapper, and would be unwrapped at its redrive."""
    names = sorted(member.name for member in found if member.name != "dead_letter")
    return names in (["raw"], ["raw", "raw_encoding"])


def _wrapped(content: bytes, block: bytes) -> bytes:
    try:
        raw = _json(content.decode())
        encoding = b""
    except UnicodeDecodeError:
        raw = b'"' + base64.b64encode(content) + b'"'
        encoding = b',"raw_encoding":"base64"'
    return b'{"raw":' + raw + encoding + b',"dead_letter":' + block + b"}"


def read_block(content: bytes) -> DeadLetterBlock | None:
    """Read the block of a record; None where there is none, or not of these types.

    ``reason`` and ``original_queue`` have to be there; what else is missing is 0 or empty.
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
    return DeadLetterBlock(
        reason=block.reason,
        original_queue=block.original_queue,
        failed_at=failed_at,
        attempts=attempts,
        error=block.error,
        exception=block.exception,
        lang=block.lang or "",
        detail=block.detail,
        message_id=block.message_id,
    )


def redrive_content(content: bytes) -> bytes:
    """Give what is sent again: block removed, attempts 0, a wrapper unwrapped; else unchanged.

    What a wrapper held comes back byte for byte, an unsupported schema_version stays as it is.
    ``attempts`` is set only where it is an integer: what was wrong is wrong again, not repaired.
    """
    try:
        found = find_members(content)
    except ValueError:
        return content
    raw = _unwrapped(content, found)
    if raw is not None:
        return raw
    has_block = any(member.name == "dead_letter" for member in found)
    problem = judge(content).problem
    if problem is not None and (not has_block or problem.reason == _UNSUPPORTED):
        return content
    changes: dict[str, bytes | None] = {"dead_letter": None} if has_block else {}
    if _has_other_attempts(content, found, b"0"):
        changes["attempts"] = b"0"
    return edit_members(content, found, changes)


def with_attempts(content: bytes, attempts: int) -> bytes:
    """Set ``attempts`` where it is an integer, and leave every other byte.

    Unchanged where it says that already, is missing or is no integer.

    Raises:
        ValueError: it is not one JSON object.
    """
    found = find_members(content)
    written = b"%d" % attempts
    is_changed = _has_other_attempts(content, found, written)
    return edit_members(content, found, {"attempts": written}) if is_changed else content


def _has_other_attempts(content: bytes, found: list[JsonMember], written: bytes) -> bool:
    """Tell whether the ``attempts`` that counts, the last, is an integer and not written so."""
    for member in reversed(found):
        if member.name == "attempts":
            value = content[member.value_start : member.end]
            return value != written and _INTEGER.match(value) is not None and _is_64_bits(value)
    return False


def _is_64_bits(digits: bytes) -> bool:
    return len(digits) <= 20 and -(1 << 63) <= int(digits) < 1 << 63


def _unwrapped(content: bytes, found: list[JsonMember]) -> bytes | None:
    """Give what a wrapper holds; None where it is none."""
    names = sorted(member.name for member in found)
    if names not in (["dead_letter", "raw"], ["dead_letter", "raw", "raw_encoding"]):
        return None
    texts = {
        member.name: content[member.value_start : member.end]
        for member in found
        if member.name != "dead_letter"
    }
    if not all(text.startswith(b'"') for text in texts.values()):
        return None  # not read: a number of 5,000 digits raises
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
