"""What is usual, read in one typed decode of C; None where the content is anything but usual.

On the way of every publish: 0.4 µs for the index of a small envelope and 1 µs for the verdict on a
right one, where the whole verdict takes 10 µs.  Nothing is decided here that ``index.py`` and
``verdict.py`` do not decide alike; what they say of the rest stands there alone
(tests/unit/envelopes/test_quick.py compares them).
"""

from typing import Annotated, Any, Final

import msgspec

from phpmq_lite.envelopes import strict
from phpmq_lite.model import Indexed

INDEX_CHARACTERS: Final = 512  # of an indexed text; the rest is cut
INT64_MAX: Final = (1 << 63) - 1
_SHORT: Final = 384  # bytes: too few for 257 levels, and for a right one with 309 digits in it
_AFTER_BLANKS: Final = "!"  # a text behind it begins with a character that is not blank

_Text = Annotated[str, msgspec.Meta(max_length=INDEX_CHARACTERS)]
# With int alone 1.0 would be read as 1, also where the member is repeated and that one is not kept.
_NoFloat = Annotated[float, msgspec.Meta(gt=1.0, lt=1.0)]
_Integer = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)] | _NoFloat


class _MetaHead(msgspec.Struct, gc=False):
    id: _Text = ""


class _Head(msgspec.Struct, gc=False):
    """What is indexed, and nothing else of the content is kept."""

    job: _Text = ""
    trace_id: _Text = ""
    meta: _MetaHead | None = None
    attempts: _Integer | None = None


class _Meta(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    schema_version: Annotated[int, msgspec.Meta(ge=1, le=1)] | _NoFloat
    id: _Text = ""
    queue: str | None = None
    lang: str | None = None
    created_at: _Integer = 0


class _Whole(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """An envelope as a producer writes it; what is unknown or outdated is not usual."""

    job: _Text
    trace_id: _Text
    data: dict[str, Any]
    meta: _Meta
    attempts: _Integer


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_whole = msgspec.json.Decoder(_Whole).decode


def indexed(content: bytes) -> Indexed | None:
    """Read what is indexed of an object that has all four."""
    try:
        head = _decode_head(content)
    except (ValueError, RecursionError):
        return None
    urn, trace_id, meta, attempts = head.job, head.trace_id, head.meta, head.attempts
    if (
        urn > _AFTER_BLANKS
        and trace_id > _AFTER_BLANKS
        and meta is not None
        and meta.id > _AFTER_BLANKS
        and type(attempts) is int
    ):
        return urn, trace_id, meta.id, attempts
    return None


def indexed_where_right(content: bytes) -> Indexed | None:
    """Read what is indexed of an envelope that a consumer may handle, without any warning."""
    try:
        whole = _decode_whole(content)
    except (ValueError, RecursionError):
        return None
    urn, trace_id, meta, attempts = whole.job, whole.trace_id, whole.meta, whole.attempts
    if (
        urn > _AFTER_BLANKS
        and trace_id > _AFTER_BLANKS
        and meta.id > _AFTER_BLANKS
        and type(attempts) is int
        and _is_plain(content)
    ):
        return urn, trace_id, meta.id, attempts
    return None


def _is_plain(content: bytes) -> bool:
    """Tell that nothing is in it about which msgspec is wider than ``strict``."""
    if b"\\" in content and b"\\u" in content:  # the first is a tenth of the second
        return False
    return len(content) <= _SHORT or not (
        strict.is_too_deep(content) or strict.has_long_numbers(content)
    )
