"""Bodies with verdict, reason and record: the table for core, broker, worker and PHP tests.

Each case says what has to come out; no case asks the package under test.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from phpmq_lite.envelopes.strict_json import edit_members, find_members

Shape = Literal["splice", "replace", "wrap", "base64", "keep"]  # of the dead-letter record

MEMBERS: Final = {
    "job": '"urn:babel:orders:created"',
    "trace_id": '"7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b"',
    "data": '{"order_id":1042}',
    "meta": (
        '{"id":"f1e2d3c4-b5a6-4789-90ab-cdef01234567","queue":"orders","lang":"go",'
        '"schema_version":1,"created_at":1749132727000}'
    ),
    "attempts": "0",
}
META: Final = {
    "id": '"f1e2d3c4-b5a6-4789-90ab-cdef01234567"',
    "queue": '"orders"',
    "lang": '"go"',
    "schema_version": "1",
    "created_at": "1749132727000",
}
BLOCK: Final = '{"reason":"failed","failed_at":1,"original_queue":"old","attempts":2}'


def to_json(members: Mapping[str, str | None]) -> str:
    """Return an object of names and JSON texts; None omits a member."""
    return "{" + ",".join(f'"{k}":{v}' for k, v in members.items() if v is not None) + "}"


def body(**changes: str | None) -> bytes:
    """Return the valid envelope with members changed, added or (None) omitted."""
    return to_json({**MEMBERS, **changes}).encode()


def with_meta(**changes: str | None) -> bytes:
    """Return the valid envelope with members of ``meta`` changed, added or (None) omitted."""
    return body(meta=to_json({**META, **changes}))


def nested(levels: int) -> bytes:
    lists = levels - 2  # the envelope and data
    return body(data='{"a":' + "[" * lists + "]" * lists + "}")


def ending(text: str) -> bytes:
    """Return the valid envelope with text before its last brace, such as repeated members."""
    return body()[:-1] + text.encode() + b"}"


def edit(content: bytes, **changes: bytes | None) -> bytes:
    """Return a body with members replaced, added or (None) removed, and all else unchanged."""
    return edit_members(content, find_members(content), changes)


@dataclass(slots=True, frozen=True)
class Case:
    """A body and its expected verdicts, where ``data: []`` is accepted from PHP only."""

    name: str
    content: bytes
    reason: str | None = None  # None: a consumer may handle it
    record: Shape = "splice"
    pointer: str = ""  # of the problem
    detail: str = ""  # what the problem's detail has in it
    warnings: int = 0
    is_tolerated: bool = False


def poison(name: str, content: bytes, pointer: str = "", detail: str = "") -> Case:
    """Return a case of a poison strict object, whose record is a splice."""
    return Case(name, content, "poison", "splice", pointer, detail)


def wrapped(name: str, content: bytes, detail: str = "", pointer: str = "") -> Case:
    """Return a case of a poison body whose record is a wrapper; most are no strict JSON object."""
    return Case(name, content, "poison", "wrap", pointer, detail)


def other_version(name: str, content: bytes, detail: str = "") -> Case:
    return Case(name, content, "unsupported_schema_version", "keep", "/meta/schema_version", detail)


VALID: Final = (
    Case("whole envelope", body()),
    Case("empty data", body(data="{}")),
    Case("urn alone", body(job=None, urn='"urn:a"')),
    Case("blank job, urn", body(job='" \\t"', urn='"urn:a"')),
    Case("empty job, urn", body(job='""', urn='"urn:a"')),
    Case("job a number, urn", body(job="5", urn='"urn:a"'), warnings=1),
    Case("job null, urn", body(job="null", urn='"urn:a"'), warnings=1),
    Case("job an object, urn", body(job="{}", urn='"urn:a"'), warnings=1),
    Case("job and urn", body(urn='"urn:b"'), warnings=1),
    Case("job, urn a number", body(urn="5"), warnings=1),
    Case("job of a no-break space", body(job='"\u00a0"')),
    Case("job with blank around", body(job='" urn:a "')),
    Case("job no URN at all", body(job='"App\\\\Jobs\\\\Ship"')),
    Case("trace_id no UUID", body(trace_id='"t"')),
    Case("meta of a version only", body(meta='{"schema_version":1}')),
    Case("unknown language", with_meta(lang='"cobol"')),
    Case("meta.id null", with_meta(id="null")),
    Case("created_at largest", with_meta(created_at="9223372036854775807")),
    Case("created_at negative", with_meta(created_at="-1")),
    Case("attempts 7", body(attempts="7")),
    Case("attempts negative", body(attempts="-50")),
    Case("attempts negative zero", body(attempts="-0")),
    Case("attempts smallest", body(attempts="-9223372036854775808")),
    Case("unknown members", ending(',"x":{"y":[null,1e400]},"Job":5,"META":[]')),
    Case("name written with an escape", body(attempts=None)[:-1] + b',"att\\u0065mpts":0}'),
    Case(
        "white space everywhere",
        b' \n{ "urn" : "a" ,\t"trace_id":"t","data":{ } ,\r\n"meta":'
        b'{ "schema_version" : 1 } , "attempts" : 3 } \n',
    ),
    Case("job twice, the last a text", b'{"job":5,' + body()[1:]),
    Case("data twice", ending(',"data":{"a":1}')),
    Case("outdated top level", body(timestamp="1"), warnings=1),
    Case(
        "outdated in meta",
        with_meta(max_retries="3", attempts='"x"', source="5", ts="{}"),
        warnings=4,
    ),
    Case("dead_letter null", body(dead_letter="null"), record="replace"),
    Case("dead_letter whole", body(dead_letter=BLOCK), record="replace"),
    Case("dead_letter before others", b'{"dead_letter": {} , ' + body()[1:], record="replace"),
    Case("surrogate pair", body(data='{"a":"\\ud83d\\ude00"}')),
    Case("escaped backslash before u", body(data='{"a":"\\\\ud800"}')),
    Case("non-ASCII", body(data='{"città":"☕\u2028","\\u0000":0}')),
    Case("number of 300 digits in data", body(data='{"a":%s}' % ("9" * 300))),
    Case("number of 300 zeros", body(data='{"a":0.%s1}' % ("0" * 300))),
    Case("underflow in data", body(data='{"a":1e-400}')),
    Case("infinite outside data", ending(',"x":1e400')),
    Case("text like an infinite number", body(data='{"a":"1e400 %s"}' % ("9" * 400))),
    Case("brackets in a text", body(data='{"a":"%s"}' % ("[{" * 300))),
    Case("256 levels", nested(256)),
    Case(
        "data [] of php",
        body(data="[]", meta=to_json({**META, "lang": '"php"'})),
        is_tolerated=True,
    ),
    Case(
        "data [] of php with space",
        body(data="[ ]", meta='{"lang":"php","schema_version":1}'),
        is_tolerated=True,
    ),
)

UNREADABLE: Final = (
    Case("not UTF-8", b"\xff", "poison", "base64", detail="UTF-8"),
    Case("not UTF-8 in a text", body(data='{"a":"?"}').replace(b"?", b"\xff"), "poison", "base64"),
    Case("surrogate in UTF-8", b'{"a":"\xed\xa0\x80"}', "poison", "base64"),
    Case("overlong UTF-8", b"\xc0\xaf", "poison", "base64"),
    Case("UTF-16", body().decode().encode("utf-16-le"), "poison", "wrap"),
    Case("257 levels", nested(257), "too_deep", "wrap", detail="256"),
    Case("100,000 brackets", b"[" * 100_000, "too_deep", "wrap"),
    Case("deep and not JSON", b"[" * 257 + b"x", "too_deep", "wrap"),
    wrapped("empty", b""),
    wrapped("white space", b" \n"),
    wrapped("a word", b"hello"),
    wrapped("byte order mark", b"\xef\xbb\xbf" + body()),
    wrapped("trailing data", body() + b"x"),
    wrapped("two objects", body() + body()),
    wrapped("NUL behind", body() + b"\x00"),
    wrapped("cut off", body()[:-1]),
    wrapped("comma too many", body()[:-1] + b",}"),
    wrapped("NaN", body(data='{"a":NaN}'), "NaN"),
    wrapped("Infinity", body(data='{"a":-Infinity}'), "Infinity"),
    wrapped("leading zero", body(attempts="01")),
    wrapped("plus sign", body(attempts="+1")),
    wrapped("point without digits", body(data='{"a":1.}')),
    wrapped("single quotes", b"{'job':'urn:a'}"),
    wrapped("comment", b"{}//"),
    wrapped("control character in a text", body(data='{"a":"\x01"}')),
    wrapped("unknown escape", body(data='{"a":"\\x41"}')),
    poison("integer of 5,000 digits", ending(',"x":' + "9" * 5000), detail="digits"),
    wrapped("null", b"null", "null"),
    wrapped("a number", b"5"),
    wrapped("a text", b'"urn:a"'),
    wrapped("true", b"true"),
    wrapped("a list", b"[]"),
    wrapped("a list of one envelope", b"[" + body() + b"]"),
    wrapped("lone high surrogate", body(data='{"a":"\\ud800"}'), "surrogate"),
    wrapped("lone low surrogate", body(data='{"a":"\\uDC00"}'), "surrogate"),
    wrapped("surrogates the wrong way round", body(data='{"a":"\\ude00\\ud83d"}'), "surrogate"),
    wrapped("two high surrogates", body(data='{"a":"\\ud83d\\ud83d"}'), "surrogate"),
    wrapped("high surrogate before a text", body(data='{"a":"\\ud83dx"}'), "surrogate"),
    wrapped("lone surrogate in a name", body(data='{"\\ud800":1}'), "surrogate"),
    wrapped("halves in two texts", body(data='["\\ud83d","\\ude00"]'), "surrogate"),
    wrapped("lone surrogate in job", body(job='"\\ud800"'), "surrogate"),
)

POISON: Final = (
    poison("no members", b"{}", detail="missing_urn"),
    poison("job missing", body(job=None), detail="missing_urn"),
    poison("job blank", body(job='" \\t\\n\\u000b\\f\\r"'), detail="missing_urn"),
    poison("urn blank", body(job='""', urn='" "'), detail="missing_urn"),
    poison("JOB", body(job=None, JOB='"urn:a"'), detail="missing_urn"),
    poison("trace_id a number", body(trace_id="7"), "/trace_id", "7"),
    poison("data a list", body(data="[1]"), "/data", "a list"),
    poison("data [] of go", body(data="[]"), "/data"),
    poison("data a text", body(data='"x"'), "/data"),
    poison("data of two, one a list", ending(',"data":[1]'), "/data"),
    poison("data of two, the first a list", b'{"data":[1],' + body()[1:], "/data"),
    poison("data infinite", body(data='{"a":[{"b":1e400}]}'), "/data", "double"),
    poison("data infinite with a plus", body(data='{"a":-1E+400}'), "/data", "double"),
    poison("data infinite with zeros", body(data='{"a":1e00400}'), "/data", "double"),
    poison("data with 400 digits", body(data='{"a":%s}' % ("9" * 400)), "/data", "double"),
    poison("meta a list", body(meta="[]"), "/meta"),
    poison("meta a text", body(meta='"x"'), "/meta"),
    poison("meta.id a number", with_meta(id="5"), "/meta/id"),
    poison("meta.queue a number", with_meta(queue="5"), "/meta/queue"),
    poison("meta.lang true", with_meta(lang="true"), "/meta/lang", "true"),
    poison("meta.id twice, one a number", with_meta(id='5,"id":"x"'), "/meta/id"),
    poison("first of two meta wrong", b'{"meta":{"id":5},' + body()[1:], "/meta/id"),
    poison("created_at a text", with_meta(created_at='"2026"'), "/meta/created_at"),
    poison("created_at 1.0", with_meta(created_at="1.0"), "/meta/created_at"),
    poison("created_at 1e3", with_meta(created_at="1e3"), "/meta/created_at"),
    poison("created_at 2^63", with_meta(created_at="9223372036854775808"), "/meta/created_at"),
    poison("schema_version 1.0", with_meta(schema_version="1.0"), "/meta/schema_version"),
    poison("schema_version true", with_meta(schema_version="true"), "/meta/schema_version"),
    poison("schema_version a text", with_meta(schema_version='"1"'), "/meta/schema_version"),
    poison("attempts true", body(attempts="true"), "/attempts", "attempts is true, not an integer"),
    poison("attempts 1.0", body(attempts="1.0"), "/attempts"),
    poison("attempts 1E2", body(attempts="1E2"), "/attempts"),
    poison("attempts a text", body(attempts='"3"'), "/attempts"),
    poison("attempts 10^30", body(attempts="1" + "0" * 30), "/attempts", "64 bits"),
    poison("attempts -2^63-1", body(attempts="-9223372036854775809"), "/attempts"),
    poison("attempts infinite", body(attempts="1e400"), "/attempts"),
    poison("attempts of two, one a text", ending(',"attempts":"3"'), "/attempts"),
    wrapped("dead_letter a text", body(dead_letter='"x"'), pointer="/dead_letter"),
    wrapped(
        "dead_letter.attempts a text",
        body(dead_letter='{"attempts":"3"}'),
        pointer="/dead_letter/attempts",
    ),
    wrapped(
        "dead_letter.lang an object", body(dead_letter='{"lang":{}}'), pointer="/dead_letter/lang"
    ),
    Case("like a wrapper", b'{"raw":"x"}', "poison", "wrap", detail="missing_urn"),
    Case("like a wrapper of base64", b'{"raw":"/w==","raw_encoding":"base64"}', "poison", "wrap"),
    poison("two things wrong: type first", body(job=None, attempts='"3"'), "/attempts"),
)

NO_TRACE_ID: Final[tuple[str, Shape, str]] = ("missing_trace_id", "splice", "/trace_id")
CONTRACT: Final = (
    Case("meta missing", body(meta=None), "missing_meta", pointer="/meta", detail="missing"),
    Case("meta null", body(meta="null"), "missing_meta", pointer="/meta", detail="null"),
    Case("meta twice, the last null", ending(',"meta":null'), "missing_meta", pointer="/meta"),
    other_version("version 2", with_meta(schema_version="2"), "2"),
    other_version("version 0", with_meta(schema_version="0")),
    other_version("version null", with_meta(schema_version="null")),
    other_version("version missing", body(meta="{}")),
    other_version("version 2 with a block", body(meta='{"schema_version":2}', dead_letter=BLOCK)),
    Case("data missing", body(data=None), "invalid_data", pointer="/data"),
    Case("data null", body(data="null"), "invalid_data", pointer="/data"),
    Case("trace_id missing", body(trace_id=None), *NO_TRACE_ID),
    Case("trace_id null", body(trace_id="null"), *NO_TRACE_ID),
    Case("trace_id blank", body(trace_id='" \\r"'), *NO_TRACE_ID, "blank"),
    Case("attempts missing", body(attempts=None), "invalid_attempts", pointer="/attempts"),
    Case("attempts null", body(attempts="null"), "invalid_attempts", pointer="/attempts"),
    Case(
        "attempts null with a block",
        body(attempts="null", dead_letter=BLOCK),
        "invalid_attempts",
        "wrap",
        "/attempts",
    ),
    Case("all missing but job", b'{"job":"urn:a"}', "missing_meta", pointer="/meta"),
    other_version("version before data", body(meta="{}", data="null")),
    Case("data before trace_id", body(data="null", trace_id='""'), "invalid_data", pointer="/data"),
    Case("trace_id before attempts", body(trace_id="null", attempts=None), *NO_TRACE_ID),
)

CASES: Final = (*VALID, *UNREADABLE, *POISON, *CONTRACT)


_WORDS: Final = r"""
    null true 0 1 -1 1.0 1e0 1E400 -0 01 1. NaN -Infinity php "" "!" "a" "\u0061" "\\u0061" "\t"
    "\ud800" "\ud83d\ude00" "\udc00\ud800" "\\ud800" "\/" "\x" "ä" [] [1,] {} {"a":1,"a":2}
    {"a":1e309} {"id":3} {"id":"i","schema_version":1} {"schema_version":1} {"schema_version":1.0}
    {"schema_version":1,"schema_version":2} {"schema_version":1,"ts":3}
    {"lang":"php","schema_version":1}
