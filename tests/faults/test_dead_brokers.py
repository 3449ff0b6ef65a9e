"""Brokers that disappear without a word, seen from PHP, Node and Go on machines of their own."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.node_network import NodeNetwork, needs_namespaces
from tests.support.php_client import CLIENT, ROOT
from tests.support.programs import run_program
from tests.support.socket_client import SocketClient
from tests.support.waiting import until

pytestmark = [pytest.mark.faults, needs_namespaces]

LANGUAGES: Final = ("php", "node", "go")
NOTICED_S: Final = 150
NODE: Final = ROOT / "examples" / "node" / "phpmq.mjs"
GO: Final = ROOT / "examples" / "go" / "phpmq.go"
# Each prints a message, waits for a line before it acknowledges it, and goes on.
CONSUMERS: Final = {
    "php": """<?php
require $argv[1] . '/autoload.php';
$transport = new Phpmq\\PhpmqTransport($argv[2]);
while (($message = $transport->reserve('orders', 3600)) !== null) {
    echo $message->rawBody(), "\\n";
    fgets(STDIN);
    $transport->ack($message);
}
""",
    "node": """
import { createInterface } from 'node:readline';
const { Client } = await import(process.argv[2]);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
for await (const message of new Client(process.argv[3]).consume('orders')) {
    console.log(message.content.toString());
    await lines.next();
    message.ack();
}
""",
    "go": """package main
import ("bufio"; "fmt"; "os")
func main() {
	lines := bufio.NewScanner(os.Stdin)
	for message := range NewClient(os.Args[1]).Consume("orders", 1) {
		fmt.Println(string(message.Content))
		lines.Scan()
		message.Ack()
	}
}
""",
}
# Each publishes; then a client that has no time for an address that is silent publishes again.
PUBLISHERS: Final = {
    "php": """<?php
require $argv[1] . '/autoload.php';
$body = Phpmq\\Envelope::make('urn:babel:orders:created', [], 'orders');
foreach ([2.0, 0.45] as $timeout) {
    $began = hrtime(true);
    (new Phpmq\\PhpmqTransport($argv[2], timeout: $timeout))->publish($body, 'orders');
    echo (hrtime(true) - $began) / 1e6, "\\n";
}
""",
    "node": """
const { Client } = await import(process.argv[2]);
for (const timeout of [2, 0.45]) {
    const client = new Client(process.argv[3], { timeout });
    const began = performance.now();
    await client.publish('orders', 'x');
    console.log(performance.now() - began);
    client.close();
}
""",
    "go": """package main
