"""``context``: brokers by name, so that commands need no ``--url``."""

from pathlib import Path
from typing import Final

import click

from phpmq_lite.cli import contexts
from phpmq_lite.cli.main import NOT_FOUND, CommandError
from phpmq_lite.cli.options import broker_url, is_phpmq, talk
from phpmq_lite.cli.output import Column, output_option, write

COLUMNS: Final = (
    Column("name", "NAME"),
    Column("in_use", "IN USE"),
    Column("where", "WHERE"),
    Column("connect", "PHPMQ"),
    Column("token_file", "TOKEN FILE"),
)


def _whole(url: str | None) -> str | None:
    """Return an address that is the same from every folder."""
    if url is None or not url.startswith("unix:"):
        return url
    return f"unix:{Path(url.removeprefix('unix:')).absolute()}"


@click.group()
def context() -> None:
    """Name brokers, and choose the one that commands talk to.

    publish, consume, worker and outbox relay learn from the admin where the broker speaks PHPMQ;
    add the context with a second --url, phpmq://HOST:PORT, if it is reached elsewhere. A flag that
    names a broker (--url, --data, --config) wins over the context in use.
    """


@context.command()
@click.argument("name")
@click.option(
    "--url", "urls", type=broker_url, multiple=True, metavar="URL",
    help="The admin, as http://HOST:9101; a PHPMQ listener, as phpmq://HOST:9100. Repeatable.",
)  # fmt: skip
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Its data folder.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with an API token.",
)
def add(name: str, urls: tuple[str, ...], data: Path | None, token_file: Path | None) -> None:
    """Remember a broker under a name; the first one is in use at once."""
    phpmq = [one for one in urls if is_phpmq(one)]
    admin = [one for one in urls if not is_phpmq(one)]
    if not (urls or data) or (admin and data):
        raise click.UsageError("give one of --url and --data")
    if len(phpmq) > 1 or len(admin) > 1:
        raise click.UsageError("give --url once for the admin and once for the PHPMQ listener")
    in_use, found = contexts.load()
    found[name] = contexts.Context(
        name,
        data.absolute() if data else None,
        admin[0] if admin else None,
        token_file.absolute() if token_file else None,
        _whole(phpmq[0]) if phpmq else None,
    )
    contexts.save(in_use or name, found)
    talk(f"context {name} is remembered" + ("" if in_use else " and in use"))


@context.command()
@click.argument("name")
def use(name: str) -> None:
    """Choose the broker that commands talk to; a dash chooses none."""
    _, found = contexts.load()
    if name != "-" and name not in found:
        raise CommandError(f"there is no context {name!r}", NOT_FOUND)
    contexts.save(None if name == "-" else name, found)
    talk("no context is in use" if name == "-" else f"context {name} is in use")


@context.command()
@click.argument("name")
def rm(name: str) -> None:
    """Forget a broker."""
    in_use, found = contexts.load()
    if found.pop(name, None) is None:
        raise CommandError(f"there is no context {name!r}", NOT_FOUND)
    contexts.save(None if in_use == name else in_use, found)
    talk(f"context {name} is forgotten")


@context.command()
@output_option
def ls(output: str | None) -> None:
    """List the brokers that have a name."""
    in_use, found = contexts.load()
    rows = [
        {
            "name": one.name,
            "in_use": one.name == in_use,
            "where": str(one.url or one.data or one.connect),
            "connect": one.connect,
            "token_file": str(one.token_file) if one.token_file else None,
        }
        for one in found.values()
    ]
    write(rows, COLUMNS, output, "no contexts; phpmq-lite context add NAME --url URL")
