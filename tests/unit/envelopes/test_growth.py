"""Bodies designed to be slow: processing time grows linearly with their size.

No duration is asserted: a quadratic algorithm takes minutes for a megabyte and hits the timeout.
At 16 MiB the same bodies are marked slow; figures are in docs/guides/envelopes.md.
"""

from collections.abc import Callable
from typing import Final

import pytest

from phpmq_lite.envelopes.dead_letter_record import (
    DeadLetterBlock,
    build_record,
    read_block,
    redrive_content,
)
from phpmq_lite.envelopes.indexed_fields import read_indexed_fields
from phpmq_lite.envelopes.validation import lint, validate
from tests.support.envelope_cases import body, edit

MIB: Final = 1 << 20
BLOCK: Final = DeadLetterBlock(reason="poison", original_queue="orders", failed_at=1, attempts=0)


def repeated(unit: bytes, size: int) -> bytes:
    return unit * (size // len(unit))


def listed(unit: bytes, size: int) -> bytes:
    return b"[" + b",".join([unit] * (size // (len(unit) + 1))) + b"]"


def in_data(text: bytes) -> bytes:
    return body(data='{"a":?}').replace(b"?", text)


def numbered(form: bytes, size: int) -> bytes:
    return b"{" + b",".join(form % number for number in range(size // (len(form) + 5))) + b"}"


BODIES: Final[dict[str, Callable[[int], bytes]]] = {
    "empty lists": lambda size: in_data(listed(b"[]", size)),
    "empty objects": lambda size: in_data(listed(b"{}", size)),
    "groups of 200 levels": lambda size: in_data(listed(b"[" * 200 + b"]" * 200, size)),
    "open brackets": lambda size: b"[" * size,
    "open objects": lambda size: repeated(b'{"":', size),
    "members": lambda size: in_data(numbered(b'"%d":1', size)),
    "top-level members": lambda size: numbered(b'"%d":1', size),
    "members not ASCII": lambda size: numbered(b'"\xc3\xa9%d":1', size),
    "attempts again and again": lambda size: numbered(b'"attempts":%d', size),
    "dead_letter again and again": lambda size: numbered(b'"dead_letter":{"a":%d}', size),
    "meta.id again and again": lambda size: body(meta=numbered(b'"id":"%d"', size).decode()),
    "wrong types again and again": lambda size: numbered(b'"attempts":"%d"', size),
    "escapes": lambda size: in_data(b'"' + repeated(rb"\n", size) + b'"'),
    "backslashes": lambda size: in_data(b'"' + repeated(rb"\\", size) + b'"'),
    "quotes": lambda size: in_data(b'"' + repeated(rb"\"", size) + b'"'),
    "surrogate pairs": lambda size: in_data(b'"' + repeated(rb"\ud83d\ude00", size) + b'"'),
    "text without an end": lambda size: b"[" * 257 + b'"' + repeated(rb"\"", size),
    "nothing but quotes": lambda size: b"[" * 257 + b'"' * size,
    "one number": lambda size: in_data(b"9" * size),
    "one fraction": lambda size: in_data(b"0." + b"1" * size),
    "numbers of 199 digits": lambda size: in_data(listed(b"1" * 199, size)),
    "numbers of 300 digits": lambda size: in_data(listed(b"1" * 300, size)),
    "numbers of 4,300 digits": lambda size: body(x=listed(b"1" * 4300, size).decode()),
    "numbers, one of them long": lambda size: in_data(listed(b"1", size)[:-1] + b",1e100]"),
    "white space": lambda size: b" " * size,
    "blank job": lambda size: body(job='"' + " " * size + '"'),
    "long name": lambda size: body(**{"a" * size: "1"}),
    "not UTF-8": lambda size: b"\xff" * size,
}


def process(content: bytes) -> None:
    """Do everything that happens to a body during its life."""
    read_indexed_fields(content)
    validate(content)
    lint(content)
    record = build_record(content, BLOCK)
    read_block(record)
    redrive_content(record)


@pytest.mark.parametrize("name", BODIES)
def test_large_body_is_handled_within_the_timeout(name: str) -> None:
    process(BODIES[name](MIB // 4))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [MIB, 16 * MIB])
@pytest.mark.parametrize("name", BODIES)
def test_larger_body_is_handled_within_the_timeout(name: str, size: int) -> None:
    process(BODIES[name](size))


def test_many_removals_are_one_pass() -> None:
    content = numbered(b'"a":%d', MIB)
    assert edit(content, a=None) == b"{}"
    assert edit(content, a=b"1") == b'{"a":1}'
