"""Processes of the PHP client: forks, programs that it starts, signals, and free workers."""

import asyncio
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from phpmq_lite.protocol.frames import ClientFrame, Consume
from tests.support.certificates import CertificateAuthority
from tests.support.envelope_cases import body
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.php_client import CLIENT, EXAMPLES, STRICT, PhpClient, needs_php
from tests.support.programs import run_program
from tests.support.scripted_broker import ScriptedBroker, ScriptedPeer
from tests.support.socket_client import AdminApi, SocketClient

pytestmark = [pytest.mark.acceptance, needs_php]

_numbers = count(1)
HEAD = """<?php
declare(strict_types=1);
require $argv[1] . '/autoload.php';
[, , $address, $queue] = $argv;
$tls = isset($argv[4]) ? ['cafile' => $argv[4]] : [];
$transport = new Phpmq\\PhpmqTransport($address, tls: $tls, timeout: 5.0);
$body = fn (): string => Phpmq\\Envelope::make('urn:babel:orders:created', ['id' => 1], $queue);
/** Runs a function in a fork; returns the fork's exit code. */
$fork = function (callable $do): int {
    $pid = pcntl_fork();
    if ($pid === 0) {
        $do();
        exit(0);
    }
    pcntl_waitpid($pid, $status);
    return pcntl_wexitstatus($status);
};
$said = function (callable $do): string {
    try {
        $do();
        return 'no error';
    } catch (Throwable $error) {
        return $error::class . ': ' . $error->getMessage();
    }
};
"""


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Path]]:
    folder = tmp_path_factory.mktemp("secure")
    cert, key = CertificateAuthority(folder).make("server")
    flags = ("--set", f"tcp.tls_cert={cert}", "--set", f"tcp.tls_key={key}")
    with broker_process(folder / "data", "--admin", "127.0.0.1:0", *flags) as running:
        yield running, cert


@dataclass
class Scripts:
    """Runs PHP scripts that connect to a broker, each after ``HEAD``."""

    broker: BrokerProcess
    arguments: list[str]  # address, queue, and with TLS the certificate
    folder: Path

    def run(self, script: str) -> str:
        path = self.folder / "script.php"
        path.write_text(HEAD + script, encoding="utf-8")
        done = run_program(["php", *STRICT, str(path), str(CLIENT), *self.arguments])
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        return done.stdout

    def messages(self) -> list[dict[str, Any]]:
        asked = f"/api/v1/messages?q=queue:{self.arguments[1]}"
        found: list[dict[str, Any]] = AdminApi(self.broker.admin[0]).get(asked)["items"]
        return found


@pytest.fixture(params=["tcp", "tls"])
def php(
    request: pytest.FixtureRequest,
    broker: BrokerProcess,
    secure: tuple[BrokerProcess, Path],
    tmp_path: Path,
) -> Scripts:
    queue = f"fork-{next(_numbers)}"
    if request.param == "tcp":
        return Scripts(broker, [broker.phpmq[0], queue], tmp_path)
    running, cert = secure
    return Scripts(running, [f"tls://localhost:{running.port}", queue, str(cert)], tmp_path)


# -- forks


FORKS_THAT_PUBLISH: Final = """
for ($child = 0; $child < 4; $child++) {
    if (pcntl_fork() === 0) {
        for ($i = 0; $i < 50; $i++) {
            $transport->publish($body(), $queue);
        }
        exit(0);
    }
}
while (pcntl_wait($status) > 0) {
    assert(pcntl_wexitstatus($status) === 0);
}
"""


def test_forks_of_an_unused_transport_store_all_that_they_publish(php: Scripts) -> None:
    php.run(FORKS_THAT_PUBLISH)
    assert AdminApi(php.broker.admin[0]).queue(php.arguments[1])["ready"] == 200


USED_BY_THE_FORK: Final = """
$transport->publish($body(), $queue);
$message = $transport->reserve($queue);
$fork(function () use ($transport, $message, $body, $queue, $said): void {
    foreach ([
        fn () => $transport->publish($body(), $queue),
        fn () => $transport->reserve($queue, 0.1),
        fn () => $transport->ack($message),
    ] as $do) {
        echo $said($do), "\\n";
    }
});
$transport->ack($message);
$transport->publish($body(), $queue);
$transport->ack($transport->reserve($queue));
$transport->close();
"""


def test_fork_of_a_connected_transport_is_refused_and_its_parent_works_on(php: Scripts) -> None:
    """Its message stays held, and its connection open, although the child ends."""
    said = php.run(USED_BY_THE_FORK)
    lines = said.splitlines()
    assert len(lines) == 3
    assert all("Phpmq\\PhpmqException: process " in line and "fork" in line for line in lines), said
    ended = php.messages()
    assert [(m["state"], m["deliveries"]) for m in ended] == [("acked", 1)] * 2
    assert len({m["publisher"] for m in ended}) == 1


