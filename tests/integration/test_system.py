"""The system page, health and the restart report, with the whole broker."""

import asyncio
import io
import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite import logs
from phpmq_lite.client import connect
from phpmq_lite.storage.sqlite.database_file import OpenedFiles
from phpmq_lite.storage.sqlite.integrity.wal_check import WalScan
from phpmq_lite.storage.sqlite.store import SqliteStore
from phpmq_lite.storage.start_report import StartRecorder
from phpmq_lite.testing import running_service
from tests.support.certificates import CertificateAuthority
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.http_site import HttpSite, running_site
from tests.support.http_users import HttpUser, broker_fixture
from tests.support.stored_rows import stored_rows
from tests.support.stores import ON_POSTGRES
from tests.unit.admin.cases import NOW_MS, Database


async def text_of(visitor: HttpSite | HttpUser, path: str, status: int = 200) -> str:
    page = await visitor.get(path)
    assert page.status == status, page.text
    return page.text.replace("<wbr>", "")  # where a long name may be broken


# -- the page


async def test_page_has_versions_storage_and_limits(site: HttpSite, tmp_path: Path) -> None:
    page = (await site.get("/system")).text
    assert ">limits.<wbr>http_<wbr>connections_<wbr>per_<wbr>address<" in page
    text = page.replace("<wbr>", "")
    of_engine = (
        ("Role", "Confirmed by")
        if ON_POSTGRES
        else (sqlite3.sqlite_version, "Write-ahead log", str(tmp_path / "data"))
    )
    for part in (*of_engine, "limits.max_queues", "Retention", "control.sock"):
        assert part in text


