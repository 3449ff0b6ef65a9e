"""The targets of links in the pages exist."""

import os

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, links


def is_broken(page: str, link: str) -> bool:
    """Return whether the file or the anchor of a relative link is missing."""
    target, anchor = target_of(page, link), link.partition("#")[2]
    if not (ROOT / target).exists():
        return True
    return bool(anchor) and (not target.endswith(".md") or anchor not in anchors(target))


def target_of(page: str, link: str) -> str:
    """Return the path of a relative link in the repository."""
    path = link.partition("#")[0]
    return os.path.relpath((ROOT / page).parent / path, ROOT) if path else page


@pytest.mark.parametrize("page", PAGES)
def test_link_targets_exist(page: str) -> None:
    relative = [link for link in links(page) if not link.startswith(("http:", "https:", "mailto:"))]
    assert [link for link in relative if is_broken(page, link)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_links_of_the_documentation_stay_in_it(page: str) -> None:
    """The site and the broker serve no other files."""
    targets = [target_of(page, link) for link in links(page) if "://" not in link]
    assert [target for target in targets if not target.startswith("docs/")] == []


def test_every_page_can_be_found() -> None:
    """Each is reachable from the README."""
    found: set[str] = set()
    waiting = ["README.md"]
    while waiting:
        page = waiting.pop()
        if page in PAGES and page not in found:
            found.add(page)
            waiting += [target_of(page, link) for link in links(page) if "://" not in link]
    assert [page for page in PAGES if page.startswith("docs/") and page not in found] == []
