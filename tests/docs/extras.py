"""Setup before blocks of a page, and checks after the last one."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from phpmq_lite.client.blocking_client import connect_blocking
from phpmq_lite.envelopes import codec, decode, lint, urn
from tests.docs.snippets import Said, Walk
from tests.support.beanstalkd import beanstalkd_process
from tests.support.envelope_cases import body
from tests.unit.importers.test_initphp import JOBS, JOBS_FAILED

DOUBLES: Final = Path(__file__).parent / "initphp_doubles.php"
PROTOCOL: Final = Path(__file__).parent / "php_mq_protocol" / "protocol.php"
PUBLISHED: Final = Path(__file__).parent / "published_client.php"
ORDER: Final = body(job='"urn:babel:orders:created"', data='{"total":9.5,"currency":"EUR"}')
USER: Final = body(job='"urn:babel:users:registered"', data='{"user_id":44}')


@dataclass(frozen=True)
class Extra:
    """``before``: part of a block -> its setup; ``after`` checks the outputs."""

    before: Mapping[str, Callable[[Walk], object]] = field(default_factory=dict)
    after: Callable[[Walk, Said], None] = lambda _walk, _said: None


def dead_letter(walk: Walk) -> None:
    with connect_blocking(walk.broker.phpmq[0]) as client:
        client.publish_confirmed("orders", b"dead")
        with client.consume("orders", 1, 10) as deliveries:
            next(deliveries).dead_letter()


def check_readme(walk: Walk, _said: Said) -> None:
    """Check the messages published by Python and then by the worker."""
    with connect_blocking(walk.broker.phpmq[0]) as client, client.consume("mails", 2, 10) as got:
        assert b"anna@example.org" in next(got).body
        assert b"urn:babel:mails:wanted" in next(got).body


def publish(content: bytes, queue: str = "orders") -> Callable[[Walk], None]:
    """Return a setup that publishes a message."""

    def setup(walk: Walk) -> None:
        with connect_blocking(walk.broker.phpmq[0]) as client:
            client.publish_confirmed(queue, content)

    return setup


def settle(content: bytes, queue: str = "orders") -> Callable[[Walk], None]:
    """Return a setup that publishes and acknowledges a message."""

    def setup(walk: Walk) -> None:
        with connect_blocking(walk.broker.phpmq[0]) as client:
            client.publish_confirmed(queue, content)
            with client.consume(queue, 1, 10) as deliveries:
                next(deliveries).ack()

    return setup


def installed(walk: Walk) -> None:
    """Install stand-ins for the classes of InitPHP, which Composer would install."""
    vendor = walk.folder / "vendor"
    (vendor / "bin").mkdir(parents=True)
    shutil.copy(DOUBLES, vendor / "autoload.php")
    shutil.copy(DOUBLES.with_name("initphp_queue.php"), vendor / "bin" / "queue")
    (vendor / "bin" / "queue").chmod(0o755)


def check_emails(walk: Walk, said: Said) -> None:
    written = said.of("EnvelopeCodec::make").split()
    with connect_blocking(walk.broker.phpmq[0]) as client, client.consume("emails", 9, 10) as got:
        envelopes = [decode(next(got).body) for _ in range(4)]
    assert [urn(envelope) for envelope in envelopes] == [
        "urn:babel:orders:invoice.requested",
        "urn:babel:catalog:item.indexed",
        "urn:babel:users:registered",
        "urn:babel:users:registered",
    ]
    assert [envelope["meta"]["id"] for envelope in envelopes[:2]] == written
    assert [envelope["data"] for envelope in envelopes[2:]] == [{"user_id": 42}, {"user_id": 43}]
    assert {envelope["meta"]["queue"] for envelope in envelopes} == {"emails"}
    assert envelopes[2]["trace_id"] != envelopes[3]["trace_id"]
    assert envelopes[3]["trace_id"] == "7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b"
    assert [lint(codec.encode(envelope)) for envelope in envelopes] == [()] * 4


def check_php(walk: Walk, said: Said) -> None:
    """Check the output of each program, and that the malformed message was dead-lettered."""
    assert re.fullmatch("[0-9a-f-]{36}\n", said.of("echo $transport->publish("))
    order = '{"order_id":1042}\n'
    assert said.of("Envelope::problem($message") == f"urn:babel:orders:created {order}"
    assert '{"order":{"order_id":1042},"attempts":0}' in said.of("worker.php")
    assert said.of("HandlerMap") == order
    check_emails(walk, said)
    with connect_blocking(walk.broker.phpmq[0]) as client, client.consume("orders.dlq", 1, 9) as it:
        assert json.loads(next(it).body)["raw"] == "malformed"


def check_examples(walk: Walk, said: Said) -> None:
    """Check that both workers handled their order, and the second published its mail."""
    stored = f"1 message stored in orders by the broker on {walk.broker.phpmq[0]}\n"
    assert said.of("plain_worker.py") == stored + "order 42\n"
    assert "urn:babel:orders:created took" in said.of("handlers:app")
    *each, first, again, last, _ = said.of("phpmq.go consume").split("\n")
    assert each == ["stored", "stored"]
    assert re.fullmatch(r"from Node  \(3[0-9]{3} s left\)", first)
    for line in (again, last):
        assert re.fullmatch(r"from Node  \([1-6]?[0-9] s left\)", line)


def newer_protocol(walk: Walk) -> None:
    """Install our package and the newer classes of php-mq, as Composer does."""
    vendor = walk.folder / "examples" / "php" / "newer" / "vendor"
    vendor.mkdir()
    files = (walk.folder / "clients/php/autoload.php", PROTOCOL)
    loads = "".join(f"require_once '{file}';\n" for file in files)
    (vendor / "autoload.php").write_text(f"<?php\n{loads}")


def published_client(walk: Walk) -> None:
    """Install the published client of php-mq, as Composer does."""
    vendor = walk.folder / "examples" / "php" / "published" / "vendor"
    vendor.mkdir()
    shutil.copy(PUBLISHED, vendor / "autoload.php")


def check_published_client(_walk: Walk, said: Said) -> None:
    assert said.of("receive.php") == '{"order_id": 1042}\n'


def initphp(walk: Walk) -> None:
    with closing(sqlite3.connect(walk.folder / "queue.sqlite")) as connection:
        connection.execute(JOBS)
        connection.execute(JOBS_FAILED)


def php_mq(walk: Walk) -> None:
    """Create a database of the PHP server, with a message that is not text."""
    with closing(sqlite3.connect(walk.folder / "phpmq.sqlite3")) as connection, connection:
        connection.execute(
            "CREATE TABLE queue (messageId CHAR(32), queueName VARCHAR(50), content TEXT,"
            " createdAt INTEGER, dispatched INTEGER)"
        )
        rows = [("b", "second", 2), ("a", b"first \xff", 1)]
        connection.executemany("INSERT INTO queue VALUES (?, 'php', ?, ?, 0)", rows)


def beanstalkd(walk: Walk) -> None:
    """Start a beanstalkd with two ready jobs, a delayed one and a buried one."""
    if shutil.which("beanstalkd") is None:
        pytest.skip("missing: beanstalkd")
    folder = walk.folder / "binlog"
    folder.mkdir()
    source = walk.helpers.enter_context(beanstalkd_process(folder))
    (walk.folder / "beanstalkd.address").write_text(source.address)
    source.put("mails", b"one", b"two")
    source.put("mails", b"later", delay_s=3_600)
    (broken,) = source.put("mails", b"broken")
    source.bury(broken)


def check_moved(walk: Walk, _said: Said) -> None:
    """Check the messages imported from the PHP server and from beanstalkd, in order."""
    with connect_blocking(walk.broker.phpmq[0]) as client:
        for queue, bodies in {"php": [b"first \xff", b"second"], "mails": [b"one", b"two"]}.items():
            with client.consume(queue, 2, 10) as deliveries:
                assert [next(deliveries).body for _ in bodies] == bodies


def restart_with_file(walk: Walk) -> None:
    """Start the broker again as the page does: only with the file that it has written."""
    walk.broker.terminate()
    environment = {
        name: value
        for name, value in (os.environ | walk.environment).items()
        if name not in ("PHPMQ_TCP__LISTEN", "PHPMQ_ADMIN__LISTEN")
    }
    command = [sys.executable, "-m", "phpmq_lite", "serve", "--config", "config.toml"]
    broker = walk.helpers.enter_context(
        subprocess.Popen(
            command, cwd=walk.folder, env=environment, stdout=subprocess.PIPE, text=True
        )
    )
    walk.helpers.callback(broker.terminate)
    lines = iter(broker.stdout or ())
    listening = [next(line for line in lines if "listening" in line) for _ in range(3)]
    assert [line.split()[:2] for line in listening].count(["listening", "phpmq"]) == 2
    assert any("listening admin https://0.0.0.0:" in line for line in listening)


def first_user(walk: Walk) -> None:
    command = [sys.executable, "-m", "phpmq_lite", "user", "create", "anna", "--password-file", "-"]
    command += ["--data", str(walk.broker.data)]
    subprocess.run(command, input=b"correct horse battery", check=True)


EXTRAS: Final = {
    "docs/operate/security.md": Extra({"user delete anna": first_user}),
    "docs/operate/another-machine.md": Extra({"serve --config": restart_with_file}),
    "README.md": Extra(after=check_readme),
    "docs/operate/operations.md": Extra(
        {
            "systemctl stop": lambda walk: walk.broker.terminate(),
            "phpmq-lite database scrub": lambda walk: walk.broker.start(),
        }
    ),
    "docs/guides/php.md": Extra(
        {
            "Envelope::problem($message": publish(b"malformed"),
            "EnvelopeCodec::make": installed,
            "HandlerMap": publish(body()),
            "work --bootstrap": publish(USER, "starters"),
        },
        check_php,
    ),
    "docs/guides/pipeline.md": Extra({"phpmq-lite pipeline run --bodies": dead_letter}),
    "docs/guides/tables.md": Extra({"phpmq-lite pipeline tables\n": settle(ORDER)}),
    "docs/guides/migrate.md": Extra(
        {"from_php_mq.py phpmq": php_mq, "import initphp": initphp, ":11300 --dry-run": beanstalkd},
        check_moved,
    ),
    "examples/README.md": Extra(after=check_examples),
    "examples/php/README.md": Extra(
        {"settle.php": newer_protocol, "receive.php": published_client}, check_published_client
    ),
}
