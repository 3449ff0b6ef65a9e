"""What of an envelope is found by: URN, trace id, ``meta.id``, attempts.  Pure and total."""

import re
from typing import Final, NamedTuple

import msgspec

from phpmq_lite.envelopes import quick
from phpmq_lite.envelopes.quick import INDEX_CHARACTERS, INT64_MAX

INDEX_BYTES: Final = 1 << 20  # longer content is not indexed
BLANK: Final = " \t\n\v\f\r"  # what is blank and trimmed, and nothing else
INT64_MIN: Final = -(1 << 63)
_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)\Z")


class Index(NamedTuple):
    """What is found by, each None where it is missing, blank or of another type."""

    urn: str | None
    trace_id: str | None
    meta_id: str | None
    attempts: int | None  # clamped to 64 bits


class _RawMetaHead(msgspec.Struct):
    id: msgspec.Raw = msgspec.Raw()


class _RawHead(msgspec.Struct):
    """What is indexed, of whatever types."""

    job: msgspec.Raw = msgspec.Raw()
    urn: msgspec.Raw = msgspec.Raw()
    trace_id: msgspec.Raw = msgspec.Raw()
    meta: msgspec.Raw = msgspec.Raw()
    attempts: msgspec.Raw = msgspec.Raw()


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
    found = quick.indexed(content)
    return _index_of_odd(content) if found is None else Index(*found)


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
