"""The history as Arrow over HTTP from a real broker: complete, or visibly broken."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import pytest_asyncio

from phpmq_lite.admin.messages import arrow_export
from phpmq_lite.client import connect
from phpmq_lite.installation import install_command
from phpmq_lite.model import checksum
from tests.support.export_site import FAST_PROGRAM, ExportSite, site_on
from tests.support.fork_server import broker_process
from tests.support.http_users import BrokerFixture, wait_until
from tests.support.settled_folder import (
    HISTORY_ID,
    NOW_MS,
    QUEUES,
    ShortStreamError,
    execute_in_process,
    is_running,
    move_to_engine,
    read_counted,
    remove_history_upto,
    settled_folder,
)
from tests.support.stored_rows import stored_rows

ROWS = 50_000
WHOLE = f"lo=0&hi={ROWS}&body=1"  # 40 MiB in 5 slices, more than pipes and sockets hold

reading = pytest.mark.asyncio(loop_scope="module")  # with ``shared`` and ``large``


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[ExportSite]:
    async with site_on(tmp_path / "data", 1_000) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ExportSite]:
    """Run a site for all tests that leave its history as it is; its export process starts once."""
    async with site_on(tmp_path_factory.mktemp("shared") / "data", 1_000) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def broken(shared: ExportSite) -> AsyncIterator[ExportSite]:
    """Return ``shared`` for a test of broken export processes."""
    yield shared
    shared.exports.program, shared.exports.stalled_s = FAST_PROGRAM, 30


@pytest.fixture(scope="module")
def large_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a stopped data folder of ``ROWS`` rows; the tests copy it."""
    data = tmp_path_factory.mktemp("large") / "data"
    settled_folder(data, ROWS, size=600)
    return data


@pytest.fixture
def large_copy(large_data: Path, tmp_path: Path) -> Path:
    data = shutil.copytree(large_data, tmp_path / "data")
    move_to_engine(data)
    return data


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def large_site(
    large_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ExportSite]:
    data = shutil.copytree(large_data, tmp_path_factory.mktemp("running") / "data")
    async with site_on(data) as made:
        yield made


@pytest.fixture
def large(large_site: ExportSite) -> ExportSite:
    """Return a site of ``ROWS`` rows that has counted no end of an export yet."""
    large_site.exports.ends.clear()
    return large_site


# -- responses


@reading
async def test_range_is_complete_and_its_count_comes_first(shared: ExportSite) -> None:
    async with shared.session.get(shared.url("lo=10&hi=9999999&body=1")) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "application/vnd.apache.arrow.stream"
        assert response.headers["X-Row-Count"] == "990"
        assert response.headers["X-History-Id"] == HISTORY_ID
        assert response.headers["X-Offset-Lo"] == "10"
        assert response.headers["X-Offset-Hi"] == "1000"
        table = pa.ipc.open_stream(await response.read()).read_all()
    assert table["offset"].to_pylist() == list(range(11, 1_001))
    assert table["body"][0].as_py() == b"%040d" % 21


@reading
async def test_empty_range_has_its_columns(shared: ExportSite) -> None:
    table = await shared.read("lo=7&hi=7&columns=queue,offset")
    assert (table.num_rows, table.schema.names) == (0, ["offset", "queue"])


@reading
async def test_queues_come_by_name_and_by_pattern(shared: ExportSite) -> None:
    for query in ("queue=mail", "queues=mail", "pattern=m*", "queue=mail&queue=orders&pattern=m*"):
        table = await shared.read(f"lo=0&hi=1000&{query}")
        assert set(table["queue"].to_pylist()) == {"mail"}
        assert table.num_rows == 334
    table = await shared.read("lo=0&hi=1000&queue=mail&queues=orders,orders.eu")
    assert table.num_rows == 1_000


TIMES = f"settled_from_ms={NOW_MS + 100_000}&settled_until_ms={NOW_MS + 200_000}"


