"""The routes of the documentation: who may read it, where addresses lead, what is sent."""

import re
from pathlib import Path

import pytest

from tests.docs.test_docs_at_broker import MOVED
from tests.support.http_users import HttpUser, broker_fixture


async def test_limited_viewer_reads_the_docs_and_nobody_has_to_log_in(tmp_path: Path) -> None:
    async with broker_fixture(tmp_path / "data") as home, HttpUser(home.url) as viewer:
        await home.add("anna", "admin")
        await home.add("vera", "viewer", "mine*")
        for path in ("/docs/", "/docs/guides/admin", "/docs/images/overview.png", "/docs/admin"):
            answer = await viewer.get(path)
            assert (answer.status, (answer.location or "").partition("?")[0]) == (303, "/login")
        assert (await viewer.log_in("vera")).status == 303
        answer = await viewer.get("/docs/guides/admin")
        assert answer.status == 200
        assert '<h2 id="find-a-message">' in answer.text
        assert (await viewer.get("/docs/images/overview.png")).status == 200


@pytest.mark.parametrize("base", ["", "/team/mq"])
async def test_addresses_lead_to_pages_below_the_base_path(tmp_path: Path, base: str) -> None:
    async with (
        broker_fixture(tmp_path / "data", admin={"base_path": base}) as home,
        HttpUser(home.url.removesuffix(base) + base) as me,
    ):
        for old, new in MOVED.items():
            for path in {old, f"{old}.md"} - {new}:
                answer = await me.get(f"/docs/{path}")
                assert (answer.status, answer.location) == (303, f"{base}/docs/{new}")
        assert (await me.get("/docs")).location == f"{base}/docs/"
        text = (await me.get("/docs/")).text
        [picture] = re.findall(rf'<img src="{base}(/docs/[^"]+)"', text)
        assert (await me.get(picture)).headers["Content-Type"] == "image/png"
        assert f'href="{base}/docs/start/tutorial"' in text
        for path in ("x", "x/y", "images/x.png", "images/index.md", "guides/admin.html"):
            answer = await me.get(f"/docs/{path}")
            assert (path, answer.status) == (path, 404)
            assert "No such page" in answer.text


async def test_pages_of_the_admin_lead_to_their_help(tmp_path: Path) -> None:
    async with broker_fixture(tmp_path / "data") as home, HttpUser(home.url) as me:
        for path, page in (("/", "guides/admin"), ("/dead", "concepts/dead-letters")):
            text = (await me.get(path)).text
            assert f'href="/docs/{page}"' in text
        text = (await me.get("/docs/?q=%3Cscript%3Ealert")).text
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text
