"""What the README names is there; ``test_snippets.py`` runs what it tells to paste."""

import re

from phpmq_lite.cli.main import COMMANDS
from tests.docs.pages import ROOT, blocks, text_of


def test_every_command_named_exists() -> None:
    named = set(re.findall(r"phpmq-lite ([a-z]+)", text_of("README.md")))
    assert named <= COMMANDS.keys()


def test_ci_runs_the_command_for_tests() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    told = "".join(block.text for block in blocks("README.md") if block.section == "Change it")
    for step in ("-e '.[test]'", "python -m pytest"):
        assert step in told
        assert step in script.replace('"', "")