@reading
@pytest.mark.parametrize(
    ("query", "filters", "expected"),
    [
        ("", "", range(1, 1_001)),
        (TIMES, "settled_from,settled_until", range(100, 200)),
        (f"published_from_ms={NOW_MS + 990}&queue=mail", "published_from", range(991, 1_001, 3)),
        ("urn=urn:orders:1&urn=x", "urns", [n for n in range(13, 1_001, 4) if n % 3]),
        ("trace_id=0000000a-0000&trace_id=000003e7-0000", "traces", [10]),
        (f"{TIMES}&outcomes=dead&body=1", "settled_from,settled_until", range(102, 200, 4)),
    ],
)
async def test_rows_are_filtered_and_the_filters_named(
    shared: ExportSite, query: str, filters: str, expected: Sequence[int]
) -> None:
    url = shared.url(f"lo=0&hi=1000&columns=offset&{query}")
    async with shared.session.head(url) as response:
        assert response.headers["X-Row-Count"] == str(len(expected))
        assert response.headers["X-Row-Filters"] == filters
    assert (await read_counted(shared.session, url))["offset"].to_pylist() == [*expected]


@reading
async def test_bounds_of_a_time_include_its_rows(shared: ExportSite) -> None:
    status, bounds = await shared.get(TIMES, "history/bounds")
    assert status == 200
    assert 84 <= bounds["settled_lo"] < 100
    assert 199 <= bounds["settled_hi"] < 216
    status, bounds = await shared.get("settled_until_ms=5", "history/bounds")
    assert (bounds["settled_lo"], bounds["settled_hi"]) == (0, 0)


@reading
async def test_head_returns_only_the_count(shared: ExportSite) -> None:
    for _ in range(3):
        async with shared.session.head(shared.url("lo=0&hi=1000&queue=mail")) as response:
            assert (response.status, response.headers["X-Row-Count"]) == (200, "334")
    assert len(shared.exports.pids) == 1


async def test_events_are_read_with_the_rights_of_the_reader(site: ExportSite) -> None:
    execute_in_process(
        site.database,
        "INSERT INTO event (seq, at_ms, kind, detail) SELECT seq, 5, 'requeue', 'x' FROM history",
    )
    table = await read_counted(site.session, site.url("lo=10&hi=40", "history/events"))
    assert table["history_offset"].to_pylist() == list(range(11, 41))
    assert set(zip(table["kind"].to_pylist(), table["detail"].to_pylist(), strict=True)) == {
        ("requeue", "x")
    }
    home = BrokerFixture(site.broker)
    await home.add_user("anna")
    secret = await home.token("narrow", "viewer", "orders*")
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {secret}"}) as program:
        narrow = ExportSite(site.broker, program)
        table = await read_counted(program, site.url("lo=0&hi=1000", "history/events"))
        assert set(table["queue"].to_pylist()) == {"orders", "orders.eu"}
        refusal = await narrow.refusal("lo=0&hi=9&queue=mail", "history/events")
        assert refusal == (403, "foreign_queue")
        refusal = await narrow.refusal("lo=0&hi=1000001", "history/events")
        assert refusal == (422, "invalid")
        assert await narrow.refusal("lo=1001&hi=1002", "history/events") == (409, "gap")


async def test_bounds_describe_the_history(site: ExportSite) -> None:
    status, told = await site.get("", "history/bounds")
    assert status == 200
    expected = {"history_id": HISTORY_ID, "lo": 0, "hi": 1_000, "lo_deleted": 0}
    expected |= dict.fromkeys(("offset", "queues", "settled_lo", "settled_hi"))
    assert told == expected
    remove_history_upto(site.database, 100)
    status, told = await site.get("at_ms=1800000500000&queues=1", "history/bounds")
    assert (told["lo"], told["hi"], told["lo_deleted"]) == (100, 1_000, 100)
    assert (told["offset"], told["queues"]) == (499, sorted(QUEUES))


async def test_bounds_note_how_far_a_reader_is(site: ExportSite) -> None:
    for position in (400, 500):
        status, bounds = await site.report("nightly", position)
        assert (status, bounds) == (200, (await site.get("", "history/bounds"))[1])
    assert (await site.get("reader=other&position=1", "history/bounds"))[0] == 200  # writes nothing
    told = execute_in_process(site.database, 'SELECT name, "offset" FROM reader')
    assert told == "[('nightly', 500)]"
    status, told = await site.report("\0", 1)
    assert (status, told["code"]) == (422, "bad_name")
    assert "reader name" in told["detail"]


