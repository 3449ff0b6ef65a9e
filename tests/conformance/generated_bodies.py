"""Thousands of bodies, made from good envelopes by seeded changes of their structure."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Final

from tests.support.envelope_cases import BLOCK, CASES, MEMBERS, META

SEED: Final = 20_261_121

VALUES: Final = (  # JSON texts, and some that are none
    *("null", "true", "false", "0", "-0", "1", "2", "3", "-50", "1.0", "1e0", "1E2", "-1.5", "0.5"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("-9223372036854775809", "1" + "0" * 30, "12345678901234567890", "9" * 308, "9" * 309),
    *("9" * 5000, "1e400", "-1e400", "1e-400", "1e308", "1.8e308", "0." + "0" * 400 + "1"),
    *('""', '" "', '"\\t"', '"\\u000b"', '"\\u00a0"', '"\u2003"', '"t"', '"urn:a"', '" urn:a "'),
    *('"1"', '"php"', '"go"', '"cobol"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\udc00"'),
    *('"\\\\ud800"', '"\\u0000"', '"é☕\u2028"', '"\\/"', '"1e400"', '"[[["', '"a\\"b"'),
    *("[]", "[ ]", "[1]", "[[]]", "[null]", "{}", '{"a":1}', '{"a":[1e400]}', '{"a":1,"a":2}'),
    *('{"id":5}', '{"schema_version":1}', '{"lang":"php","schema_version":1}', BLOCK),
    *('{"attempts":"3"}', '{"reason":null}', '{"a":{"b":{"c":[{}]}}}'),
    *("NaN", "Infinity", "-Infinity", "01", "+1", "1.", ".5", "1e", "-", "'a'", "nul", "undefined"),
    *('"\\x41"', '"\x01"', '"\\u12"', '"open', "[1,]", "{,}", ""),
)
NAMES: Final = (*MEMBERS, "urn", "dead_letter", "x", "JOB", "Meta", "timestamp", "raw", "")
META_NAMES: Final = (*META, "max_retries", "attempts", "source", "ts", "ext", "ID")

Pairs = list[tuple[str, str]]


class Sketch:
    """An envelope while it is changed: names and JSON texts, in order, repeats allowed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.top: Pairs = list(MEMBERS.items())
        self.meta: Pairs = list(META.items())
        self.has_own_meta = False  # else ``meta`` is written from the pairs above
        if rng.random() < 0.3:
            self.set(self.meta, "lang", '"php"')
        if rng.random() < 0.15:
            self.top = [(("urn" if name == "job" else name), text) for name, text in self.top]

    @staticmethod
    def set(pairs: Pairs, name: str, text: str) -> None:
        for index, (known, _) in enumerate(pairs):
            if known == name:
                pairs[index] = (name, text)
                return
        pairs.append((name, text))

    def value(self) -> str:
        return self.rng.choice(VALUES)

    def change_member(self) -> None:
        name = self.rng.choice(NAMES)
        self.has_own_meta |= name == "meta"
        self.set(self.top, name, self.value())

    def change_meta(self) -> None:
        self.set(self.meta, self.rng.choice(META_NAMES), self.value())

    def drop_member(self) -> None:
        self.top.pop(self.rng.randrange(len(self.top)))

    def drop_meta(self) -> None:
        if self.meta:
            self.meta.pop(self.rng.randrange(len(self.meta)))

    def repeat_member(self) -> None:
        place = self.rng.randint(0, len(self.top))
        self.top.insert(place, (self.rng.choice(NAMES), self.value()))

    def repeat_meta(self) -> None:
        place = self.rng.randint(0, len(self.meta))
        self.meta.insert(place, (self.rng.choice(META_NAMES), self.value()))

    def nest(self) -> None:
        levels = self.rng.choice((1, 3, 200, 253, 254, 255, 256, 257, 300, 600, 2000))
        inner = self.rng.choice(("", "1", "{}", "null"))
        text = "[" * levels + inner + "]" * levels
        self.set(self.top, self.rng.choice(("data", "x", "x")), '{"a":' + text + "}")

    def empty_data(self) -> None:
        self.set(self.top, "data", self.rng.choice(("[]", "[ \n]", "{}")))

    def change_data(self) -> None:
        self.set(self.top, "data", '{"a":[{"b":' + self.value() + "}]}")

    def shuffle(self) -> None:
        self.rng.shuffle(self.top)

    def written(self) -> str:
        space = self.rng.choice(("", "", "", " ", "\n", " \t\r\n", "\f", "\u00a0"))
        top = [
            (name, text if name != "meta" or self.has_own_meta else self._object(self.meta, ""))
            for name, text in self.top
        ]
        return self._object(top, space)

    @staticmethod
    def _object(pairs: Pairs, space: str) -> str:
        members = (f"{json.dumps(name)}{space}:{space}{text}" for name, text in pairs)
        return f"{space}{{{space}" + f"{space},{space}".join(members) + f"{space}}}{space}"


STEPS: Final[tuple[Callable[[Sketch], None], ...]] = (
    *(Sketch.change_member,) * 4,
    *(Sketch.change_meta,) * 4,
    *(Sketch.repeat_member,) * 2,
    *(Sketch.repeat_meta,) * 2,
    *(Sketch.change_data,) * 2,
    Sketch.drop_member,
    Sketch.drop_meta,
    Sketch.nest,
    Sketch.empty_data,
    Sketch.shuffle,
)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Change bytes without regard to structure."""
    at = rng.randrange(len(content))
    kind = rng.randrange(8)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content + rng.choice((b"x", b"{}", b"\x00", b" ", b",", b"\n\n"))
    if kind == 2:
        return b"\xef\xbb\xbf" + content
    if kind == 3:
        return content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
    if kind == 4:
        return content[:at] + rng.choice((b"\xff", b"\xc0\xaf", b"\xed\xa0\x80")) + content[at:]
    if kind == 5:
        return b"[" + content + b"]"
    if kind == 6:
        return content[:at] + content[at + 1 :]
    return content.decode().encode(rng.choice(("utf-16", "utf-16-be", "utf-32", "latin-1")),
                                   "replace")  # fmt: skip


def bodies(count: int) -> Iterator[bytes]:
    """Yield that many different bodies, the same ones each time; the table's are among them."""
    rng = random.Random(SEED)
    seen: set[bytes] = set()
    waiting = [case.content for case in CASES]
    while len(seen) < count:
        if waiting:
            content = waiting.pop()
        else:
            sketch = Sketch(rng)
            for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3))):
                rng.choice(STEPS)(sketch)
            content = sketch.written().encode()
            if rng.random() < 0.1:
                content = damaged(content, rng)
        if content not in seen:
            seen.add(content)
            yield content
