"""Several brokers of one database: relaying, takeover, and pages while no broker is active."""

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from phpmq_lite import connect_blocking
from phpmq_lite.broker_process import BrokerProcess
from tests.support.postgres_nodes import ReplicatedPostgres, needs_postgres, wait_until

pytestmark = [needs_postgres, pytest.mark.slow]


@pytest.fixture(scope="module")
def nodes() -> Iterator[ReplicatedPostgres]:
    with ReplicatedPostgres() as started:
        yield started


def start(stack: ExitStack, nodes: ReplicatedPostgres, folder: Path) -> BrokerProcess:
    options = ["--store", nodes.url(), "--admin", "127.0.0.1:0", "--legacy-listen", "none"]
    broker = BrokerProcess(folder, options)
    stack.callback(broker.kill)
    broker.start()
    return broker


def start_active(stack: ExitStack, nodes: ReplicatedPostgres, folder: Path) -> BrokerProcess:
    """Start a broker, and wait until it is active; one that starts meanwhile could be first."""
    broker = start(stack, nodes, folder)
    wait_for_role(broker, "ready")
    return broker


def wait_for_role(broker: BrokerProcess, role: str) -> None:
    """Wait until a broker's readiness begins with a word; a failure has its answer and its log."""
    answer = ""

    def has_role() -> bool:
        nonlocal answer
        answer = get(broker, "/readyz")[1]
        return answer.startswith(role)

    try:
        wait_until(has_role)
    except (AssertionError, OSError) as error:
        log = broker.log.read_text(encoding="utf-8")[-4_000:]
        raise AssertionError(f"not {role}: {answer}\n{log}") from error


def get(
    broker: BrokerProcess, path: str, data: bytes | None = None, token: str = ""
) -> tuple[int, str]:
    headers = {"Content-Type": "application/json"}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(broker.admin[0].rstrip("/") + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def lines_of(stack: ExitStack, nodes: ReplicatedPostgres, folder: Path) -> Iterator[str]:
    """Start a broker until the end of the stack; return the lines that it prints."""
    command = BrokerProcess(folder, ["--store", nodes.url()]).command
    process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(process.terminate)
    return iter(process.stdout or ())


def publish(broker: BrokerProcess, body: bytes) -> None:
    with connect_blocking("127.0.0.1", broker.port) as client:
        client.publish("orders", body)


def test_clients_use_any_broker_and_outlive_the_active_one(
    nodes: ReplicatedPostgres, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        first = start_active(stack, nodes, tmp_path / "first")
        second = start(stack, nodes, tmp_path / "second")
        wait_for_role(second, "standby")
        publish(second, b"1")
        first.kill()
        wait_for_role(second, "ready")
        publish(second, b"2")
        bodies = []
        with (
            connect_blocking("127.0.0.1", second.port) as client,
            client.consume("orders", credit=1) as consumer,
        ):
            for _, delivery in zip(range(2), consumer, strict=False):
                bodies.append(delivery.body)
                delivery.ack()
        assert bodies == [b"1", b"2"]


def test_broker_says_whether_it_is_active_or_relays(
    nodes: ReplicatedPostgres, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        first = start_active(stack, nodes, tmp_path / "first")
        lines = lines_of(stack, nodes, tmp_path / "second")
        line = next(line for line in lines if line.startswith("listening phpmq"))
        assert line.endswith(" (standby: relays to the active broker)\n")
        command = [sys.executable, "-m", "phpmq_lite", "queue", "list"]
        refused = [*command, "--data", str(tmp_path / "second")]
        wait_until(lambda: socket.gethostname() in errors_of(refused))
        assert "This broker is a standby; the active one is on" in errors_of(refused)
        first.kill()
        assert next(lines).startswith("active with epoch ")


def errors_of(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_standby_ends_at_once_and_pages_show_a_replica_while_no_broker_is_active(
    nodes: ReplicatedPostgres, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        first = start_active(stack, nodes, tmp_path / "first")
        second = start(stack, nodes, tmp_path / "second")
        publish(first, b"shown")
        wait_for_role(second, "standby")
        lost = nodes.primary
        nodes.kill(lost)
        first.kill()
        wait_until(lambda: "No broker is active" in get(second, "/queues/orders")[1])
        status, page = get(second, "/queues/orders")
        assert status == 200
        assert "shown" in page
        assert get(second, "/readyz")[0] == 503
        status, answer = get(second, "/api/v1/queues/orders/messages", b'{"content": "x"}')
        assert (status, json.loads(answer)["code"]) == (503, "not_ready")
        assert second.process is not None
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(10) == 0
        nodes.start(lost)
        nodes.wait_for_quorum()


def test_standby_answers_metrics_and_each_check_for_a_valid_token(
    nodes: ReplicatedPostgres, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        first = start_active(stack, nodes, tmp_path / "first")
        second = start(stack, nodes, tmp_path / "second")
        wait_for_role(second, "standby")

        def token(*command: str) -> str:
            line = [sys.executable, "-m", "phpmq_lite", "token", *command]
            line += ["--data", str(tmp_path / "first")]
            return subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout[:-1]

        viewer = token("create", "viewer")
        scrape = token("create", "prometheus", "--role", "metrics")
        status, text = get(second, "/metrics", token=scrape)
        assert (status, "phpmq_store_active 0.0\n" in text) == (200, True), text
        assert "phpmq_store_active 1.0\n" in get(first, "/metrics", token=scrape)[1]
        assert "role: standby of" in get(second, "/readyz", token=viewer)[1]
        assert get(second, "/metrics", token="phpmq_unknown")[0] == 401
        later = token("create", "later", "--role", "metrics")
        wait_until(lambda: get(second, "/metrics", token=later)[0] == 200)
        token("revoke", "prometheus", "--yes")
        first.kill()
        wait_for_role(second, "ready")
        assert get(second, "/metrics", token=scrape)[0] == 401
        assert get(second, "/metrics", token=later)[0] == 200
