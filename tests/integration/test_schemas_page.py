"""The page of the schemas and its API, on a broker with a folder of schemas."""

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from phpmq_lite.envelopes.codec import encode, make
from phpmq_lite.envelopes.schema_registry import RegistryError
from tests.integration.test_schema_registry import ORDER, URN, write, write_folder
from tests.support.http_site import HttpSite, running_site
from tests.support.http_users import HttpUser, broker_fixture, visible_text

HOSTILE = "urn:<b>a/b</b>?&\u202e"
MILD: dict[str, Any] = ORDER | {"properties": ORDER["properties"] | {"note": {}}}  # type: ignore[operator]
HARD: dict[str, Any] = ORDER | {"required": [], "properties": {}}


def path_of(urn: str, action: str = "") -> str:
    return f"/schemas/{quote(urn, safe='')}{action}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    order = ORDER | {"properties": ORDER["properties"] | {"mail": {"x-gdpr-sensitive": "email"}}}  # type: ignore[operator]
    return write_folder(
        tmp_path / "schemas", {URN: "order.json", f"{URN}.v2": "two.json", HOSTILE: "two.json"},
        order=order, two={"type": "object", "maxProperties": 3},
    )  # fmt: skip


@pytest.fixture
async def site(tmp_path: Path, folder: Path) -> AsyncIterator[HttpSite]:
    async with running_site(tmp_path / "data", envelopes={"schemas": folder}) as made:
        yield made


def read_again(site: HttpSite) -> None:
    """Read the folder now instead of waiting for the watch."""
    with suppress(RegistryError):
        site.broker.service.state.schemas.refresh()


async def test_page_lists_urns_with_version_and_fields(site: HttpSite) -> None:
    page = await site.get("/schemas")
    assert page.status == 200
    text = visible_text(page.text)
    for words in (URN, "order.json", "order_id", "an integer", "required", "sensitive: email"):
        assert words in text
    assert "/maxProperties" in text
    assert "<b>a/b</b>" not in page.text
    assert 'href="/schemas"' in (await site.get("/")).text  # the rail