@reading
@pytest.mark.parametrize(
    "header", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}]
)
async def test_page_of_another_site_notes_no_reader(
    shared: ExportSite, header: dict[str, str]
) -> None:
    status, _ = await shared.report("evil", 1, **header)
    assert status in (401, 403)
    assert execute_in_process(shared.database, "SELECT name FROM reader") == "[]"
    # Reading writes nothing, but without users, an origin elsewhere is a proxy's sign.
    assert (await shared.get("", "history/bounds", **header))[0] == (
        401 if "Origin" in header else 200
    )


@reading
@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("lo=0", 422, "invalid"),
        ("lo=x&hi=2", 422, "invalid"),
        ("lo=-1&hi=2", 422, "invalid"),
        ("lo=3&hi=2", 422, "bad_value"),
        ("lo=0&hi=2&columns=sice", 422, "bad_value"),
        ("lo=0&hi=2&columns=body", 422, "bad_value"),
        ("lo=0&hi=2&queue=nowhere", 404, "unknown_queue"),
        ("lo=0&hi=2&queue=%01", 422, "invalid"),
        ("lo=0&hi=2&history=another", 409, "other_history"),
        ("lo=1001&hi=2000", 409, "gap"),
        ("lo=0&hi=2&settled_from_ms=5&settled_until_ms=5", 422, "invalid"),
        ("lo=0&hi=2&published_from_ms=6&published_until_ms=5", 422, "invalid"),
        ("lo=0&hi=2&published_from_ms=-6", 422, "invalid"),
        ("lo=0&hi=2&urn=a%00b", 422, "invalid"),
        (f"lo=0&hi=2&trace_id={'x' * 1_001}", 422, "invalid"),
    ],
)
async def test_invalid_range_is_a_problem(
    shared: ExportSite, query: str, status: int, code: str
) -> None:
    assert await shared.refusal(query) == (status, code)
    assert (await shared.read("lo=0&hi=5")).num_rows == 5  # the process continues


async def test_gap_is_an_error_or_skipped(site: ExportSite) -> None:
    remove_history_upto(site.database, 100)
    status, told = await site.get("lo=50&hi=200")
    assert (status, told["code"]) == (409, "gap")
    assert told["detail"] == "Rows up to 100 were removed; the request begins above 50."
    table = await site.read("lo=50&hi=200&gap=ok")
    assert table["offset"].to_pylist() == list(range(101, 201))


async def test_gap_of_real_retention(tmp_path: Path) -> None:
    async with site_on(tmp_path / "data", 1_000, history={"rows": 400, "days": 36_500}) as site:
        async with asyncio.timeout(30):
            while (await site.get("", "history/bounds"))[1]["lo"] < 500:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (await site.get("lo=0&hi=1000"))[0] == 409
        table = await site.read("lo=0&hi=1000&gap=ok")
        [(kept,)] = _rows(site.database, "SELECT count(*) FROM history WHERE outcome <> 5")
        found = pc.sum(pc.not_equal(table["outcome"], "deleted")).as_py()
        assert found == kept == 360


def _rows(database: Path, text: str) -> list[tuple[Any, ...]]:
    return stored_rows(database.parent, text)


# -- permissions


async def test_reader_sees_only_permitted_queues(site: ExportSite) -> None:
    home = BrokerFixture(site.broker)
    await home.add_user("anna")
    secret = await home.token("narrow", "viewer", "orders*")
    headers = {"Authorization": f"Bearer {secret}"}
    async with aiohttp.ClientSession(headers=headers) as program:
        table = await read_counted(program, site.url("lo=0&hi=1000"))
        assert set(table["queue"].to_pylist()) == {"orders", "orders.eu"}
        async with program.head(site.url("lo=0&hi=1000")) as response:
            assert response.headers["X-Row-Count"] == str(table.num_rows)
        async with program.head(site.url("lo=0&hi=1000&queue=mail")) as response:
            assert (response.status, "X-Row-Count" in response.headers) == (403, False)
        table = await read_counted(program, site.url("lo=0&hi=1000&pattern=*a*"))
        assert table.num_rows == 0
        narrow = ExportSite(site.broker, program)
        assert await narrow.refusal("lo=0&hi=9&queue=mail") == (403, "foreign_queue")
        status, told = await narrow.get("queues=1", "history/bounds")
        assert (status, told["queues"]) == (200, ["orders", "orders.eu"])
        assert await narrow.refusal("lo=0&hi=9&subscription=s", "claims/arrow") == (403, "role")


