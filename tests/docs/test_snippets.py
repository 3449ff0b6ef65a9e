"""The blocks of the pages work when they are pasted in order, with a real broker."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.docs.deviations import INSTEAD, NOT_RUN
from tests.docs.extras import EXTRAS, Extra
from tests.docs.pages import PAGES, ROOT, blocks
from tests.docs.snippets import commands_of, skip_where_lacking, walk

RUN = [page for page in PAGES if any(commands_of(block) for block in blocks(page))]


@pytest.mark.sample(
    "README.md",
    "docs/guides/php.md",
    "docs/concepts/ttl.md",
    "docs/operate/another-machine.md",
    "docs/start/tutorial.md",
)
@pytest.mark.acceptance
@pytest.mark.parametrize("page", RUN)
def test_page_works_when_pasted(page: str, tmp_path: Path) -> None:
    skip_where_lacking(page)
    extra = EXTRAS.get(page, Extra())
    with walk(tmp_path) as it:
        extra.after(it, it.run(page, extra.before))


@pytest.mark.parametrize(
    "tables",
    [NOT_RUN, INSTEAD, {page: extra.before for page, extra in EXTRAS.items()}],
    ids=["not run", "instead", "before"],
)
def test_deviations_name_existing_blocks(tables: Mapping[str, Mapping[str, Any]]) -> None:
    for page, parts in tables.items():
        texts = [block.text for block in blocks(page)]
        assert [part for part in parts if not any(part in text for text in texts)] == [], page


def test_tests_named_as_replacements_exist() -> None:
    reasons = {reason for parts in NOT_RUN.values() for reason in parts.values()}
    named = {name for reason in reasons for name in re.findall(r"tests/[\w/]+\.py", reason)}
    assert len(named) > 5
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
