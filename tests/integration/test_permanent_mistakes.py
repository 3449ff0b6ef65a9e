"""Every client reports the same 22 permanent mistakes within a second, in one sentence.

The sentence names the object, its value and the remedy.  To print a table with the milliseconds
from the start of the program to the sentence, and of the program without a mistake:
``python -m tests.integration.test_permanent_mistakes``.
"""

import os
import resource
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.certificates import CertificateAuthority
from tests.support.cli_runner import invoke
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.php_client import ROOT

pytestmark = pytest.mark.acceptance

TOLD_S: Final = 60.0  # a generous deadline; the table has what it really takes
LANGUAGES: Final = ("python", "asyncio", "php", "command", "node", "go")
CLIENTS: Final = tuple(language for language in LANGUAGES if language != "command")
NO_HTTP: Final = "only commands use HTTP; tokens do not exist in PHPMQ"

Words = tuple[str, ...]  # all of them are in the sentence


@dataclass(frozen=True)
class Mistake:
    """A publish that cannot succeed; words and addresses have the names of ``Places``."""

    name: str
    words: Words
    address: str = "127.0.0.1:{plain}"
    is_tls: bool = False
    trusts: str = "{ca}"
    queue: str = "orders"
    size: int = 10
    command: Words | None = None  # instead of ``publish``
    other: Mapping[str, Words] | None = None  # other words in a language
    absent: Mapping[str, str] | None = None  # languages in which it does not exist, and why

    def words_of(self, language: str) -> Words:
        return (self.other or {}).get(language, self.words)


def http(name: str, words: Words, *command: str) -> Mistake:
    return Mistake(name, words, command=command, absent=dict.fromkeys(CLIENTS, NO_HTTP))


def tls(name: str, words: Words, address: str, **fields: Any) -> Mistake:
    return Mistake(name, words, address, is_tls=True, **fields)


PHPMQS: Final = ("{address} uses TLS", "use phpmqs://{address}")
NO_ANSWER: Final = (
    "{address} ended 3 connections without an answer",
    "tcp.tls_client_ca",
    "tcp.allow",
)
HANDSHAKE: Final = ("{address}", "TLS handshake", "tcp.allow")
OTHER_NAME: Final = ("{address}", "connect with one of its names")
ADMIN: Final = "http://127.0.0.1:{admin}"
LIST: Final = ("queue", "list", "--url")

