"""Options for commands that connect to a PHPMQ listener, such as ``publish``."""

import time
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from phpmq_lite.admin.urls import encode_name
from phpmq_lite.cli.admin_client import (
    WILDCARDS,
    AdminClient,
    context_in_use,
    find_admin_client,
    tls_for,
    url_options,
)
from phpmq_lite.cli.contexts import BrokerContext
from phpmq_lite.cli.errors import ERROR, NOT_FOUND, CommandError
from phpmq_lite.cli.output import print_message
from phpmq_lite.cli.parameters import cert_options, is_phpmq_url
from phpmq_lite.cli.settings_options import SettingsArguments, config_option, data_option
from phpmq_lite.client.blocking_client import BlockingClient, client_from_url
from phpmq_lite.server.addresses import is_loopback, parse_endpoint

_TIMEOUT_S: Final = 30.0
_COMPARED: Final = 1_000  # maximum number of existing names to compare with an unknown queue name
_RETRY_S: Final = 2.0  # seconds between attempts to find the listener
# Creates a client for the broker that the options select, without connecting it.
ClientFactory = Callable[..., BlockingClient]


def client_options(command: Callable[..., None], *, reconnect: bool = True) -> Callable[..., None]:
    """Add the options for the broker and TLS; pass a ``ClientFactory`` to the command.

    With ``is_patient``, its call retries until the admin answers.  If the listener is looked up in
    the admin, ``queue`` must exist, because a consumer would create it.  ``reconnect`` determines
    whether the client reconnects automatically.
    """

    @wraps(command)
    def run(
        url: str | None,
        token_file: Path | None,
        tls_ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        settings_args: SettingsArguments,
        **others: Any,
    ) -> None:
        if settings_args.data is not None and not settings_args.data.is_dir():
            hint = "; to pass content, use --body" if "body" in others else ""
            raise click.UsageError(f"--data: the folder {settings_args.data} does not exist{hint}")

        def client(*, is_patient: bool = False, queue: str | None = None) -> BlockingClient:
            context = context_in_use(settings_args, url) or BrokerContext("")
            ca = tls_ca or context.tls_ca
            admin_of = partial(find_admin_client, settings_args, url, token_file, ca)
            listener, content_bytes = _find_listener(
                settings_args, url or context.connect, admin_of, is_patient=is_patient, queue=queue
            )
            tls = None
            if tls_ca or tls_cert or listener.startswith("phpmqs:"):
                tls = tls_for(ca, tls_cert or context.tls_cert, tls_key or context.tls_key)
            return client_from_url(
                listener,
                ssl=tls,
                timeout_s=_TIMEOUT_S,
                reconnect=reconnect,
                max_content=content_bytes,
            )

        command(client=client, **others)

    description = "Admin address, http://HOST:9101, or a PHPMQ listener, phpmq://HOST:9100"
    return url_options(cert_options(data_option(config_option(run))), description)


def _find_listener(
    settings_args: SettingsArguments,
    named: str | None,
    admin_of: Callable[[], AdminClient],
    *,
    is_patient: bool,
    queue: str | None,
) -> tuple[str, int]:
    """Return a pair: the URL of a PHPMQ listener, and the maximum body size in bytes.

    ``--url`` or the context in use names the listener; otherwise the broker's admin is asked.
    """
    if named is not None and is_phpmq_url(named):
        return named, settings_args.read_optional().settings.limits.max_content
    admin = admin_of()
    listeners = _fetch_listeners(admin, is_patient=is_patient)
    if queue is not None and admin.find(f"/queues/{encode_name(queue)}") is None:
        raise CommandError(unknown_queue_text(queue, admin), NOT_FOUND)
    return listener_url(listeners["items"], _host_of(admin)), listeners["content_bytes"]


def unknown_queue_text(queue: str, admin: AdminClient) -> str:
    """Return the error text for a queue that does not exist, with suggestions of similar names."""
    near = get_close_matches(queue, (row["name"] for row in admin.list("/queues", _COMPARED)))
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"there is no queue {queue!r}{hint} (use --create to create it and wait)"


def _fetch_listeners(admin: AdminClient, *, is_patient: bool) -> dict[str, Any]:
    is_reported = False
    while True:
        try:
            listeners: dict[str, Any] = admin.get("/listeners")
        except CommandError as error:
            if not is_patient or error.code != ERROR:
                raise
            if not is_reported:
                print_message(f"{error}; retrying")
            is_reported = True
            time.sleep(_RETRY_S)
        else:
            return listeners


def _host_of(admin: AdminClient) -> str:
    host = "localhost" if admin.socket else urlsplit(admin.url).hostname or ""
    return f"[{host}]" if ":" in host else host


def listener_url(listeners: Iterable[Mapping[str, Any]], host: str) -> str:
    """Return the URL of the first listener that is reachable and supports TTL.

    ``host``, the host in the admin's URL, replaces a wildcard address.  Unix sockets and loopback
    listeners are reachable only if ``host`` is this machine.

    Raises:
        CommandError: no listener is reachable.
    """
    is_here = _is_loopback(f"{host}:1")
    addresses = []
    for listener in listeners:
        address = listener["address"]
        addresses.append(address)
        if not listener["has_ttl"]:
            continue
        if listener["transport"] == "unix":
            if is_here:
                return str(address)
            continue
        name, _, port = address.rpartition(":")
        if name in WILDCARDS:
            name = WILDCARDS[name] if is_here and listener["transport"] == "tcp" else host
        elif _is_loopback(address) and not is_here:
            continue
        return f"phpmq{'s' if listener['transport'] == 'tls' else ''}://{name}:{port}"
    raise CommandError(
        "no PHPMQ listener with TTL is reachable from this machine (listeners: "
        f"{', '.join(addresses) or 'none'}); specify one with --url phpmq://HOST:PORT"
    )


def _is_loopback(address: str) -> bool:
    endpoint = parse_endpoint(address)
    return endpoint is not None and is_loopback(endpoint)
