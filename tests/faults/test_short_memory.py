"""A broker that gets no more memory rejects work or exits; it is never half alive.

``RLIMIT_AS`` simulates a container whose memory limit is too low.
"""

import asyncio
import random
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from phpmq_lite.cli.admin_client import AdminClient
from tests.faults.ledger import Crowd, Ledger, Load, is_drained
from tests.faults.mutants import mutant_process
from tests.faults.writer_mutants import writer_pid
from tests.support.fork_server import BrokerProcess
from tests.support.latency_probe import MIB
from tests.support.seed import SEED
from tests.support.socket_client import SocketClient

pytestmark = pytest.mark.faults

ROOM = (2 * MIB, 16 * MIB, 40 * MIB)  # beyond the idle size
RECEIPTS = 2_000
FAIL_STOP = 74
LIVES = 12  # of the mutant; about each second one reveals it
END_S = 10  # time limit for a broker to reply or exit
LOAD_S = 20  # time limit for a load that takes a second or two


def press(broker: BrokerProcess) -> None:
    """Send large messages on many connections, until each is rejected or stored."""
    with ExitStack() as stack, suppress(OSError, AssertionError):
        for number in range(12):
            peer = stack.enter_context(SocketClient(broker.port))
            peer.publish("large", b"press %010d" % number + b"." * (4 * MIB), key=b"%d" % number)


@contextmanager
def short_of_memory(pid: int, room: int) -> Iterator[None]:
    """Limit the address space of a process to ``room`` beyond its present size."""
    free = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0]
    present = int(pages) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (present + room, free[1]))
    yield
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_AS, free)


async def load(broker: BrokerProcess, ledger: Ledger) -> None:
    """Load the broker with a crowd and large messages; return when all have disconnected."""
    crowd = Crowd(ledger, broker.port)
    pressing = threading.Thread(target=press, args=(broker,))
    pressing.start()
    working = asyncio.create_task(crowd.work(RECEIPTS, crowd.leave))
    while not (await asyncio.wait({working}, timeout=0.1))[0]:
        if any(client.ended.done() for client in crowd.clients):
            crowd.leave()  # the others might wait without end
    with suppress(OSError):  # the broker exited before all were connected
        await working
    for client in crowd.clients:
        await client.ended
    await asyncio.to_thread(pressing.join)


def is_at_work(broker: BrokerProcess) -> bool:
    try:
        with SocketClient(broker.port) as peer:
            peer.socket.settimeout(END_S)
            assert peer.confirm("after", b"after 0000000000") is None
            peer.consume("after", 1)
            peer.ack(*peer.dispatches(1))
            assert peer.confirm("after", b"after 0000000001") is None
    except (OSError, AssertionError):
        return False
    return True


async def live_short(
    folder: Path, room: int, mutant: str = "", *, is_second: bool = False
) -> tuple[Ledger, bool, int]:
    """Load a broker, or its writer process, without memory, then restart it and compare.

    Returns the ledger, whether the broker still worked, and its exit code.
    """
    broker = mutant_process(folder / "data", mutant, is_second=is_second)
    ledger = Ledger(random.Random(SEED))
    broker.start()
    # Import the admin and start all threads: a thread that starts without memory may hang CPython.
    await asyncio.to_thread(AdminClient(broker.data / "control.sock").get, "/queues")
    process = broker.process
    assert process is not None
    try:
        with short_of_memory(writer_pid(broker.data) if is_second else broker.pid, room):
            await asyncio.wait_for(load(broker, ledger), LOAD_S)
        is_alive = is_at_work(broker)
        code = broker.terminate() if is_alive else await asyncio.to_thread(process.wait, END_S)
        broker.kill()  # it has ended
        broker.start()
        ledger.compare(broker.data)
        drain = Crowd(ledger, broker.port, Load(acks_all=True))
        await drain.drain(lambda: is_drained(broker.data))
        assert broker.terminate() == 0
    finally:
        broker.kill()
    ledger.audit(broker.data)
    return ledger, is_alive, code


@pytest.mark.parametrize(
    ("room", "is_second"), [*((room, False) for room in ROOM), (0, True), (ROOM[0], True)]
)
async def test_broker_without_memory_loses_nothing(
    tmp_path: Path, room: int, is_second: bool, figure: Callable[[str], None]
) -> None:
    ledger, is_alive, code = await live_short(tmp_path, room, is_second=is_second)
    which = " for the writer process" if is_second else ""
    figure(
        f"{room // MIB} MiB of room{which}: {'kept running' if is_alive else 'fail-stop'}, "
        f"exit code {code}; {len(ledger.confirmed):,} confirmed, {len(ledger.offences)} lost"
    )
    assert ledger.offences == []
    assert code == (0 if is_alive else FAIL_STOP)


@pytest.mark.slow
async def test_clients_show_a_broker_that_is_half_alive(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """The allocation that fails is random, so several lives are tried."""
    for life in range(LIVES):
        folder = tmp_path / str(life)
        folder.mkdir()
        try:
            await live_short(folder, ROOM[0], "StaysHalfAlive")
        except (TimeoutError, subprocess.TimeoutExpired):
            figure(f"mutant StaysHalfAlive: found in life {life + 1}: it neither works nor ends")
            return
    pytest.fail("it always worked or ended")
