"""The pages and the API of schedules, their definitions, metric and notice, on a real broker."""

import json
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_site import HttpSite, error_of, running_site
from tests.support.http_users import visible_text, wait_until

NIGHTLY: dict[str, Any] = {
    "name": "nightly", "cron": "30 2 * * *", "timezone": "Europe/Berlin", "queue": "jobs",
    "content": '{"at": "{{tick}}"}', "ttl_s": 60, "priority": 3, "missed": "all", "missed_max": 5,
}  # fmt: skip
NEVER = "0 0 1 1 *"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[HttpSite]:
    async with running_site(tmp_path / "data") as made:
        yield made


async def test_api_creates_shows_changes_and_deletes(site: HttpSite) -> None:
    made = await site.ok("POST", "/schedules", NIGHTLY)
    assert {key: made[key] for key in NIGHTLY} == NIGHTLY
    assert len(made["next_runs"]) == 5
    assert all("T02:30:00+0" in run["local"] for run in made["next_runs"][:1])
    assert made["next_at"] == made["next_runs"][0]["at"]
    assert made["preview"] == f'{{"at": "{made["next_runs"][0]["local"]}"}}'
    assert await site.ok("GET", "/schedules/nightly") == made
    [listed] = (await site.ok("GET", "/schedules"))["items"]
    assert listed == {key: made[key] for key in listed}
    assert (await site.ok("GET", "/queues/jobs"))["name"] == "jobs"  # was created
    changed = {"cron": "0 0 * * MON", "queue": "jobs", "content": "AAH/", "encoding": "base64"}
    now = await site.ok("PUT", "/schedules/nightly", changed)
    assert (now["content"], now["preview"], now["ttl_s"], now["timezone"]) == (
        "AAH/", "AAH/", None, "UTC"
    )  # fmt: skip
    await site.ok("DELETE", "/schedules/nightly")
    assert await site.refusal("GET", "/schedules/nightly") == (404, "unknown_schedule")
    actions = [row["action"] for row in (await site.ok("GET", "/audit?action=schedule"))["items"]]
    assert actions == ["schedule.delete", "schedule.set", "schedule.create"]


async def test_pause_resume_and_run_lead_to_the_message(site: HttpSite) -> None:
    await site.ok("POST", "/schedules", NIGHTLY | {"cron": NEVER})
    paused = await site.ok("POST", "/schedules/nightly/pause")
    assert (paused["is_enabled"], paused["next_runs"], paused["next_at"]) == (False, [], None)
    message_id = (await site.ok("POST", "/schedules/nightly/run"))["id"]
    [run] = (await site.ok("GET", "/schedules/nightly/runs"))["items"]
    assert (run["outcome"], run["message_id"], run["run_by"]) == ("published", message_id, "local")
    message = await site.ok("GET", f"/messages/{message_id}")
    assert (message["queue"], message["ttl_s"]) == ("jobs", 60)
    page = await site.text("/schedules/nightly")
    assert f"/messages/{message_id}" in page
    assert "Delete the schedule nightly</h1>" in await site.text("/schedules/nightly/delete")
    assert "Paused" in visible_text(page)
    assert (await site.ok("POST", "/schedules/nightly/resume"))["is_enabled"] is True
    await site.ok("POST", "/queues/jobs/pause", {"side": "publishing"})
    assert await site.refusal("POST", "/schedules/nightly/run") == (409, "paused")
    runs = (await site.ok("GET", "/schedules/nightly/runs"))["items"]
    assert [(run["outcome"], "paused" in run["detail"]) for run in runs] == [
        ("failed", True), ("published", False)
    ]  # fmt: skip
    home = visible_text(await site.text("/"))
    assert "Schedule nightly" in home
    assert "1 run failed in the last 24 h" in home
    metrics = await site.text("/metrics")
    assert 'phpmq_schedule_runs_total{outcome="failed"} 1.0' in metrics


async def test_each_second_publishes_and_is_listed(site: HttpSite) -> None:
    await site.ok(
        "POST",
        "/schedules",
        NIGHTLY | {"cron": "* * * * * *", "content": "{{tick_ms}}", "priority": 128},
    )

    async def items() -> list[Any]:
        page: dict[str, list[Any]] = await site.ok("GET", "/schedules/nightly/runs?limit=2")
        return page["items"]

    await wait_until(lambda: _has(site, 4))
    first = await site.ok("GET", "/schedules/nightly/runs?limit=2")
    second = await site.ok("GET", f"/schedules/nightly/runs?limit=2&cursor={first['next']}")
    ticks = [run["tick_at"] for run in first["items"] + second["items"]]
    assert [later - tick for later, tick in pairwise(ticks)] == [1_000] * (len(ticks) - 1)
    assert "Older →" in await site.text("/schedules/nightly?limit=2")
    rows = await site.ok("GET", "/queues/jobs/messages?limit=1")
    assert rows["items"]
    assert (await items())[0]["at"] - (await items())[0]["tick_at"] < 5_000


