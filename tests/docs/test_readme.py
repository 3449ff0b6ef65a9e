"""The names in the README exist; ``test_snippets.py`` runs its commands."""

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


# -- docs/guides/php.md


def test_table_of_arguments_is_that_of_the_constructor() -> None:
    code = (ROOT / "clients/php/src/PhpmqTransport.php").read_text(encoding="utf-8")
    transport = code[code.index("final class PhpmqTransport") :]
    made = transport[transport.index("__construct(") : transport.index("    ) {")]
    names = ", ".join(re.findall(r"\$(\w+) =", made))
    assert f"`new PhpmqTransport({names})`" in text_of("docs/guides/php.md")