import ("fmt"; "os"; "time")
func main() {
	client := NewClient(os.Args[1])
	for i := 0; i < 2; i++ {
		began := time.Now()
		if err := client.Publish("orders", []byte("x"), 0, ""); err != nil {
			panic(err)
		}
		fmt.Println(time.Since(began).Milliseconds())
		client.conn.Close()
		for client.isConnected() {
			time.Sleep(time.Millisecond)
		}
	}
	if len(client.silent) != 1 {
		panic("the first address answered")
	}
}
func (c *Client) isConnected() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.conn != nil
}
""",
}


@pytest.fixture
def network() -> Iterator[NodeNetwork]:
    with NodeNetwork(len(LANGUAGES) + 1) as made:
        yield made


@pytest.fixture
def broker(network: NodeNetwork, tmp_path: Path) -> Iterator[BrokerProcess]:
    flags = ("--listen", f"{network.gateway}:0", "--set", "tcp.open=true")
    with broker_process(tmp_path / "data", *flags, listeners=2) as running:
        yield running


def port_of(broker: BrokerProcess) -> int:
    """Return the port of the listener that other machines reach."""
    return int(broker.phpmq[1].rpartition(":")[2])


def command(language: str, script: str, folder: Path, address: str) -> list[str]:
    if shutil.which(language) is None:
        pytest.skip(f"missing: {language}")
    folder.mkdir()
    path = folder / {"php": "script.php", "node": "script.mjs", "go": "script.go"}[language]
    path.write_text(script, encoding="utf-8")
    if language == "php":
        return ["php", str(path), str(CLIENT), address]
    if language == "node":
        return ["node", str(path), str(NODE), address]
    client = GO.read_text(encoding="utf-8").replace("func main() {", "func example() {")
    (folder / "phpmq.go").write_text(client, encoding="utf-8")
    built = folder / "program"
    subprocess.run(["go", "build", "-o", built, path, folder / "phpmq.go"], check=True, timeout=200)
    return [str(built), address]


class Consumer:
    def __init__(self, network: NodeNetwork, node: int, program: list[str], port: int) -> None:
        self.network, self.node, self._port = network, node, port
        self.process = subprocess.Popen(
            [*network.prefix(node), *program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def next(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def acknowledge(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def sockets(self) -> str:
        """Return its connections, with options and timers."""
        asked = ("ss", "-tnoH", "state", "established", "dport", "=", f":{self._port}")
        return run_program([*self.network.prefix(self.node), *asked], check=True).stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("moment", ["idle", "after an acknowledgement"])
def test_consumer_notices_a_dead_broker_and_is_served_again(
    network: NodeNetwork,
    broker: BrokerProcess,
    tmp_path: Path,
    moment: str,
    figure: Callable[[str], None],
) -> None:
    """Without a cut, TCP has nothing to notice; with unacknowledged bytes, no keep-alive runs."""
    address = f"{network.gateway}:{port_of(broker)}"
    consumers = {}
    for node, language in enumerate(LANGUAGES):
        program = command(language, CONSUMERS[language], tmp_path / language, address)
        consumers[language] = Consumer(network, node, program, port_of(broker))
    with SocketClient(broker.port) as peer:
        for number in range(len(LANGUAGES)):
            assert peer.confirm("orders", b'{"before":%d}' % number) is None
        for consumer in consumers.values():
            assert "before" in consumer.next()
        if moment == "idle":
            for consumer in consumers.values():
                consumer.acknowledge()
            for consumer in consumers.values():
                until(lambda c=consumer: "timer:(keepalive" in c.sockets(), 30)  # type: ignore[misc]
        for consumer in consumers.values():
            network.cut_off(consumer.node)
        if moment != "idle":
            for consumer in consumers.values():
                consumer.acknowledge()
        cut_at = time.monotonic()
        noticed: dict[str, float] = {}

        def is_noticed() -> bool:
            for language, consumer in consumers.items():
                if language not in noticed and not consumer.sockets():
                    noticed[language] = time.monotonic() - cut_at
            return len(noticed) == len(consumers)

        try:
            until(is_noticed, NOTICED_S)
        finally:
            shown = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in noticed.items())
            figure(f"cut {moment}: noticed by {shown or 'none'}")
        for consumer in consumers.values():
            network.heal(consumer.node)
        for consumer in consumers.values():
            until(lambda c=consumer: bool(c.sockets()), 60)  # type: ignore[misc]
        for number in range(len(LANGUAGES)):
            assert peer.confirm("orders", b'{"after":%d}' % number) is None
        for consumer in consumers.values():
            while "after" not in consumer.next():
                consumer.acknowledge()  # what it held comes again
            consumer.process.kill()
            consumer.process.communicate()


@pytest.mark.parametrize("language", LANGUAGES)
def test_client_uses_the_second_address_of_a_name_while_the_first_is_silent(
    network: NodeNetwork,
    broker: BrokerProcess,
    tmp_path: Path,
    language: str,
    figure: Callable[[str], None],
) -> None:
    silent = len(LANGUAGES)
    network.cut_off(silent)
    name = network.prefix(0)[-1]
    hosts = Path("/etc/netns") / name / "hosts"  # `ip netns exec` shows it as /etc/hosts
    hosts.parent.mkdir(parents=True)
    try:
        hosts.write_text(f"{network.addresses[silent]} mq.test\n{network.gateway} mq.test\n")
        program = command(
            language, PUBLISHERS[language], tmp_path / "client", f"mq.test:{port_of(broker)}"
        )
        done = run_program([*network.prefix(0), *program])
    finally:
        shutil.rmtree(hosts.parent)
    assert done.returncode == 0, done.stderr
    first, second = map(float, done.stdout.split())
    figure(f"{language}: {first:.0f} ms with a silent address, then {second:.0f} ms")
