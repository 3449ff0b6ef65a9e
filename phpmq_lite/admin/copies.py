"""A message as something to paste elsewhere: PHP, curl, command line, raw frames.  Pure."""

import json
import shlex
from base64 import b64encode
from typing import Final

from phpmq_lite.admin.bodies import as_content
from phpmq_lite.admin.formats import pieces
from phpmq_lite.admin.snippets import Snippet
from phpmq_lite.admin.urls import encode_name
from phpmq_lite.protocol.encoder import encoder_for

COPY_BYTES: Final = 16 * 1024  # of a body; larger ones are better downloaded
_HEADER_BYTES: Final = 32
_REVISION: Final = "ttl"


def copies(
    queue: str, content: bytes, message_id: str, ttl_s: int | None, base: str, where: str
) -> list[Snippet]:
    """Give the code that publishes this message once more, and the frame that it comes in.

    Args:
        queue: name of its queue.
        content: whole body.
        message_id: 32 hex digits.
        ttl_s: time to live as published; None: never expires.
        base: address of the admin.
        where: address of the broker, host and port.
    """
    return [
        Snippet("php", "PHP", _php(queue, content, where)),
        Snippet("curl", "curl", _curl(queue, content, ttl_s, base)),
        Snippet("cli", "Command line", _cli(queue, content, ttl_s)),
        Snippet("frames", "Raw frame", _frame(queue, content, message_id, ttl_s)),
    ]


def _is_plain(content: bytes) -> bool:
    """Tell whether all of it can be seen, so that a copy of what is shown is exact."""
    text, encoding = as_content(content)
    return encoding == "utf-8" and all(piece.kind != "esc" for piece in pieces(text))


def _base64(content: bytes) -> str:
    return b64encode(content).decode()


def _php_text(content: bytes) -> str:
    """Write a PHP string: single quotes where that is exact, else base64."""
    if not _is_plain(content):
        return f"base64_decode('{_base64(content)}')"
    escaped = content.decode().replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _shell_text(content: bytes) -> str:
    """Write a word for a shell."""
    if not _is_plain(content):
        return f'"$(echo {_base64(content)} | base64 -d)"'
    return shlex.quote(content.decode())


def _php(queue: str, content: bytes, where: str) -> str:
    return (
        f"$broker = stream_socket_client('tcp://{where}');\n"
        "$packet = fn($type, $text) => 'P' . $type . sprintf('%029d', strlen($text)) . $text;\n"
        f"fwrite($broker, 'H0100102' . $packet('01', {_php_text(queue.encode())})\n"
        f"    . $packet('02', {_php_text(content)}));"
    )


def _curl(queue: str, content: bytes, ttl_s: int | None, base: str) -> str:
    text, encoding = as_content(content)
    document = {"content": text, "encoding": encoding, "ttl_s": ttl_s or 0}
    url = shlex.quote(f"{base}/api/v1/queues/{encode_name(queue)}/messages")
    return (
        f"curl {url} \\\n  -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(json.dumps(document))}"
    )


def _cli(queue: str, content: bytes, ttl_s: int | None) -> str:
    command = f"phpmq-lite publish {_shell_text(queue.encode())}" + (
        f" --ttl {ttl_s}s" if ttl_s else ""
    )
    if not _is_plain(content):
        return f"echo {_base64(content)} | base64 -d | {command} -"
    return f"{command} --data {_shell_text(content)}"


def _frame(queue: str, content: bytes, message_id: str, ttl_s: int | None) -> str:
    """Write the dispatch as it goes over the wire; what cannot be seen whole as hex."""
    parts: list[bytes] = []
    encoder = encoder_for(b"", _HEADER_BYTES, _REVISION)
    encoder.append_dispatch(parts, queue, content, message_id.encode(), ttl_s or 0)
    frame = b"".join(parts)
    return frame.decode() if _is_plain(frame) else frame.hex(" ")
