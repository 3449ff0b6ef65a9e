"""The ``docs`` command: opens the documentation, shows a page in the terminal, or searches it."""

import os
import sys
from difflib import get_close_matches
from pathlib import Path

import click

from phpmq_lite.admin.urls import Urls
from phpmq_lite.cli.admin_client import (
    BrokerUnavailableError,
    admin_url_of,
    find_admin_client,
    url_options,
)
from phpmq_lite.cli.errors import NOT_FOUND, CommandError
from phpmq_lite.cli.output import print_message
from phpmq_lite.cli.parameters import SettingsArguments, config_option, data_option, flag, option
from phpmq_lite.documentation import INDEX, Documentation
from phpmq_lite.installation import docs_folder


@click.command()
@click.argument("page", default=INDEX)
@flag("--text", "Show the page in this terminal; requires no broker.")
@flag("--print-url", "Print the address instead of opening it.")
@option("--search", "List the pages and sections with these words.", metavar="WORDS")
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
        if not (matches := pages.search(search)):
            raise CommandError("no page has all these words; try fewer or shorter ones", NOT_FOUND)
        for match in matches:
            click.secho(f"{match.name}: {match.title}", bold=True)
            for heading, excerpt in zip(match.headings, match.excerpts, strict=False):
                click.echo(f"  {match.name}#{heading.anchor}\n    {''.join(excerpt)}")
        return
    target = pages.find(name)
    if target is None:
        close = get_close_matches(name, [path.rpartition("/")[2] for path in pages.outlines], 1)
        hint = f"Did you mean {close[0]}?" if close else "Find one with: docs --search WORDS"
        raise CommandError(f"there is no page {name!r}. {hint}", NOT_FOUND)
    is_bare = "SSH_CONNECTION" in os.environ or (sys.platform == "linux" and sys.stdout.isatty())
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if text or (is_bare and not has_display and not print_url):
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown((docs_folder() / f"{target}.md").read_text(encoding="utf-8")))
        return
    admin = find_admin_client(settings_args, url, token_file, tls_ca)
    base = admin_url_of(admin.settings) if admin.settings is not None else admin.url
    address = base.rstrip("/") + Urls("", {}).docs(target) + mark + anchor
    if print_url:
        click.echo(address)
        return
    try:
        admin.get("/listeners")
    except CommandError as error:  # any other: the user can log in with the browser
        if isinstance(error, BrokerUnavailableError):
            raise
    if click.launch(address) != 0:
        raise CommandError(f"could not start a browser; open {address} yourself, or use --text")
    print_message(f"opened {address}")