async def test_page_without_a_folder_explains_the_setting(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data") as site:
        text = visible_text((await site.get("/schemas")).text)
        assert "No schema folder is set" in text
        assert "phpmq-lite schema check" in text
        assert "envelopes.schemas" in text
        assert (await site.ok("GET", "/schemas"))["items"] == []


async def test_empty_folder_is_reported(site: HttpSite, folder: Path) -> None:
    write(folder / "registry.json", {"schemas": []})
    read_again(site)
    assert "No URN has a schema yet" in visible_text((await site.get("/schemas")).text)


async def test_invalid_change_is_reported_and_not_used(site: HttpSite, folder: Path) -> None:
    write(folder / "order.json", {"properties": {"n": {"type": 1}}})
    read_again(site)
    text = visible_text((await site.get("/schemas")).text)
    assert "the previous version stays in use" in text
    assert "order.json#/properties/n/type" in text
    listed = await site.ok("GET", "/schemas")
    assert [item["urn"] for item in listed["items"]] == sorted([URN, f"{URN}.v2", HOSTILE])
    assert len(listed["faults"]) == 1


async def test_page_compares_a_new_version(site: HttpSite) -> None:
    mild = await site.post("/schemas/check", urn=URN, document=json.dumps(MILD))
    assert mild.status == 200
    assert "Compatible" not in visible_text(mild.text)  # mail has gone
    assert "/data/mail" in visible_text(mild.text)
    same = (await site.ok("GET", path_of(URN)))["document"]
    fine = await site.post("/schemas/check", urn=URN, document=json.dumps(same, indent=2))
    assert "Compatible" in visible_text(fine.text)
    hard = visible_text(
        (await site.post("/schemas/check", urn=URN, document=json.dumps(HARD))).text
    )
    assert "2 changes break" in hard
    [row, *_] = await site.audit("schema.check")
    assert (row["target"], row["result"]) == (URN, "checked")


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # by the test's client
async def test_invalid_schema_stays_in_the_form_with_its_error(site: HttpSite) -> None:
    for document, status, words in (
        ("{", 422, "invalid JSON"),
        ("", 422, "invalid JSON"),
        ('{"type": "strnig"}', 422, "at /type"),
        ("1", 422, "a schema must be an object"),
        ('"' + "x" * (1 << 20) + '"', 413, "bytes"),
    ):
        page = await site.post("/schemas/check", urn=URN, document=document)
        assert page.status == status
        assert words in visible_text(page.text)
        assert 'aria-invalid="true"' in page.text


async def test_check_of_an_unknown_urn_is_not_found(site: HttpSite) -> None:
    page = await site.post("/schemas/check", urn="urn:gone", document="{}")
    assert page.status == 404
    assert "No schema is registered for 'urn:gone'" in visible_text(page.text)


async def test_list_has_every_format(site: HttpSite) -> None:
    listed = await site.ok("GET", "/schemas")
    found = {item["urn"]: item for item in listed["items"]}
    assert found[f"{URN}.v2"]["version"] == 2
    assert found[f"{URN}.v2"]["unchecked"] == ["/maxProperties"]
    assert [(f["path"], f["required"], f["sensitive"]) for f in found[URN]["fields"]] == [
        ("order_id", True, None),
        ("mail", False, "email"),
    ]
    for path in ("/api/v1/schemas", "/schemas"):
        for style in ("jsonl", "csv"):
            assert URN in (await site.get(f"{path}?format={style}")).text


async def test_api_returns_a_schema_and_checks_another(site: HttpSite) -> None:
    for urn in (URN, HOSTILE):
        assert (await site.ok("GET", path_of(urn)))["urn"] == urn
    assert (await site.api("GET", path_of("urn:none")))[0] == 404
    answer = await site.ok("POST", path_of(URN, "/check"), {"document": HARD})
    assert answer["compatible"] is False
    assert ["breaking", "/data/order_id"] in [
        [one["level"], one["pointer"]] for one in answer["changes"]
    ]
    true = await site.ok("POST", path_of(f"{URN}.v2", "/check"), {"document": True})
    assert true["compatible"] is False
    for body, status in (({}, 422), ({"document": 1}, 422), ({"document": {}, "more": 1}, 422)):
        assert (await site.api("POST", path_of(URN, "/check"), body))[0] == status
    assert (await site.api("POST", path_of("urn:none", "/check"), {"document": {}}))[0] == 404


async def test_queue_counts_or_quarantines_mismatches(site: HttpSite) -> None:
    wrong = encode(make(URN, {"order_id": "1"}, queue="orders")).decode()
    right = encode(make(URN, {"order_id": 1}, queue="orders")).decode()
    unknown = encode(make("urn:unknown", {"order_id": "1"}, queue="orders")).decode()
    for mode, ready in (("off", 3), ("warn", 3), ("quarantine", 2)):
        queue = f"orders.{mode}"
        settings = {"payload_policy": "envelope", "schema_mode": mode}
        await site.ok("PUT", f"/queues/{queue}")
        await site.ok("PATCH", f"/queues/{queue}", settings)
        await site.publish(queue, wrong, right, unknown)
        assert await site.ready(queue) == ready, mode
    [dead] = (await site.ok("GET", "/history?outcome=dead"))["items"]
    assert dead["reason"] == "schema_mismatch"
    assert await site.ready("orders.quarantine.dlq") == 1
    found = await site.ok("GET", path_of(URN))
    assert (found["passed"], found["failed"]) == (2, 2)
    assert found["last_failure"] == "/data/order_id is a string, not an integer"
    assert "is a string, not an integer" in visible_text((await site.get("/schemas")).text)


async def test_user_limited_to_queues_sees_no_counts(tmp_path: Path, folder: Path) -> None:
    async with broker_fixture(tmp_path / "data", envelopes={"schemas": folder}) as home:
        await home.add_user("anna")
        await home.add_user("olga", "operator", "orders")
        async with HttpUser(home.url) as visitor:
            assert (await visitor.log_in("olga")).status == 303
            item = json.loads((await visitor.get(f"/api/v1{path_of(URN)}")).text)
            assert (item["passed"], item["failed"], item["last_failure"]) == (None, None, None)
            answer = await visitor.post("/schemas/check", urn=URN, document="{}")
            assert answer.status == 200


async def test_viewer_sees_no_form(tmp_path: Path, folder: Path) -> None:
    async with broker_fixture(tmp_path / "data", envelopes={"schemas": folder}) as home:
        await home.add_user("anna")
        await home.add_user("vera", "viewer")
        async with HttpUser(home.url) as visitor:
            assert (await visitor.log_in("vera")).status == 303
            page = await visitor.get("/schemas")
            assert page.status == 200
            assert URN in visible_text(page.text)
            assert str(folder) not in page.text
            assert "/schemas/check" not in page.text
