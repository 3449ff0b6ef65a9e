"""What people type into the search field, and cursors: a query or an error, and SQL that runs.

What must hold of every text: it is a query or a SearchError; a query written again is the same
query; its statement runs on the real schema.  And of every cursor, even one whose sum is right: a
place that a list can begin at, or a problem of 422.
"""

import re
import sqlite3
from base64 import urlsafe_b64encode
from functools import cache
from random import Random
from typing import Final
from zlib import crc32

from phpmq_lite.admin.http import cursors
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.errors import SearchError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.search import language
from phpmq_lite.storage.search.plan import make_plan
from phpmq_lite.storage.sqlite.migrate import migrate
from tests.fuzz.target import Target

_SCOPE: Final = "list"
_ERRORS: Final = {  # what errors say that are not about a value
    "has no closing quote": "quote", "has no text": "text", "requires a value": "name",
}  # fmt: skip


@cache
def _database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, migrations_folder())
    for name, arguments in (("in_time", 0), ("has_text", 2), ("matches_glob", 2)):
        connection.create_function(name, arguments, lambda *_: 1)  # those of a reader
    return connection


def check_search(data: bytes) -> str:
    """Check one text as a search; and the same as what a cursor holds."""
    _check_cursor(data)
    dice = Random(crc32(data))
    text = data.decode("utf-8", dice.choice(("replace", "replace", "surrogateescape")))
    try:
        query = language.parse_search(text)
    except SearchError as error:
        kinds = (kind for text, kind in _ERRORS.items() if text in str(error))
        return f"problem-{next(kinds, 'value')}"
    assert language.parse_search(str(query)) == query, "written again it is another search"
    plan = make_plan(
        query, dice.choice((None, (1,), (1, 2))), (3,), 1_000, has_numbers=dice.random() < 0.5
    )
    if plan is not None:
        values = {**plan.parameters, "low": plan.low, "high": plan.high, "limit": 10}
        rows = _database().execute(plan.text(is_newest_first=True), values).fetchall()
        assert rows == []
    return f"query-{query.terms[-1].kind if query.terms else 'empty'}"


def _check_cursor(data: bytes) -> None:
    signed = b"[%d,%s]" % (crc32(_SCOPE.encode()), data)
    for text in (data.decode(errors="replace"), urlsafe_b64encode(signed).decode()):
        try:
            found = cursors.decode_cursor(_SCOPE, text)
            place = cursors.position_in(found)
        except Problem as problem:
            assert problem.status == 422  # noqa: PT017 - only some cursors are refused
            continue
        assert all(abs(number) < 1 << 62 for number in place.values())


_WORDS: Final = r"""
orders mail* a?b dead ready >3 <=100k -1 >1h <60s never * #5 d7e7* poison 127.0.0.1 "\"" \* [a]
' % 1.5m true null ä
"""
_VALUES: Final = (
    *_WORDS.split(),
    '"a b"',
    "9" * 18,
    "9" * 19,
    "9" * 40,
    "\U0010ffff",
    "\u2028",
    "\0",
    "\x1f",
)
_MEMBERS: Final = """
data.order_id data.items.0.sku meta.id $.a $.0 dead_letter.error data.a-b data.12345678901 what
"""
_NAMES: Final = (
    *_MEMBERS.split(),
    *(one.name for one in language.QUALIFIERS if one.name != "data."),
)


def _fresh(dice: Random) -> bytes:
    """Draw a search of a few terms, or the content of a cursor."""
    if dice.random() < 0.1:
        place = dice.choice(("5", "-1", "[1,2]", '["a","b"]', "1e400", "9" * 30, "true", "[1]"))
        return f'"{dice.choice(("after", "before", "on"))}",{place}'.encode()
    terms = []
    for _ in range(dice.choice((1, 1, 2, 3, 21))):
        name = dice.choice(("", "", "-")) + (dice.choice(_NAMES) + ":") * (dice.random() < 0.8)
        terms.append(name + dice.choice(_VALUES))
    return " ".join(terms).encode()


SEARCHES: Final = Target(
    "searches",
    check_search,
    _fresh,
    lambda: [one.example.encode() for one in language.QUALIFIERS],
    re.compile(rb'"(?:[^"\\]|\\.)*"?|\s+|[^\s":]+|:', re.DOTALL),
    tuple(
        token.encode()
        for token in (*_VALUES, *(f"{name}:" for name in _NAMES), *'"\\- *?[].,\t\xa0\u2003')
    ),
)