MISTAKES: Final = [
    # address
    Mistake("port that is no number", ("127.0.0.1:http", "HOST:PORT"), "127.0.0.1:http"),
    Mistake(
        "name that is unknown",
        ("nobody.invalid", "unknown", "check the address"),
        "nobody.invalid:9100",
    ),
    # port
    Mistake("port that does not exist", ("99999", "65535"), "127.0.0.1:99999"),
    Mistake(
        "port on which nothing listens",
        ("{address}", "start it, or correct the port"),
        "127.0.0.1:{free}",
    ),
    Mistake("port of the admin", ("{address}", "HTTP", "9100"), "127.0.0.1:{admin}"),
    # TLS
    Mistake(
        "client without TLS, listener with TLS",
        ("{address} uses TLS", "use tls://{address}"),
        "localhost:{tls}",
        other=dict.fromkeys(("python", "asyncio", "command"), PHPMQS),
    ),
    tls(
        "client with TLS, listener without",
        ("{address}", "TLS handshake", "tls_cert"),
        Mistake.address,
    ),
    tls("client with TLS, address that may not connect", HANDSHAKE, "localhost:{tls_not_allowed}"),
    tls("client with TLS, address whose connections are reset", HANDSHAKE, "localhost:{resets}"),
    tls(
        "client with TLS, port of the admin",
        ("{address}", "not use TLS", "tls_cert"),
        "127.0.0.1:{admin}",
    ),
    tls(
        "certificate that is not trusted",
        ("{address}", "not trusted", "--tls-ca FILE"),
        "localhost:{tls}",
        trusts="{other_ca}",
        other={
            "php": ("{address}", "certificate verify failed", "'cafile' => FILE"),
            "node": ("{address}", "not trusted", "NODE_EXTRA_CA_CERTS=FILE"),
            "go": ("{address}", "not trusted", "SSL_CERT_FILE=FILE"),
        },
    ),
    tls(
        "certificate for another name",
        ("{address}", "name of the certificate"),
        "127.0.0.2:{tls}",
        other=dict.fromkeys(("node", "go"), OTHER_NAME),
    ),
    tls("client certificate that is missing", NO_ANSWER, "localhost:{client_ca}"),
    http(
        "http:// on a listener with TLS",
        ("http://localhost:{tls_admin} uses TLS", "use https://localhost:{tls_admin}"),
        *LIST,
        "http://localhost:{tls_admin}",
    ),
    http(
        "https:// on a listener without TLS",
        ("https://127.0.0.1:{admin}", "does not use TLS", f"use {ADMIN}"),
        *LIST,
        "https://127.0.0.1:{admin}",
    ),
    # token
    http(
        "token that is missing",
        ("requires a login", "--token-file FILE", "token create"),
        *LIST,
        ADMIN,
    ),
    http(
        "token that is unknown",
        ("token is unknown", "`phpmq-lite token create NAME`"),
        *LIST,
        ADMIN,
        "--token-file",
        "{wrong_token}",
    ),
    # size
    Mistake(
        "message above both limits",
        ("9000", "limits.max_content"),
        size=9_000_000,
    ),
    Mistake(
        "message above the broker's limit",
        ("2000", "1048576", "limits.max_content"),
        size=2_000_000,
    ),
    # name
    Mistake("queue name that is too long", ("queue name", "255", "300"), queue="q" * 300),
    # rights
    http(
        "token without the right",
        ("operator", "viewer"),
        *("queue", "purge", "orders", "--yes", "--url", ADMIN, "--token-file", "{viewer_token}"),
    ),
    Mistake("address that may not connect", NO_ANSWER, "127.0.0.1:{not_allowed}"),
]


# -- the programs

PYTHON: Final = """
import asyncio, logging, ssl, sys
from phpmq_lite.client import connect, connect_blocking
kind, address, ca, queue, size = sys.argv[1:]
tls = ssl.create_default_context(cafile=ca) if ca else None
async def publish():
    async with connect(address, ssl=tls) as client:
        await client.publish_confirmed(queue, b"x" * int(size))
try:
    if kind == "asyncio":
        asyncio.run(publish())
    else:
        with connect_blocking(address, ssl=tls) as client:
            client.publish_confirmed(queue, b"x" * int(size))
except Exception as error:
    sys.exit(str(error))
"""
PHP: Final = """<?php
require '%s/clients/php/autoload.php';
[, $address, $ca, $queue, $size] = $argv;
try {
    $transport = new Phpmq\\PhpmqTransport($address, tls: $ca === '' ? [] : ['cafile' => $ca]);
    $data = ['text' => str_repeat('x', (int) $size)];
    $body = Phpmq\\Envelope::make('urn:babel:a:b', $data, 'orders');
    $transport->publish($body, $queue);
} catch (Throwable $error) {
    fwrite(STDERR, $error->getMessage() . "\\n");
    exit(1);
}
"""
NODE: Final = """
import { Client } from '%s/examples/node/phpmq.mjs';
const [,, address, queue, size] = process.argv;
try {
    const client = new Client(address);
    await client.publish(queue, 'x'.repeat(size));
    client.close();
} catch (error) {
    console.error(error.message);
    process.exit(1);
}
"""
GO: Final = """package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

func main() {
	size, _ := strconv.Atoi(os.Args[3])
	client := NewClient(os.Args[1])
	if err := client.Publish(os.Args[2], bytes.Repeat([]byte("x"), size), 0, ""); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
"""


@contextmanager
def resetting_listener() -> Iterator[int]:
    """Reset each connection after its first bytes; yield the port.

    A broker that does not allow an address closes its connection at once.  If the client's first
    bytes are under way, the client sees this reset instead of an end.
    """
    with socket.create_server(("localhost", 0), family=socket.AF_INET) as listener:

        def reset_all() -> None:
            with suppress(OSError):  # the listener was shut down
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(1)
                        no_linger = struct.pack("ii", 1, 0)
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)

        thread = threading.Thread(target=reset_all)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


