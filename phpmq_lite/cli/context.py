"""``context``: brokers by name, so that commands need no ``--node``."""

from pathlib import Path
from typing import Final

import click

from phpmq_lite.cli import contexts
from phpmq_lite.cli.main import NOT_FOUND, CommandError
from phpmq_lite.cli.options import talk
from phpmq_lite.cli.output import Column, output_option, write

COLUMNS: Final = (
    Column("name", "NAME"),
    Column("in_use", "IN USE"),
    Column("where", "WHERE"),
    Column("token_file", "TOKEN FILE"),
)


@click.group()
def context() -> None:
    """Name brokers, and choose the one that commands talk to."""


@context.command()
@click.argument("name")
@click.option("--node", "url", metavar="URL", help="The admin's address.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Its data folder.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with an API token.",
)
def add(name: str, url: str | None, data: Path | None, token_file: Path | None) -> None:
    """Remember a broker under a name; the first one is in use at once."""
    if (url is None) == (data is None):
        raise click.UsageError("give one of --node and --data")
    in_use, found = contexts.load()
    found[name] = contexts.Context(
        name,
        data.absolute() if data else None,
        url,
        token_file.absolute() if token_file else None,
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
            "where": str(one.url or one.data),
            "token_file": str(one.token_file) if one.token_file else None,
        }
        for one in found.values()
    ]
    write(rows, COLUMNS, output, "no contexts; phpmq-lite context add NAME --node URL")
