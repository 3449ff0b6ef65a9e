"""How brokers of a database authenticate to each other, and what they send for one client.

They share a secret.  For each client, a standby connects to the active broker:

1. The active broker sends a greeting: ``MAGIC`` and a nonce.
2. The standby sends a request: its epoch, and the preamble, which describes the client.
3. The active broker sends a reply: empty, or the reason of a refusal.

Request and reply begin with a nonce and end with an HMAC-SHA256 by the shared key over the sender's
role and everything sent so far, so it is valid for these nonces, this epoch and this client only.
Afterwards the active broker sends the bytes for the client unchanged.  The standby sends the
client's bytes in chunks with their lengths; an empty chunk is the end of the client's data, because
asyncio cannot close one direction of a TLS connection.
"""

import asyncio
import hmac
import ssl
import tempfile
from abc import abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from secrets import token_bytes
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from phpmq_lite.errors import PhpmqError
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.server.admission import Admission
from phpmq_lite.server.counters import RelayCounters

MAGIC: Final = b"PHPMQ relay 1\n"
MAX_PREAMBLE: Final = 8 << 10
MAX_TEXT: Final = 255  # characters, each of which takes at most 12 bytes in JSON
KEY_BYTES: Final = 32
HANDSHAKE_S: Final = 5.0
END: Final = bytes(4)  # the empty chunk

_NONCE_BYTES: Final = 32
_MAC_BYTES: Final = 32
_EPOCH_BYTES: Final = 8
_LENGTH_BYTES: Final = 2
_HEAD_BYTES: Final = _NONCE_BYTES + _LENGTH_BYTES
_CHUNK_HEAD_BYTES: Final = 4
_log = get_logger(__name__)


class RelaySecret(NamedTuple):
    """What a broker needs to authenticate to the others; ``create_relay_secret`` makes it once."""

    key: bytes
    certificate: str  # PEM
    private_key: str  # PEM

    def __repr__(self) -> str:
        return "RelaySecret(…)"

    def server_context(self) -> ssl.SSLContext:
        """Return the TLS context of the active broker."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # mode 0600
            file.write(self.private_key + self.certificate)
            file.flush()
            context.load_cert_chain(file.name)  # OpenSSL reads certificates only from files
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return the TLS context of a standby, which trusts only this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the certificate belongs to the database, not to a host
        context.load_verify_locations(cadata=self.certificate)
        return context


def create_relay_secret() -> RelaySecret:
    """Create a secret; the certificate never expires, so that no clock can stop the relays."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "phpmq-lite relay")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))  # RFC 5280, 4.1.2.5
        .sign(private, hashes.SHA256())
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret_pem = private.private_bytes(pem, pkcs8, serialization.NoEncryption())
    return RelaySecret(
        token_bytes(KEY_BYTES), certificate.public_bytes(pem).decode(), secret_pem.decode()
    )


Write = Callable[[bytes], object]


class RelayError(PhpmqError):
    """A connection is not relayed; ``code`` is one of a few short reasons, for counters."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


Text = Annotated[str, Field(max_length=MAX_TEXT)]
Address = tuple[Text, Annotated[int, Field(ge=0, le=65_535)]]


class RelayedClient(BaseModel):
    """The preamble; members that a reader does not know are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)

    version: Literal[1] = 1
    protocol: Literal["ttl", "legacy", "http"]  # revision of PHPMQ, or http
    transport: Literal["tcp", "tls", "unix"]
    relay: Text  # name of the standby
    peer: Address | None  # the client's address; None for a Unix socket
    local: Address | None  # the address that the client connected to
    subject: Text  # subject of the client's certificate, or empty

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a preamble; raise RelayError if it is invalid or of another version."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"])) or "JSON"
            raise RelayError("preamble", f"invalid preamble: {place}") from None


async def send_request(
    reader: asyncio.StreamReader, write: Write, key: bytes, epoch: int, client: RelayedClient
) -> None:
    """Perform the standby's side of the handshake.

    Raises RelayError if the peer is not a broker of this database, or if it refuses the client.
    """
    greeting = await reader.readexactly(len(MAGIC) + _NONCE_BYTES)
    if not greeting.startswith(MAGIC):
        raise RelayError("authentication", "the peer is not a relay listener")
    body = epoch.to_bytes(_EPOCH_BYTES) + client.model_dump_json().encode()
    transcript = greeting + _write_signed(write, key, b"standby", greeting, body)
    reply = await _read_signed(reader, key, b"active", transcript)
    if reason := reply[_HEAD_BYTES:].decode():
        raise RelayError("refused", f"the active broker refused the connection: {reason}")


async def read_request(
    reader: asyncio.StreamReader, write: Write, key: bytes
) -> tuple[bytes, int, bytes]:
    """Send the greeting and return the transcript for ``send_reply``, the epoch, the preamble.

    Raises RelayError if the peer does not know the key; such a peer gets no reply.
    """
    greeting = MAGIC + token_bytes(_NONCE_BYTES)
    write(greeting)
    request = await _read_signed(reader, key, b"standby", greeting)
    preamble_at = _HEAD_BYTES + _EPOCH_BYTES
    epoch = int.from_bytes(request[_HEAD_BYTES:preamble_at])
    return greeting + request, epoch, request[preamble_at:]


