"""What docs/php.md and examples/php/README.md tell to run does run, against a real broker."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.peers import Peer
from tests.envelope_cases import body
from tests.integration.php_peer import EXAMPLES, ROOT, STRICT, needs_php
from tests.preloaded import BrokerProcess, broker_process

pytestmark = [pytest.mark.acceptance, needs_php]

PAGE = (ROOT / "docs" / "php.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```php\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
DOUBLES = Path(__file__).parent / "initphp_doubles.php"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("page") / "data") as running:
        yield running


def run(code: str, broker: BrokerProcess, tmp_path: Path) -> str:
    """Run a snippet as if pasted beside ``examples``; fail where PHP has anything to say."""
    shutil.copytree(EXAMPLES, tmp_path / "examples" / "php", dirs_exist_ok=True)
    (tmp_path / "vendor").mkdir(exist_ok=True)
    shutil.copy(DOUBLES, tmp_path / "vendor" / "autoload.php")
    (tmp_path / "pasted.php").write_text(
        code.replace("127.0.0.1:9100", broker.phpmq[0]), encoding="utf-8"
    )
    done = subprocess.run(
        ["php", *STRICT, "pasted.php"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_page_has_the_snippets_that_are_run_here() -> None:
    assert len(SNIPPETS) == 4


def test_envelope_of_the_page_is_published_and_consumed(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    publish, consume = SNIPPETS[:2]
    assert re.fullmatch("[0-9a-f-]{36}\n", run(publish, broker, tmp_path))
    with Peer(broker.port) as peer:
        assert peer.confirm("orders", b"malformed") is None
    consumed = run(consume.replace("5.0", "0.5"), broker, tmp_path)
    assert consumed == 'urn:babel:orders:created {"order_id":1042}\n'
    with Peer(broker.port) as peer:
        peer.consume("orders.dlq", 1)
        (record,) = peer.bodies(1)
    assert json.loads(record)["raw"] == "malformed"


def test_worker_of_initphp_runs_on_the_transport(broker: BrokerProcess, tmp_path: Path) -> None:
    """Against doubles of InitPHP's classes that do what its worker does with a transport."""
    with Peer(broker.port) as peer:
        assert peer.confirm("orders", body()) is None
    assert run(SNIPPETS[2], broker, tmp_path) == '{"order_id":1042}\n'


def test_transport_over_tls_of_the_page_is_made(broker: BrokerProcess, tmp_path: Path) -> None:
    """It connects at the first call only, so the made-up name is not looked up."""
    assert run(SNIPPETS[3], broker, tmp_path) == ""


@pytest.mark.parametrize("page", ["docs/php.md", "examples/php/README.md"])
def test_commands_of_the_pages_work_when_pasted(
    broker: BrokerProcess, page: str, tmp_path: Path
) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    commands = re.findall(r"^    (php .+)$", text, re.MULTILINE)
    assert len(commands) == 2
    folder = ROOT if page.startswith("docs") else EXAMPLES
    shown = []
    for command in commands:
        here = command.replace("127.0.0.1:9100", broker.phpmq[0]).replace(" orders", " pasted")
        here = here.replace("--stop-when-empty", "--stop-when-empty --timeout=1")
        done = subprocess.run(
            ["sh", "-c", here], cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    assert shown[1] == '{"order":{"order_id":1042},"attempts":0}\n'
    assert tmp_path.exists()


def test_table_of_arguments_is_that_of_the_constructor() -> None:
    code = (EXAMPLES / "PhpmqTransport.php").read_text(encoding="utf-8")
    transport = code[code.index("final class PhpmqTransport") :]
    made = transport[transport.index("__construct(") : transport.index("    ) {")]
    names = ", ".join(re.findall(r"\$(\w+) =", made))
    assert f"`new PhpmqTransport({names})`" in PAGE
