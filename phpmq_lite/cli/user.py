"""``user``: who may log in.  Passwords are asked for or read from a file, never an argument."""

from pathlib import Path
from typing import Final

import click

from phpmq_lite.admin.base.urls import encode_name
from phpmq_lite.cli.accounts import write_accounts
from phpmq_lite.cli.main import CommandError
from phpmq_lite.cli.node import Node, node_options
from phpmq_lite.cli.options import confirm, is_terminal, talk
from phpmq_lite.cli.output import Column, output_option

ROLES: Final = ("viewer", "operator", "admin")
COLUMNS: Final = (
    Column("name", "NAME"),
    Column("role", "ROLE"),
    Column("queues", "QUEUES"),
    Column("created_at", "MADE (UTC)"),
    Column("last_login_at", "LAST LOGIN (UTC)"),
)

_name = click.argument("name")
_password_file = click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="File with the password, - for standard input; without: asked for.",
)


@click.group()
def user() -> None:
    """List, add and remove users; change their passwords."""


@user.command()
@node_options
@output_option
def ls(node: Node, output: str | None) -> None:
    """List the users."""
    nobody = "no users: on this machine no login is needed"
    write_accounts(node.list("/users"), COLUMNS, output, nobody)


@user.command()
@_name
@click.option("--role", type=click.Choice(ROLES), help="[default: viewer; of the first user admin]")
@click.option("--queues", multiple=True, metavar="GLOB", help="Only these queues. Repeatable.")
@_password_file
@node_options
def add(
    node: Node, name: str, role: str | None, queues: tuple[str, ...], password_file: Path | None
) -> None:
    """Make a user who can log in."""
    if role is None:
        role = "viewer" if node.get("/users")["items"] else "admin"
    password = _password(password_file)
    made = {"name": name, "password": password, "role": role, "queues": list(queues)}
    node.post("/users", made)
    talk(f"{name} is {role} and can log in")


@user.command()
@_name
@_password_file
@node_options
def passwd(node: Node, name: str, password_file: Path | None) -> None:
    """Change the password of a user; all their sessions end."""
    password = _password(password_file)
    node.call("PATCH", f"/users/{encode_name(name)}", {"password": password})
    talk(f"the password of {name} is changed")


@user.command()
@_name
@click.option("--yes", is_flag=True, help="Do not ask.")
@node_options
def rm(node: Node, name: str, yes: bool) -> None:
    """Remove a user; all their sessions end."""
    confirm(f"Remove the user {name}?", is_yes=yes)
    node.call("DELETE", f"/users/{encode_name(name)}", {})
    talk(f"{name} is removed")


def _password(file: Path | None) -> str:
    if file is not None:
        with click.open_file(str(file), "rb") as given:
            content: bytes = given.read()
        try:
            return content.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise CommandError(f"the password in {file} is not UTF-8") from None
    if not is_terminal():
        raise CommandError("without a terminal this needs --password-file")
    password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return password
