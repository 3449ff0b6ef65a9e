"""The HTTP client for the admin API, which uses the control socket or a URL."""

import json
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import wraps
from http.client import HTTPException, HTTPResponse, IncompleteRead, InvalidURL, RemoteDisconnected
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import urlsplit

import click

from phpmq_lite.admin.urls import encode_name
from phpmq_lite.cli import contexts
from phpmq_lite.cli.contexts import BrokerContext
from phpmq_lite.cli.errors import ERROR, NOT_FOUND, REFUSED, TIMED_OUT, CommandError
from phpmq_lite.cli.output import Command, add_options, output_option, print_message
from phpmq_lite.cli.parameters import (
    EXISTING_FILE,
    SettingsArguments,
    admin_url,
    broker_url,
    ca_option,
    cert_options,
    config_option,
    data_option,
    is_phpmq_url,
    option,
)
from phpmq_lite.client.blocking_client import BlockingClient, client_from_url
from phpmq_lite.errors import os_reason
from phpmq_lite.http_client import HttpClient, HttpRequest, NotConnectedError
from phpmq_lite.logs import escape
from phpmq_lite.server.addresses import is_loopback, parse_endpoint
from phpmq_lite.settings import Settings
from phpmq_lite.sockets import tls_reason
from phpmq_lite.text_files import NotUtf8Error, TextFileError, has_mark, read_secret

API: Final = "/api/v1"

_EXIT_CODES: Final = {404: NOT_FOUND, 410: NOT_FOUND, 408: TIMED_OUT, 504: TIMED_OUT}
_REFUSALS: Final = {401, 403, 409, 412, 413, 421, 422, 429, 503, 507}
_HAS_USERS: Final = (
    "this broker requires a login: pass an API token with --token-file FILE; to create a token, "
    "run `phpmq-lite token create NAME` on the broker's machine"
)
_NO_ADMIN: Final = "HTTP {} without an explanation; --url may not be a broker's admin address"
_PAGE: Final = 200  # maximum number of items per page in the API
WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - not bound here
_PIECE_BYTES: Final = 1 << 16
_TIMEOUT_S: Final = 600.0  # purging millions of messages can take minutes


class BrokerUnavailableError(CommandError):
    """Raised if the broker is unreachable, does not respond in time, or responds with 503."""


class ConnectionEndedError(CommandError):
    """Raised if a connection that worked ends before the response does."""


