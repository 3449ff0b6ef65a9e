"""First steps for an empty broker: the same publish in four languages, with the real address."""

from collections.abc import Sequence
from typing import NamedTuple

QUEUE = "orders"
CONTENT = '{"order_id":1042}'


class Snippet(NamedTuple):
    """A piece of code to paste; ``key`` is short and unique."""

    key: str
    title: str
    code: str


def address(listeners: Sequence[str], host: str) -> tuple[str, int]:
    """Choose the first TCP listener; a wildcard becomes the name that the browser used."""
    for listener in listeners:
        name, _, port = listener.rpartition(":")
        if listener.startswith("unix:") or not port.isdecimal():
            continue
        is_wide = name in ("0.0.0.0", "[::]", "::", "")  # noqa: S104 - compared, not bound
        return (host if is_wide else name.strip("[]")), int(port)
    return "127.0.0.1", 9100


def snippets(host: str, port: int) -> list[Snippet]:
    """Give the code for each language."""
    where = f"[{host}]" if ":" in host else host
    return [
        Snippet("cli", "Command line", _cli(where, port)),
        Snippet("python", "Python", _python(where, port)),
        Snippet("php", "PHP", _php(where, port)),
        Snippet("nc", "nc", f"printf '%s' '{frame(QUEUE, CONTENT)}' | nc -w 1 {host} {port}"),
    ]


def frame(queue: str, content: str) -> str:
    """Write a publish without TTL, as the protocol has it: header, then two packets."""
    packets = (("01", queue), ("02", content))
    return "H0100102" + "".join(
        f"P{type_}{len(text.encode()):029d}{text}" for type_, text in packets
    )


def _cli(where: str, port: int) -> str:
    return f"phpmq-lite publish {QUEUE} --connect {where}:{port} --data '{CONTENT}'"


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
