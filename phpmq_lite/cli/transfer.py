"""``export`` and ``import``: messages as JSON lines or CSV, out of a broker and into one."""

import asyncio
import json
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from phpmq_lite.cli.admin_client import AdminClient, admin_client_options, read_response
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.output import format_message_count, print_message
from phpmq_lite.cli.progress import progress_bar

_PIECE: Final = 500  # messages in one request
_PIECE_BYTES: Final = 1_000_000  # any broker takes 1 MiB, whatever its limit of a content is


@click.command()
@click.argument("query", default="")
@click.option(
    "--format", "style", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True,
    help="JSON lines carry the bodies and can be imported.",
)  # fmt: skip
@admin_client_options
def export(node: AdminClient, query: str, style: str) -> None:
    """Write all messages that match QUERY to standard output.

    JSON lines end with a line that says `complete`; without it the export was cut off.
    """
    lines = asyncio.run(_copy(node, query, style))
    print_message(
        f"{format_message_count(max(0, lines - 1))} exported"
    )  # one line is the head or the end


async def _copy(node: AdminClient, query: str, style: str) -> int:
    lines, last = 0, b""
    asked = {"q": query, "format": style}
    async with node.open("GET", "/export", query=asked, timeout_s=None) as response:
        if response.status != 200:
            read_response(response.status, await response.read())
        total = int(response.headers.get("X-Total-Count", 0)) or None
        with progress_bar("export", total) as advance:
            async for piece in response.content.iter_any():
                sys.stdout.buffer.write(piece)
                count = piece.count(b"\n")
                lines += count
                advance(count)
                last = (last + piece)[-200:]
    sys.stdout.buffer.flush()
    if style == "jsonl" and b'"complete": true' not in last.replace(b'":t', b'": t'):
        raise CommandError("the export was cut off: its last line does not say complete")
    return lines


@click.command("import")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--queue", help="Into this queue, whatever the lines say.")
@click.option("--dry-run", is_flag=True, help="Check all lines, store nothing.")
@admin_client_options
def import_(node: AdminClient, file: Any, queue: str | None, dry_run: bool) -> None:
    """Publish the messages of FILE: an export, or lines of {queue, content, encoding, ttl_s}.

    All lines are read and checked before the first is stored; those of an export whose content was
    gone are left out. Where the broker refuses one even so, as too large or as its queue is full,
    it ends there and says how many are stored, and with which line to go on.
    """
    messages = list(_messages(file, queue))
    if dry_run:
        print_message(f"{format_message_count(len(messages))} can be imported")
        return
    stored = 0
    with progress_bar("import", len(messages)) as advance:
        for part in _parts(message for _, message in messages):
            try:
                count, refusal = asyncio.run(_send(node, part))
            except CommandError:
                print_message(
                    f"{format_message_count(stored)} stored, from the beginning of it; of the next "
                    f"{len(part):,}, from line {messages[stored][0]} on, it is not known; then:"
                )
                raise
            stored += count
            advance(count)
            if refusal is not None:
                if stored:
                    print_message(
                        f"{format_message_count(stored)} stored, from the beginning of it; "
                        f"the next is in line {messages[stored][0]}; then:"
                    )
                raise refusal
    print_message(f"{format_message_count(stored)} stored")


async def _send(node: AdminClient, part: list[bytes]) -> tuple[int, CommandError | None]:
    """Store messages in their order; give how many are stored, and why the rest is not.

    Raises:
        CommandError: there is no answer that tells it.
    """
    async with node.open("POST", "/import", _document(part)) as response:
        status, content = response.status, await response.read()
        stored = response.headers.get("X-Stored-Count")
    try:
        return int(read_response(status, content)["stored"]), None
    except CommandError as error:
        if stored is None and 500 <= status <= 504:  # it may have come half way
            raise
        return int(stored or 0), error


def _parts(messages: Iterable[dict[str, Any]]) -> Iterator[list[bytes]]:
    """Cut into requests, which stay small whatever the bodies are; one body may be larger."""
    part: list[bytes] = []
    size = 0
    for line in map(_line, messages):
        if part and (len(part) == _PIECE or size + len(line) > _PIECE_BYTES):
            yield part
            part, size = [], 0
        part.append(line)
        size += len(line)
    if part:
        yield part


def _line(message: dict[str, Any]) -> bytes:
    """Write a message as a broker takes it that takes its content in base64, so no longer."""
    content = message["content"].encode()
    text = json.dumps(message, ensure_ascii=False)
    if message.get("encoding") != "base64" and len(text.encode()) > len(content) * 4 // 3:
        other = message | {"content": b64encode(content).decode(), "encoding": "base64"}
        text = min(text, json.dumps(other, ensure_ascii=False), key=lambda one: len(one.encode()))
    return text.encode()


def _document(part: list[bytes]) -> bytes:
    return b'{"messages": [' + b",\n".join(part) + b"]}"


def _messages(file: Any, queue: str | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each line and its message, once it is known to be one."""
    from phpmq_lite.admin.resources.imports import problem_with

    name = Path(str(getattr(file, "name", "<stdin>"))).name
    has_ids = is_complete = False
    gone = 0
    for number, line in enumerate(file, 1):  # bytes: text is read ahead, past the line at fault
        if not line.strip():
            continue
        try:
            found = json.loads(line.decode())
        except UnicodeDecodeError as error:
            where = f"{name}: line {number} is not UTF-8, at its byte {error.start + 1}"
            raise CommandError(f"{where}; was the file cut off?") from None
        except ValueError as error:
            raise CommandError(f"{name}: line {number} is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise CommandError(f"{name}: line {number} is no JSON object")
        if found.get("complete") is True:
            is_complete = True
            continue
        has_ids |= "id" in found
        if "id" in found and found.get("content", "") is None:
            gone += 1
            continue
        target = queue or found.get("queue")
        if not isinstance(found.get("content"), str) or not isinstance(target, str):
            raise CommandError(f"{name}: line {number} has no content, or names no queue")
        message = {key: found[key] for key in ("content", "encoding", "ttl_s") if key in found}
        message |= {"queue": target}
        if wrong := problem_with(message):
            raise CommandError(f"{name}: line {number}: {wrong}")
        yield number, message
    if gone:
        print_message(
            f"{format_message_count(gone)} left out: the export has no content of them any more"
        )
    if has_ids and not is_complete:
        print_message(
            f"{name} looks like an export without its end: no line says complete; was it cut off?"
        )
