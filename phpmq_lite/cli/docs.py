"""The ``docs`` command: opens the documentation, shows a page in the terminal, or searches it."""

import os
import sys
from difflib import get_close_matches
from pathlib import Path

import click

from phpmq_lite.admin.base.urls import Urls
from phpmq_lite.admin.views.documentation import INDEX, DocMatch, Documentation
from phpmq_lite.cli.admin_client import (
    AdminClient,
    BrokerUnavailableError,
    admin_url_of,
    find_admin_client,
    url_options,
)
from phpmq_lite.cli.errors import NOT_FOUND, CommandError
from phpmq_lite.cli.output import print_message
from phpmq_lite.cli.settings_options import SettingsArguments, config_option, data_option
from phpmq_lite.installation import docs_folder


@click.command()
@click.argument("page", default=INDEX)
@click.option("--text", is_flag=True, help="Show the page in this terminal; requires no broker.")
@click.option("--print-url", is_flag=True, help="Print the address instead of opening it.")
@click.option("--search", metavar="WORDS", help="List the pages and sections with these words.")
@url_options
@data_option
@config_option
def docs(
    settings_args: SettingsArguments,
    url: str | None,
    token_file: Path | None,
    tls_ca: Path | None,
    page: str,
    text: bool,
    print_url: bool,
    search: str | None,
) -> None:
    """Open the broker's documentation.

    PAGE is a page such as guides/admin, or its last part, admin. An anchor may follow, as in
    admin#keyboard. Without a display, as over SSH, the page is shown in the terminal.
    """
    name, mark, anchor = page.partition("#")
    pages = Documentation(docs_folder(), Urls("", {}).docs)
    if search is not None:
        _list_matches(pages.search(search))
        return
    found = pages.moved_to(name)
    if found is None:
        close = get_close_matches(name, [each.rpartition("/")[2] for each in pages.outlines], 1)
        hint = f"Did you mean {close[0]}?" if close else "Find one with: docs --search WORDS"
        raise CommandError(f"there is no page {name!r}. {hint}", NOT_FOUND)
    has_display = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    is_terminal = sys.platform == "linux" and sys.stdout.isatty()
    is_headless = not has_display and (is_terminal or "SSH_CONNECTION" in os.environ)
    if text or (is_headless and not print_url):
        _show(docs_folder() / f"{found}.md")
        return
    admin = find_admin_client(settings_args, url, token_file, tls_ca)
    base = admin_url_of(admin.settings) if admin.settings is not None else admin.url
    address = base.rstrip("/") + Urls("", {}).docs(found) + mark + anchor
    if print_url:
        click.echo(address)
        return
    _check_answers(admin)
    if click.launch(address) != 0:
        raise CommandError(f"could not start a browser; open {address} yourself, or use --text")
    print_message(f"opened {address}")


def _list_matches(matches: list[DocMatch]) -> None:
    if not matches:
        raise CommandError("no page has all of these words; try fewer or shorter ones", NOT_FOUND)
    for match in matches:
        click.secho(f"{match.name}: {match.title}", bold=True)
        for heading, excerpt in zip(match.headings, match.excerpts, strict=False):
            click.echo(f"  {match.name}#{heading.anchor}\n    {''.join(excerpt)}")


def _check_answers(admin: AdminClient) -> None:
    """Raise BrokerUnavailableError if no broker responds, so that no browser is opened."""
    try:
        admin.get("/listeners")
    except BrokerUnavailableError:
        raise
    except CommandError:
        return  # the broker responded, and the user can log in with the browser


def _show(path: Path) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(path.read_text(encoding="utf-8")))
