"""The shop of the tutorial moves to PostgreSQL and three brokers, with the commands of its page."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.docs.pages import COMMANDS, ROOT, blocks
from tests.docs.snippets import BIN, in_terminal, skip_where_lacking
from tests.support.free_ports import free_ports
from tests.support.postgres_server import PROGRAMS, PostgresServer

TUTORIAL: Final = "docs/start/tutorial.md"
PAGE: Final = "docs/start/three-machines.md"
PORTS: Final = ("9100", "9101", "9200", "9201", "9300", "9301")
# What the page's machine has and this one has not, and the last command, which does not end.
OMITTED: Final = re.compile(r"^(?:sudo |\.venv/bin/pip |url=|phpmq-lite serve$).*\n", re.MULTILINE)

# The state in which the tutorial ends, with orders that nobody has handled.
BEFORE: Final = """\
phpmq-lite serve > /dev/null 2> broker0.log & zero=$!
until phpmq-lite check ready > /dev/null; do sleep 0.5; done
php orders.php
kill $zero
wait $zero
"""
# The last command of the page, and a proof that all orders have returned.
AFTER: Final = """\
phpmq-lite serve > /dev/null 2> broker4.log & last=$!
until phpmq-lite check ready > /dev/null; do sleep 0.5; done
phpmq-lite queue list -o csv
kill $last
wait $last
"""


@pytest.mark.acceptance
@pytest.mark.skipif(PROGRAMS is None, reason="PostgreSQL 15 is missing: apt install postgresql-15")
def test_shop_moves_and_returns_without_a_change(postgres: PostgresServer, tmp_path: Path) -> None:
    skip_where_lacking(TUTORIAL)
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))

    def ours(text: str) -> str:
        return re.sub(r"\b9[123]0[01]\b", lambda found: ports[found[0]], text)

    shutil.copytree(ROOT / "clients", tmp_path / "clients")
    for block in blocks(TUTORIAL):
        if block.file is not None:  # the second mails.py replaces the first
            (tmp_path / block.file).write_text(ours(block.text), encoding="utf-8")
    (tmp_path / BIN).mkdir()
    command = tmp_path / BIN / "phpmq-lite"  # the page kills brokers by their number: no fork
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m phpmq_lite "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    commands = [block.text for block in blocks(PAGE) if block.language == COMMANDS]
    environment = os.environ | {
        "PATH": f"{tmp_path / BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PHPMQ_TCP__LISTEN": ours("127.0.0.1:9100"),
        "PHPMQ_TCP__LEGACY_LISTEN": "none",
        "PHPMQ_ADMIN__LISTEN": ours("127.0.0.1:9101"),
        "NO_COLOR": "1",
    }
    with postgres.database("template0") as database:
        script = ours(BEFORE) + ours(OMITTED.sub("", "".join(commands))) + AFTER
        code, said = in_terminal(
            ["bash", "-uo", "pipefail", "-c", script],
            tmp_path,
            environment | {"url": postgres.url(database)},
        )
    assert code == 0, said
    assert said.count("order 3 is stored") == 3, said  # before, after, without the first broker
    assert said.count("order 3: no address, call them") == 2, said
    assert "orders,3," in said, said