def _has(site: HttpSite, count: int) -> bool:
    engine = site.broker.service.state.handle.engine
    assert engine is not None
    return engine.core.schedules.counts["published"] >= count


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"cron": "x"}, 422, "bad_cron", "cron"),
        ({"timezone": "Mars"}, 422, "bad_timezone", "timezone"),
        ({"name": "a/b"}, 422, "bad_name", "name"),
        ({"content": "x" * 65_537}, 413, "too_large", "content"),
        ({"content": "\udcff"}, 422, None, None),
        ({"queue": ""}, 422, "invalid", "queue"),
        ({"priority": 256}, 422, "invalid", "priority"),
        ({"missed": "never"}, 422, "invalid", "missed"),
        ({"encoding": "base64", "content": "?"}, 422, "invalid", None),
        ({"other": 1}, 422, "invalid", "other"),
    ],
)
async def test_invalid_schedule_is_refused_with_its_field(
    site: HttpSite, change: dict[str, Any], status: int, code: str | None, field: str | None
) -> None:
    answer, problem = await site.api("POST", "/schedules", NIGHTLY | change)
    assert answer in (status, 400), problem
    if code is not None:
        assert (problem["code"], problem.get("field")) == (code, field)
    assert (await site.ok("GET", "/schedules"))["items"] == []
    await site.ok("POST", "/schedules", NIGHTLY)
    assert await site.refusal("POST", "/schedules", NIGHTLY) == (409, "taken")


async def test_forms_create_change_and_delete(site: HttpSite) -> None:
    assert "No schedules" in visible_text(await site.text("/schedules"))
    fields = {
        "name": "weekly", "cron": "0 8 * * MON", "timezone": "America/New_York", "queue": "jobs",
        "content": "{{run_id}}\r\nline", "ttl": "2", "ttl_unit": "h", "priority": "7",
        "group": "g", "missed": "once", "missed_max": "10",
    }  # fmt: skip
    page = await site.submit("/schedules", fields)
    text = visible_text(page.text)
    assert "0 8 * * MON in America/New_York" in text
    assert "No runs yet" in text
    made = await site.ok("GET", "/schedules/weekly")
    assert (made["content"], made["ttl_s"], made["priority"], made["group"]) == (
        "{{run_id}}\nline", 7_200, 7, "g"
    )  # fmt: skip
    refused = await site.post("/schedules", fields | {"name": "other", "cron": "61 * * * *"})
    assert refused.status == 422
    assert 'value="61 * * * *"' in refused.text
    assert "bad minute" in visible_text(refused.text)
    page = await site.submit("/schedules/weekly", fields | {"group": "", "ttl": "", "cron": NEVER})
    assert "was changed" in visible_text(page.text)
    made = await site.ok("GET", "/schedules/weekly")
    assert (made["group"], made["ttl_s"], made["cron"]) == (None, None, NEVER)
    refused = await site.post("/schedules/weekly", fields | {"timezone": "Mars"})
    assert refused.status == 422
    assert 'value="Mars"' in refused.text
    page = await site.submit("/schedules/weekly/run", {"next": "/schedules/weekly"})
    assert "by local" in visible_text(page.text)
    page = await site.submit("/schedules/weekly/pause", {"next": "/schedules/weekly"})
    assert "Its ticks pass without a run" in visible_text(page.text)
    assert "Delete schedule" in await site.text("/schedules/weekly/delete")
    page = await site.submit("/schedules/weekly/delete")
    assert "No schedules" in visible_text(page.text)


async def test_definitions_contain_schedules(site: HttpSite) -> None:
    await site.ok("POST", "/schedules", NIGHTLY | {"is_enabled": False})
    exported = await site.ok("GET", "/definitions")
    assert set(exported["schedules"]) == {"nightly"}
    assert exported["schedules"]["nightly"]["is_enabled"] is False
    await site.ok("DELETE", "/schedules/nightly")
    other = exported["schedules"]["nightly"] | {"queue": "others", "is_enabled": None}
    body = {"schedules": exported["schedules"] | {"other": other}}
    imported = await site.ok("PUT", "/definitions", body)
    assert imported["schedules"]["nightly"] == exported["schedules"]["nightly"]
    assert imported["schedules"]["other"]["is_enabled"] is True
    assert await site.ok("PUT", "/definitions", imported) == imported
    bad = {"schedules": {"nightly": other, "bad": other | {"cron": "x"}}}
    assert await site.refusal("PUT", "/definitions", bad) == (422, "bad_cron")
    assert await site.ok("GET", "/definitions") == imported


async def test_schedules_survive_a_restart(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data") as site:
        made = await site.ok("POST", "/schedules", NIGHTLY | {"group": "g"})
    async with running_site(tmp_path / "data") as site:
        assert await site.ok("GET", "/schedules/nightly") == made
        assert re.search("nightly", json.dumps(await site.ok("GET", "/definitions")))
        assert error_of("") is not None
