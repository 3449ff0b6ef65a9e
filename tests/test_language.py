"""The words of the project: docstrings name an effect, names and phrases are the field's.

The lists contain former words of this project that read like a translation or were unclear.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = ROOT / "phpmq_lite"
SOURCES: Final = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}

OPENINGS: Final = {"Give", "Gives", "Tell", "Tells", "Take", "Have", "Let", "Say", "Make"}

# Names that need an explanation, while the field has a word for each.
NAMES: Final = frozenset(
    re.findall(
        r"\w+",
        """
    act asked aside bear books bounds brush bury call_up care causes copies doing doors doubts
    driven durable dying endings entrance fed follow gate given gives_way glance go_on heap
    heed_clock house hungry intake interventions join judging keyed ladder layout let_go lingers
    link lives look_after members moving patient pauses people places pulse put_in_place quick rare
    recall resting room rows runs several shares shelves signs strict sweeps systems told traced
    turn turns visitors walk whole words
    Answer Asked Judged Lives Looked Rooms Runs Told Turn
    """,
    )
)
EXCEPTIONS: Final = {
    "bounds": "lowest and highest offset of the history, or of what a search may read",
    "rows": "rows of a table, a file or a page",
}

# Words that say nothing about a thing: no local, parameter or attribute is named so.
NAMES_OF_LOCALS: Final = frozenset(
    re.findall(
        r"\S+",
        """
        again asked done each enough figures found front gate given goes_on gone had here kept known
        lately made most must one out patience pressure rest says seen shown some there tied told
        upkeep visitor wanted what which who whole why wrong
        """,
    )
)
PUBLIC_LOCALS: Final = {
    "admin/http/live_feeds.py": {"says", "shown"},
    "admin/messages/bulk.py": {"done", "what"},  # fields of the API
    "admin/queues/dead_letters.py": {"again"},
    "admin/system/backups.py": {"made"},
    "admin/system/live.py": {"says", "shown"},
    "spark/payload_types.py": {"out"},  # a parameter for users
    "spark/jobs/options.py": {"out"},  # a field of the options of a job, which users create
}

PHRASES: Final = (
    r"\banew\b",
    r"\bbefall",
    r"\bby hand\b",  # manually
    r"\bin vain\b",
    r"\b(?<!there )(?:is|are) no (?!longer\b|more\b)",  # is not a
    r"\bmeanwhile settled\b",
    r"\bnot (?:any more|anymore)\b",
    r"\bslip of the pen\b",
    r"(?<!or )\bso (?:many|long)\b(?! as\b)",
    r"\bthat which\b",
    r"\bthose who\b",
    r"\bwhat is told\b",
    r"\b(?:is|are|was|were) told\b",
    r"\bwhoever\b",
    r"\bwhat is no\b",
    r"\bwho is not\b",
    r"\b(?:any|some|every)body\b",
    r"\bas (?:far|often) as\b",
    r"\bat hand\b",
    r"\bby (?:itself|themselves)\b",  # automatically, alone
    r"\bcannot be an? ",  # is not a valid
    r"\bfor ever\b",
    r"\bgiven up\b",
    r"\bgoes (?:by|on)\b",
    r"\bin the place of\b",
    r"\bin(?:to)? its place\b",
    r"\b(?:is|are) not possible\b",
    r"\blonger ago\b",
    r"\bmakes of\b",
    r"\bmeanwhile (?:done|gone|settled)\b",
    r"\bof each of\b",
    r"\bonce more\b",
    r"\btakes along\b",
    r"\bthe half\b",
    r"\bthe (?:latest|newest|oldest|youngest) first\b",
    r"\bthe one that\b",
    r"\bthe other way round\b",
    r"\b(?:there|where)(?:by|in|of)\b",
    r"\bupon\b",
    r"bytes, the limit is\b",  # a comma splice
)
PHRASE: Final = re.compile("|".join(PHRASES), re.IGNORECASE)


@cache
def definitions() -> list[tuple[Path, int, str, str]]:
    found = []
    for path, text in SOURCES.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((path, node.lineno, node.name, ast.get_docstring(node) or ""))
            elif isinstance(node, ast.Module):
                name = path.stem if path.stem != "__init__" else path.parent.name
                found.append((path, 1, name, ast.get_docstring(node) or ""))
    return found


def prose() -> Iterator[tuple[Path, int, str]]:
    """Yield every line of documentation and templates, and all strings and comments of the code."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "templates").rglob("*")]
    for path in pages:
        if path.suffix in {".md", ".html", ".js"} and path.name != "CHANGELOG.md":
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                yield path, number, line
    yield from source_texts()


@cache
def source_texts() -> list[tuple[Path, int, str]]:
    kinds = {tokenize.STRING, tokenize.COMMENT}
    return [
        (path, token.start[0], " ".join(token.string.split()))
        for path, text in SOURCES.items()
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type in kinds or tokenize.tok_name[token.type] == "FSTRING_MIDDLE"
    ]


def test_docstrings_begin_with_an_effect_or_a_result() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path, line, _, text in definitions()
        if re.split(r"\W", text, maxsplit=1)[0] in OPENINGS
    ]
    assert found == []


def test_names_are_those_of_the_field() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, _, name, _ in definitions()
        if name.strip("_") in NAMES - set(EXCEPTIONS)
    }
    assert found == set()
    assert set(EXCEPTIONS) <= NAMES


def local_names(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(SOURCES[path])):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name


def test_locals_parameters_and_attributes_say_what_they_are() -> None:
    problems = []
    for path in SOURCES:
        module = path.relative_to(PACKAGE).as_posix()
        words = NAMES_OF_LOCALS - PUBLIC_LOCALS.get(module, set())
        names = local_names(path)
        problems += [f"{module}:{line}: {name}" for line, name in names if name.strip("_") in words]
    assert problems == []


def test_phrases_are_idiomatic() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path, number, text in prose()
        if (match := PHRASE.search(text))
    ]
    assert found == []


def test_modules_that_texts_name_exist() -> None:
    folders = (PACKAGE, ROOT / "benchmarks", ROOT / "tests")
    modules = {path.name for folder in folders for path in folder.rglob("*.py")}
    texts = (
        (path, name)
        for path, _, text in source_texts()
        for name in re.findall(r"``(?:[a-z_]+/)*([a-z_]+\.py)``", text)
    )
    assert [(path.relative_to(ROOT), name) for path, name in texts if name not in modules] == []


@pytest.mark.parametrize("text", ["is no proper one", "started anew", "so many were asked for"])
def test_phrase_is_found(text: str) -> None:
    assert PHRASE.search(text)