"""
# JSON, and almost JSON
PIECES: Final = (
    *_WORDS.split(),
    *('" "', '" a"', '"\t"', '"\x7f"', '"\x01"', '"\u2028"', BLOCK),
    *('"' + "x" * length + '"' for length in (512, 513)),
    *("9" * digits for digits in (19, 20, 309, 450)),
    "1" + "0" * 308,
    '{"a":' + "9" * 309 + "}",
    *('{"a":' + "[" * levels + "]" * levels + "}" for levels in (201, 254, 255, 256)),
    "[" * 300,
    '{"a":' * 90 + "1" + "}" * 90,
)


def record_of(case: Case, block: bytes) -> bytes:
    content = case.content
    if case.record == "keep":
        return content
    if case.record == "base64":
        raw = base64.b64encode(content)
        return b'{"raw":"' + raw + b'","raw_encoding":"base64","dead_letter":' + block + b"}"
    if case.record == "wrap":
        raw = json.dumps(content.decode(), ensure_ascii=False).encode()
        return b'{"raw":' + raw + b',"dead_letter":' + block + b"}"
    if case.record == "replace":
        for old in (b"null", BLOCK.encode(), b" {}"):
            if b'"dead_letter":' + old in content:
                space = b" " if old.startswith(b" ") else b""
                return content.replace(b'"dead_letter":' + old, b'"dead_letter":' + space + block)
        raise AssertionError(case.name)
    brace = content.rindex(b"}")
    comma = b"," if content[:brace].strip() != b"{" else b""
    return content[:brace] + comma + b'"dead_letter":' + block + content[brace:]