async def test_claims_are_for_operators_of_their_queue(site: ExportSite) -> None:
    execute_in_process(
        site.database,
        "INSERT INTO message (seq, token, queue_id, position, state, published_at, deliveries,"
        f" size, crc) VALUES (5001, 1, 1, 1, 1, 0, 1, 1, {checksum(5001, b'a')})",
        "INSERT INTO body VALUES (5001, x'61')",
        "INSERT INTO subscription VALUES (7, 'nightly', 1, 2, 0, 0)",
        "INSERT INTO claim VALUES (7, 1, 5001, 0)",
    )
    home = BrokerFixture(site.broker)
    await home.add_user("anna")
    url = site.url("lo=0&hi=1&subscription=nightly", "claims/arrow")
    answers = {}
    for globs in ("ord*", "mail"):
        secret = await home.token(globs.strip("*"), "operator", globs)
        headers = {"Authorization": f"Bearer {secret}"}
        async with aiohttp.ClientSession(headers=headers) as program:
            async with program.get(url) as response:
                answers[globs] = response.status
            if globs == "ord*":
                table = await read_counted(program, url)
                assert table["body"].to_pylist() == [b"a"]
    assert answers == {"ord*": 200, "mail": 403}


async def test_claims_come_the_same_at_each_reading_until_they_are_acknowledged(
    site: ExportSite,
) -> None:
    async with connect(site.broker.host, site.broker.port) as client:
        await client.publish_many("orders", [b"%d" % n for n in range(5)])
    claims = site.url("", "claims").rstrip("?")
    asked: dict[str, Any] = {"subscription": "nightly", "queue": "orders", "max_messages": 3}
    headers = {"Origin": claims.partition("/api")[0]}
    async with site.session.post(f"{claims}/claim", json=asked, headers=headers) as response:
        assert (response.status, await response.json()) == (200, {"hi": 3})
    url = site.url("lo=0&hi=3&subscription=nightly", "claims/arrow")
    first = await read_counted(site.session, url)
    assert first["claim"].to_pylist() == [1, 2, 3]
    assert first["body"].to_pylist() == [b"0", b"1", b"2"]
    assert await read_counted(site.session, url) == first
    asked = {"subscription": "nightly", "upto": 2}
    async with site.session.post(f"{claims}/ack", json=asked, headers=headers) as response:
        assert response.status == 200
    assert await site.refusal("lo=0&hi=3&subscription=nightly", "claims/arrow") == (409, "gap")
    url = site.url("lo=2&hi=3&subscription=nightly", "claims/arrow")
    assert (await read_counted(site.session, url))["claim"].to_pylist() == [3]
    refused = await site.refusal("lo=0&hi=3&subscription=weekly", "claims/arrow")
    assert refused == (404, "unknown_subscription")


# -- failures


@reading
async def test_incomplete_stream_breaks_the_connection(broken: ExportSite) -> None:
    for how in ("short", "failing", "leaving", "stalling"):  # twice the limit of exports
        broken.break_exports(how)
        broken.exports.stalled_s = 3 if how == "stalling" else 30
        with pytest.raises(aiohttp.ClientPayloadError):
            await broken.read("lo=0&hi=10")
        await wait_until(lambda: not broken.exports.pids)
    broken.exports.program, broken.exports.stalled_s = FAST_PROGRAM, 30
    assert (await broken.read("lo=0&hi=10")).num_rows == 10


@reading
async def test_only_the_row_count_reveals_a_short_stream_with_a_clean_end(
    broken: ExportSite,
) -> None:
    broken.break_exports("lying")
    async with broken.session.get(broken.url("lo=0&hi=10")) as response:
        assert pa.ipc.open_stream(await response.read()).read_all().num_rows == 5
    with pytest.raises(ShortStreamError, match="5 rows came, 10 were announced"):
        await broken.read("lo=0&hi=10")


