"""Brokers that several files of tests use."""

import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from phpmq_lite.testing import RunningBroker
from tests.support.certificates import Certificate, CertificateAuthority
from tests.support.cli_runner import RunCommand, cli_runner
from tests.support.core_and_store import Driver, MakeDriver, drivers_in
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.full_broker import FullBroker, full_broker
from tests.support.http_site import HttpSite, running_site
from tests.support.http_users import BrokerFixture, broker_fixture
from tests.support.live_pages import LivePages, pages


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeDriver]:
    """Return a function that makes drivers on one database, one after the other."""
    with drivers_in(tmp_path) as make:
        yield make


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[HttpSite]:
    """Run a broker with its pages, without users."""
    async with running_site(tmp_path / "data") as site:
        yield site


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[BrokerFixture]:
    """Run a broker with the admin ``anna``."""
    async with broker_fixture(tmp_path / "data") as home:
        await home.add_user("anna")
        yield home


@pytest.fixture
async def filled(tmp_path: Path) -> AsyncIterator[FullBroker]:
    async with full_broker(tmp_path / "data") as filled:
        yield filled


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a broker process with an admin listener for the tests of one file."""
    data = tmp_path_factory.mktemp("broker") / "data"
    with broker_process(data, "--admin", "127.0.0.1:0") as broker:
        yield broker


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """Return the name of a queue that no other test uses."""
    return f"queue.{request.node.name}"[:200]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data folder that does not exist yet."""
    return tmp_path / "data"


@pytest.fixture
def run(broker: BrokerProcess) -> RunCommand:
    return cli_runner(broker)


@pytest.fixture
def driver(make: MakeDriver) -> Driver:
    return make()


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def server(authority: CertificateAuthority) -> Certificate:
    return authority.make("server")


@pytest.fixture
async def browser(broker: RunningBroker) -> AsyncIterator[LivePages]:
    async with pages(broker) as browser:
        yield browser
