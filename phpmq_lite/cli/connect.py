"""Opens a PHPMQ connection for ``publish`` and ``consume``: by flags, or to the context in use."""

import ssl
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from phpmq_lite.cli import contexts
from phpmq_lite.cli.given import Given, settings_options
from phpmq_lite.cli.main import CommandError
from phpmq_lite.client.blocking import BlockingClient, connect_blocking
from phpmq_lite.client.target import parse_target
from phpmq_lite.settings import Settings

GiveClient = Callable[[], BlockingClient]

_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - not bound here

_NAMING: Final = {"tcp.listen", "data"}  # settings that tell one broker from another


def client_options(
    command: Callable[..., None], *, reconnect: bool = True, is_asked_for: bool = False
) -> Callable[..., None]:
    """Add ``--connect``, TLS, ``--config`` and ``--set``; the command gets a closed ``client``.

    ``reconnect`` is for those that leave it to the client to come back; with ``is_asked_for`` the
    command gets a function that gives the client, if it needs one.
    """

    @wraps(command)
    def open_first(
        connect: str | None,
        tls: bool,
        tls_ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        given: Given,
        **others: Any,
    ) -> None:
        def client() -> BlockingClient:
            settings = given.load().settings
            address = connect or _of_context(given) or address_of(settings)
            context = _tls_context(tls_ca, tls_cert, tls_key) if tls or tls_ca or tls_cert else None
            return _client(address, settings, context, reconnect=reconnect)

        command(client=client if is_asked_for else client(), **others)

    file = click.Path(exists=True, dir_okay=False, path_type=Path)
    for option in (
        click.option("--tls-key", type=file, help="Our private key, PEM."),
        click.option("--tls-cert", type=file, help="Our certificate, PEM."),
        click.option("--tls-ca", type=file, help="The authority to trust instead, PEM."),
        click.option("--tls", is_flag=True, help="Speak TLS."),
        click.option(
            "--connect",
            metavar="ADDRESS",
            help="The broker: HOST:PORT or unix:PATH."
            "  [default: the context's, or the first of tcp.listen]",
        ),
    ):
        open_first = option(open_first)
    return settings_options(open_first)


def _client(
    address: str, settings: Settings, tls: ssl.SSLContext | None, *, reconnect: bool
) -> BlockingClient:
    try:
        parse_target(address)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    max_content = settings.limits.max_content
    return connect_blocking(address, ssl=tls, reconnect=reconnect, max_content=max_content)


def _of_context(given: Given) -> str | None:
    """Give the address of the broker in use; None where none is, or the flags name a broker.

    Raises:
        CommandError: the context does not say it.  Another broker would take the messages as well.
    """
    if given.config is not None or given.values.keys() & _NAMING:
        return None
    context = contexts.current()
    if context is None:
        return None
    if context.connect:
        return context.connect
    raise CommandError(
        f"context {context.name} is in use, and does not say where its broker speaks PHPMQ: "
        f"say --connect here, or add the context again with --connect"
    )


def address_of(settings: Settings) -> str:
    """Give the address under which a broker with these settings is reached from here."""
    address = next((text for text in settings.tcp.listen if text != "none"), None)
    if address is None:
        raise CommandError("tcp.listen names no listener; say --connect")
    host, _, port = address.rpartition(":")
    if address.startswith("unix:"):
        return address
    if port == "0":
        raise CommandError(f"tcp.listen is {address}, any free port; say --connect")
    return f"{_WILDCARDS.get(host, host)}:{port}"


def _tls_context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    if cert:
        context.load_cert_chain(cert, key)
    return context