@reading
@pytest.mark.parametrize("how", ["dying", "silent", "babbling"])
async def test_process_that_does_not_begin_is_a_problem(broken: ExportSite, how: str) -> None:
    broken.break_exports(how)
    broken.exports.stalled_s = 1 if how == "silent" else 30
    assert await broken.refusal("lo=0&hi=10") == (503, "storage")
    await wait_until(lambda: not broken.exports.pids)


async def test_rows_removed_during_an_export_break_the_connection(large_copy: Path) -> None:
    async with site_on(large_copy) as site, site.session.get(site.url(WHOLE)) as response:
        assert response.status == 200
        remove_history_upto(site.database, ROWS - 1_000)  # far ahead of the buffered rows
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


@reading
async def test_third_export_is_asked_to_retry(large: ExportSite) -> None:
    url = large.url(WHOLE)
    async with large.session.get(url) as first, large.session.get(url) as second:
        async with large.session.get(url) as third:
            assert (third.status, third.headers["Retry-After"]) == (503, "1")
            told = await third.json()
            assert (told["code"], told["status"]) == ("busy", 503)
        assert len(large.exports.pids) == 2
        async with large.session.get(f"{large.broker.admin_url.rstrip('/')}/metrics") as response:
            lines = (await response.text()).splitlines()
        assert {'phpmq_exports_total{end="busy"} 1.0', "phpmq_exports_running 2.0"} <= {*lines}
        for response in (first, second):
            table = pa.ipc.open_stream(await response.read()).read_all()
            assert table.num_rows == ROWS
    assert (await large.read(WHOLE)).num_rows == ROWS
    assert len(large.exports.pids) == 2  # the same ones
    assert large.exports.ends == {"busy": 1, "whole": 3}


@reading
async def test_reader_that_leaves_frees_its_place(large: ExportSite) -> None:
    for _ in range(3):
        async with large.session.get(large.url(WHOLE)) as response:
            assert len(await response.content.readexactly(1_000)) == 1_000
            response.close()
    await wait_until(lambda: not large.exports.running)
    assert large.exports.ends == {"left": 3}
    assert (await large.read(WHOLE)).num_rows == ROWS


@reading
async def test_killed_process_breaks_the_connection(large: ExportSite) -> None:
    await large.read("lo=0&hi=5")
    async with large.session.get(large.url(WHOLE)) as response:
        [pid] = large.exports.pids
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert (await large.read(WHOLE)).num_rows == ROWS
    assert pid not in large.exports.pids


