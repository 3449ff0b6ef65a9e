"""First steps for an empty broker: the same publish in four languages, with the real address."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from phpmq_lite.installation import install_command
from phpmq_lite.server.addresses import PhpmqListener

QUEUE = "orders"
CONTENT = '{"order_id":1042}'


class Snippet(NamedTuple):
    """A piece of code to paste; ``key`` is short and unique."""

    key: str
    title: str
    code: str


def tcp_address(listeners: Sequence[PhpmqListener], host: str) -> tuple[str, int]:
    """Choose the first TCP listener; a wildcard becomes the name that the browser used."""
    for listener in listeners:
        if listener.transport == "unix":
            continue
        name, _, port = listener.address.rpartition(":")
        is_wide = name in ("0.0.0.0", "[::]", "::", "")  # noqa: S104 - compared, not bound
        return (host if is_wide else name.strip("[]")), int(port)
    return "127.0.0.1", 9100


def http_address(scheme: str, host: str, base_path: str) -> str:
    """Give the address of the admin as the browser used it, without a slash at its end."""
    return f"{scheme}://{host}{base_path}"


def snippets(host: str, port: int, base: str) -> list[Snippet]:
    """Give the code for each language; ``base`` is the address of the admin."""
    where = f"[{host}]" if ":" in host else host
    return [
        Snippet("php", "PHP", _php(where, port)),
        Snippet("python", "Python", _python(where, port)),
        Snippet("curl", "curl", _curl(base)),
        Snippet("cli", "Command line", _cli(where, port)),
    ]


def pipeline(base: str, *, needs_token: bool) -> list[Snippet]:
    """Give what makes the first insights; ``base`` is the address of the admin."""
    url = f"--url {base}" + (" --token-file token" if needs_token else "")
    made = [
        Snippet("install", "Install once", install_command("spark")),
        Snippet("doctor", "See what is missing", f"phpmq-lite pipeline doctor {url}"),
        Snippet("run", "Archive, compute, compact", f"phpmq-lite pipeline run {url}"),
    ]
    if needs_token:
        add = "phpmq-lite token add pipeline --role operator > token"
        made.insert(1, Snippet("token", "A token, on the broker's machine", add))
    return made


def _cli(where: str, port: int) -> str:
    return f"phpmq-lite publish {QUEUE} --url phpmq://{where}:{port} --data '{CONTENT}'"


def _curl(base: str) -> str:
    content = json.dumps({"content": CONTENT})
    return (
        f"curl '{base}/api/v1/queues/{QUEUE}/messages' \\\n"
        f"  -H 'Content-Type: application/json' \\\n"
        f"  -d '{content}'"
    )


def _python(where: str, port: int) -> str:
    return (
        "import phpmq_lite\n\n"
        f'with phpmq_lite.connect_blocking("{where}:{port}") as client:\n'
        f"    client.publish(\"{QUEUE}\", b'{CONTENT}')"
    )


def _php(where: str, port: int) -> str:
    return (
        f"$broker = stream_socket_client('tcp://{where}:{port}');\n"
        "$packet = fn($type, $text) => 'P' . $type . sprintf('%029d', strlen($text)) . $text;\n"
        f"fwrite($broker, 'H0100102' . $packet('01', '{QUEUE}')\n"
        f"    . $packet('02', '{CONTENT}'));"
    )
