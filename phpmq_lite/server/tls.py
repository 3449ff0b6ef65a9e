"""TLS for listeners: TLS 1.2 or newer, client certificates where asked for, checked at start."""

import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Never

from phpmq_lite.errors import SettingsError
from phpmq_lite.settings.loading import check_private

HANDSHAKE_S: Final = 10.0  # for the peer to finish its part

# https://docs.openssl.org/3.0/man3/X509_STORE_CTX_get_error/
_TIME_ERRORS: Final = {9: "is not valid yet", 10: "has expired"}


def server_context(
    cert: Path, key: Path, client_ca: Path | None = None, *, section: str = "tcp"
) -> ssl.SSLContext:
    """Return the context of a listener; ``section`` is where the settings stand.

    ``cert`` has the chain, the server's own certificate first.  With ``client_ca`` a client needs a
    certificate of that authority, or its handshake fails.

    Raises:
        SettingsError: a file is missing or unusable, the certificate is out of its time, or others
            can read the key; the message names the setting.
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
    _check_time(f"{section}.tls_cert", cert, context)
    if client_ca is not None:
        _demand_clients(f"{section}.tls_client_ca", client_ca, context)
    return context


class TlsListener(NamedTuple):
    """The context of open listeners, and the files that its settings section names."""

    section: str
    context: ssl.SSLContext
    cert: Path
    key: Path
    client_ca: Path | None = None


def renew(secured: Sequence[TlsListener]) -> None:
    """Use certificates and keys as their files are now, for connections from now on.

    Each connection begins with the old context and is handed a new one.  Loaded into the old one, a
    certificate would stand beside that of another kind of key, and clients would get either.

    Raises:
        SettingsError: one of them cannot be used, as at a start; all stay as they were.
    """
    fresh = [
        server_context(one.cert, one.key, one.client_ca, section=one.section) for one in secured
    ]
    for one, context in zip(secured, fresh, strict=True):
        one.context.sni_callback = partial(_hand_over, context)  # called without a name, too


def _hand_over(
    fresh: ssl.SSLContext, connection: ssl.SSLObject, _name: str | None, _old: ssl.SSLContext
) -> None:
    connection.context = fresh


def _demand_clients(name: str, path: Path, context: ssl.SSLContext) -> None:
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(f"{name} {path} cannot be used: {error}") from None
    context.verify_mode = ssl.CERT_REQUIRED


def _check_readable(name: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise SettingsError(f"{name} {path} cannot be read: {error.strerror}") from None


def _refuse_password() -> Never:
    """Stand in for OpenSSL's question on the terminal."""
    raise ValueError("the key is encrypted; a key in a file of mode 0600 needs no password")


def _check_time(name: str, cert: Path, server: ssl.SSLContext) -> None:
    """Shake hands with ourselves: OpenSSL then judges the certificate as a client's would.

    Python tells nothing of a certificate that was only loaded.  A client that trusts this very
    certificate complains of its time alone; whose authority it is of is not our matter.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        client.load_verify_locations(cert)
        _shake_hands(client, server)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _TIME_ERRORS:
            raise SettingsError(f"{name} {cert} {_TIME_ERRORS[error.verify_code]}") from None
    except ssl.SSLError as error:
        raise SettingsError(f"{name} {cert} cannot be used: {error}") from None


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Connect two contexts in memory, until the client has judged the server."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server)
    while True:
        try:
            theirs.do_handshake()
        except ssl.SSLWantReadError:
            pass
        else:
            return
        try:
            ours.do_handshake()
        except ssl.SSLWantReadError:
            continue
