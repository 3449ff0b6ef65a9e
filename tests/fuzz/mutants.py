"""Defects that fuzzing must find."""

import re
from collections.abc import Callable
from math import isfinite
from typing import Any, Final, cast

import pytest

from phpmq_lite import frame_options
from phpmq_lite.envelopes import strict_json, validation
from phpmq_lite.protocol import connection, fast_path, frames, parser
from phpmq_lite.protocol.frames import ReceiptFrame
from phpmq_lite.storage.search import language
from tests.fuzz.bodies import BODIES
from tests.fuzz.options import OPTIONS
from tests.fuzz.searches import SEARCHES
from tests.fuzz.streams import ANSWERS, PARSER
from tests.support.builds import NEEDS_SOURCES

Break = Callable[[pytest.MonkeyPatch], None]


def resynchronises(patch: pytest.MonkeyPatch) -> None:
    """Continues with the next frame after an error."""
    feed = parser.Parser.feed

    def feed_again(self: parser.Parser, data: bytes) -> list[Any]:
        if self.error is not None and (at := data.find(b"H01")) >= 0:
            self.error, self._head, self._step = None, b"", parser.Parser._message_header
            data = data[at:]
        return feed(self, data)

    patch.setattr(parser.Parser, "feed", feed_again)


def lets_an_error_out(patch: pytest.MonkeyPatch) -> None:
    """Does not handle names that are not UTF-8."""
    patch.setattr(frames, "decode_queue", lambda raw: raw.decode())


def quick_way_knows_no_limits(patch: pytest.MonkeyPatch) -> None:
    """Accepts an id of any length if its frame is complete."""

    def id_size(_self: Any, data: bytes, pos: int) -> int:
        return max(0, fast_path.read_length(data[pos + 3 : pos + 32])) * data.startswith(
            b"P03", pos
        )

    patch.setattr(fast_path._FrameCache, "_id_size", id_size)


def takes_a_packet_twice(patch: pytest.MonkeyPatch) -> None:
    """The last one counts, whole or cut: only a second grammar detects it."""
    check = parser.Parser._check_packet_header

    def check_less(self: parser.Parser, head: bytes) -> None:
        values, self._values = self._values, {}
        check(self, head)
        self._values = values

    patch.setattr(parser.Parser, "_check_packet_header", check_less)


def keeps_what_is_too_long(patch: pytest.MonkeyPatch) -> None:
    """Refuses long contents when they are here, not when their length is."""
    begin = parser.Parser._begin_content

    def begin_late(self: parser.Parser, width: int) -> None:
        limits, self._limits = self._limits, dict.fromkeys(self._limits, 1 << 20)
        begin(self, width)
        self._limits = limits

    patch.setattr(parser.Parser, "_begin_content", begin_late)


def forgets_at_a_cut(patch: pytest.MonkeyPatch) -> None:
    """Takes a CR at the end of a read for a whole line break."""
    step = parser.Parser._line_break

    def line_break(self: parser.Parser, data: bytes, pos: int) -> int:
        if data[pos:] == b"\r":
            self._cr, self._step = False, self._next
            return pos + 1
        return step(self, data, pos)

    patch.setattr(parser.Parser, "_line_break", line_break)


def lets_browsers_in(patch: pytest.MonkeyPatch) -> None:
    """Never takes anything for HTTP."""
    patch.setattr(connection.HttpRequestDetector, "inspect", lambda _self, _data: connection.OTHER)


def reads_reasons_strictly(patch: pytest.MonkeyPatch) -> None:
    """Does not handle reasons that are not UTF-8."""

    def made(values: dict[int, Any]) -> Any:
        reason = values[2].decode() if 2 in values else None
        return ReceiptFrame(values[1], values[3], reason)

    patch.setitem(parser._MAKE, frames.RECEIPT, made)


def goes_too_deep(patch: pytest.MonkeyPatch) -> None:
    """Has no limit of levels."""
    patch.setattr(strict_json, "is_too_deep", lambda _content: False)


def is_too_quick(patch: pytest.MonkeyPatch) -> None:
    """Accepts everything that msgspec accepts."""
    patch.setattr(validation, "_is_plain", lambda _content: True)


def takes_characters_for_bytes(patch: pytest.MonkeyPatch) -> None:
    """Splices records at the wrong place if a text is not ASCII."""
    patch.setattr(strict_json, "_in_bytes", lambda _text, found: found)


def passes_over_types(patch: pytest.MonkeyPatch) -> None:
    """Does not check the types of members."""
    patch.setattr(validation, "_type_problems", lambda _body: iter(()))


def counts_beyond_64_bits(patch: pytest.MonkeyPatch) -> None:
    """Passes SQLite numbers that it cannot store."""
    patch.setattr(language, "_LARGEST", 1 << 70)


def forgets_quotes(patch: pytest.MonkeyPatch) -> None:
    """Formats a search so that it parses as a different one."""
    patch.setattr("phpmq_lite.storage.search.language._QUOTED", re.compile(r'^"|^$'))


def drops_the_key(patch: pytest.MonkeyPatch) -> None:
    """Publishes with options without the receipt that was asked for."""
    patch.setitem(
        parser._MAKE,
        frames.PUBLISH_WITH_OPTIONS,
        lambda v: frames.PublishWithOptions(v[1], v[2], v[6], None),
    )


def counts_with_floats(patch: pytest.MonkeyPatch) -> None:
    """Asks whether a number is finite, which a whole number of 400 digits cannot answer."""
    read = frame_options._number

    def number(value: Any, field: frame_options.Field) -> Any:
        return read(value if not isinstance(value, int) or isfinite(value) else 0, field)

    patch.setitem(cast("dict[str, Any]", frame_options._READ), "seconds", number)


def keeps_half_characters(patch: pytest.MonkeyPatch) -> None:
    """Keeps lone surrogates, which no log, receipt or database accepts."""
    patch.setattr(frame_options, "_printable", lambda text: text)


MUTANTS: Final = (
    pytest.param(PARSER, resynchronises, marks=NEEDS_SOURCES),
    pytest.param(PARSER, lets_an_error_out, marks=NEEDS_SOURCES),
    pytest.param(PARSER, quick_way_knows_no_limits, marks=NEEDS_SOURCES),
    pytest.param(PARSER, takes_a_packet_twice, marks=NEEDS_SOURCES),
    pytest.param(PARSER, keeps_what_is_too_long, marks=NEEDS_SOURCES),
    (PARSER, forgets_at_a_cut),
    pytest.param(PARSER, lets_browsers_in, marks=NEEDS_SOURCES),
    (PARSER, drops_the_key),
    (ANSWERS, reads_reasons_strictly),
    (OPTIONS, counts_with_floats),
    (OPTIONS, keeps_half_characters),
    (BODIES, goes_too_deep),
    (BODIES, is_too_quick),
    (BODIES, takes_characters_for_bytes),
    (BODIES, passes_over_types),
    (SEARCHES, counts_beyond_64_bits),
    (SEARCHES, forgets_quotes),
)