async def test_settings_are_shown_with_their_source(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data", ui={"environment": "staging"}) as site:
        text = await text_of(site, "/system?tab=settings")
        items = {item["setting"]: item for item in (await site.ok("GET", "/config"))["items"]}
    assert "history.rows" in text
    assert items["ui.environment"]["value"] == "staging"
    assert items["limits.max_content"] == {
        "setting": "limits.max_content", "value": 8 << 20, "text": "8 MiB", "default": "8 MiB",
        "source": "default", "help": items["limits.max_content"]["help"],
        "bounds": "at least 1, at most 512 MiB",
    }  # fmt: skip


@pytest.fixture
def configured(log_stream: io.StringIO) -> None:
    logs.configure(stream=log_stream)


@pytest.mark.usefixtures("configured")
async def test_log_is_shown_by_level_and_escaped(tmp_path: Path) -> None:
    log = logs.get_logger("phpmq_lite.test")
    async with running_site(tmp_path / "data") as site:
        log.warning("a <b>\u202eline", client=7)
        log.info("an ordinary one")
        everything = await text_of(site, "/system?tab=log")
        warnings = await text_of(site, "/system?tab=log&level=warning")
    assert "a &lt;b&gt;\\u202eline" in everything
    assert "client=7" in warnings
    assert "an ordinary one" in everything
    assert "an ordinary one" not in warnings


async def test_certificate_is_shown_with_its_expiry(tmp_path: Path) -> None:
    cert, key = CertificateAuthority(tmp_path).make("server")
    async with running_site(tmp_path / "data", tcp={"tls_cert": cert, "tls_key": key}) as site:
        text = await text_of(site, "/system")
    assert "Certificates" in text
    assert "expires" in text
    assert str(cert) in text


# -- reloaded settings, and the access log


async def written(process: BrokerProcess, event: str) -> dict[str, Any]:
    """Wait for a line of the log."""
    async with asyncio.timeout(20):
        while True:
            lines = [json.loads(line) for line in process.log.read_text("utf-8").splitlines()]
            found = [line for line in lines if line["event"] == event]
            if found:
                return dict(found[-1])
            await asyncio.sleep(0.02)


async def test_settings_are_reloaded_on_sighup(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[history]\ndays = 5\n")
    flags = ("--admin", "127.0.0.1:0", "--config", str(config), "--log-format", "json")
    with broker_process(tmp_path / "data", *flags) as process:
        config.write_text("[history]\ndays = 2\n[log]\naccess = true\n[limits]\nwindow = 7\n")
        os.kill(process.pid, signal.SIGHUP)
        line = await written(process, "reloaded")
        assert (line["changed"], line["needs_restart"]) == (
            ["history.days", "log.access"], ["limits.window"],
        )  # fmt: skip
        async with HttpUser(process.admin[0]) as user:
            listed = json.loads((await user.get("/api/v1/config")).text)["items"]
        items = {item["setting"]: item for item in listed}
        assert items["history.days"]["value"] == 2
        assert items["history.days"]["source"] == f"file {config}"
        assert items["limits.window"]["value"] == 3_000
        access = await written(process, "request")
        assert (access["area"], access["path"], access["status"]) == (
            "access", "/api/v1/config", 200,
        )  # fmt: skip
        config.write_text("[history]\ndais = 1\n")
        os.kill(process.pid, signal.SIGHUP)
        line = await written(process, "not_reloaded")
        assert "history.days" in line["reason"]


async def test_access_log_has_no_query(tmp_path: Path) -> None:
    flags = ("--admin", "127.0.0.1:0", "--set", "log.access=true", "--log-format", "json")
    with broker_process(tmp_path / "data", *flags) as process:
        async with HttpUser(process.admin[0]) as site:
            await text_of(site, "/queues?q=secret")
        line = await written(process, "request")
    assert (line["method"], line["path"], line["actor"]) == ("GET", "/queues", "local")
    assert line["request_id"]
    assert "secret" not in process.log.read_text("utf-8")


# -- health


async def test_health_has_details(site: HttpSite) -> None:
    assert await text_of(site, "/livez") == "alive\n"
    assert await text_of(site, "/startupz") == "started\n"
    lines = (await text_of(site, "/readyz")).splitlines()
    assert lines[0] == "ready", lines
    expected = {"migrated", "writable", "replicas" if ON_POSTGRES else "disk"}
    assert {line.split()[1].rstrip(":") for line in lines[1:]} >= expected


async def test_anonymous_visitor_gets_one_word_and_no_metrics(tmp_path: Path) -> None:
    async with (
        broker_fixture(tmp_path / "data", admin={"login": "always"}) as home,
        HttpUser(home.url) as site,
    ):
        assert await text_of(site, "/readyz") == "ready\n"
        assert await text_of(site, "/livez") == "alive\n"
        for path in ("/metrics", "/api/v1/config", "/api/v1/audit"):
            response = await site.get(path)
            assert response.status in (303, 401, 403), path
            assert "phpmq_ready" not in response.text


async def test_broker_without_its_folder_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenedFiles, "check", lambda _: None)  # within a second it ends the process
    data = tmp_path / "data"
    async with running_site(data) as site:
        data.rename(tmp_path / "away")
        try:
            text = await text_of(site, "/readyz", 503)
        finally:
            (tmp_path / "away").rename(data)
    assert text.splitlines()[0] == "not ready"


# -- the end


async def test_drain_ends_the_broker_and_leaves_an_audit_row(site: HttpSite) -> None:
    drained = asyncio.Event()
    site.broker.service.drain = drained.set
    answer = await site.post("/system/drain", confirm="drain", reason="a new disk")
    assert (answer.status, answer.location) == (303, "/system")
    assert drained.is_set()
    row = (await site.audit())[0]
    assert (row["action"], row["reason"], row["result"]) == (
        "system.drain", "a new disk", "done",
    )  # fmt: skip


async def test_drain_needs_its_word_and_a_reason(site: HttpSite) -> None:
    drained = asyncio.Event()
    site.broker.service.drain = drained.set
    for word, reason, result in (
        ("", "why", "not_confirmed"), ("drane", "why", "not_confirmed"), ("drain", " ", "invalid"),
    ):  # fmt: skip
        assert (await site.post("/system/drain", confirm=word, reason=reason)).status == 422
        assert not drained.is_set()
        assert (await site.audit())[0]["result"] == result


async def test_drain_is_confirmed_with_the_environment_if_set(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data", ui={"environment": "production"}) as site:
        site.broker.service.drain = lambda: None
        assert (await site.post("/system/drain", confirm="drain", reason="x")).status == 422
        assert (await site.post("/system/drain", confirm="production", reason="x")).status == 303


# -- the restart report


async def reports(site: HttpSite | HttpUser) -> str:
    return await text_of(site, "/system?tab=starts")


async def test_first_start_reports_nothing(site: HttpSite) -> None:
    assert "The broker was down" not in await text_of(site, "/")
    assert "First startup" in await reports(site)


async def test_clean_stop_is_reported_and_dismissed(tmp_path: Path) -> None:
    async with running_service(tmp_path / "data"):
        pass
    async with running_site(tmp_path / "data") as site:
        text = await reports(site)
        assert "restarted after a clean stop" in text
        assert "The broker was down" in await text_of(site, "/")
        answer = await site.post("/restart/dismiss", start="2", next="/queues")
        assert (answer.status, answer.location) == (303, "/queues")
        assert "Dismissed by" in await reports(site)
        assert "The broker was down" not in await text_of(site, "/")
        assert (await site.post("/restart/dismiss", start="99")).status == 404


async def test_killed_broker_reports_its_recovery(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker_process(data, "--admin", "127.0.0.1:0") as process:
        async with connect("127.0.0.1", process.port) as client:
            await client.publish_confirmed("orders", b"x")
            async for _ in client.consume("orders", 1):
                await client.publish_confirmed("others", b"x")  # the dispatch is stored by then
                process.kill()
                break
        process.start()
        async with HttpUser(process.admin[0]) as site:
            text = await reports(site)
    assert "after an unclean stop" in text
    assert ("Recovered" in text) is not ON_POSTGRES  # from the write-ahead log
    assert "Returned" in text


def test_start_counts_what_expired_while_it_was_down(tmp_path: Path) -> None:
    database = Database(tmp_path / "phpmq.db")
    database.set_counter("last_seen_ms", NOW_MS - 100_000)
    database.set_counter("clock_step_ms", 7)
    for queue_id, name in enumerate(("mail", "orders"), 1):
        database.queue(name, queue_id)
    for queue_id, deadline_ms in ((1, NOW_MS - 1), (2, NOW_MS), (2, NOW_MS - 5), (2, NOW_MS + 1),
                                  (1, None)):  # fmt: skip
        database.message(queue_id, deadline_ms=deadline_ms)
    starting = StartRecorder("0.2.0", NOW_MS, was_clean=False)
    starting.read_database(SqliteStore(database.connection), NOW_MS)
    report = starting.report
    assert (report.expired, report.expired_by_queue) == (3, {"orders": 2, "mail": 1})
    assert starting.down_from_ms == NOW_MS - 100_000
    assert report.version_before is None


def test_start_reports_a_partly_dropped_wal() -> None:
    starting = StartRecorder("0.2.0", NOW_MS, was_clean=False)
    wal = WalScan(commits=3, frames=9, first_bad=10, commits_after=2, last_after=20)
    starting.note_wal(wal.frames, wal.commits, wal.commits_lost)
    starting.note_error({"message": "SQLITE_IOERR: disk I/O error"})
    report = starting.report
    assert (report.wal_commits, report.wal_frames, report.wal_dropped) == (3, 9, 2)
    assert report.last_error == "SQLITE_IOERR: disk I/O error"


def test_old_error_is_not_reported_after_a_clean_stop() -> None:
    starting = StartRecorder("0.2.0", NOW_MS, was_clean=True)
    starting.note_error({"message": "long ago"})
    assert starting.report.last_error is None


async def test_rows_of_starts_are_complete(tmp_path: Path) -> None:
    for _ in range(2):
        async with running_service(tmp_path / "data"):
            pass
    text = "SELECT was_clean, down_from_ms, at_ms, report FROM start ORDER BY start_id"
    first, second = stored_rows(tmp_path / "data", text)
    assert (first[0], first[1]) == (1, None)
    assert second[0] == 1
    assert 0 <= second[2] - second[1] < 60_000
    report = json.loads(second[3])
    assert report["checks"]
    assert report["migrations"] == []
    assert (json.loads(first[3])["migrations"] == []) is ON_POSTGRES  # the tests' database has all
