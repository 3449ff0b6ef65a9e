"""The generated pages are up to date."""

import re

import click
import pytest

from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.settings.model import Settings
from tests.docs.pages import ROOT, text_of
from tests.docs.reference_cli import every_command
from tests.docs.reference_tables import BOUNDS, VIEWS, WORDS, bound
from tests.docs.references import COMMAND, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_page_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == PAGES[name](), f"run: {COMMAND}"


def test_every_route_is_on_the_page_of_the_api() -> None:
    told = set(
        re.findall(r"^(?:### |\| `)([A-Z]+ /[^\s`]*)", text_of("docs/reference/api.md"), re.M)
    )
    assert told == {f"{route.method} {route.path}" for route in ROUTES}


def test_every_command_and_option_says_what_it_does() -> None:
    silent = [
        f"{path} {option.opts[0]}"
        for path, context in every_command()
        for option in context.command.params
        if isinstance(option, click.Option) and not option.help and not option.hidden
    ]
    assert silent == []
    assert [path for path, context in every_command() if not context.command.help] == []


def test_descriptions_name_existing_tables_and_columns() -> None:
    """A column without a table may be in any of them."""
    page = text_of("docs/reference/tables.md")
    columns = set(re.findall(r"^\| `(\w+)` \|", page, re.M))
    tables = set(re.findall(r"^## (\w+)$", page, re.M))
    for name in WORDS:
        table, _, column = name.partition(".")
        assert not table or table in tables, name
        assert not column or column in columns, name


def test_every_table_has_a_bound_on_its_rows() -> None:
    page = text_of("docs/reference/tables.md")
    sections = {text.partition("\n")[0]: text for text in page.split("\n## ")[1:]}
    assert sections.keys() == BOUNDS.keys() | VIEWS
    for name, text in sections.items():
        assert (name in VIEWS) or f"\nAt most {BOUNDS[name]}.\n" in text
    with pytest.raises(LookupError, match="heap has no bound on its rows"):
        bound("heap")


def test_bounds_that_are_settings_exist() -> None:
    sections = Settings().model_dump().items()
    known = {
        f"{section}.{name}"
        for section, names in sections
        if isinstance(names, dict)
        for name in names
    }
    named = {name for text in BOUNDS.values() for name in re.findall(r"`(\w+\.\w+)`", text)}
    assert named <= known
    assert {"audit.rows", "history.rows", "history.clients", "receipts.limit"} <= named


def test_lines_that_click_leaves_as_they_are_stay_so() -> None:
    page = text_of("docs/reference/cli.md")
    assert "```text\npublish      confirmed publishing, one connection\nflow         one" in page
    assert "\b" not in page
