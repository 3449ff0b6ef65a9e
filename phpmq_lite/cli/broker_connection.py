"""Options and look-up of the PHPMQ connection for ``publish``, ``consume`` and others."""

import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import click

from phpmq_lite.admin.base.urls import encode_name
from phpmq_lite.cli import contexts
from phpmq_lite.cli.admin_client import WILDCARDS, AdminClient, find_admin_client, url_options
from phpmq_lite.cli.errors import ERROR, NOT_FOUND, CommandError
from phpmq_lite.cli.output import print_message
from phpmq_lite.cli.parameters import is_phpmq_url
from phpmq_lite.cli.settings_options import SettingsArguments, settings_options
from phpmq_lite.client.blocking_client import BlockingClient, client_from_url
from phpmq_lite.server.addresses import is_loopback, parse_endpoint

_TIMEOUT_S: Final = 30.0
_LOOKED_AT: Final = 1_000  # queues that a name is compared with
_RETRY_S: Final = 2.0  # between two tries to find the listener


class ClientFactory(Protocol):
    """Returns a closed client of the broker that the options name.

    A patient one waits until the admin says where to connect.  ``queue`` must exist, as far as the
    admin is asked: a consumer would create it.
    """

    def __call__(self, *, is_patient: bool = False, queue: str | None = None) -> BlockingClient:
        """See the class."""


def client_options(command: Callable[..., None], *, reconnect: bool = True) -> Callable[..., None]:
    """Add ``--url``, TLS, ``--config`` and ``--set``; ``client()`` finds the broker.

    ``reconnect`` is for those that leave it to the client to come back.
    """

    @wraps(command)
    def open_first(
        url: str | None,
        token_file: Path | None,
        tls_ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        given: SettingsArguments,
        **others: Any,
    ) -> None:
        def client(*, is_patient: bool = False, queue: str | None = None) -> BlockingClient:
            found, content_bytes = _find_listener(
                given, url, token_file, is_patient=is_patient, queue=queue
            )
            context = None
            if tls_ca or tls_cert or found.startswith("phpmqs:"):
                context = _tls_context(tls_ca, tls_cert, tls_key)
            return _client(found, context, content_bytes, reconnect=reconnect)

        command(client=client, **others)

    file = click.Path(exists=True, dir_okay=False, path_type=Path)
    for option in (
        click.option("--tls-key", type=file, help="Our private key, PEM."),
        click.option("--tls-cert", type=file, help="Our certificate, PEM."),
        click.option("--tls-ca", type=file, help="The authority to trust instead, PEM."),
    ):
        open_first = option(open_first)
    return url_options(settings_options(open_first))


def _client(
    url: str, tls: ssl.SSLContext | None, content_bytes: int, *, reconnect: bool
) -> BlockingClient:
    return client_from_url(
        url, ssl=tls, timeout_s=_TIMEOUT_S, reconnect=reconnect, max_content=content_bytes
    )


def _find_listener(
    given: SettingsArguments,
    url: str | None,
    token_file: Path | None,
    *,
    is_patient: bool,
    queue: str | None,
) -> tuple[str, int]:
    """Return the URL of a PHPMQ listener and the longest body that it takes.

    It is named by ``--url`` or the context in use, or learned from the admin of the broker that
    all other commands talk to.
    """
    named = url
    if (
        url is None
        and not given.names_broker
        and (context := contexts.current_context()) is not None
    ):
        named = context.connect
    if named is not None and is_phpmq_url(named):
        return named, given.load().settings.limits.max_content
    node = find_admin_client(given, url, token_file)
    found = _listeners(node, is_patient=is_patient)
    if queue is not None and node.find(f"/queues/{encode_name(queue)}") is None:
        raise CommandError(unknown_queue_text(queue, node), NOT_FOUND)
    return listener_url(found["items"], _host_of(node)), found["content_bytes"]


def unknown_queue_text(queue: str, node: AdminClient) -> str:
    """Return the error of a queue that does not exist, with the closest names."""
    near = get_close_matches(queue, (row["name"] for row in node.list("/queues", _LOOKED_AT)))
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"there is no queue {queue!r}{hint} (--create waits for its first message)"


def _listeners(node: AdminClient, *, is_patient: bool) -> dict[str, Any]:
    is_told = False
    while True:
        try:
            found: dict[str, Any] = node.get("/listeners")
        except CommandError as error:
            if not is_patient or error.code != ERROR:
                raise
            if not is_told:
                print_message(f"{error}; retrying")
            is_told = True
            time.sleep(_RETRY_S)
        else:
            return found


def _host_of(node: AdminClient) -> str:
    host = "localhost" if node.socket else urlsplit(node.url).hostname or ""
    return f"[{host}]" if ":" in host else host


def listener_url(listeners: Iterable[Mapping[str, Any]], host: str) -> str:
    """Choose the first listener with TTL that can be reached from here, as a URL.

    ``host`` is that of the admin's URL: it stands for a wildcard address, and only on the broker's
    own machine can a Unix socket or a listener on loopback be used.

    Raises:
        CommandError: there is none.
    """
    is_here = _is_loopback(f"{host}:1")
    seen = []
    for one in listeners:
        address = one["address"]
        seen.append(address)
        if not one["has_ttl"]:
            continue
        if one["transport"] == "unix":
            if is_here:
                return str(address)
            continue
        name, _, port = address.rpartition(":")
        if name in WILDCARDS:
            name = WILDCARDS[name] if is_here else host
        elif _is_loopback(address) and not is_here:
            continue
        return f"phpmq{'s' if one['transport'] == 'tls' else ''}://{name}:{port}"
    raise CommandError(
        f"the broker has no PHPMQ listener with TTL that can be reached from here, only "
        f"{', '.join(seen) or 'none'}; name one with --url phpmq://HOST:PORT"
    )


def _is_loopback(address: str) -> bool:
    endpoint = parse_endpoint(address)
    return endpoint is not None and is_loopback(endpoint)


def _tls_context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    file = ca
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            file = cert
            context.load_cert_chain(cert, key)
    except ssl.SSLError:
        raise CommandError(f"{file} is no PEM file that can be used here") from None
    return context
