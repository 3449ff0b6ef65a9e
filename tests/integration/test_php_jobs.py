"""Jobs of ``examples/php/worker.php``: longer than a hold, hung, or without their broker."""

import asyncio
import json
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any

import pytest

from phpmq_lite.protocol.frames import OUR_FRAMES, Settle
from tests.integration.test_php_options import dispatching, options_of
from tests.integration.test_php_wire import BODY, ID, received
from tests.support.envelope_cases import body
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.killing_proxy import KillingProxy
from tests.support.php_client import CLIENT, EXAMPLES, STRICT, needs_php
from tests.support.scripted_broker import ScriptedBroker
from tests.support.socket_client import AdminApi, SocketClient
from tests.support.waiting import until

pytestmark = [pytest.mark.acceptance, needs_php]

HANDLERS = """<?php
/** Notes each run in a file; returns or fails as the test says. */
declare(strict_types=1);
use InitPHP\\Queue\\Message\\ReceivedMessage;
$folder = __DIR__;
$waits = function () use ($folder): void { // without a sleep, which an alarm ends
    while (!file_exists("$folder/go")) {
        usleep(1000);
        clearstatcache();
    }
};
$job = function (array $data, array $meta, ReceivedMessage $message) use ($folder, $waits) {
    $run = getmypid() . ' ' . $message->receipt()->attempt;
    file_put_contents("$folder/runs", "$run\\n", FILE_APPEND);
    JOB
};
return ['urn:babel:orders:created' => $job];
"""

