"""The page about PHP names the arguments of the transport."""

import re

from tests.docs.pages import ROOT, text_of


def test_table_of_arguments_is_that_of_the_constructor() -> None:
    code = (ROOT / "clients/php/src/PhpmqTransport.php").read_text(encoding="utf-8")
    transport = code[code.index("final class PhpmqTransport") :]
    made = transport[transport.index("__construct(") : transport.index("    ) {")]
    names = ", ".join(re.findall(r"\$(\w+) =", made))
    assert f"`new PhpmqTransport({names})`" in text_of("docs/guides/php.md")
