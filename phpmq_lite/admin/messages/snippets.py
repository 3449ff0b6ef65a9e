"""Code snippets that users can copy to publish messages or run the pipeline.  Pure."""

import json
import shlex
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from phpmq_lite.admin.formats import split_hidden
from phpmq_lite.admin.messages.bodies import as_content
from phpmq_lite.admin.urls import encode_name
from phpmq_lite.installation import install_command
from phpmq_lite.protocol.encoder import encoder_for
from phpmq_lite.server.addresses import PhpmqListener

QUEUE = "orders"
CONTENT = '{"order_id":1042}'


class Snippet(NamedTuple):
    """A code snippet that users can copy; ``key`` is short and unique."""

    key: str
    title: str
    code: str


def tcp_address(listeners: Sequence[PhpmqListener], host: str) -> tuple[str, int]:
    """Return the first TCP listener's address, with the browser's host in place of a wildcard."""
    for listener in listeners:
        if listener.transport == "unix":
            continue
        name, _, port = listener.address.rpartition(":")
        is_wide = name in ("0.0.0.0", "[::]", "::", "")  # noqa: S104 - compared, not bound
        return (host if is_wide else name.strip("[]")), int(port)
    return "127.0.0.1", 9100


def http_address(scheme: str, host: str, base_path: str) -> str:
    """Return the admin URL that the browser uses, without a trailing slash."""
    return f"{scheme}://{host}{base_path}"


def publish_snippets(host: str, port: int, base: str) -> list[Snippet]:
    """Return snippets that publish a first message, one per language; ``base`` is the admin URL."""
    where = f"[{host}]" if ":" in host else host
    command = f"phpmq-lite publish {QUEUE} --url phpmq://{where}:{port} --body '{CONTENT}'"
    python = (
        "import phpmq_lite\n\n"
        f'with phpmq_lite.connect_blocking("{where}:{port}") as client:\n'
        f"    client.publish(\"{QUEUE}\", b'{CONTENT}')"
    )
    content = json.dumps({"content": CONTENT})
    curl = (
        f"curl '{base}/api/v1/queues/{QUEUE}/messages' \\\n"
        f"  -H 'Content-Type: application/json' \\\n"
        f"  -d '{content}'"
    )
    return [
        Snippet("php", "PHP", _message_php(QUEUE, CONTENT.encode(), f"{where}:{port}")),
        Snippet("python", "Python", python),
        Snippet("curl", "curl", curl),
        Snippet("cli", "Command line", command),
    ]


def pipeline_snippets(base: str, *, needs_token: bool) -> list[Snippet]:
    """Return the pipeline commands that produce the first insights; ``base`` is the admin URL."""
    url = f"--url {base}" + (" --token-file token" if needs_token else "")
    snippets = [
        Snippet("install", "Install the pipeline (once)", install_command("spark")),
        Snippet("doctor", "Check for missing requirements", f"phpmq-lite pipeline doctor {url}"),
        Snippet("run", "Archive, compute, compact", f"phpmq-lite pipeline run {url}"),
    ]
    if needs_token:
        add = "phpmq-lite token create pipeline --role operator > token"
        snippets.insert(1, Snippet("token", "Create a token on the broker's machine", add))
    return snippets


COPY_BYTES: Final = 16 * 1024  # snippets do not include larger bodies
_HEADER_BYTES: Final = 32
_REVISION: Final = "ttl"
_NO_OPTIONS: Final[Mapping[str, Any]] = {}


def copy_snippets(
    queue: str,
    content: bytes,
    message_id: str,
    options: Mapping[str, Any],
    base: str,
    where: str,
) -> list[Snippet]:
    """Return snippets that republish a message, and its frame; ``where`` is HOST:PORT.

    ``options`` are ``ttl_s``, ``priority`` and ``group`` as in the API, those that it has.
    """
    ttl_s: int | None = options.get("ttl_s")
    return [
        Snippet("php", "PHP", _message_php(queue, content, where, options)),
        Snippet("curl", "curl", _message_curl(queue, content, options, base)),
        Snippet("cli", "Command line", _message_cli(queue, content, options)),
        Snippet("frames", "Raw frame", _frame(queue, content, message_id, ttl_s)),
    ]


def _is_plain(content: bytes) -> bool:
    """Return whether the content is UTF-8 without hidden characters and can be copied as text."""
    text, encoding = as_content(content)
    return encoding == "utf-8" and all(piece.kind != "esc" for piece in split_hidden(text))


def _base64(content: bytes) -> str:
    return b64encode(content).decode()


def _php_text(content: bytes) -> str:
    """Return a PHP expression for the content: a quoted string or, if necessary, base64."""
    if not _is_plain(content):
        return f"base64_decode('{_base64(content)}')"
    escaped = content.decode().replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _shell_text(content: bytes) -> str:
    if not _is_plain(content):
        return f'"$(echo {_base64(content)} | base64 -d)"'
    return shlex.quote(content.decode())


def _message_php(
    queue: str, content: bytes, where: str, options: Mapping[str, Any] = _NO_OPTIONS
) -> str:
    more = {name: value for name, value in options.items() if name != "ttl_s"}
    text = f"\n    . $packet('06', {_php_text(json.dumps(more).encode())})" if more else ""
    return (
        f"$broker = stream_socket_client('tcp://{where}');\n"
        "$packet = fn($type, $text) => 'P' . $type . sprintf('%029d', strlen($text)) . $text;\n"
        f"fwrite($broker, '{'H0101003' if more else 'H0100102'}'"
        f" . $packet('01', {_php_text(queue.encode())})\n"
        f"    . $packet('02', {_php_text(content)}){text});"
    )


def _message_curl(queue: str, content: bytes, options: Mapping[str, Any], base: str) -> str:
    text, encoding = as_content(content)
    document = {"content": text, "encoding": encoding, "ttl_s": 0, **options}
    url = shlex.quote(f"{base}/api/v1/queues/{encode_name(queue)}/messages")
    return (
        f"curl {url} \\\n  -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(json.dumps(document))}"
    )


def _message_cli(queue: str, content: bytes, options: Mapping[str, Any]) -> str:
    command = f"phpmq-lite publish {_shell_text(queue.encode())}"
    if ttl_s := options.get("ttl_s"):
        command += f" --ttl {ttl_s}s"
    if (priority := options.get("priority")) is not None:
        command += f" --priority {priority}"
    if group := options.get("group"):
        command += f" --group {_shell_text(group.encode())}"
    if not _is_plain(content):
        return f"echo {_base64(content)} | base64 -d | {command} -"
    return f"{command} --body {_shell_text(content)}"


def _frame(queue: str, content: bytes, message_id: str, ttl_s: int | None) -> str:
    """Return the dispatch frame as text, or in hex if it contains hidden characters."""
    parts: list[bytes] = []
    encoder = encoder_for(b"", _HEADER_BYTES, _REVISION)
    encoder.append_dispatch(parts, queue, content, message_id.encode(), ttl_s or 0)
    frame = b"".join(parts)
    return frame.decode() if _is_plain(frame) else frame.hex(" ")
