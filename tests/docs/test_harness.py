"""The harness: it parses pages and reports failures."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import snippets
from tests.docs.pages import Block, parse_blocks
from tests.docs.snippets import Walk, in_terminal, is_like, walk

PAGE = """\
# Title

    phpmq-lite queue list

It prints:

    nothing yet

## Files

The handlers are in `handlers.py`, beside `other.txt`:

```python
app = None
```

```python
print(1)
```

```text
1
```

A picture, which nobody runs:

```
 ──▶
```

- in a list

  ```bash
  ls
  ```
"""


def test_page_is_parsed() -> None:
    assert parse_blocks("page.md", PAGE) == [
        Block("page.md", "Title", 3, "bash", "phpmq-lite queue list\n", output="nothing yet\n"),
        Block("page.md", "Files", 14, "python", "app = None\n", file="handlers.py"),
        Block("page.md", "Files", 18, "python", "print(1)\n", output="1\n"),
        Block("page.md", "Files", 34, "bash", "ls\n"),
    ]


@pytest.mark.parametrize(
    ("said", "shown", "expected"),
    [
        ("QUEUE   READY\na    1\n", "QUEUE READY\na 1\n", True),
        ("id 0000000000000001\n", "id …\n", True),
        ("a\nb\nc\n", "a\n…\nc\n", True),
        ("a.b\n", "a.b", True),
        ("a.b\n", "a-b", False),
        ("axb\n", "a.b", False),
        ("a b c\n", "a b\n", False),
        ("ab\n", "a b", False),
        ("", "a", False),
    ],
)
def test_output_matches_what_is_shown(said: str, shown: str, expected: bool) -> None:
    assert is_like(said, shown) is expected


def test_command_has_a_terminal_and_its_exit_code_is_returned(tmp_path: Path) -> None:
    code, said = in_terminal(
        ["bash", "-c", "test -t 1 && test -t 2 && echo shown && exit 3"], tmp_path, os.environ
    )
    assert (code, said) == (3, "shown\n")


def test_command_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snippets, "TIMEOUT_S", 0.2)
    code, said = in_terminal(["sleep", "1000"], tmp_path, os.environ)
    assert code < 0
    assert "still running" in said


@pytest.fixture(scope="module")
def walker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    with walk(tmp_path_factory.mktemp("walk")) as it:
        yield it


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("language", "text", "output", "message"),
    [
        ("bash", "phpmq-lite queue show nothing", None, "page.md:7 ended with 3"),
        ("bash", "false | true", None, "page.md:7 ended with 1"),
        pytest.param(
            "bash",
            "curl -s http://127.0.0.1:9101/nowhere",
            None,
            "page.md:7 ended with 22",
            marks=pytest.mark.skipif(shutil.which("curl") is None, reason="curl is missing"),
        ),
        ("bash", "echo a", "b", "page.md:7 shows other words"),
        ("python", "import warnings; warnings.warn('old')", None, "UserWarning: old"),
        ("sql", "SELECT count(*) FROM queue", "1", "page.md:7 shows other words"),
        ("cobol", "STOP RUN.", None, "nobody knows how to run 'cobol'"),
    ],
)
def test_failing_block_is_reported(
    walker: Walk, language: str, text: str, output: str | None, message: str
) -> None:
    with pytest.raises(AssertionError, match=re.escape(message)):
        walker.step(Block("page.md", "", 7, language, text, output=output))


@pytest.mark.acceptance
def test_ports_of_the_page_are_those_of_the_broker(walker: Walk) -> None:
    said = walker.step(Block("page.md", "", 1, "bash", "echo 9100 9101 9102 19100"))
    assert re.fullmatch(r"\d{5} \d{4,5} \d{4,5} 19100\n", said)
    assert not {"9100", "9101", "9102"} & set(said.split())