@reading
@pytest.mark.parametrize("bound", ["STALLED_S", "WHOLE_S"])
async def test_reader_that_takes_too_long_loses_its_connection(
    large: ExportSite, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(arrow_export, bound, 0.3)
    async with large.session.get(large.url(WHOLE)) as response:
        await wait_until(lambda: not large.exports.running)
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
        assert large.exports.ends == {"stalled": 1}


@reading
@pytest.mark.slow
async def test_pauses_do_not_count_for_how_long_an_export_may_take(
    large: ExportSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        async def pause(self) -> float:
            await asyncio.sleep(0.3)
            return 0.3

    monkeypatch.setattr(arrow_export, "WHOLE_S", 5.0)  # the export alone takes 1 s, under load 2
    monkeypatch.setattr(large.exports, "_pacer", Slow())
    assert (await large.read(WHOLE)).num_rows == ROWS  # about 40 pieces, so 12 s of pauses


@reading
async def test_idle_process_that_was_killed_is_replaced(shared: ExportSite) -> None:
    await shared.read("lo=0&hi=5")
    [pid] = shared.exports.pids
    os.kill(pid, signal.SIGKILL)
    assert (await shared.read("lo=0&hi=5")).num_rows == 5
    assert shared.exports.pids != [pid]


@reading
async def test_message_traffic_slows_an_export_down(shared: ExportSite) -> None:
    """This tests when it pauses; ``tests/unit/export/test_exports.py`` covers the rest."""
    before = shared.exports._pacer._passed()
    await shared.read("lo=0&hi=5")
    assert shared.exports._pacer._passed() == before
    async with connect(shared.broker.host, shared.broker.port) as client:
        await client.publish("q", b"x")
    assert shared.exports._pacer._passed() > before


async def test_missing_extra_is_named(site: ExportSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    status, told = await site.get("lo=0&hi=10")
    assert (status, told["code"]) == (501, "no_arrow")
    assert install_command("export") in told["detail"]
    assert (await site.get("", "history/bounds"))[0] == 200
    assert site.exports.pids == []


# -- under load


async def test_export_while_messages_pass_is_exact(site: ExportSite) -> None:
    """Rows are added and removed while ranges are read; each range equals the table."""
    total, exports = 3_000, 0

    async def publish() -> None:
        async with connect(site.broker.host, site.broker.port) as client:
            for at in range(0, total, 100):
                await client.publish_many("live", [b"%d" % n for n in range(at, at + 100)])

    async def consume() -> None:
        async with (
            connect(site.broker.host, site.broker.port) as client,
            client.consume("live", credit=200) as deliveries,
        ):
            for _ in range(total):
                (await anext(deliveries)).ack()

    lo = 0
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(publish())
        tasks.create_task(consume())
        while lo < 1_000 + total:
            hi = (await site.get("", "history/bounds"))[1]["hi"]
            table = await site.read(f"lo={lo}&hi={hi}&body=1")
            assert table["offset"].to_pylist() == list(range(lo + 1, hi + 1))
            exports += 1
            lo = hi
    assert exports > 1
    table = await site.read(f"lo=0&hi={lo}&queue=live&body=1")
    assert sorted(map(int, table["body"].to_pylist())) == list(range(total))
    assert set(table["outcome"].to_pylist()) == {"acked"}


@pytest.mark.slow
async def test_many_rows_agree_with_sqlite(tmp_path: Path) -> None:
    rows = 200_000
    async with site_on(tmp_path / "data", rows) as site:
        table = await site.read(f"lo=0&hi={rows}")
        text = 'SELECT count(*), sum("offset"), sum(size), count(*) - count(attempts) FROM history'
        [expected] = _rows(site.database, text)
        nulls = table["attempts"].null_count
        sums = [pc.sum(table[name]).as_py() for name in ("offset", "size")]
        assert (table.num_rows, *sums, nulls) == expected
        text = "SELECT queue_id, count(*) FROM history GROUP BY queue_id ORDER BY queue_id"
        counts = pc.value_counts(table["queue"]).to_pylist()
        found = {row["values"]: row["counts"] for row in counts}
        assert [(n, found[QUEUES[n - 1]]) for n in (1, 2, 3)] == _rows(site.database, text)


# -- how export processes end


async def test_idle_process_ends(site: ExportSite) -> None:
    site.exports._idle_s = 0
    await site.read("lo=0&hi=5")
    await wait_until(lambda: not site.exports.pids)


async def test_processes_end_with_the_broker(large_copy: Path) -> None:
    async with aiohttp.ClientSession(read_bufsize=1 << 16) as session:
        async with site_on(large_copy) as site:
            response = await session.get(site.url(WHOLE))
            pids = site.exports.pids
            assert len(pids) == 1
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert not any(map(is_running, pids))
    assert not (large_copy / "phpmq.db-wal").exists()  # no process had it open at the end


@pytest.mark.sample("True")
@pytest.mark.parametrize("is_busy", [False, True])
async def test_no_process_is_left_when_the_broker_is_killed(
    large_copy: Path, is_busy: bool
) -> None:
    flags = ("--admin", "127.0.0.1:0", "--set", "history.days=36500")
    with broker_process(large_copy, *flags) as broker:
        url = f"{broker.admin[0].rstrip('/')}/api/v1/pipeline/history/arrow?"
        async with aiohttp.ClientSession() as session:
            if is_busy:
                response = await session.get(f"{url}{WHOLE}")
            else:
                await read_counted(session, f"{url}lo=0&hi=5")
            children = _children(broker.pid)
            assert len(children) == 1
            broker.kill()
            if is_busy:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()
        await wait_until(lambda: not any(map(is_running, children)))


def _children(pid: int) -> Sequence[int]:
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += map(int, (tasks / "children").read_text("ascii").split())
    return found
