"""A name in a path is what its percent signs stand for, or it is refused."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.site import Site, running_site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path / "data") as it:
        yield it


@pytest.mark.parametrize("segment", ["%FF", "a%C3", "%ED%A0%80", "%25%FF"])
async def test_name_that_is_not_utf8_is_refused_and_no_queue_is_made(
    site: Site, segment: str
) -> None:
    for method, path in (
        ("PUT", f"/queues/{segment}"),
        ("GET", f"/queues/{segment}"),
        ("POST", f"/queues/{segment}/messages"),
        ("DELETE", f"/tokens/{segment}"),
    ):
        status, problem = await site.api(method, path, {})
        assert (method, path, status, problem["bound"]) == (method, path, 422, "UTF-8")
    assert (await site.get(f"/queues/{segment}")).status == 422
    assert (await site.ok("GET", "/queues"))["items"] == []


@pytest.mark.parametrize(("segment", "name"), [("%25FF", "%FF"), ("%2525", "%25"), ("%C3%A9", "é")])
async def test_percent_sign_may_be_in_a_name(site: Site, segment: str, name: str) -> None:
    assert (await site.ok("PUT", f"/queues/{segment}"))["is_new"]
    assert [item["name"] for item in (await site.ok("GET", "/queues"))["items"]] == [name]
