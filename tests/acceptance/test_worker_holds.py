"""Workers whose handlers take longer than the acknowledgement timeout, or outlive their broker."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from socket import SHUT_RDWR

import pytest

from tests.acceptance.test_worker import Crew, encoded, envelope
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.killing_proxy import KillingProxy
from tests.support.socket_client import WAIT_S, AdminApi, SocketClient
from tests.support.waiting import until

pytestmark = pytest.mark.acceptance
TIMEOUT_S = 1
EndBroker = Callable[[BrokerProcess], object]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    flags = ("--admin", "none", "--set", f"queues.ack_timeout_s={TIMEOUT_S}")
    with broker_process(tmp_path / "data", *flags) as running:
        yield running


@pytest.fixture
def crew(broker: BrokerProcess, tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(tmp_path, broker.port, "q")
    yield crew
    crew.stop()


@pytest.fixture
def peer(broker: BrokerProcess) -> Iterator[SocketClient]:
    with SocketClient(broker.port) as peer:
        yield peer


@pytest.mark.parametrize("credit", ["1", "3"])
def test_job_of_three_timeouts_runs_once(crew: Crew, peer: SocketClient, credit: str) -> None:
    """The messages that wait behind it are held for as long."""
    jobs = [envelope("sleep", seconds=3 * TIMEOUT_S), envelope("done"), envelope("done")]
    peer.store("q", *map(encoded, jobs))
    assert crew.run("--credit", credit) == 0
    assert [run["id"] for run in crew.runs] == [job["meta"]["id"] for job in jobs]
    assert len(crew.events("job.ack")) == 3


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_job_whose_worker_is_killed_runs_again_within_the_timeout(
    crew: Crew, peer: SocketClient, how: signal.Signals
) -> None:
    """The connection of a suspended worker stays, as that of one whose machine has lost power."""
    peer.store("q", encoded(envelope("sleep", seconds=2 * TIMEOUT_S)))
    worker = crew.start("--time-limit", "600")
    until(lambda: crew.runs)
    time.sleep(TIMEOUT_S)
    worker.send_signal(how)
    second = crew.start()
    until(lambda: crew.events("job.ack"))
    second.terminate()
    assert second.wait(WAIT_S) == 0
    assert [run["pid"] for run in crew.runs] == [worker.pid, second.pid]
    assert len({run["id"] for run in crew.runs}) == 1


@pytest.mark.parametrize("how", ["option", "handler"])
def test_hung_handler_is_ended_and_retried_at_its_limit(
    crew: Crew, peer: SocketClient, how: str
) -> None:
    urn, limit_s = ("urn:test:do", 1.0) if how == "option" else ("urn:test:brief", 0.5)
    peer.store("q", encoded(envelope("hang", urn=urn)))
    flags = ("--max-attempts", "2", "--backoff", "0")
    worker = crew.start(*flags, *(("--time-limit", "1") if how == "option" else ()))
    until(lambda: crew.events("job.dead_letter"))
    worker.terminate()
    assert worker.wait(WAIT_S) == 0
    first, second = crew.runs
    assert (first["attempts"], second["attempts"]) == (0, 1)
    assert second["at"] - first["at"] >= limit_s - 0.1
    [retry] = crew.events("job.retry")
    assert retry["error"] == (
        f"JobTimeoutError: the handler ran longer than its limit of {limit_s:g} s"
    )


@pytest.mark.parametrize("end", [BrokerProcess.terminate, BrokerProcess.kill], ids=["stop", "kill"])
@pytest.mark.parametrize("what", ["sleep", "fail"])
def test_job_runs_once_when_its_broker_ends_meanwhile(
    crew: Crew, peer: SocketClient, broker: BrokerProcess, what: str, end: EndBroker
) -> None:
    """A failed job runs again only after its delay, because its retry is not lost."""
    made = envelope("slow fail" if what == "fail" else "sleep", seconds=1)
    peer.store("q", encoded(made))
    worker = crew.start("--backoff", "600")
    until(lambda: crew.runs)
    end(broker)
    broker.start()
    until(lambda: crew.events("job.retry" if what == "fail" else "job.ack"))
    with SocketClient(broker.port) as other:
        other.store("q", encoded(envelope("done")))
        until(lambda: crew.runs[1:])
    time.sleep(0.5)
    worker.terminate()
    assert worker.wait(WAIT_S) == 0
    assert [run["what"] for run in crew.runs] == [made["data"]["what"], "done"]


@pytest.mark.parametrize("what", ["sleep", "slow fail"])
def test_job_runs_once_when_its_connection_is_cut_meanwhile(
    crew: Crew, peer: SocketClient, what: str
) -> None:
    """The message is ready again, but the worker settles it before it consumes."""
    peer.store("q", encoded(envelope(what, seconds=1)), encoded(envelope("done")))
    proxy = KillingProxy(crew.port, "", "after", lambda: None)
    worker = crew.start("--backoff", "600", port=proxy.port)
    until(lambda: crew.runs)
    proxy.cut_all()
    until(lambda: crew.events("job.ack")[what == "sleep" :])
    worker.terminate()
    assert worker.wait(WAIT_S) == 0
    proxy.close()
    assert [run["what"] for run in crew.runs] == [what, "done"]


@pytest.mark.parametrize("what", ["sleep", "slow fail"])
def test_job_runs_once_when_its_broker_notices_the_cut_too_late(tmp_path: Path, what: str) -> None:
    """The settlement arrives while the old connection still holds the message."""
    with ExitStack() as stack:
        broker = stack.enter_context(broker_process(tmp_path / "data", "--admin", "127.0.0.1:0"))
        admin = AdminApi(broker.admin[0])
        peer = stack.enter_context(SocketClient(broker.port))
        peer.store("q", encoded(envelope(what, seconds=1)))
        crew = Crew(tmp_path, broker.port, "q")
        stack.callback(crew.stop)
        proxy = KillingProxy(broker.port, "", "after", lambda: None)
        stack.callback(proxy.close)
        worker = crew.start("--backoff", "600", port=proxy.port)
        until(lambda: crew.runs)
        old = proxy.fall_silent()
        until(lambda: crew.events("job.ack" if what == "sleep" else "job.retry"))
        peer.store("q", encoded(envelope("done")))
        until(lambda: crew.runs[1:])
        for connection in old:
            connection.shutdown(SHUT_RDWR)
        until(lambda: len(admin.get("/api/v1/clients")["items"]) == 2)  # the worker, and the peer
        peer.store("q", encoded(envelope("done")))
        until(lambda: crew.runs[2:])
        worker.terminate()
        assert worker.wait(WAIT_S) == 0
        assert [run["what"] for run in crew.runs] == [what, "done", "done"]
        assert crew.events("job.duplicate") == []


def test_released_message_waits_and_counts_no_attempt(crew: Crew, peer: SocketClient) -> None:
    content = encoded(envelope(urn="urn:test:nobody"))
    peer.store("q", content)
    assert crew.run("--on-unknown", "release") == 0
    [event] = crew.events("job.released")
    assert (event["reason"], event["delay_s"]) == ("unknown_urn", 3)
    peer.send(peer.side.consume_with_options("q", 1, b'{"info":true}'))
    peer.barrier()
    assert not peer.informed
    frame, info = peer.dispatch_with_info()
    assert (frame.content, info["attempt"]) == (content, 1)


def test_worker_counts_attempts_in_an_opaque_queue(tmp_path: Path) -> None:
    """The broker does not change such bodies, but says which attempt it is."""
    flags = ("--admin", "none", "--set", "queues.payload_policy=opaque")
    with broker_process(tmp_path / "opaque", *flags) as broker:
        crew = Crew(tmp_path, broker.port, "q")
        with SocketClient(broker.port) as peer:
            peer.store("q", encoded(envelope("fail")))
            worker = crew.start("--max-attempts", "3", "--backoff", "0")
            until(lambda: crew.events("job.dead_letter"))
        crew.stop()
    assert worker.returncode is not None
    assert [run["attempts"] for run in crew.runs] == [0, 1, 2]
