"""Reads the certificates that the listeners use, to show who they are for and when they expire."""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from phpmq_lite.settings import Settings

_EXPIRED: Final = 10  # https://docs.openssl.org/3.0/man3/X509_STORE_CTX_get_error/


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
    try:
        facts = _certificate_facts(cert, key)
    except ssl.SSLCertVerificationError as error:
        problem = "has expired" if error.verify_code == _EXPIRED else error.verify_message
        return Certificate(section, str(cert), error=str(problem))
    except (OSError, ValueError) as error:
        return Certificate(section, str(cert), error=str(error))
    return Certificate(
        section,
        str(cert),
        subject=_name(facts.get("subject", ())),
        issuer=_name(facts.get("issuer", ())),
        names=tuple(value for _, value in facts.get("subjectAltName", ())),
        expires_at=int(ssl.cert_time_to_seconds(facts["notAfter"])) * 1_000,
    )


def _certificate_facts(cert: Path, key: Path) -> dict[str, Any]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key, password=lambda: b"")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cert)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server)
    for side in (theirs, ours, theirs):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return dict(theirs.getpeercert() or {})


def _name(parts: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Return a subject's common name or, if it has none, all values in its name."""
    pairs = [pair for part in parts for pair in part]
    common = [value for kind, value in pairs if kind == "commonName"]
    return common[0] if common else ", ".join(value for _, value in pairs)
