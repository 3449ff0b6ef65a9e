"""The transport of ``clients/php`` in a PHP process, called from a test."""

import base64
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

ROOT = Path(__file__).parent.parent.parent
CLIENT = ROOT / "clients" / "php"
EXAMPLES = ROOT / "examples" / "php"
RELEASE_BEFORE = Path(__file__).parent / "php_release_0_1"  # the package and its worker, unchanged
DRIVER = Path(__file__).parent / "php_driver.php"
STRICT = ("-d", "error_reporting=-1", "-d", "display_errors=stderr", "-d", "zend.assertions=1")
needs_php = pytest.mark.skipif(shutil.which("php") is None, reason="php (php-cli) is missing")


class PhpError(Exception):
    """A PHP exception: the name of its class without namespace, and its message."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


@dataclass(frozen=True)
class Reserved:
    handle: int  # for the calls that end it
    message_id: str
    ttl_s: int
    body: bytes
    envelope: Any


class PhpClient:
    """One PHP process with one transport; use it in a ``with``."""

    def __init__(self, address: str, package: Path = CLIENT, **options: Any) -> None:
        arguments = json.dumps({"address": address, **options})
        self.process = subprocess.Popen(
            ["php", *STRICT, str(DRIVER), str(package), arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.process.kill()
        _, said = self.process.communicate(timeout=30)
        if error is None:
            assert (self.process.returncode, said.decode()) == (0, "")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.returncode = 0  # expected

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method and return its result; bytes are sent as base64 both ways."""
        sent = [base64.b64encode(a).decode() if isinstance(a, bytes) else a for a in arguments]
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"call": name, "arguments": sent}).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(self.process.stderr.read().decode())
        answer = json.loads(line)
        if "error" in answer:
            raise PhpError(answer["error"].rpartition("\\")[2], answer["message"])
        return answer["value"]

    def reserve(
        self, queue: str, timeout_s: float = 10.0, call: str = "reserve"
    ) -> Reserved | None:
        found = self.call(call, queue, timeout_s)
        if found is None:
            return None
        body = base64.b64decode(found["body"])
        return Reserved(found["handle"], found["id"], found["ttl"], body, found["envelope"])

    def take(self, queue: str, call: str = "reserve") -> Reserved:
        found = self.reserve(queue, call=call)
        assert found is not None
        return found

    def bytes_of(self, name: str, *arguments: Any) -> bytes:
        return base64.b64decode(self.call(name, *arguments))

    def recoded(self, body: bytes, attempts: int, block: dict[str, Any] | None = None) -> bytes:
        """Return what the InitPHP worker sends back: decoded into arrays, changed, encoded."""
        return self.bytes_of("recode", body, attempts, block)