class Places:
    """The brokers of the mistakes, files, and a program in each language."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.names: dict[str, str] = {}
        self._start_brokers(stack)
        self._write_programs()

    def _start_brokers(self, stack: ExitStack) -> None:
        authority = CertificateAuthority(self.folder)
        cert, key = authority.make("server")
        other, _ = authority.make("other")
        secured = ["--set", f"tcp.tls_cert={cert}", "--set", f"tcp.tls_key={key}"]
        admin = ["--admin", "127.0.0.1:0"]

        def start(name: str, *flags: str, listeners: int = 1) -> BrokerProcess:
            broker = broker_process(self.folder / name, *flags, listeners=listeners)
            stack.enter_context(broker)
            self.names[name] = str(broker.port)
            return broker

        plain = start("plain", *admin, "--set", "limits.max_content=1 MiB")
        self.names["admin"] = plain.admin[0].rstrip("/").rpartition(":")[2]
        self._create_tokens(plain.data)
        https = [text.replace("tcp.", "admin.") for text in secured]
        tls = start("tls", *admin, *secured, *https)
        second = f"127.0.0.2:{tls.port}"  # the certificate does not have this address
        tls.kill()
        tls.flags += ["--listen", second]
        tls.listeners = 2
        tls.start()
        self.names["tls_admin"] = tls.admin[0].rstrip("/").rpartition(":")[2]
        start("client_ca", *secured, "--set", f"tcp.tls_client_ca={other}")
        start("not_allowed", "--set", "tcp.allow=10.0.0.0/8")
        start("tls_not_allowed", *secured, "--set", "tcp.allow=10.0.0.0/8")
        self.names["resets"] = str(stack.enter_context(resetting_listener()))
        gone = start("free")
        gone.kill()
        self.names |= {"ca": str(cert), "other_ca": str(other)}

    def _create_tokens(self, data: Path) -> None:
        password = self.folder / "password"
        password.write_text("a password for tests")
        where = ("--data", data)
        invoke("user", "create", "anna", "--role", "admin", "--password-file", password, *where)
        viewer = invoke("token", "create", "viewer", "--role", "viewer", *where).stdout
        invoke("queue", "create", "orders", *where)
        for name, token in (("viewer_token", viewer), ("wrong_token", "phpmq_unknown")):
            path = self.folder / name
            path.write_text(token)
            path.chmod(0o600)
            self.names[name] = str(path)

    def _write_programs(self) -> None:
        for name, text in (
            ("mistake.py", PYTHON),
            ("mistake.php", PHP % ROOT),
            ("mistake.mjs", NODE % ROOT),
        ):
            (self.folder / name).write_text(text)
        if shutil.which("go") is not None:
            source = (ROOT / "examples/go/phpmq.go").read_text()
            go = self.folder / "go"
            go.mkdir()
            (go / "phpmq.go").write_text(source.replace("\nfunc main() {", "\nfunc program() {"))
            (go / "mistake.go").write_text(GO)
            command = ["go", "build", "-o", f"{self.folder}/mistake", "phpmq.go", "mistake.go"]
            subprocess.run(command, cwd=go, check=True, timeout=100)

    def fill(self, mistake: Mistake, text: str) -> str:
        address = mistake.address.format(**self.names)
        return text.format(**self.names, address=address)

    def command(self, mistake: Mistake, language: str) -> list[str]:
        address, ca = self.fill(mistake, "{address}"), ""
        if mistake.is_tls:
            ca = self.fill(mistake, mistake.trusts)
        scheme = "tls://" if mistake.is_tls else ""
        queue, size = mistake.queue, str(mistake.size)
        if language == "php":
            return ["php", f"{self.folder}/mistake.php", scheme + address, ca, queue, size]
        if language == "node":
            return ["node", f"{self.folder}/mistake.mjs", scheme + address, queue, size]
        if language == "go":
            return [f"{self.folder}/mistake", scheme + address, queue, size]
        if language != "command":
            return [sys.executable, f"{self.folder}/mistake.py", language, address, ca, queue, size]
        if mistake.command is None:
            body = self.folder / f"body-{size}"
            body.write_bytes(b"x" * mistake.size)
            url = f"phpmq{'s' if mistake.is_tls else ''}://{address}"
            words = ["publish", queue, str(body), "--url", url, *(["--tls-ca", ca] if ca else [])]
        else:
            words = [self.fill(mistake, word) for word in mistake.command]
        return [sys.executable, "-m", "phpmq_lite", *words]

    def tell(self, mistake: Mistake, language: str) -> tuple[float, str]:
        """Run a client with a mistake; return the seconds until it reports it, and its sentence."""
        words = [self.fill(mistake, word) for word in mistake.words_of(language)]
        trusted = self.fill(mistake, mistake.trusts)
        environment = os.environ | {"NODE_EXTRA_CA_CERTS": trusted, "SSL_CERT_FILE": trusted}
        environment |= {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(self.folder)}
        began = time.monotonic()
        with subprocess.Popen(
            self.command(mistake, language), env=environment, cwd=self.folder,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                said = []
                for line in lines_of(process, began + TOLD_S):
                    said.append(line)
                    if all(word in line for word in words):
                        return time.monotonic() - began, line.rstrip()
            finally:
                process.kill()
        raise AssertionError(f"{language}, {mistake.name}: {words} not in\n{''.join(said)}")


def lines_of(process: "subprocess.Popen[bytes]", deadline: float) -> Iterator[str]:
    """Yield the lines of standard error until it ends, or until the deadline."""
    assert process.stderr is not None
    number, rest = process.stderr.fileno(), b""
    with selectors.DefaultSelector() as selector:
        selector.register(number, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if selector.select(1.0):
                data = os.read(number, 65_536)
                *lines, rest = (rest + data).split(b"\n")
                yield from (f"{line.decode()}\n" for line in lines)
                if not data:
                    break
    yield rest.decode() + "\n"


@contextmanager
def places() -> Iterator[Places]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        yield Places(Path(folder), stack)


@pytest.fixture(scope="module")
def at() -> Iterator[Places]:
    with places() as made:
        yield made


def test_there_are_22_mistakes_in_all_languages() -> None:
    assert len(MISTAKES) == 22
    assert all(set(one.absent or ()) < set(LANGUAGES) for one in MISTAKES)


CASES: Final = [
    (one, language)
    for one in MISTAKES
    for language in LANGUAGES
    if language not in (one.absent or {})
]


@pytest.mark.parametrize(
    ("mistake", "language"), CASES, ids=[f"{one.name}-{language}" for one, language in CASES]
)
def test_client_tells_a_permanent_mistake(at: Places, mistake: Mistake, language: str) -> None:
    program = {"php": "php", "node": "node", "go": "go"}.get(language)
    if program is not None and shutil.which(program) is None:
        pytest.skip(f"missing: {program}")
    at.tell(mistake, language)


def main() -> None:
    """Print the table: the fastest of some tries, and the processor time that it took.

    The latter is what remains of the former on a machine that does nothing else, except for waits.
    """
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with places() as made:
        for mistake in [Mistake("no mistake", ()), *MISTAKES]:
            print(f"\n## {mistake.name}\n\n| language | ms | processor ms | sentence |")  # noqa: T201
            print("|---|---|---|---|")  # noqa: T201
            for language in LANGUAGES:
                reason = (mistake.absent or {}).get(language)
                try:
                    tries = [] if reason else [timed(made, mistake, language) for _ in range(count)]
                    took_s, cpu_s, said = min(tries, default=(0, 0, f"does not exist: {reason}"))
                except AssertionError as error:
                    took_s, cpu_s, said = 0, 0, f"NOT TOLD: {error}".replace("\n", " / ")
                row = f"| {language} | {took_s * 1_000:.0f} | {cpu_s * 1_000:.0f} | {said} |"
                print(row, flush=True)  # noqa: T201


def timed(made: Places, mistake: Mistake, language: str) -> tuple[float, float, str]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    took_s, said = made.tell(mistake, language)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took_s, cpu_s, said


if __name__ == "__main__":
    main()
