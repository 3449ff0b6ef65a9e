"""The verdict on what is right and usual, in one typed decode of C: 1 µs instead of 10.

None where the content is anything but usual.  Nothing is decided here that ``verdict.py`` does not
decide alike; what it says of the rest stands there alone (tests/unit/envelopes/test_quick.py).
"""

from typing import Annotated, Any, Final

import msgspec

from phpmq_lite.envelopes import strict
from phpmq_lite.envelopes.index import AFTER_BLANKS, INT64_MAX, Text
from phpmq_lite.model import Indexed

_SHORT: Final = 384  # bytes: too few for 257 levels, and for a right one with 309 digits in it

# With int alone 1.0 would be read as 1, also where the member is repeated and that one is not kept.
_NoFloat = Annotated[float, msgspec.Meta(gt=1.0, lt=1.0)]
_Integer = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)] | _NoFloat


class _Meta(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    schema_version: Annotated[int, msgspec.Meta(ge=1, le=1)] | _NoFloat
    id: Text
    queue: str | None = None
    lang: str | None = None
    created_at: _Integer = 0


class _Whole(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """An envelope as a producer writes it; what is unknown or outdated is not usual."""

    job: Text
    trace_id: Text
    data: dict[str, Any]
    meta: _Meta
    attempts: _Integer


_decode = msgspec.json.Decoder(_Whole).decode


def indexed_where_right(content: bytes) -> Indexed | None:
    """Read what is indexed of an envelope that a consumer may handle, without any warning."""
    try:
        whole = _decode(content)
    except (ValueError, RecursionError):
        return None
    urn, trace_id, meta_id, attempts = whole.job, whole.trace_id, whole.meta.id, whole.attempts
    if (
        urn > AFTER_BLANKS
        and trace_id > AFTER_BLANKS
        and meta_id > AFTER_BLANKS
        and type(attempts) is int
        and _is_plain(content)
    ):
        return urn, trace_id, meta_id, attempts
    return None


def _is_plain(content: bytes) -> bool:
    """Tell that nothing is in it about which msgspec is wider than ``strict``."""
    if b"\\" in content and b"\\u" in content:  # the first is a tenth of the second
        return False
    return len(content) <= _SHORT or not (
        strict.is_too_deep(content) or strict.has_long_numbers(content)
    )
