"""The programs of *Web applications*, with the servers that the page names."""

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import pytest

from phpmq_lite.client import connect_blocking
from tests.docs.pages import ROOT
from tests.support.fork_server import BrokerProcess, broker_process

pytestmark = pytest.mark.acceptance

PAGE = ROOT / "docs/guides/web-applications.md"
ORDERS = 60
GUNICORN = ("gunicorn", "--workers", "3", "--threads", "4")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "data", "--admin", "none") as running:
        yield running


def program(name: str) -> str:
    """Return the code of the page that belongs into a file."""
    _, _, rest = PAGE.read_text().partition(f"`{name}`")
    return rest.partition("```python\n")[2].partition("```")[0]


@contextmanager
def serving(folder: Path, port: int, module: str, *command: str) -> Iterator[str]:
    """Serve a program of the page; yield its URL as soon as it answers."""
    (folder / f"{module}.py").write_text(program(f"{module}.py"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = free.getsockname()[1]
    words = [word.format(port=at) for word in command]
    environment = os.environ | {"PHPMQ_ADDRESS": f"127.0.0.1:{port}"}
    server = subprocess.Popen([sys.executable, "-m", *words], cwd=folder, env=environment)
    url = f"http://127.0.0.1:{at}"
    try:
        while not answers(url):
            assert server.poll() is None
            sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait(30)


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=60)
    except urllib.error.HTTPError:
        return True  # no page of this name
    except OSError:
        return False
    return True


def put(url: str, number: int) -> int:
    request = urllib.request.Request(f"{url}/orders/{number}", method="PUT")
    with urllib.request.urlopen(request, timeout=60) as response:
        status: int = response.status
    return status


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("shop_flask", (*GUNICORN, "--bind", "127.0.0.1:{port}", "shop_flask:app")),
        ("shop_flask", (*GUNICORN, "--preload", "--bind", "127.0.0.1:{port}", "shop_flask:app")),
        ("shop_django", (*GUNICORN, "--bind", "127.0.0.1:{port}", "shop_django:app")),
        ("shop_django", (*GUNICORN, "--preload", "--bind", "127.0.0.1:{port}", "shop_django:app")),
        ("shop_fastapi", ("uvicorn", "--workers", "2", "--port", "{port}", "shop_fastapi:app")),
    ],
    ids=["flask", "flask preloaded", "django", "django preloaded", "fastapi"],
)
def test_application_stores_each_order_once(
    tmp_path: Path, broker: BrokerProcess, module: str, command: tuple[str, ...]
) -> None:
    with serving(tmp_path, broker.port, module, *command) as url, ThreadPoolExecutor(8) as threads:
        for _ in range(2):  # the second time as after a timeout
            assert set(threads.map(lambda number: put(url, number), range(ORDERS))) == {201}
    with connect_blocking("127.0.0.1", broker.port) as client:
        client.publish_confirmed("orders", b"last")
        found = []
        for delivery in client.consume("orders"):
            delivery.ack()
            if delivery.body == b"last":
                break
            found.append(int(delivery.body))
    assert sorted(found) == list(range(ORDERS))


def test_page_starts_servers_as_the_test_does() -> None:
    text = PAGE.read_text()
    for command in ("gunicorn --workers 4 --threads 8", "gunicorn --preload", "uvicorn --workers"):
        assert command in text
