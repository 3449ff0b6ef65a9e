"""Free text is found in whatever way an encoder has written it, on both engines."""

import base64
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from phpmq_lite.storage.search.json_spellings import json_spellings
from phpmq_lite.storage.search.language import SearchQuery, SearchTerm, parse_search
from phpmq_lite.storage.search.reader import Search
from tests.support.copied_readers import readers_of
from tests.support.fork_server import BrokerProcess
from tests.support.socket_client import AdminApi, SocketClient
from tests.unit.admin.cases import NOW_MS, Database

TEXTS: Final = (
    "order 1042", "Grüße", "ÅÉ", "世界 ☕", "😀 ok", "a/b", 'say "hi"', "back\\slash", "it's",
    "<b>bold</b>", "R&D", "1+1", "`code`", "a=b", "two\nlines", "tab\there", "\x1b[0m", "a\x7fb",
    "line\u2028end", "next\x85line", "<é href='/x'>&\"😀+\\`\u2029",
)  # fmt: skip

PHP: Final = """
[$texts, $all] = [json_decode(base64_decode($argv[1])), []];
$flags = [JSON_HEX_TAG, JSON_HEX_AMP, JSON_HEX_APOS, JSON_HEX_QUOT, JSON_UNESCAPED_SLASHES,
    JSON_UNESCAPED_UNICODE, JSON_UNESCAPED_LINE_TERMINATORS];
for ($chosen = 0; $chosen < 1 << count($flags); $chosen++) {
    $sum = array_sum(array_filter($flags, fn ($at) => $chosen >> $at & 1, ARRAY_FILTER_USE_KEY));
    $all[] = array_map(fn ($text) => base64_encode(json_encode(['text' => $text], $sum)), $texts);
}
echo json_encode($all);
"""
NODE: Final = """
const texts = JSON.parse(Buffer.from(process.argv[1], 'base64'));
const encoded = texts.map((text) => Buffer.from(JSON.stringify({ text })).toString('base64'));
console.log(JSON.stringify([encoded]));
"""
GO: Final = """package main
import ("bytes"; "encoding/base64"; "encoding/json"; "fmt"; "os")
func main() {
	given, _ := base64.StdEncoding.DecodeString(os.Args[1])
	var texts []string
	json.Unmarshal(given, &texts)
	all := [][]string{}
	for _, html := range []bool{true, false} {
		list := []string{}
		for _, text := range texts {
			var out bytes.Buffer
			encoder := json.NewEncoder(&out)
			encoder.SetEscapeHTML(html)
			encoder.Encode(map[string]string{"text": text})
			list = append(list, base64.StdEncoding.EncodeToString(out.Bytes()))
		}
		all = append(all, list)
	}
	written, _ := json.Marshal(all)
	fmt.Println(string(written))
}
"""


