"""The HTTP client for the admin API, which uses the control socket or a URL."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import aiohttp
import click
from yarl import URL

from phpmq_lite.cli import contexts
from phpmq_lite.cli.contexts import BrokerContext
from phpmq_lite.cli.errors import ERROR, NOT_FOUND, REFUSED, TIMED_OUT, CommandError
from phpmq_lite.cli.output import Command, add_options, print_message
from phpmq_lite.cli.parameters import EXISTING_FILE, admin_url, broker_url, ca_option, is_phpmq_url
from phpmq_lite.cli.settings_options import SettingsArguments, config_option, data_option
from phpmq_lite.client.tls_errors import tls_reason
from phpmq_lite.errors import os_reason
from phpmq_lite.logs import escape
from phpmq_lite.settings import Settings
from phpmq_lite.sockets import open_socket
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
_TIMEOUT_S: Final = 600.0  # purging millions of messages can take minutes


class BrokerUnavailableError(CommandError):
    """Raised if the broker is unreachable, does not respond in time, or responds with 503."""


class ConnectionEndedError(CommandError):
    """Raised if a connection that worked ends before the response does."""


class AdminClient(NamedTuple):
    """An HTTP client for the admin API, connected to ``socket``, or to ``url`` with a token.

    Paths are relative to ``/api/v1``.  If a request fails, all methods raise CommandError with the
    matching exit code.
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

        async def send() -> Any:
            async with self.open(method, path, body, query, timeout_s) as response:
                return read_response(response.status, await response.read())

        return asyncio.run(send())

    @asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: dict[str, Any] | None = None,
        timeout_s: float | None = _TIMEOUT_S,
        headers: dict[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield the response, so that the caller can read its body in chunks.

        ``body`` is encoded as JSON, unless it is bytes that already contain JSON.
        """
        base = self.url.rstrip("/")
        pairs = {key: str(value) for key, value in (query or {}).items() if value is not None}
        url = f"{base}{API}{path}" + (f"?{urlencode(pairs)}" if pairs else "")
        # aiohttp sends a file object in chunks, but bytes in one piece.
        content = {"data": BytesIO(body)} if isinstance(body, bytes) else {"json": body}
        plain = f"http{base[5:]}" if base.startswith("https:") else None
        tls = tls_for(self.tls_ca) if plain else True
        connector: aiohttp.BaseConnector = (
            aiohttp.UnixConnector(path=str(self.socket))
            if self.socket
            else aiohttp.TCPConnector(socket_factory=open_socket, ssl=tls)
        )
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.request(
                    method,
                    URL(url, encoded=True),
                    headers=self._headers(base, body) | (headers or {}),
                    **content,
                ) as response,
            ):
                await self._check_scheme(response)
                yield response
        except TimeoutError:
            raise BrokerUnavailableError(
                f"{self.socket or self.url} did not answer within {timeout_s:.0f} s", TIMED_OUT
            ) from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, PermissionError):
                raise CommandError(
                    f"{self.socket} belongs to another account: run the command as that account "
                    "(`sudo -u ACCOUNT`), or use --url http://HOST:9101",
                    REFUSED,
                ) from None
            if reason := tls_reason(error.os_error, plain):
                raise CommandError(f"cannot connect to {base}: {reason}") from None
            raise BrokerUnavailableError(
                f"no broker answers on {self.socket or self.url}: {os_reason(error.os_error)}. "
                "Start one with `phpmq-lite serve`, or select another with --url or --data"
            ) from None
        except (aiohttp.ClientError, ValueError) as error:
            raise self._explain(error) from None

    def _explain(self, error: Exception) -> CommandError:
        """Return the error for a response that is not one of a broker's admin."""
        kind = ConnectionEndedError if isinstance(error, _ENDS) else CommandError
        return kind(
            f"{self.socket or self.url} does not appear to be a broker's admin address "
            f"({_REASONS.get(type(error), str(error))}); for PHPMQ, use phpmq://HOST:9100"
        )

    async def _check_scheme(self, response: aiohttp.ClientResponse) -> None:
        """Raise CommandError for the answer of a listener with TLS, or of a proxy, to HTTP."""
        is_text = response.status == 400 and response.content_type.startswith("text/")
        if (
            is_text
            and b"https" in (await response.read()).lower()
            and response.url.scheme == "http"
        ):
            url = self.url.rstrip("/")
            raise CommandError(f"{url} uses TLS, and http:// does not; use https{url[4:]}")

    def _headers(self, base: str, body: Any) -> dict[str, str]:
        headers = {"Content-Type": "application/json"} if isinstance(body, bytes) else {}
        if self.token is not None:
            return headers | {"Authorization": f"Bearer {self.token}"}
        return headers | ({"Origin": base} if body is not None else {})


_ENDS: Final = (
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientOSError,
    aiohttp.ClientPayloadError,
)
_REASONS: Final[dict[type[Exception], str]] = {  # texts shown instead of aiohttp's messages
    aiohttp.ServerDisconnectedError: "the server closed the connection",
    aiohttp.ClientOSError: "the connection broke",
    aiohttp.ClientResponseError: "the response is not HTTP",
    aiohttp.InvalidURL: "the address is invalid",
}


def read_response(status: int, content: bytes) -> Any:
    """Return the document in a response, or raise an error if the response is a problem.

    Raises:
        CommandError: the response describes a problem, which determines the exit code.
    """
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


async def check_response(response: aiohttp.ClientResponse) -> None:
    """Raise CommandError if the status is not 200; call this before reading the body."""
    if response.status != 200:
        read_response(response.status, await response.read())


def _append_bound(text: str, field: object, bound: object) -> str:
    """Append the field's name and its bound to an error text that does not contain them."""
    parts = [str(one) for one in (field, bound) if one]
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

    return url_options(data_option(config_option(run)))


def url_options(command: Command, what: str = "Admin address, http://HOST:9101") -> Command:
    """Add ``--url``, ``--token-file`` and ``--tls-ca``, which select a broker by its URL."""
    return add_options(
        command,
        ca_option,
        click.option("--token-file", type=EXISTING_FILE, help="File with the API token for --url."),
        click.option(
            "--url",
            type=broker_url,
            metavar="URL",
            help=f"{what}.  [default: the context in use, --config or ./config.toml, "
            "./phpmq-data, then http://127.0.0.1:9101]",
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
    effective = settings_args.load(is_optional=is_optional, **named)
    settings = effective.settings
    if effective.sources["data"] != "default" or settings.data.is_dir():
        if token_file is not None:
            raise click.UsageError("--token-file requires --url; the control socket uses no token")
        return AdminClient(settings.data / "control.sock", settings=settings)
    url = admin_url_of(settings)
    if effective.sources["admin.listen"] == "default":
        print_message(f"no broker was specified, and {settings.data} does not exist; trying {url}")
    return AdminClient(None, url, read_token(token_file) if token_file else None, tls_ca=tls_ca)


def context_in_use(settings_args: SettingsArguments, url: str | None) -> BrokerContext | None:
    """Return the current context, or None if flags select a broker."""
    return None if url or settings_args.names_broker else contexts.current_context()


def admin_url_of(settings: Settings) -> str:
    """Return the URL of the admin's first TCP listener, as seen from this machine.

    Raises:
        CommandError: there is no TCP listener, or its port is not fixed.
    """
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
    """Read an API token from a file that must be readable only by its owner.

    Raises:
        CommandError: other users can read the file, or it is not a token.
    """
    if path.stat().st_mode & 0o077:
        raise CommandError(f"{path} is readable by other users; run chmod 600 {path}", REFUSED)
    try:
        return read_secret(path).strip()
    except NotUtf8Error as error:
        what = f"this is {error.encoding}: {path}" if error.encoding else path
        raise CommandError(f"{what} is not valid UTF-8; tokens must be plain text") from None
    except TextFileError as error:
        raise CommandError(f"the token in {path} {error}") from None


def tls_for(ca: Path | None, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """Return the TLS context that trusts ``ca``, or else the system.

    Raises:
        CommandError: a file is not a valid PEM file.
    """
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
