"""The ``user`` and ``token`` command groups, which manage web accounts and API tokens."""

import time
from collections.abc import Iterable, Sequence
from itertools import product
from math import ceil
from pathlib import Path
from typing import Final

import click

from phpmq_lite.admin.urls import encode_name
from phpmq_lite.cli.admin_client import AdminClient, admin_client_options, admin_output_options
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.output import (
    SPARE,
    Column,
    Row,
    columns,
    confirm,
    format_utc,
    is_terminal,
    output_format,
    print_message,
    write_rows,
    yes_option,
)
from phpmq_lite.cli.parameters import FILE_OR_STDIN, duration, option, repeatable
from phpmq_lite.roles import ROLES, TOKEN_ROLES
from phpmq_lite.text_files import NotUtf8Error, TextFileError, decode_secret

_TIMES: Final = ("created_at", "expires_at", "last_login_at", "last_used_at")  # as Unix times in ms


def write_accounts(
    rows: Iterable[Row], columns: Sequence[Column], style: str | None, empty: str
) -> None:
    """Write users or tokens with ``write_rows``; in tables, format the times and queue globs."""
    if output_format(style) == "table":
        accounts = [{**row, "queues": ", ".join(row["queues"]) or "all"} for row in rows]
        for account, key in product(accounts, _TIMES):
            account[key] = format_utc(account.get(key))
        rows = accounts
    write_rows(rows, columns, style, empty)


USER_COLUMNS: Final = (
    *columns("name", "role", "queues"),
    *columns(created_at="CREATED (UTC)", last_login_at="LAST LOGIN (UTC)", fit=SPARE),
)

FIRST_USER: Final = (
    "This is the first user. Until now, everyone on this machine is admin without a login; from now"
    " on, everyone must log in, and programs that use the HTTP API need a token. Commands in the"
    " account of the broker do not. To go back: phpmq-lite user delete NAME."
)

_name = click.argument("name")
_queues = repeatable("--queues", "Allowed queues. Repeatable.", metavar="GLOB")
_password_file = option(
    "--password-file",
    "File that contains the password, or - for standard input.  [default: prompt]",
    FILE_OR_STDIN,
)


@click.group()
def user() -> None:
    """List, create and delete users; set their roles and passwords."""


@user.command("list")
@admin_output_options
def list_users(admin: AdminClient, output: str | None) -> None:
    """List users."""
    empty = "no users exist; local access requires no login"
    write_accounts(admin.list("/users"), USER_COLUMNS, output, empty)


@user.command("create")
@_name
@option("--role", "[default: viewer; admin for the first user]", click.Choice(ROLES))
@_queues
@_password_file
@admin_client_options
def create_user(
    admin: AdminClient,
    name: str,
    role: str | None,
    queues: tuple[str, ...],
    password_file: Path | None,
) -> None:
    """Create a user who can log in."""
    is_first = not admin.get("/users")["items"]
    if is_first:
        print_message(FIRST_USER)
    role = role or ("admin" if is_first else "viewer")
    password = _read_password(password_file)
    account = {"name": name, "password": password, "role": role, "queues": list(queues)}
    admin.post("/users", account)
    print_message(f"created the user {name} with the role {role}")


@user.command("set-password")
@_name
@_password_file
@admin_client_options
def set_password(admin: AdminClient, name: str, password_file: Path | None) -> None:
    """Set a user's password and end all their sessions."""
    password = _read_password(password_file)
    admin.call("PATCH", f"/users/{encode_name(name)}", {"password": password})
    print_message(f"set the password for {name}")


@user.command("set-role")
@_name
@click.argument("role", metavar="viewer|operator|admin")
@admin_client_options
def set_role(admin: AdminClient, name: str, role: str) -> None:
    """Change a user's role and end all their sessions."""
    path = f"/users/{encode_name(name)}"
    if admin.get(path)["role"] == role:
        print_message(f"nothing was changed: {name} is {role} already")
        return
    admin.call("PATCH", path, {"role": role})
    print_message(f"{name} is now {role}, and must log in again")


@user.command("delete")
@_name
@yes_option
@admin_client_options
def delete_user(admin: AdminClient, name: str, yes: bool) -> None:
    """Delete a user and end all their sessions.

    The only user can be deleted only by a command in the account of the broker (--data).
    """
    is_only = [account["name"] for account in admin.get("/users")["items"]] == [name]
    consequence = " Then everyone on this machine is admin without a login." if is_only else ""
    confirm(f"Delete the user {name}?{consequence}", is_yes=yes)
    admin.call("DELETE", f"/users/{encode_name(name)}", {})
    print_message(f"deleted the user {name}")
    if is_only:
        print_message("no users exist: everyone on this machine is admin without a login")


def _read_password(file: Path | None) -> str:
    if file is not None:
        with click.open_file(str(file), "rb") as stream:
            content: bytes = stream.read()
        try:
            return decode_secret(content)
        except NotUtf8Error as error:
            actual = f" but {error.encoding}" if error.encoding else ""
            raise CommandError(f"the password in {file} is not valid UTF-8{actual}") from None
        except TextFileError as error:
            raise CommandError(f"the password in {file} {error}") from None
    if not is_terminal():
        raise CommandError("--password-file is required when standard input is not a terminal")
    from phpmq_lite.settings.loading import SHORTEST_PASSWORD

    text = f"Password (at least {SHORTEST_PASSWORD} characters)"
    password: str = click.prompt(text, hide_input=True, confirmation_prompt=True, err=True)
    return password


TOKEN_COLUMNS: Final = (
    *columns("name", "role", "queues"),
    *columns("created_by", expires_at="EXPIRES (UTC)", last_used_at="LAST USED (UTC)", fit=SPARE),
)


@click.group()
def token() -> None:
    """List, create and revoke API tokens."""


@token.command("list")
@admin_output_options
def list_tokens(admin: AdminClient, output: str | None) -> None:
    """List tokens without their secrets."""
    write_accounts(admin.list("/tokens"), TOKEN_COLUMNS, output, "no tokens")


@token.command("create")
@_name
@option(
    "--role",
    "Role of the token; the metrics role can only read /metrics.",
    click.Choice(TOKEN_ROLES),
    "viewer",
)
@_queues
@option("--expires", "Lifetime, such as 90d.  [default: none]", duration)
@admin_client_options
def create_token(
    admin: AdminClient, name: str, role: str, queues: tuple[str, ...], expires: int | None
) -> None:
    """Create a token and print it; the broker stores only its hash."""
    expires_at = None if expires is None else ceil((time.time() + expires) * 1_000)
    body = {"name": name, "role": role, "queues": list(queues), "expires_at": expires_at}
    created = admin.post("/tokens", body)
    print_message(f"created {role} token {name}; send it as a header: Authorization: Bearer TOKEN")
    click.echo(created["token"])


@token.command()
@_name
@yes_option
@admin_client_options
def revoke(admin: AdminClient, name: str, yes: bool) -> None:
    """Revoke a token. The broker immediately rejects requests that use it."""
    confirm(f"Revoke the token {name}?", is_yes=yes)
    admin.call("DELETE", f"/tokens/{encode_name(name)}", {})
    print_message(f"revoked the token {name}")
