"""The groups ``user`` and ``token``: accounts of people and API tokens of programs."""

import time
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, Final

import click

from phpmq_lite.admin.base.formats import format_time
from phpmq_lite.admin.base.urls import encode_name
from phpmq_lite.cli.admin_client import AdminClient, admin_client_options
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.output import (
    Column,
    Row,
    confirm,
    is_terminal,
    output_format,
    output_option,
    print_message,
    write_rows,
)
from phpmq_lite.cli.parameters import duration

_TIMES: Final = ("created_at", "expires_at", "last_login_at", "last_used_at")  # Unix ms


def write_accounts(
    rows: Iterable[Row], columns: Sequence[Column], style: str | None, empty: str
) -> None:
    """Write rows as ``write_rows`` does; only a table is made for people to read."""
    if output_format(style) == "table":
        rows = map(_shown, rows)
    write_rows(rows, columns, style, empty)


def _shown(row: Row) -> Mapping[str, Any]:
    times = {key: _time(row[key]) for key in _TIMES if row.get(key) is not None}
    return {**row, **times, "queues": ", ".join(row["queues"]) or "all"}


def _time(at_ms: int) -> str:
    """Give the second; what is beyond the year 9999 stays a number."""
    return format_time(at_ms, at_ms).title.partition(".")[0]


ROLES: Final = ("viewer", "operator", "admin")
USER_COLUMNS: Final = (
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


@user.command("ls")
@admin_client_options
@output_option
def list_users(node: AdminClient, output: str | None) -> None:
    """List the users."""
    nobody = "no users: on this machine no login is needed"
    write_accounts(node.list("/users"), USER_COLUMNS, output, nobody)


@user.command("add")
@_name
@click.option("--role", type=click.Choice(ROLES), help="[default: viewer; of the first user admin]")
@click.option("--queues", multiple=True, metavar="GLOB", help="Only these queues. Repeatable.")
@_password_file
@admin_client_options
def add_user(
    node: AdminClient,
    name: str,
    role: str | None,
    queues: tuple[str, ...],
    password_file: Path | None,
) -> None:
    """Make a user who can log in."""
    if role is None:
        role = "viewer" if node.get("/users")["items"] else "admin"
    password = _password(password_file)
    made = {"name": name, "password": password, "role": role, "queues": list(queues)}
    node.post("/users", made)
    print_message(f"{name} is {role} and can log in")


@user.command()
@_name
@_password_file
@admin_client_options
def passwd(node: AdminClient, name: str, password_file: Path | None) -> None:
    """Change the password of a user; all their sessions end."""
    password = _password(password_file)
    node.call("PATCH", f"/users/{encode_name(name)}", {"password": password})
    print_message(f"the password of {name} is changed")


@user.command("rm")
@_name
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_client_options
def remove_user(node: AdminClient, name: str, yes: bool) -> None:
    """Remove a user; all their sessions end."""
    confirm(f"Remove the user {name}?", is_yes=yes)
    node.call("DELETE", f"/users/{encode_name(name)}", {})
    print_message(f"{name} is removed")


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


TOKEN_COLUMNS: Final = (
    Column("name", "NAME"),
    Column("role", "ROLE"),
    Column("queues", "QUEUES"),
    Column("created_by", "MADE BY"),
    Column("expires_at", "EXPIRES (UTC)"),
    Column("last_used_at", "LAST USED (UTC)"),
)


@click.group()
def token() -> None:
    """List, add and revoke API tokens."""


@token.command("ls")
@admin_client_options
@output_option
def list_tokens(node: AdminClient, output: str | None) -> None:
    """List the tokens, without their secrets."""
    write_accounts(node.list("/tokens"), TOKEN_COLUMNS, output, "no tokens")


@token.command("add")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(("metrics", *ROLES)),
    default="viewer",
    show_default=True,
    help="What it may; metrics: read /metrics only.",
)
@click.option("--queues", multiple=True, metavar="GLOB", help="Only these queues. Repeatable.")
@click.option("--expires", type=duration, metavar="DURATION", help="As 90d; without: never.")
@admin_client_options
def add_token(
    node: AdminClient, name: str, role: str, queues: tuple[str, ...], expires: int | None
) -> None:
    """Make a token and print it; only its hash is stored."""
    expires_at = None if expires is None else ceil((time.time() + expires) * 1_000)
    asked = {"name": name, "role": role, "queues": list(queues), "expires_at": expires_at}
    made = node.post("/tokens", asked)
    print_message(f"{name} is {role}; send it as: Authorization: Bearer TOKEN")
    click.echo(made["token"])


@token.command("rm")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_client_options
def revoke_token(node: AdminClient, name: str, yes: bool) -> None:
    """Revoke a token; the next call with it is refused."""
    confirm(f"Revoke the token {name}?", is_yes=yes)
    node.call("DELETE", f"/tokens/{encode_name(name)}", {})
    print_message(f"{name} is revoked")