RESERVES = """<?php
require $argv[1] . '/autoload.php';
$client = new Phpmq\\Client($argv[2], credit: 2);
$message = $client->reserve('orders');
$body = str_repeat('x', 4 << 20);
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    flags = ("--admin", "127.0.0.1:0", "--set", "queues.ack_timeout_s=1")
    with broker_process(tmp_path / "data", *flags) as running:
        yield running


class Site:
    """A queue with one message, and workers whose handler is a piece of PHP."""

    def __init__(self, broker: BrokerProcess, folder: Path, stack: ExitStack) -> None:
        self.broker = broker
        self.address: str = broker.phpmq[0]
        self.folder = folder
        self._stack = stack
        with SocketClient(broker.port) as peer:
            assert peer.confirm("orders", body()) is None

    def start(
        self, job: str, *options: str, php: tuple[str, ...] = STRICT
    ) -> "subprocess.Popen[bytes]":
        handlers = self.folder / "handlers.php"
        handlers.write_text(HANDLERS.replace("JOB", job), encoding="utf-8")
        command = ["php", *php, str(EXAMPLES / "worker.php"), f"--handlers={handlers}", *options]
        with (self.folder / "log").open("ab") as log:
            arguments = ["--timeout=1", self.address, "orders"]
            process = subprocess.Popen([*command, *arguments], stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    @property
    def runs(self) -> list[list[str]]:
        """The process and the attempt of each run."""
        path = self.folder / "runs"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def log(self) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for line in (self.folder / "log").read_text().splitlines()
            if line.startswith("{")
        ]

    def go(self) -> None:
        (self.folder / "go").touch()

    @property
    def messages(self) -> list[tuple[str, str]]:
        items = AdminApi(self.broker.admin[0]).get("/api/v1/messages")["items"]
        return sorted((item["queue"], item["state"]) for item in items)

    def cut(self) -> None:
        """End all connections, as an operator does."""
        api = AdminApi(self.broker.admin[0])
        for client in api.get("/api/v1/clients")["items"]:
            path = f"{api.url}/api/v1/clients/{client['client']}"
            request = urllib.request.Request(path, method="DELETE", headers={"Origin": api.url})
            urllib.request.urlopen(request, timeout=30).close()


@pytest.fixture
def site(broker: BrokerProcess, tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(broker, tmp_path, stack)


def stopped(site: Site) -> None:
    site.broker.terminate()
    site.broker.start()


def killed(site: Site) -> None:
    site.broker.kill()
    site.broker.start()


JOBS = pytest.mark.parametrize(
    ("job", "options", "expected"),
    [
        ("$waits();", (), [("orders", "acked")]),
        (
            "$waits(); throw new Exception('no');",
            ("--max-attempts=1",),
            [("orders", "dead"), ("orders.dlq", "ready")],
        ),
        ("$waits(); throw new Exception('no');", ("--delays=300",), [("orders", "scheduled")]),
    ],
    ids=["acknowledged", "dead", "retried"],
)


@pytest.mark.parametrize("end", [stopped, killed, Site.cut], ids=["stopped", "killed", "cut"])
@JOBS
def test_job_runs_once_when_its_broker_ends(
    site: Site,
    end: Callable[[Site], None],
    job: str,
    options: tuple[str, ...],
    expected: list[tuple[str, str]],
) -> None:
    site.start(job, *options)
    until(lambda: site.runs)
    end(site)
    site.go()
    until(lambda: site.messages == expected)
    assert len(site.runs) == 1


@JOBS
def test_job_runs_once_when_its_broker_notices_the_cut_too_late(
    site: Site, job: str, options: tuple[str, ...], expected: list[tuple[str, str]]
) -> None:
    """The settlement arrives while the old connection still holds the message."""
    proxy = KillingProxy(site.broker.port, "", "after", lambda: None)
    site.address = f"127.0.0.1:{proxy.port}"
    site.start(job, *options)
    until(lambda: site.runs)
    old = proxy.fall_silent()
    site.go()
    api = AdminApi(site.broker.admin[0])
    until(lambda: len(api.get("/api/v1/clients")["items"]) == len(old) + 1)
    late = 'phpmq_acks_ignored_total{reason="foreign"}'
    until(lambda: api.metrics().get(late) or site.messages == expected)  # or the hold has ended
    for connection in old:
        connection.shutdown(SHUT_RDWR)
    until(lambda: site.messages == expected)
    assert len(site.runs) == 1
    proxy.close()


def test_job_longer_than_three_timeouts_runs_once(site: Site) -> None:
    """The queue's timeout is a second, and another worker waits for the message."""
    for _ in range(2):
        site.start("$end = hrtime(true) + 3_500_000_000; while (hrtime(true) < $end) usleep(1000);")
    until(lambda: site.messages == [("orders", "acked")])
    assert len(site.runs) == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_killed_worker_gives_its_long_job_back_within_the_timeout(
    site: Site, how: signal.Signals
) -> None:
    """The connection of a suspended worker stays, as that of one whose machine has lost power."""
    first = site.start("$waits();", "--time-limit=600")
    until(lambda: site.runs)
    second = site.start("$waits();", "--time-limit=600")
    first.send_signal(how)
    until(lambda: len(site.runs) == 2)
    site.go()
    until(lambda: site.messages == [("orders", "acked")])
    assert site.runs == [[str(first.pid), "1"], [str(second.pid), "2"]]


def test_hung_job_is_ended_and_retried_at_its_time_limit(site: Site) -> None:
    site.start("$waits();", "--time-limit=1", "--delays=0", "--max-attempts=2")
    until(lambda: site.messages == [("orders", "dead"), ("orders.dlq", "ready")])
    assert [attempt for _, attempt in site.runs] == ["1", "2"]
    assert [line["event"] for line in site.log] == ["job.retry", "job.dead_letter"]
    assert {line["error"] for line in site.log} == {"the job has run for its time limit of 1 s"}


def test_worker_counts_attempts_in_an_opaque_queue(tmp_path: Path) -> None:
    """The broker does not change such bodies, but says which attempt it is."""
    flags = ("--admin", "127.0.0.1:0", "--set", "queues.payload_policy=opaque")
    with broker_process(tmp_path / "data", *flags) as broker, ExitStack() as stack:
        site = Site(broker, tmp_path, stack)
        site.start("throw new Exception('no');", "--delays=0", "--max-attempts=3")
        until(lambda: site.messages == [("orders", "dead"), ("orders.dlq", "ready")])
        assert [attempt for _, attempt in site.runs] == ["1", "2", "3"]


