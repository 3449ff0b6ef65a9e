"""The harness itself: how a page is taken apart, and that it notices what does not work."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import snippets
from tests.docs.pages import Block, taken_apart
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


def test_page_is_taken_apart() -> None:
    assert taken_apart("page.md", PAGE) == [
        Block("page.md", "Title", 3, "bash", "phpmq-lite queue list\n", output="nothing yet\n"),
        Block("page.md", "Files", 14, "python", "app = None\n", file="handlers.py"),
        Block("page.md", "Files", 18, "python", "print(1)\n", output="1\n"),
        Block("page.md", "Files", 34, "bash", "ls\n"),
    ]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("QUEUE   READY\na    1\n", "QUEUE READY\na 1\n"),
        ("id 0000000000000001\n", "id …\n"),
        ("a\nb\nc\n", "a\n…\nc\n"),
        ("a.b\n", "a.b"),
    ],
)
def test_output_is_like_what_is_shown(said: str, shown: str) -> None:
    assert is_like(said, shown)


@pytest.mark.parametrize(
    ("said", "shown"),
    [("a.b\n", "a-b"), ("axb\n", "a.b"), ("a b c\n", "a b\n"), ("ab\n", "a b"), ("", "a")],
)
def test_output_is_not_like_what_is_shown(said: str, shown: str) -> None:
    assert not is_like(said, shown)


def test_command_sees_a_terminal_and_its_end_is_told(tmp_path: Path) -> None:
    code, said = in_terminal(
        ["bash", "-c", "test -t 1 && test -t 2 && echo shown && exit 3"], tmp_path, os.environ
    )
    assert (code, said) == (3, "shown\n")


def test_command_without_an_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snippets, "TIMEOUT_S", 0.2)
    code, said = in_terminal(["sleep", "1000"], tmp_path, os.environ)
    assert code < 0
    assert "it goes on" in said


@pytest.fixture(scope="module")
def walker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    with walk(tmp_path_factory.mktemp("walk")) as it:
        yield it


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("language", "text", "output", "told"),
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
def test_what_does_not_work_is_noticed(
    walker: Walk, language: str, text: str, output: str | None, told: str
) -> None:
    with pytest.raises(AssertionError, match=re.escape(told)):
        walker.step(Block("page.md", "", 7, language, text, output=output))


@pytest.mark.acceptance
def test_ports_of_the_page_are_those_of_the_broker(walker: Walk) -> None:
    said = walker.step(Block("page.md", "", 1, "bash", "echo 9100 9101 9102 19100"))
    assert re.fullmatch(r"\d{5} \d{4,5} \d{4,5} 19100\n", said)
    assert not {"9100", "9101", "9102"} & set(said.split())
