"""The Composer package ``clients/php``: its own tests, required by a project, and its starter."""

import json
import os
import re
import shutil
import signal
import subprocess
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.envelopes.codec import decode
from tests.support.envelope_cases import body
from tests.support.fork_server import BrokerProcess
from tests.support.php_client import CLIENT, EXAMPLES, ROOT, STRICT, needs_php
from tests.support.programs import run_program
from tests.support.socket_client import AdminApi, SocketClient

pytestmark = [pytest.mark.acceptance, needs_php]

DOUBLES = ROOT / "tests" / "docs"
UNIT = ROOT / "deploy" / "phpmq-worker@.service"
needs_composer = pytest.mark.skipif(shutil.which("composer") is None, reason="missing: composer")
needs_phpunit = pytest.mark.skipif(shutil.which("phpunit") is None, reason="missing: phpunit")


def run(*command: str, folder: Path, **environment: str) -> str:
    done = run_program(command, cwd=folder, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def composer(folder: Path, *arguments: str) -> str:
    """Run Composer without a network."""
    return run(
        "composer", *arguments, "--no-interaction", folder=folder, COMPOSER_DISABLE_NETWORK="1",
        COMPOSER_HOME=str(folder / ".composer"), COMPOSER_ALLOW_SUPERUSER="1",
    )  # fmt: skip


@needs_phpunit
def test_package_passes_its_own_tests(broker: BrokerProcess) -> None:
    said = run("phpunit", "-c", "phpunit.xml", folder=CLIENT, PHPMQ_ADDRESS=broker.phpmq[0])
    found = re.search(r"OK \((\d+) tests", said)
    assert found is not None, said
    assert int(found[1]) >= 18


@needs_composer
def test_package_passes_composer_validate(tmp_path: Path) -> None:
    shutil.copytree(CLIENT, tmp_path / "php")
    composer(tmp_path / "php", "validate", "--strict", "--no-check-lock")


@needs_composer
def test_project_requires_the_package_and_ends_messages_with_the_newer_classes(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """``examples/php/newer``; php-mq/protocol, which is on no registry here, is a double."""
    shutil.copytree(ROOT / "clients", tmp_path / "clients")
    project = tmp_path / "examples" / "php" / "newer"
    shutil.copytree(EXAMPLES / "newer", project)
    file = project / "composer.json"
    described: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    double = {"type": "path", "url": str(DOUBLES / "php_mq_protocol")}
    described["repositories"] += [double, {"packagist.org": False}]
    file.write_text(json.dumps(described), encoding="utf-8")
    composer(project, "install")
    assert (project / "vendor" / "phpmq-lite" / "client" / "src" / "Envelope.php").is_file()
    with SocketClient(broker.port) as peer:
        for content in (b"first", b"second"):
            assert peer.confirm("newer", content) is None
    said = run("php", *STRICT, "settle.php", broker.phpmq[0], "newer", folder=project)
    assert said == "requeued: first\ndead letter: second\n"
    with SocketClient(broker.port) as peer:
        peer.consume("newer", 1)
        (again,) = peer.dispatches(1)
        assert again.content == b"first"
        assert again.ttl_s is not None
        assert 3_500 < again.ttl_s <= 3_600
        peer.ack(again)
        peer.barrier()
    assert AdminApi(broker.admin[0]).queue("newer.dlq")["ready"] == 1


def test_example_publishes_to_the_queue_of_its_envelope(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """The docblock once made an envelope for "default" and published it to "orders"."""
    text = (CLIENT / "src" / "PhpmqTransport.php").read_text(encoding="utf-8")
    example = "\n".join(re.findall(r"^ \*     (.*)$", text, re.MULTILINE))
    published = example[: example.index("while")]
    script = tmp_path / "example.php"
    loads = f"<?php\nrequire '{CLIENT}/autoload.php';\n"
    script.write_text(loads + published.replace("127.0.0.1:9100", broker.phpmq[0]))
    run("php", *STRICT, str(script), folder=tmp_path)
    with SocketClient(broker.port) as peer:
        peer.consume("orders", 1)
        (found,) = peer.dispatches(1)
    assert decode(found.content)["meta"]["queue"] == "orders"
    script.write_text(loads + example.replace("127.0.0.1:9100", broker.phpmq[0]))
    run("php", *STRICT, str(script), folder=tmp_path)  # and the whole
    assert AdminApi(broker.admin[0]).queue("orders")["ready"] == 0


# -- the starter for InitPHP Queue


def application(folder: Path) -> Path:
    """Create a Composer project: the starter, and doubles of its dependencies."""
    shutil.copytree(ROOT / "clients", folder / "clients")
    (folder / "vendor" / "bin").mkdir(parents=True)
    shutil.copy(DOUBLES / "initphp_doubles.php", folder / "vendor" / "autoload.php")
    shutil.copy(DOUBLES / "initphp_queue.php", folder / "vendor" / "bin" / "queue")
    shutil.copy(EXAMPLES / "initphp" / "worker.php", folder)
    return folder


def test_unit_runs_the_starter_until_sigterm(broker: BrokerProcess, tmp_path: Path) -> None:
    unit = RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT, encoding="utf-8")
    service = unit["Service"]
    command = service["ExecStart"].replace("%I", "emails").split()
    assert command[0] == "/usr/bin/php"
    assert service["KillSignal"] == "SIGTERM"
    name = service["Environment"].partition("=")[0]
    process = subprocess.Popen(
        ["php", *STRICT, *command[1:]], cwd=application(tmp_path),
        env=os.environ | {name: broker.phpmq[0]}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    users = body(job='"urn:babel:users:registered"', data='{"user_id":42}')
    with SocketClient(broker.port) as peer:
        assert peer.confirm("emails", users) is None
    assert process.stdout is not None
    assert process.stdout.readline() == b"welcome, user 42\n"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert json.loads(said.splitlines()[0])["event"] == "job.ack"
    found = AdminApi(broker.admin[0]).get("/api/v1/messages?q=queue:emails%20state:acked")
    assert len(found["items"]) == 1


def test_starter_retries_a_failing_message(broker: BrokerProcess, tmp_path: Path) -> None:
    folder = application(tmp_path)
    worker = (folder / "worker.php").read_text(encoding="utf-8")
    failing = re.sub("echo .*;", "throw new Exception('no mail server');", worker)
    (folder / "worker.php").write_text(failing, encoding="utf-8")
    with SocketClient(broker.port) as peer:
        assert peer.confirm("mails", body(job='"urn:babel:users:registered"')) is None
    run(
        "php", "vendor/bin/queue", "work", "--bootstrap=worker.php", "--queue=mails", "--once",
        folder=folder, PHPMQ_ADDRESS=broker.phpmq[0],
    )  # fmt: skip
    with SocketClient(broker.port) as peer:
        peer.consume("mails", 1)  # it comes back after the first delay, a second
        (again,) = peer.dispatches(1)
    assert decode(again.content)["attempts"] == 1
