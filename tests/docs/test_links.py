"""Where the pages link to, there is something."""

import os

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, links


def leads_nowhere(page: str, link: str) -> bool:
    """Tell whether a relative link misses its file, or its anchor there."""
    target, anchor = named(page, link), link.partition("#")[2]
    if not (ROOT / target).exists():
        return True
    return bool(anchor) and (not target.endswith(".md") or anchor not in anchors(target))


def named(page: str, link: str) -> str:
    """Give the path in the checkout that a relative link means."""
    path = link.partition("#")[0]
    return os.path.relpath((ROOT / page).parent / path, ROOT) if path else page


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    relative = [link for link in links(page) if not link.startswith(("http:", "https:", "mailto:"))]
    assert [link for link in relative if leads_nowhere(page, link)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_links_of_the_documentation_stay_in_it(page: str) -> None:
    """The site and the broker have no other files."""
    targets = [named(page, link) for link in links(page) if "://" not in link]
    assert [target for target in targets if not target.startswith("docs/")] == []


def test_every_page_can_be_found() -> None:
    """The README leads to each of them, perhaps over others."""
    found: set[str] = set()
    waiting = ["README.md"]
    while waiting:
        page = waiting.pop()
        if page in PAGES and page not in found:
            found.add(page)
            waiting += [named(page, link) for link in links(page) if "://" not in link]
    assert [page for page in PAGES if page.startswith("docs/") and page not in found] == []
