"""``context``: brokers by name, so that commands need no ``--node``."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from phpmq_lite.cli import contexts
from phpmq_lite.cli.main import NOT_FOUND, CommandError
from phpmq_lite.cli.options import admin_url, talk
from phpmq_lite.cli.output import Column, output_option, write
from phpmq_lite.client.target import parse_target

COLUMNS: Final = (
    Column("name", "NAME"),
    Column("in_use", "IN USE"),
    Column("where", "WHERE"),
    Column("connect", "PHPMQ"),
    Column("token_file", "TOKEN FILE"),
)


def _address(value: str) -> str:
    """Give an address of PHPMQ that is the same from every folder; a click type."""
    try:
        target = parse_target(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return str(replace(target, path=str(Path(target.path).absolute())) if target.path else target)


@click.group()
def context() -> None:
    """Name brokers, and choose the one that commands talk to.

    publish, consume, worker and outbox relay speak PHPMQ: a context says where with --connect, and
    one that does not has them refuse. A command that is told which broker it is takes no context.
    """


@context.command()
@click.argument("name")
@click.option("--node", "url", type=admin_url, metavar="URL", help="The admin's address.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Its data folder.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with an API token.",
)
@click.option(
    "--connect", "phpmq", type=_address, metavar="ADDRESS",
    help="Where it speaks PHPMQ: HOST:PORT or unix:PATH.",
)  # fmt: skip
def add(
    name: str, url: str | None, data: Path | None, token_file: Path | None, phpmq: str | None
) -> None:
    """Remember a broker under a name; the first one is in use at once."""
    if (url is None) == (data is None):
        raise click.UsageError("give one of --node and --data")
    in_use, found = contexts.load()
    found[name] = contexts.Context(
        name,
        data.absolute() if data else None,
        url,
        token_file.absolute() if token_file else None,
        phpmq,
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
            "connect": one.connect,
            "token_file": str(one.token_file) if one.token_file else None,
        }
        for one in found.values()
    ]
    write(rows, COLUMNS, output, "no contexts; phpmq-lite context add NAME --node URL")