class AdminClient(NamedTuple):
    """An HTTP client for the admin API, connected to ``socket``, or to ``url`` with a token.

    Paths are relative to ``/api/v1``. The methods raise CommandError with the exit code.
    """

    socket: Path | None
    url: str = "http://localhost"
    token: str | None = None
    settings: Settings | None = None  # set only if the broker was found through its data folder
    tls_ca: Path | None = None  # the CA certificate to trust instead of the system's

    def list(self, path: str, limit: int | None = None, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield up to ``limit`` items of a list, fetching the list page by page."""
        cursor = None
        left = limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(left, _PAGE)
            page = self.get(path, **query, limit=size, cursor=cursor)
            items = page["items"][:left]
            yield from items
            cursor = page.get("next")
            left = None if left is None else left - len(items)
            if not cursor:
                return

    def get(self, path: str, **query: Any) -> Any:
        """Fetch a document; query parameters that are None are omitted."""
        return self.call("GET", path, query=query)

    def find(self, path: str) -> Any:
        """Fetch a document, or return None if it does not exist or has been deleted."""
        try:
            return self.get(path)
        except CommandError as error:
            if error.code != NOT_FOUND:
                raise
            return None

    def post(self, path: str, body: Any = None) -> Any:
        """Request an action, wait until the broker has stored it, and return the result."""
        return self.call("POST", path, {} if body is None else body)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: dict[str, Any] | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> Any:
        """Send a request and return the document in the response, or None if there is none."""
        with self.open(method, path, body, query, timeout_s) as response:
            return self.read(response)

    def open(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: dict[str, Any] | None = None,
        timeout_s: float | None = _TIMEOUT_S,
        since: str | None = None,
    ) -> HTTPResponse:
        """Send a request and return the response, to be read in pieces and closed by the caller.

        ``body`` is encoded as JSON, unless it is bytes that already contain JSON. ``since`` is the
        id of the last event that was received.
        """
        base = self.url.rstrip("/")
        pairs = [(key, str(value)) for key, value in (query or {}).items() if value is not None]
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if content is not None else {}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        elif content is not None:
            headers["Origin"] = base
        if since is not None:
            headers["Last-Event-ID"] = since
        tls = tls_for(self.tls_ca) if base.startswith("https:") else None
        try:
            client = HttpClient(base, headers, path=self.socket, tls=tls, timeout_s=timeout_s)
            response = client.send(HttpRequest(method, API + path, pairs, content))
        except (OSError, HTTPException, ValueError) as error:
            self._raise_for(error, timeout_s)
        # A listener with TLS, or a proxy, answers in text to a client without TLS.
        is_text = response.status == 400 and response.headers.get_content_maintype() == "text"
        if is_text and base.startswith("http:") and b"https" in response.read().lower():
            raise CommandError(f"{base} uses TLS, and http:// does not; use https{base[4:]}")
        if 300 <= response.status < 400 and (target := response.headers.get("Location")):
            response.close()
            raise CommandError(f"{base} redirects to {target}; give its address with --url")
        return response

    def read(self, response: HTTPResponse) -> Any:
        """Return the document of a response, or None if it has none."""
        return read_response(response.status, b"".join(self._pieces(response)))

    def pieces(self, response: HTTPResponse) -> Iterator[bytes]:
        """Yield the content of a response as it arrives, if its status is 200."""
        if response.status != 200:
            self.read(response)
        yield from self._pieces(response)

    def _pieces(self, response: HTTPResponse) -> Iterator[bytes]:
        while True:
            try:
                piece = response.read1(_PIECE_BYTES)
            except (OSError, HTTPException) as error:
                self._raise_for(error, None)
            if not piece:
                return
            yield piece

    def _raise_for(self, error: Exception, timeout_s: float | None) -> NoReturn:
        """Raise CommandError for a response that is missing, or not one of a broker's admin."""
        address = self.socket or self.url
        reason = error.reason if isinstance(error, NotConnectedError) else error
        if isinstance(reason, TimeoutError) and reason.errno is None:
            limit = "in time" if timeout_s is None else f"within {timeout_s:.0f} s"
            raise BrokerUnavailableError(f"{address} did not answer {limit}", TIMED_OUT) from None
        if isinstance(reason, PermissionError):
            raise CommandError(
                f"{address} belongs to another account: run the command as that account "
                "(`sudo -u ACCOUNT`), or use --url http://HOST:9101",
                REFUSED,
            ) from None
        if isinstance(error, NotConnectedError):
            base = self.url.rstrip("/")
            plain = f"http{base[5:]}" if base.startswith("https:") else None
            if text := tls_reason(error.reason, plain):
                raise CommandError(f"cannot connect to {base}: {text}") from None
            raise BrokerUnavailableError(
                f"no broker answers on {address}: {os_reason(error.reason)}. "
                "Start one with `phpmq-lite serve`, or select another with --url or --data"
            ) from None
        kind, text = next(entry[1:] for entry in _REASONS if isinstance(error, entry[0]))
        raise kind(
            f"{address} does not appear to be a broker's admin address ({text}); "
            "for PHPMQ, use phpmq://HOST:9100"
        ) from None


_REASONS: Final[tuple[tuple[type[Exception], type[CommandError], str], ...]] = (
    (RemoteDisconnected, ConnectionEndedError, "the server closed the connection"),
    (OSError, ConnectionEndedError, "the connection broke"),
    (IncompleteRead, ConnectionEndedError, "the connection broke"),
    (InvalidURL, CommandError, "the address is invalid"),
    (HTTPException, CommandError, "the response is not HTTP"),
    (ValueError, CommandError, "the address is invalid"),
)


def read_response(status: int, content: bytes) -> Any:
    """Return the document in a response, or raise CommandError if the response is a problem."""
    try:
        document = json.loads(content) if content else None
    except ValueError:
        document = None
    if status < 300:
        if content and document is None:
            raise CommandError(f"the broker's HTTP {status} response is not JSON")
        return document
    problem = document if isinstance(document, dict) else {}
    text = problem.get("detail") or problem.get("title") or _NO_ADMIN.format(status)
    code = REFUSED if status in _REFUSALS else _EXIT_CODES.get(status, ERROR)
    if problem.get("code") == "login":
        text = _HAS_USERS
    text = _append_bound(str(text), problem.get("field"), problem.get("bound"))
    kind = BrokerUnavailableError if status == 503 else CommandError
    raise kind(escape(text), code)


def _append_bound(text: str, field: object, bound: object) -> str:
    """Append the field's name and its bound to an error text that does not contain them."""
    parts = [str(part) for part in (field, bound) if part]
    if field and text.startswith((f"{field}: ", f"{field} ")):
        del parts[0]
        if bound and str(bound).split()[-1] in text:  # a bound such as "less than or equal to 20"
            parts = []
    return f"{text} ({': '.join(parts)})" if parts else text


def admin_client_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select a broker; pass a client to the command as ``admin``."""

    @wraps(command)
    def run(settings_args: SettingsArguments, url: str | None, **others: Any) -> None:
        files = [others.pop(name) for name in ("token_file", "tls_ca")]
        command(admin=find_admin_client(settings_args, url, *files), **others)

    return url_options(add_options(config_option(run), data_option))


def admin_output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of ``admin_client_options``, and ``--output``."""
    return admin_client_options(add_options(command, output_option))


def url_options(command: Command, description: str = "Admin address, http://HOST:9101") -> Command:
    """Add ``--url``, ``--token-file`` and ``--tls-ca``, which select a broker by its URL."""
    return add_options(
        command,
        ca_option,
        option("--token-file", "File with the API token for --url.", EXISTING_FILE),
        option(
            "--url",
            f"{description}.  [default: the context in use, --config or ./config.toml, "
            "./phpmq-data, then http://127.0.0.1:9101]",
            broker_url,
            metavar="URL",
        ),
    )


def find_admin_client(
    settings_args: SettingsArguments,
    url: str | None,
    token_file: Path | None,
    tls_ca: Path | None = None,
) -> AdminClient:
    """Find the broker and return a client for it; all commands search in the same order.

    The order is ``--url``, flags that name its folder or settings, the context in use, the settings
    including ``./config.toml``, ``./phpmq-data``, and the default admin address.

    Raises:
        UsageError: a token is given for a broker on this machine.  Anyone who can open
            its socket is an admin, so a viewer's token would have no effect.
        CommandError: the address is a PHPMQ listener, which does not accept admin commands.
    """
    context = context_in_use(settings_args, url)
    if context is not None and context.data is None:
        url, token_file = context.url or context.connect, token_file or context.token_file
        tls_ca = tls_ca or context.tls_ca
    if url:
        if is_phpmq_url(url):
            raise CommandError(
                f"{url} is a PHPMQ listener; this command requires the admin URL, http://HOST:PORT"
            )
        token = read_token(token_file) if token_file else None
        return AdminClient(None, admin_url(url), token, tls_ca=tls_ca)
    named = {"data": context.data} if context else {}
    is_optional = context is not None or settings_args.names_broker
    settings = settings_args.load(is_optional=is_optional, **named).settings
    if "data" in settings.model_fields_set or settings.data.is_dir():
        if token_file is not None:
            raise click.UsageError("--token-file requires --url; the control socket uses no token")
        return AdminClient(settings.data / "control.sock", settings=settings)
    url = admin_url_of(settings)
    if "listen" not in settings.admin.model_fields_set:
        print_message(f"no broker was specified, and {settings.data} does not exist; trying {url}")
    return AdminClient(None, url, read_token(token_file) if token_file else None, tls_ca=tls_ca)


def context_in_use(settings_args: SettingsArguments, url: str | None) -> BrokerContext | None:
    """Return the current context, or None if flags select a broker."""
    return None if url or settings_args.names_broker else contexts.current_context()


def admin_url_of(settings: Settings) -> str:
    """Return the URL of the admin's first TCP listener, or raise CommandError if it has none."""
    admin = settings.admin
    ports = (
        address for address in admin.listen if address != "none" and not address.startswith("unix:")
    )
    host, _, port = next(ports, "").rpartition(":")
    if not host or port == "0":
        raise CommandError(
            f"no TCP port in admin.listen ({', '.join(admin.listen)}); use --url http://HOST:PORT"
        )
    scheme = "http" if admin.tls_cert is None else "https"
    return f"{scheme}://{WILDCARDS.get(host, host)}:{port}{admin.base_path}"


def read_token(path: Path) -> str:
    """Read an API token from a file, which no other user may be able to read."""
    if path.stat().st_mode & 0o077:
        raise CommandError(f"{path} is readable by other users; run chmod 600 {path}", REFUSED)
    try:
        return read_secret(path).strip()
    except NotUtf8Error as error:
        file = f"this is {error.encoding}: {path}" if error.encoding else path
        raise CommandError(f"{file} is not valid UTF-8; tokens must be plain text") from None
    except TextFileError as error:
        raise CommandError(f"the token in {path} {error}") from None


def tls_for(ca: Path | None, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """Return the TLS context that trusts ``ca``, or else the system."""
    file = ca
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            file = cert
            context.load_cert_chain(cert, key)
    except ssl.SSLError:
        is_marked = file is not None and has_mark(file.read_bytes())
        mark = ": it begins with a byte order mark" if is_marked else ""
        raise CommandError(f"{file} is not a valid PEM file{mark}") from None
    return context


_REPLY_S: Final = 30.0
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
            listener = url or context.connect
            if listener is not None and is_phpmq_url(listener):
                content_bytes: int = settings_args.read_optional().settings.limits.max_content
            else:
                admin = find_admin_client(settings_args, url, token_file, ca)
                listener, content_bytes = _find_listener(admin, is_patient=is_patient, queue=queue)
            tls = None
            if tls_ca or tls_cert or listener.startswith("phpmqs:"):
                tls = tls_for(ca, tls_cert or context.tls_cert, tls_key or context.tls_key)
            return client_from_url(
                listener,
                ssl=tls,
                timeout_s=_REPLY_S,
                reconnect=reconnect,
                max_content=content_bytes,
            )

        command(client=client, **others)

    description = "Admin address, http://HOST:9101, or a PHPMQ listener, phpmq://HOST:9100"
    return url_options(cert_options(add_options(config_option(run), data_option)), description)


def _find_listener(admin: AdminClient, *, is_patient: bool, queue: str | None) -> tuple[str, int]:
    """Return the URL of a PHPMQ listener, and the maximum body size in bytes."""
    is_reported = False
    while True:
        try:
            listeners = admin.get("/listeners")
            break
        except CommandError as error:
            if not is_patient or error.code != ERROR:
                raise
            if not is_reported:
                print_message(f"{error}; retrying")
            is_reported = True
            time.sleep(_RETRY_S)
    if queue is not None and admin.find(f"/queues/{encode_name(queue)}") is None:
        raise CommandError(unknown_queue_text(queue, admin), NOT_FOUND)
    host = "localhost" if admin.socket else urlsplit(admin.url).hostname or ""
    host = f"[{host}]" if ":" in host else host
    return listener_url(listeners["items"], host), listeners["content_bytes"]


def unknown_queue_text(queue: str, admin: AdminClient) -> str:
    """Return the error text for a queue that does not exist, with suggestions of similar names."""
    near = get_close_matches(queue, (row["name"] for row in admin.list("/queues", _COMPARED)))
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"there is no queue {queue!r}{hint} (use --create to create it and wait)"


def listener_url(listeners: Iterable[Mapping[str, Any]], host: str) -> str:
    """Return the URL of the first listener with TTL that ``host``, the admin's, can reach.

    ``host`` replaces a wildcard address; Unix sockets and loopback need it to be this machine.
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