def run(*command: str) -> list[list[bytes]]:
    """Return the texts as a program of another language encodes them, once for each setting."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"missing: {command[0]}")
    given = base64.b64encode(json.dumps(TEXTS).encode()).decode()
    done = subprocess.run([*command, given], capture_output=True, timeout=200, check=True)
    return [[base64.b64decode(one) for one in texts] for texts in json.loads(done.stdout)]


def in_go(folder: Path) -> list[list[bytes]]:
    (folder / "encode.go").write_text(GO, encoding="utf-8")
    return run("go", "run", str(folder / "encode.go"))


def in_python(_: Path) -> list[list[bytes]]:
    return [
        [json.dumps({"text": text}, ensure_ascii=is_ascii).encode() for text in TEXTS]
        for is_ascii in (True, False)
    ]


def dotnet(text: str, escaped: Callable[[str], bool]) -> bytes:
    """Return the text as System.Text.Json writes it: escapes in upper case."""
    short = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r", "\\": "\\"}
    out = []
    for mark in text:
        if mark in short or (mark == '"' and not escaped(mark)):
            out.append("\\" + short.get(mark, mark))
        elif escaped(mark):
            units = mark.encode("utf-16-be").hex().upper()
            out += [f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)]
        else:
            out.append(mark)
    return f'{{"text":"{"".join(out)}"}}'.encode()


def in_dotnet(_: Path) -> list[list[bytes]]:
    """Its encoders: the default, one that allows all of Unicode, and the relaxed one."""
    html = "<>&'\"+`"
    invisible = "\x7f\x85\u2028\u2029"
    encoders: list[Callable[[str], bool]] = [
        lambda mark: not " " <= mark <= "~" or mark in html,
        lambda mark: mark < " " or mark in html + invisible or mark > "\uffff",
        lambda mark: mark < " " or mark in invisible or mark > "\uffff",
    ]
    return [[dotnet(text, escaped) for text in TEXTS] for escaped in encoders]


ENCODERS: Final[dict[str, Callable[[Path], list[list[bytes]]]]] = {
    "python": in_python,
    "php": lambda _: run("php", "-r", PHP, "--"),
    "node": lambda _: run("node", "-e", NODE),
    "go": in_go,
    "dotnet": in_dotnet,
}


def seq_of(message_id: str) -> int:
    return int(message_id[:16], 16)


@asynccontextmanager
async def search_in(database: Database) -> AsyncIterator[Search]:
    database.connection.close()
    readers = readers_of(database.path, count=1)
    try:
        yield Search(readers, now_ms=lambda: NOW_MS)
    finally:
        await readers.close()


@pytest.mark.parametrize("name", ENCODERS)
async def test_search_finds_a_text_as_every_encoder_writes_it(name: str, tmp_path: Path) -> None:
    """Live and settled messages; another text of the list is never found instead."""
    database = Database(tmp_path / "phpmq.db")
    database.queue("orders", 1)
    seqs: dict[int, set[int]] = {at: set() for at in range(len(TEXTS))}
    for settings in ENCODERS[name](tmp_path):
        for at, content in enumerate(settings):
            assert json.loads(content) == {"text": TEXTS[at]}
            for store in (database.message, database.settled):
                seqs[at].add(seq_of(store(1, content)))
    async with search_in(database) as search:
        for at, text in enumerate(TEXTS):
            query = SearchQuery((SearchTerm("text", text),))
            found = await search.freeze(query)
            assert (set(found.seqs), found.is_complete) == (seqs[at], True), text
            some = sorted(seqs[at])[:100]
            assert {row.seq for row in await search.matches(query, some, None)} == set(some)


def test_search_for_plain_words_compares_one_spelling() -> None:
    """So the usual search costs no more than before."""
    assert json_spellings("order_id 1042: a-b") == (b"order_id 1042: a-b",)
    assert len(json_spellings("größe")) == 5
    assert len(json_spellings("".join(TEXTS))) < 220


async def test_search_respects_case_as_its_help_says(tmp_path: Path) -> None:
    database = Database(tmp_path / "phpmq.db")
    database.queue("orders", 1)
    first = database.message(1, b'{"text":"Caf\\u00c9"}')
    database.message(1, '{"text":"café"}'.encode())
    async with search_in(database) as search:
        found = await search.freeze(parse_search("CafÉ"))
    assert list(found.seqs) == [seq_of(first)]


@pytest.mark.parametrize(
    "written", [b'{"x":"Gr\\u00FC\\u00DFe a\\/b"}', b'{"x":"Gr\\u00fc\\u00dfe a/b"}']
)
def test_text_is_found_in_lists_waits_exports_selections_and_redrives(
    broker: BrokerProcess, written: bytes
) -> None:
    admin, queue = AdminApi(broker.admin[0]), f"orders-{len(written)}"
    text = f'queue:{queue}* "Grüße a/b"'
    asked = quote(text)
    with urlopen(f"{admin.url}/api/v1/wait?q={asked}") as nothing:
        after = nothing.headers["X-Cursor"]
    with SocketClient(broker.port) as peer:
        peer.store(queue, written, b'{"x":"other"}')
        [found] = admin.get(f"/api/v1/messages?q={asked}")["items"]
        waited = admin.get(f"/api/v1/wait?q={asked}&after={quote(after)}&timeout=10")
        assert waited["id"] == found["id"]
        with urlopen(f"{admin.url}/api/v1/export?q={asked}") as exported:
            assert json.loads(exported.read().splitlines()[-1])["count"] == 1
        assert admin.post("/api/v1/selections", {"q": text})["count"] == 1
        peer.consume(queue, 2)
        for dispatch in peer.dispatches(2):
            peer.dead_letter(dispatch)
        peer.barrier()
    [record] = admin.get(f"/api/v1/messages?q={asked}%20state:ready")["items"]
    assert record["queue"] == f"{queue}.dlq"
    admin.post(f"/api/v1/dead/{queue}/redrive", {"q": '"Grüße a/b"'})
    with SocketClient(broker.port) as peer:
        peer.consume(queue, 2)
        [redriven] = peer.dispatches(1)
        assert redriven.content == written
    assert admin.queue(f"{queue}.dlq")["ready"] == 1
