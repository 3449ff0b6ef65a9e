"""What of an envelope is found by: URN, trace id, ``meta.id``, attempts.  Pure and total.

On the way of every publish to an observed queue, so one typed decode does it where nothing is odd.
"""

import re
from typing import Annotated, Final, NamedTuple

import msgspec

from phpmq_lite.envelopes import strict_json
from phpmq_lite.model import Indexed

INDEX_BYTES: Final = 1 << 20  # longer content is not indexed
INDEX_CHARACTERS: Final = 512  # of an indexed text; the rest is cut
BLANK: Final = " \t\n\v\f\r"  # what is blank and trimmed, and nothing else
AFTER_BLANKS: Final = "!"  # a text behind it begins with a character that is not blank
INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)\Z")


class IndexedFields(NamedTuple):
    """What is found by, each None where it is missing, blank or of another type.

    ``urn``, ``trace_id`` and ``attempts`` are the members of that name, ``meta_id`` is ``meta.id``.
    """

    urn: str | None
    trace_id: str | None
    meta_id: str | None
    attempts: int | None  # clamped to 64 bits


Text = Annotated[str, msgspec.Meta(max_length=INDEX_CHARACTERS)]


class _MetaHead(msgspec.Struct, gc=False):
    id: Text = ""


class _Head(msgspec.Struct, gc=False):
    """What is indexed, all of the right type and length: the usual case in one pass of C."""

    job: Text = ""
    urn: Text = ""
    trace_id: Text = ""
    meta: _MetaHead | None = None
    # with int alone, 1.0 would be read as 1
    attempts: Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)] | float | None = None


class _RawMetaHead(msgspec.Struct):
    id: msgspec.Raw = msgspec.Raw()


class _RawHead(msgspec.Struct):
    """What is indexed, of whatever types."""

    job: msgspec.Raw = msgspec.Raw()
    urn: msgspec.Raw = msgspec.Raw()
    trace_id: msgspec.Raw = msgspec.Raw()
    meta: msgspec.Raw = msgspec.Raw()
    attempts: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Head).decode
_RAW_HEAD: Final = msgspec.json.Decoder(_RawHead)
_RAW_META: Final = msgspec.json.Decoder(_RawMetaHead)
_TEXT: Final = msgspec.json.Decoder(str)


def is_blank(text: str) -> bool:
    """Tell whether nothing is left but space, tab, LF, VT, FF and CR."""
    return not text.strip(BLANK)


def read_indexed(content: bytes) -> Indexed | None:
    """Read what is indexed, without a full verdict; None where it is no JSON object.

    A text that is not blank begins behind ``AFTER_BLANKS`` nearly always: a fifth of the time of
    ``strip``.
    """
    if len(content) > INDEX_BYTES:
        return None
    try:
        head = _decode(content)
    except (ValueError, RecursionError):
        return _indexed_of_odd(content)
    urn, trace_id, meta, attempts = head.job, head.trace_id, head.meta, head.attempts
    return (
        urn if urn > AFTER_BLANKS else indexed_text(urn) or indexed_text(head.urn),
        trace_id if trace_id > AFTER_BLANKS else indexed_text(trace_id),
        None if meta is None else meta.id if meta.id > AFTER_BLANKS else indexed_text(meta.id),
        attempts if type(attempts) is int else None,
    )


def index_of(content: bytes | str) -> IndexedFields | None:
    """Read what is indexed as ``read_indexed`` does, with names.

    Raises:
        EnvelopeError: the body is neither bytes nor text.
    """
    found = read_indexed(strict_json.to_bytes(content))
    return None if found is None else IndexedFields(*found)


def indexed_text(text: str | None) -> str | None:
    """Give what is indexed of a text: None for a blank one, at most INDEX_CHARACTERS."""
    if not text or not text.strip(BLANK):
        return None
    return text if len(text) <= INDEX_CHARACTERS else text[:INDEX_CHARACTERS]


def clamp_int64(value: int) -> int:
    """Give the nearest integer of 64 bits."""
    return INT64_MIN if value < INT64_MIN else INT64_MAX if value > INT64_MAX else value


def _indexed_of_odd(content: bytes) -> Indexed | None:
    """Index an object with members of other types, one by one."""
    try:
        head = _RAW_HEAD.decode(content)
        meta = bytes(head.meta)
        meta_id = bytes(_RAW_META.decode(meta).id) if meta.startswith(b"{") else b""
    except (ValueError, RecursionError):
        return None
    return (
        _raw_text(bytes(head.job)) or _raw_text(bytes(head.urn)),
        _raw_text(bytes(head.trace_id)),
        _raw_text(meta_id),
        _raw_integer(bytes(head.attempts)),
    )


def _raw_text(raw: bytes) -> str | None:
    try:
        return indexed_text(_TEXT.decode(raw))
    except ValueError:
        return None


def _raw_integer(raw: bytes) -> int | None:
    if _INTEGER.match(raw) is None:
        return None
    if len(raw) > 20:  # beyond 64 bits, and maybe too long for int()
        return INT64_MIN if raw.startswith(b"-") else INT64_MAX
    return clamp_int64(int(raw))
