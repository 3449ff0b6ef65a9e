"""How export processes end."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from tests.support.export_site import ROWS, ExportSite, large_site, site_on
from tests.support.fork_server import broker_process
from tests.support.http_users import wait_until
from tests.support.settled_folder import is_running, read_counted, settled_folder


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[ExportSite]:
    async with site_on(tmp_path / "data", 1_000) as made:
        yield made


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder that is made once; tests that read it leave it as it is."""
    data = tmp_path_factory.mktemp("large") / "data"
    settled_folder(data, ROWS)
    return data


async def test_idle_process_ends(site: ExportSite) -> None:
    site.exports._idle_s = 0
    await site.read("lo=0&hi=5")
    await wait_until(lambda: not site.exports.pids)


async def test_processes_end_with_the_broker(large: Path) -> None:
    async with aiohttp.ClientSession(read_bufsize=1 << 16) as session:
        async with large_site(large) as site:
            response = await session.get(site.url(f"lo=0&hi={ROWS}"))
            pids = site.exports.pids
            assert len(pids) == 1
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert not any(map(is_running, pids))
    assert not (large / "phpmq.db-wal").exists()  # nobody held the database when it closed


@pytest.mark.sample("True")
@pytest.mark.parametrize("is_busy", [False, True])
async def test_no_process_is_left_when_the_broker_is_killed(large: Path, is_busy: bool) -> None:
    flags = ("--admin", "127.0.0.1:0", "--set", "history.days=36500")
    with broker_process(large, *flags) as broker:
        url = f"{broker.admin[0].rstrip('/')}/api/v1/pipeline/history/arrow?lo=0&hi="
        async with aiohttp.ClientSession() as session:
            if is_busy:
                response = await session.get(f"{url}{ROWS}")
            else:
                await read_counted(session, f"{url}5")
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
