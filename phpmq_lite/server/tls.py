"""TLS contexts for listeners: TLS 1.2 or newer, with optional client certificates."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Never

from phpmq_lite.errors import SettingsError
from phpmq_lite.settings import Settings
from phpmq_lite.settings.loading import check_private
from phpmq_lite.text_files import has_mark

HANDSHAKE_S: Final = 10.0  # maximum duration of a handshake
# What a PHPMQ client without TLS receives: a fatal TLS alert, protocol_version.
ALERT: Final = b"\x15\x03\x01\x00\x02\x02\x46"
_PLAIN: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST")  # of OpenSSL
_LINGER_S: Final = 1.0  # for a peer without TLS to receive the answer

# https://docs.openssl.org/3.0/man3/X509_STORE_CTX_get_error/
_EXPIRED: Final = 10
_TIME_ERRORS: Final = {9: "is not valid yet", _EXPIRED: "has expired"}


def server_context(
    cert: Path, key: Path, client_ca: Path | None = None, *, section: str = "tcp"
) -> ssl.SSLContext:
    """Return the TLS context for a listener; ``section`` is its settings section.

    ``cert`` contains the chain, starting with the server's own certificate.  With ``client_ca``,
    clients must present a certificate issued by that authority.  Raises SettingsError: a file is
    missing or unusable, the certificate has expired or is not valid yet, or others can read the
    key; the message names the setting.
    """
    for name, path in (("tls_cert", cert), ("tls_key", key), ("tls_client_ca", client_ca)):
        if path is not None:
            _check_readable(f"{section}.{name}", path)
    check_private(f"{section}.tls_key", key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=_refuse_password)
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(
            f"{section}.tls_cert {cert} and {section}.tls_key {key} cannot be used: {error}"
        ) from None
    try:
        _verify(cert, context)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _TIME_ERRORS:
            problem = _TIME_ERRORS[error.verify_code]
            raise SettingsError(f"{section}.tls_cert {cert} {problem}") from None
    except ssl.SSLError as error:
        raise SettingsError(f"{section}.tls_cert {cert} cannot be used: {error}") from None
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (ssl.SSLError, ValueError) as error:
            problem = f"{section}.tls_client_ca {client_ca} cannot be used: {error}"
            raise SettingsError(problem) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@asynccontextmanager
async def answering_plain(connection: socket.socket, answer: bytes) -> AsyncIterator[None]:
    """Send ``answer`` if the handshake in the block fails because the peer does not use TLS."""
    loop = asyncio.get_running_loop()
    with connection.dup() as spare:  # the event loop closes the connection itself
        try:
            yield
        except ssl.SSLError as error:
            if error.reason in _PLAIN:
                with suppress(OSError):  # including TimeoutError
                    async with asyncio.timeout(_LINGER_S):
                        await loop.sock_sendall(spare, answer)
                        spare.shutdown(socket.SHUT_WR)
                        while await loop.sock_recv(spare, 65_536):
                            pass  # closing with unread data would discard the answer
            raise


def certificate_subject(transport: asyncio.BaseTransport) -> str:
    """Return the subject of the client's certificate, or an empty text if it has sent none."""
    relayed = transport.get_extra_info("relay")
    if relayed is not None:
        return str(relayed.subject)
    names = (transport.get_extra_info("peercert") or {}).get("subject", ())
    return ", ".join(f"{key}={value}" for parts in names for key, value in parts)


class TlsListener(NamedTuple):
    """The TLS context of the open listeners, and the files named in their settings section."""

    section: str
    context: ssl.SSLContext
    cert: Path
    key: Path
    client_ca: Path | None = None


def reload_contexts(secured: Sequence[TlsListener]) -> None:
    """Reload certificates and keys for new connections.

    Each connection begins with the old context and switches to the new one.  Loading into the old
    context would keep a certificate with another type of key, and clients could receive either.
    Raises SettingsError: a file is unusable; all contexts remain unchanged.
    """
    fresh = [
        server_context(listener.cert, listener.key, listener.client_ca, section=listener.section)
        for listener in secured
    ]
    for listener, context in zip(secured, fresh, strict=True):
        # The callback also runs if the client sends no server name.
        listener.context.sni_callback = partial(_switch_context, context)


def _switch_context(
    fresh: ssl.SSLContext, connection: ssl.SSLObject, _name: str | None, _old: ssl.SSLContext
) -> None:
    connection.context = fresh


def _check_readable(name: str, path: Path) -> None:
    try:
        with path.open("rb") as file:
            is_marked = has_mark(file.read(4))
    except OSError as error:
        raise SettingsError(f"{name} {path} cannot be read: {error.strerror}") from None
    if is_marked:
        raise SettingsError(f"{name} {path} begins with a byte order mark; save it without one")


def _refuse_password() -> Never:
    """Refuse an encrypted key, for which OpenSSL would prompt on the terminal."""
    raise ValueError("the key is encrypted; use an unencrypted key in a file with mode 0600")


def _verify(cert: Path, server: ssl.SSLContext) -> dict[str, Any]:
    """Return the fields of a certificate, after an in-memory handshake verified by OpenSSL.

    Python cannot inspect a certificate that is only loaded.  The client of this handshake trusts
    exactly this certificate, so only its validity period can fail.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cert)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    client_side = client.wrap_bio(to_client, to_server)
    while True:
        try:
            client_side.do_handshake()
        except ssl.SSLWantReadError:
            with suppress(ssl.SSLWantReadError):
                server_side.do_handshake()
        else:
            return dict(client_side.getpeercert() or {})


# -- the certificates in use, to show who they are for and when they expire


@dataclass(slots=True, frozen=True)
class Certificate:
    """A certificate in use; times are in Unix ms."""

    section: str  # "tcp" or "admin"
    path: str
    subject: str = ""
    issuer: str = ""
    names: tuple[str, ...] = ()  # host names
    expires_at: int | None = None
    error: str = ""  # why the certificate is unreadable or not valid


async def read_certificates(settings: Settings) -> list[Certificate]:
    """Read the certificates of all listeners, in a thread."""
    pairs = [
        (section, Path(pair.tls_cert), Path(pair.tls_key))
        for section, pair in (("tcp", settings.tcp), ("admin", settings.admin))
        if pair.tls_cert is not None and pair.tls_key is not None
    ]
    return await asyncio.to_thread(lambda: [_read(*pair) for pair in pairs])


def _read(section: str, cert: Path, key: Path) -> Certificate:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(cert, key, password=lambda: b"")
        fields = _verify(cert, server)
    except ssl.SSLCertVerificationError as error:
        problem = "has expired" if error.verify_code == _EXPIRED else error.verify_message
        return Certificate(section, str(cert), error=str(problem))
    except (OSError, ValueError) as error:
        return Certificate(section, str(cert), error=str(error))
    return Certificate(
        section,
        str(cert),
        subject=_name(fields.get("subject", ())),
        issuer=_name(fields.get("issuer", ())),
        names=tuple(value for _, value in fields.get("subjectAltName", ())),
        expires_at=int(ssl.cert_time_to_seconds(fields["notAfter"])) * 1_000,
    )


def _name(parts: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Return a subject's common name or, if it has none, all values in its name."""
    pairs = [pair for part in parts for pair in part]
    common = [value for kind, value in pairs if kind == "commonName"]
    return common[0] if common else ", ".join(value for _, value in pairs)