def test_handler_has_a_time_limit_of_its_own(site: Site) -> None:
    handlers = HANDLERS.replace("=> $job", "=> ['time_limit' => 1, 'handler' => $job]")
    (site.folder / "handlers.php").write_text(handlers.replace("JOB", "$waits();"))
    worker = EXAMPLES / "worker.php"
    command = ["php", *STRICT, str(worker), f"--handlers={site.folder}/handlers.php"]
    done = subprocess.run(
        [*command, "--max-attempts=1", "--max-jobs=1", site.broker.phpmq[0], "orders"],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert b"time limit of 1 s" in done.stderr


def test_job_that_catches_the_end_of_its_time_ends_with_its_process(site: Site) -> None:
    stubborn = "for (;;) { try { $waits(); return; } catch (Throwable) { } }"
    first = site.start(stubborn, "--time-limit=1")
    assert first.wait(60) == -9
    site.start("")
    until(lambda: site.messages == [("orders", "acked")])
    assert [attempt for _, attempt in site.runs] == ["1", "2"]


def test_job_without_alarms_is_held_once_for_its_time_limit(site: Site) -> None:
    """Without ext-pcntl, or in PHP-FPM: here the function is disabled."""
    php = (*STRICT, "-d", "disable_functions=pcntl_alarm")
    job = "$end = hrtime(true) + 2_500_000_000; while (hrtime(true) < $end) usleep(1000);"
    for _ in range(2):
        site.start(job, "--time-limit=30", php=php)
    until(lambda: site.messages == [("orders", "acked")])
    assert len(site.runs) == 1


async def settles(folder: Path, php: str, **info: Any) -> list[dict[str, Any]]:
    """Run PHP with a reserved message, whose frames must stay whole; return how it settles."""
    script = folder / "job.php"
    script.write_text(f"{RESERVES}{php}$client->close();\n", encoding="utf-8")
    async with ScriptedBroker() as broker:
        broker.known_frames = OUR_FRAMES
        broker.script = dispatching(broker, ID, BODY, **info)
        process = await asyncio.create_subprocess_exec(
            "php", *STRICT, str(script), str(CLIENT), f"127.0.0.1:{broker.port}"
        )
        assert await asyncio.wait_for(process.wait(), 60) == 0
        await asyncio.wait_for(broker.peer.half_closed.wait(), 60)
        frames = received(broker)
    assert [peer.side.error for peer in broker.peers] == [None]
    return [options_of(frame) for frame in frames if isinstance(frame, Settle)]


async def test_alarm_extends_every_reserved_message_beside_other_frames(tmp_path: Path) -> None:
    """The handler publishes a large message meanwhile, whose frame must stay whole."""
    php = """
(new Phpmq\\JobTimer($client))->run($message, function () use ($client, $body): void {
    for ($end = hrtime(true) + 2_500_000_000; hrtime(true) < $end;) {
        $client->publish($body, 'others');
    }
}, 60);
$client->ack($message);
"""
    extended = {"action": "extend", "hold_s": 3.0}
    assert await settles(tmp_path, php, hold_s=3) == [extended] * 2


async def test_time_limit_ends_a_job_between_its_publishes(tmp_path: Path) -> None:
    """An exception within a frame would break the connection, on which the retry follows."""
    php = """
try {
    (new Phpmq\\JobTimer($client))->run($message, function () use ($client, $body): void {
        for (;;) {
            $client->publish($body, 'others');
        }
    }, 1);
} catch (Phpmq\\JobTimedOut $error) {
    $client->retry($message, 5, $error);
}
"""
    [retry] = await settles(tmp_path, php)
    assert retry["exception"] == "Phpmq\\JobTimedOut"
