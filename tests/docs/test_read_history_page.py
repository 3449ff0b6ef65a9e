"""The programs of the page about reading without Spark: incomplete answers, interruptions."""

import json
import runpy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import IncompleteRead
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from phpmq_lite.admin.http.problems import problem_of
from phpmq_lite.errors import RefusedError
from tests.docs.pages import blocks, rows, text_of
from tests.support.settled_folder import HISTORY_ID

PAGE: Final = "docs/guides/read-history.md"
Reply = Callable[[dict[str, str]], tuple[int, dict[str, str], bytes]]


def program(name: str) -> str:
    return next(block.text for block in blocks(PAGE) if block.file == name)


def stream(offsets: range) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"offset": pa.array(list(offsets), pa.int64())})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@contextmanager
def server(reply: Reply) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            split = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(split.query).items()}
            code, headers, body = reply(query | {"path": split.path.rpartition("/")[2]})
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_port}"
        finally:
            listener.shutdown()
            thread.join()


@pytest.fixture
def history(tmp_path: Path) -> dict[str, Any]:
    """Return the names of history.py."""
    (tmp_path / "history.py").write_text(program("history.py"))
    return runpy.run_path(str(tmp_path / "history.py"))


def call(history: dict[str, Any], url: str, **query: Any) -> Any:
    history["rows"].__globals__["URL"] = url
    return history["rows"](0, 10, **query)


def test_incomplete_answer_is_an_error(history: dict[str, Any]) -> None:
    fewer = (200, {"X-Row-Count": "10"}, stream(range(9)))
    with server(lambda _: fewer) as url, pytest.raises(OSError, match="9 of 10 rows came"):
        call(history, url)
    chunk = b"%x\r\n%b" % (len(stream(range(9))), stream(range(9))[:-200])
    cut = (200, {"X-Row-Count": "9", "Transfer-Encoding": "chunked"}, chunk)
    with server(lambda _: cut) as url, pytest.raises(IncompleteRead):
        call(history, url)


def test_refusal_shows_its_code_and_a_busy_broker_is_asked_again(
    history: dict[str, Any],
) -> None:
    replies = [
        (503, {"Retry-After": "0"}, b"busy"),
        (200, {"X-Row-Count": "10"}, stream(range(10))),
        (409, {}, b'{"code": "gap"}'),
    ]
    seen = []

    def reply(query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        seen.append(query)
        return replies.pop(0)

    with server(reply) as url:
        assert call(history, url, outcomes="dead").num_rows == 10
        with pytest.raises(RuntimeError, match='"code": "gap"'):
            call(history, url)
    assert seen[:2] == [{"lo": "0", "hi": "10", "outcomes": "dead", "path": "arrow"}] * 2


def test_interrupted_follower_has_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, is_broken = [25], [False]

    def reply(query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        if query["path"] == "bounds":
            return 200, {}, json.dumps({"history_id": HISTORY_ID, "lo": 0, "hi": last[0]}).encode()
        lo, hi = int(query["lo"]), int(query["hi"])
        count = hi - lo + (is_broken[0] and hi > 20)
        return 200, {"X-Row-Count": str(count)}, stream(range(lo + 1, hi + 1))

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    follow = program("follow.py").replace("STEP = 1_000_000", "STEP = 10")
    files = str(tmp_path / "orders-history" / "*.parquet")
    with server(reply) as url:
        text = program("history.py").replace("http://127.0.0.1:9101/api/v1/pipeline/history", url)
        (tmp_path / "history.py").write_text(text)
        for hi, breaks in ((25, True), (25, False), (31, False), (31, False)):
            last[0], is_broken[0] = hi, breaks
            if breaks:
                with pytest.raises(OSError, match="5 of 6 rows came"):
                    exec(follow, {})
                assert pl.scan_parquet(files).collect()["offset"].to_list() == [*range(1, 21)]
                continue
            exec(follow, {})
            query = f"SELECT \"offset\" FROM read_parquet('{files}') ORDER BY ALL"
            read = duckdb.connect().execute(query).fetchall()
            assert [row[0] for row in read] == [*range(1, hi + 1)]


def test_parameters_are_those_of_the_api() -> None:
    api = rows("docs/reference/api.md", "| query | type | what |\n| --- | --- | --- |\n| `lo` *")
    known = {row[0].partition("`")[2].partition("`")[0] for row in api}
    named = {
        name
        for row in rows(PAGE, "| parameter of `arrow` |")
        for name in row[0].replace("`", "").split(", ")
    }
    assert named == known - {"queues"}
    assert "`queues`" in next(row for row in rows(PAGE, "| parameter") if "`queue`" in row[0])[1]


def test_gap_has_the_status_that_the_page_names() -> None:
    problem = problem_of(RefusedError("gap", "x"))
    assert problem is not None
    assert f"fails with {problem.status} and the code `{problem.code}`" in text_of(PAGE)