def send_reply(write: Write, key: bytes, transcript: bytes, refusal: str = "") -> None:
    """Accept the client of a standby, or refuse it with a reason."""
    _write_signed(write, key, b"active", transcript, refusal[:MAX_TEXT].encode())


def _write_signed(write: Write, key: bytes, role: bytes, transcript: bytes, body: bytes) -> bytes:
    """Write a message; return it without its MAC."""
    message = token_bytes(_NONCE_BYTES) + len(body).to_bytes(_LENGTH_BYTES) + body
    write(message + hmac.digest(key, role + transcript + message, "sha256"))
    return message


async def _read_signed(
    reader: asyncio.StreamReader, key: bytes, role: bytes, transcript: bytes
) -> bytes:
    """Return a message without its MAC."""
    head = await reader.readexactly(_HEAD_BYTES)
    size = int.from_bytes(head[_NONCE_BYTES:])
    if size > MAX_PREAMBLE:
        raise RelayError("authentication", f"{size} bytes of preamble; the limit is {MAX_PREAMBLE}")
    message = head + await reader.readexactly(size)
    mac = await reader.readexactly(_MAC_BYTES)
    if not hmac.compare_digest(mac, hmac.digest(key, role + transcript + message, "sha256")):
        raise RelayError("authentication", "the peer does not know the shared key")
    return message


def encode_chunk(data: bytes) -> bytes:
    """Return a chunk of the client's bytes, which must not be empty."""
    return len(data).to_bytes(_CHUNK_HEAD_BYTES) + data


class ChunkDecoder:
    """Extracts the client's bytes from chunks; holds at most one, which the standby has read."""

    def __init__(self) -> None:
        self._received = bytearray()

    def receive(self, data: bytes) -> tuple[bytes, bool]:
        """Return the client's bytes, and whether the client will send no more."""
        self._received += data
        received = b""
        while len(self._received) >= _CHUNK_HEAD_BYTES:
            end = _CHUNK_HEAD_BYTES + int.from_bytes(self._received[:_CHUNK_HEAD_BYTES])
            if end == len(END):
                return received, True
            if len(self._received) < end:
                break
            received += self._received[_CHUNK_HEAD_BYTES:end]
            del self._received[:end]
        return received, False


class AdmittedStream(asyncio.StreamReaderProtocol):
    """An accepted connection, which ``run`` serves; it is in ``running`` meanwhile.

    ``name_of`` returns the name by which ``admission`` counts a host.
    """

    def __init__(
        self,
        admission: Admission,
        running: "set[Any]",
        counters: RelayCounters,
        name_of: Callable[[str | None], str | None] = lambda host: host,
    ) -> None:
        self.reader = asyncio.StreamReader()
        super().__init__(self.reader)
        self.transport: asyncio.Transport
        self.address: str | None = None
        self.counters = counters
        self.task: asyncio.Task[None]
        self._admission = admission
        self._running = running
        self._name_of = name_of
        self._is_admitted = False
        self.is_silent = True  # whether the peer has sent nothing that can be served

    def give_up(self, *, is_full: bool) -> bool:
        """Close the connection if its peer is silent; see ``admission.Place``."""
        if self.is_silent:
            self.transport.abort()
        return self.is_silent

    @abstractmethod
    async def run(self) -> None:
        """Serve the connection; raise RelayError to refuse it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, transport)
        peer = address_of(transport, "peername")
        self.address = self._name_of(None if peer is None else peer[0])
        refusal = self._admission.admit(self.address, self)
        if refusal is not None:
            self.report(RelayError("not_admitted", refusal))
            self.transport.abort()
            return
        self._is_admitted = True
        self.task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        self._running.add(self)
        try:
            await self.run()
        except RelayError as error:
            self.report(error)
            if not self.transport.is_closing():
                self.transport.abort()
        except (EOFError, OSError):  # the peer has left, or a timeout has expired
            self.transport.abort()
        except Exception as error:
            _log.error("relay_failed", address=self.address, reason=str(error), exc_info=error)
            self.transport.abort()
        finally:
            self._running.discard(self)

    def report(self, error: RelayError) -> None:
        """Count and log why the connection is not relayed."""
        self.counters.refused[error.code] += 1
        if not is_quiet("connection_not_relayed"):
            _log.warning(
                "connection_not_relayed", address=self.address, code=error.code, reason=str(error)
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection; its reader receives the end or the error."""
        super().connection_lost(exc)
        self.leave()

    def leave(self) -> None:
        """Stop counting the connection, because it has ended or another protocol serves it."""
        if self._is_admitted:
            self._is_admitted = False
            self._admission.leave(self.address, self)


def address_of(transport: asyncio.BaseTransport, name: str) -> Address | None:
    """Return a host and a port, or None for a Unix socket."""
    value = transport.get_extra_info(name)
    return (value[0], value[1]) if isinstance(value, tuple) else None
