"""What of an envelope is found by: URN, trace id, ``meta.id``, attempts.  Pure and total.

On the way of every publish to an observed queue, so one typed decode does it where nothing is odd.
"""

import re
from typing import Final

import msgspec

INDEX_BYTES: Final = 1 << 20  # longer content is not indexed
INDEX_CHARACTERS: Final = 512  # of an indexed text; the rest is cut
BLANK: Final = " \t\n\v\f\r"  # what is blank and trimmed, and nothing else
INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)\Z")


class Index(msgspec.Struct, frozen=True, gc=False):
    """What is found by, each None where it is missing, blank or of another type."""

    urn: str | None
    trace_id: str | None
    meta_id: str | None
    attempts: int | None  # clamped to 64 bits


class _MetaHead(msgspec.Struct, gc=False):
    id: str | None = None


class _Head(msgspec.Struct, gc=False):
    """What is indexed, all of the right type: the usual case in one pass of C."""

    job: str | None = None
    urn: str | None = None
    trace_id: str | None = None
    meta: _MetaHead | None = None
    attempts: int | float | None = None  # with int alone, 1.0 would be read as 1


class _RawMetaHead(msgspec.Struct):
    id: msgspec.Raw = msgspec.Raw()


class _RawHead(msgspec.Struct):
    """The same, of whatever types."""

    job: msgspec.Raw = msgspec.Raw()
    urn: msgspec.Raw = msgspec.Raw()
    trace_id: msgspec.Raw = msgspec.Raw()
    meta: msgspec.Raw = msgspec.Raw()
    attempts: msgspec.Raw = msgspec.Raw()


_HEAD: Final = msgspec.json.Decoder(_Head)
_RAW_HEAD: Final = msgspec.json.Decoder(_RawHead)
_RAW_META: Final = msgspec.json.Decoder(_RawMetaHead)
_TEXT: Final = msgspec.json.Decoder(str)


def is_blank(text: str) -> bool:
    """Tell whether nothing is left but space, tab, LF, VT, FF and CR."""
    return not text.strip(BLANK)


def index_of(content: bytes) -> Index | None:
    """Read what is indexed, without a full verdict; None where it is no JSON object."""
    if len(content) > INDEX_BYTES:
        return None
    try:
        head = _HEAD.decode(content)
    except (ValueError, RecursionError):
        return _index_of_odd(content)
    urn = head.job
    if urn is None or len(urn) > INDEX_CHARACTERS or not urn.strip(BLANK):
        urn = kept(urn) or kept(head.urn)
    trace_id = head.trace_id
    if trace_id is not None and (len(trace_id) > INDEX_CHARACTERS or not trace_id.strip(BLANK)):
        trace_id = kept(trace_id)
    attempts = head.attempts
    if type(attempts) is not int:
        attempts = None
    elif attempts < 0 or attempts > INT64_MAX:
        attempts = clamped(attempts)
    meta = head.meta
    return Index(urn, trace_id, None if meta is None else kept(meta.id), attempts)


def kept(text: str | None) -> str | None:
    """Give what is indexed of a text: None for a blank one, at most INDEX_CHARACTERS."""
    if not text or not text.strip(BLANK):
        return None
    return text if len(text) <= INDEX_CHARACTERS else text[:INDEX_CHARACTERS]


def clamped(value: int) -> int:
    """Give the nearest integer of 64 bits."""
    return INT64_MIN if value < INT64_MIN else INT64_MAX if value > INT64_MAX else value


def _index_of_odd(content: bytes) -> Index | None:
    """Index an object with members of other types, one by one."""
    try:
        head = _RAW_HEAD.decode(content)
        meta = bytes(head.meta)
        meta_id = bytes(_RAW_META.decode(meta).id) if meta.startswith(b"{") else b""
    except (ValueError, RecursionError):
        return None
    return Index(
        _raw_text(bytes(head.job)) or _raw_text(bytes(head.urn)),
        _raw_text(bytes(head.trace_id)),
        _raw_text(meta_id),
        _raw_integer(bytes(head.attempts)),
    )


def _raw_text(raw: bytes) -> str | None:
    try:
        return kept(_TEXT.decode(raw))
    except ValueError:
        return None


def _raw_integer(raw: bytes) -> int | None:
    if _INTEGER.match(raw) is None:
        return None
    if len(raw) > 20:  # beyond 64 bits, and maybe too long for int()
        return INT64_MIN if raw.startswith(b"-") else INT64_MAX
    return clamped(int(raw))