@pytest.mark.parametrize("child", ["", "$transport->close();", "unset($transport);"])
def test_fork_that_ends_leaves_its_parent_connected(php: Scripts, child: str) -> None:
    php.run(
        """
$transport->publish($body(), $queue);
$message = $transport->reserve($queue);
$fork(function () use (&$transport): void { CHILD });
$transport->publish($body(), $queue);
$transport->ack($message);
$transport->close();
""".replace("CHILD", child)
    )
    second, first = php.messages()
    assert (first["state"], first["deliveries"], second["state"]) == ("acked", 1, "ready")
    assert first["publisher"] == second["publisher"]


def test_fork_that_closes_its_copy_connects_again(php: Scripts) -> None:
    php.run("""
$transport->publish($body(), $queue);
$fork(function () use ($transport, $body, $queue): void {
    $transport->close();
    $transport->publish($body(), $queue);
});
$transport->publish($body(), $queue);
$transport->close();
""")
    ended = php.messages()
    assert len(ended) == 3
    assert len({m["publisher"] for m in ended}) == 2


# -- programs that it starts


OPEN_FILES: Final = """
$transport->publish($body(), $queue);
$ls = proc_open(['ls', '-l', '/proc/self/fd'], [1 => ['pipe', 'w']], $pipes);
echo stream_get_contents($pipes[1]);
proc_close($ls);
echo shell_exec('ls -l /proc/self/fd');
"""


def test_program_does_not_inherit_the_socket(php: Scripts) -> None:
    """Otherwise, its messages would be held for as long as that program runs."""
    shown = php.run(OPEN_FILES)
    assert "/dev/" in shown or "pipe:" in shown
    assert "socket:" not in shown


# -- free workers


def test_message_goes_to_a_free_worker_when_another_polls_two_queues(broker: BrokerProcess) -> None:
    first, second = (f"poll-{next(_numbers)}" for _ in range(2))
    with PhpClient(broker.phpmq[0]) as busy, PhpClient(broker.phpmq[0]) as free:
        assert busy.reserve(first, 0.1) is None
        with SocketClient(broker.port) as peer:
            assert peer.confirm(second, body()) is None
        held = busy.take(second)  # and works on it
        with SocketClient(broker.port) as peer:
            assert peer.confirm(first, body()) is None
        other = free.take(first)
        free.call("ack", other.handle)
        busy.call("ack", held.handle)


def test_message_goes_to_a_free_worker_when_another_does_something_else(
    broker: BrokerProcess,
) -> None:
    """After an empty poll, and after an acknowledgement with more messages behind it."""
    queue = f"poll-{next(_numbers)}"
    with PhpClient(broker.phpmq[0]) as busy, PhpClient(broker.phpmq[0]) as free:
        assert busy.reserve(queue, 0) is None
        with SocketClient(broker.port) as peer:
            for _ in range(2):
                assert peer.confirm(queue, body()) is None
        busy.call("ack", busy.take(queue).handle)
        free.call("ack", free.take(queue).handle)
        assert free.reserve(queue, 0.2) is None


# -- signals


@pytest.mark.parametrize("state", ["refusing", "silent", "frozen"])
def test_sigterm_ends_a_worker_that_waits_for_its_broker(state: str) -> None:
    """No broker, one that cannot be reached, and one that hangs."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        place = listener.getsockname()
        command = ["php", *STRICT, str(EXAMPLES / "worker.php"), "--timeout=3600"]
        process = subprocess.Popen([*command, f"127.0.0.1:{place[1]}", "orders"])
        peer = stack.enter_context(listener.accept()[0])
        peer.recv(1)  # it has subscribed, so its signal handlers are installed
        if state == "refusing":
            listener.close()
        elif state == "silent":  # a full backlog answers no more
            for _ in range(3):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(place)
        if state != "frozen":
            peer.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


async def test_sigterm_ends_a_worker_whose_copy_gets_no_receipt(tmp_path: Path) -> None:
    handlers = tmp_path / "handlers.php"
    handlers.write_text(
        "<?php return ['urn:babel:orders:created' => function (): void {"
        ' posix_kill(getmypid(), SIGTERM); throw new Exception("failed"); }];'
    )
    async with ScriptedBroker() as broker:

        def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
            if isinstance(frame, Consume) and frame.count:
                peer.dispatch(frame.queue, body(), b"0123456789abcdef" * 2)

        broker.script = script
        process = await asyncio.create_subprocess_exec(
            "php", *STRICT, str(EXAMPLES / "worker.php"), f"--handlers={handlers}",
            "--timeout=3600", f"127.0.0.1:{broker.port}", "orders",
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, log = await asyncio.wait_for(process.communicate(), 8)
        assert process.returncode == 0
        assert "before the interrupt" in json.loads(log.splitlines()[0])["error"]


# -- addresses and options


def test_connection_has_the_options_that_notice_a_dead_broker(php: Scripts) -> None:
    shown = php.run("""
$transport->publish($body(), $queue);
echo shell_exec('ss -tnoH state established dport = :' . substr(strrchr($address, ':'), 1));
$transport->close();
""")
    assert "timer:(keepalive," in shown
