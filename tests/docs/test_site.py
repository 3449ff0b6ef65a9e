"""The mkdocs site and the hosted CI: their files agree with the pages."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from tests.docs.pages import ROOT
from tests.docs.test_docs_at_broker import DOCS
from tests.support.programs import run_program

_SLUGIFY: Final = "tag:yaml.org,2002:python/object/apply:pymdownx.slugs.slugify"
# Elements that a Markdown parser may drop silently; compared between both.
_ELEMENTS: Final = ("li", "table", "tr", "pre", "img", "h2", "h3")


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads mkdocs.yml, whose slug function is a Python name."""


_Loader.add_constructor(_SLUGIFY, lambda loader, node: loader.construct_mapping(node))
SITE: Final[dict[str, Any]] = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)
CI: Final[dict[str, Any]] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())


def pages_of(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from pages_of(value) if isinstance(value, list) else (value.removesuffix(".md"),)


def test_site_and_broker_have_the_same_navigation() -> None:
    groups = {
        title: [name for name in pages_of(entries) if not name.startswith("decisions/0")]
        for group in SITE["nav"][1:]
        for title, entries in group.items()
    }
    assert groups == {group.title: list(group.names) for group in DOCS.groups}
    assert sorted(pages_of(SITE["nav"])) == sorted(DOCS.outlines)


def test_site_asks_no_other_host() -> None:
    assert SITE["theme"]["font"] is False
    assert SITE["strict"] is True


def test_workflow_runs_our_script_on_every_python_and_builds_both_wheels() -> None:
    assert set(CI["jobs"]) == {"test", "pure-wheel", "compiled-wheels"}
    versions = CI["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    steps = {name: job["steps"] for name, job in CI["jobs"].items()}
    lines = {name: [step.get("run", "") for step in some] for name, some in steps.items()}
    assert "bash .ci/run" in lines["test"]
    assert any("python -m build" in line for line in lines["pure-wheel"])
    assert any("python -m cibuildwheel" in line for line in lines["compiled-wheels"])
    for job in CI["jobs"].values():
        assert set(job) <= {"runs-on", "timeout-minutes", "strategy", "continue-on-error", "steps"}
        for step in job["steps"]:
            assert len({"uses", "run"} & set(step)) == 1
            assert set(step) <= {"uses", "run", "with", "env", "name"}
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", "a/b@v1"))


@pytest.mark.slow
def test_site_is_built_strictly_with_all_that_the_broker_shows(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="missing: the extra docs")
    done = run_program(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"},
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    different = {}
    for name in DOCS.outlines:
        folder = name.removesuffix("index") if name.endswith("index") else name
        html = (tmp_path / folder / "index.html").read_text(encoding="utf-8")
        site = html[html.index("<article") : html.index("</article>")]
        for element in _ELEMENTS:
            counts = [len(re.findall(rf"<{element}\b", text)) for text in (site, DOCS.render(name))]
            if counts[0] != counts[1]:
                different[f"{name} {element}"] = counts
    assert different == {}
