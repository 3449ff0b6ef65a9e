"""A broker and its clients."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.socket_client import AdminApi, SocketClient

_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a broker with the default settings; modules may override it."""
    with broker_process(tmp_path_factory.mktemp("broker") / "data", "--admin", "127.0.0.1:0") as it:
        yield it


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminApi:
    return AdminApi(broker.admin[0])


@pytest.fixture
def queue() -> str:
    """Return the name of a queue that no other test uses."""
    return f"queue-{next(_numbers)}"


@pytest.fixture
def peer(broker: BrokerProcess) -> Iterator[SocketClient]:
    with SocketClient(broker.port) as connected:
        yield connected


@pytest.fixture
def other(broker: BrokerProcess) -> Iterator[SocketClient]:
    with SocketClient(broker.port) as connected:
        yield connected
