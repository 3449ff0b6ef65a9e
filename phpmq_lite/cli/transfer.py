"""The commands ``message export`` (JSON lines or CSV) and ``message import`` (JSON lines)."""

import json
import sys
from base64 import b64encode
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final, TypeVar, cast

import click

from phpmq_lite.cli.admin_client import AdminClient, admin_client_options
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.output import format_message_count, print_message
from phpmq_lite.cli.parameters import choice, flag, option
from phpmq_lite.cli.progress import progress_bar
from phpmq_lite.frame_options import PUBLISH
from phpmq_lite.text_files import has_mark

_BATCH: Final = 500  # maximum number of messages per request
_BATCH_BYTES: Final = 1_000_000  # every broker accepts requests of up to 1 MiB
_PIECE_BYTES: Final = 1 << 20
T = TypeVar("T")
NumberedLine = tuple[int, bytes]  # the number of a line in the file, and the encoded message


@click.command()
@click.argument("query", default="")
@choice(("--format", "style"), "jsonl includes bodies and can be imported.", "jsonl", "csv")
@admin_client_options
def export(admin: AdminClient, query: str, style: str) -> None:
    """Write all messages that match QUERY to standard output.

    A JSONL export ends with the line `{"complete": true}`; an export without it is incomplete.
    """
    lines, end = 0, b""
    parameters = {"q": query, "format": style}
    with admin.open("GET", "/export", query=parameters, timeout_s=None) as response:
        total = int(response.headers.get("X-Total-Count", 0)) or None
        with progress_bar("export", total) as advance:
            for piece in admin.pieces(response):
                sys.stdout.buffer.write(piece)
                count = piece.count(b"\n")
                lines += count
                advance(count)
                end = (end + piece)[-200:]
    sys.stdout.buffer.flush()
    if style == "jsonl" and b'"complete": true' not in end.replace(b'":t', b'": t'):
        raise CommandError('the export is incomplete: its last line is not {"complete": true}')
    messages = max(0, lines - 1)  # do not count the CSV header or the end marker of a JSONL export
    print_message(f"{format_message_count(messages)} exported")


@click.command("import")
@click.argument("file", type=click.File("rb"), default="-")
@option("--queue", "Import into this queue instead of the one in each line.")
@flag("--settled", "Publish settled messages again, too.")
@flag("--dry-run", "Check all lines without publishing.")
@admin_client_options
def import_(admin: AdminClient, file: Any, queue: str | None, settled: bool, dry_run: bool) -> None:
    """Publish the messages in a file.

    FILE is an export, or has a line {"queue", "content", "encoding", "ttl_s", "delay_s",
    "deliver_at", "priority", "group", "unique_key"} for each message; only the first two are
    required. All lines are checked before the first message is stored. Export lines of settled
    messages (acked, expired, dead or deleted) and lines without content are skipped. If the broker
    rejects a message, because it is too large or its queue is full, the import stops and prints how
    many messages are stored and the line to continue with.
    """
    with ExitStack() as stack:
        source = _rereadable(file, stack)
        start = source.tell()
        checked, skipped = 0, SkippedLines()
        with progress_bar("check", None) as advance:
            for _ in _read_messages(source, queue, skipped, has_settled=settled):
                checked += 1
                advance(1)
        skipped.report()
        if dry_run:
            print_message(f"{format_message_count(checked)} checked: all valid")
            return
        source.seek(start)
        stored = 0
        with progress_bar("import", checked) as advance:
            messages = _read_messages(source, queue, SkippedLines(), has_settled=settled)
            for part in _batches(messages):
                count = _store(admin, part, stored)
                stored += count
                advance(count)
    print_message(f"{format_message_count(stored)} stored")


def _rereadable(file: BinaryIO, stack: ExitStack) -> BinaryIO:
    """Return the file, or a temporary copy if it can be read only once, such as a pipe."""
    if file.seekable():
        return file
    copy: Any = stack.enter_context(TemporaryFile())  # noqa: SIM115
    with progress_bar("read", None) as advance:
        while piece := file.read(_PIECE_BYTES):
            copy.write(piece)
            advance(piece.count(b"\n"))
    copy.seek(0)
    return cast("BinaryIO", copy)


def _store(admin: AdminClient, part: list[NumberedLine], before: int) -> int:
    """Store a batch after ``before`` messages and return its size, or say where to continue."""
    try:
        count, refusal = _send(admin, [line for _, line in part])
    except CommandError:
        print_message(
            f"{format_message_count(before)} stored; the next {len(part):,}, from line "
            f"{part[0][0]} onwards, may or may not be stored"
        )
        raise
    if refusal is not None:
        if stored := before + count:
            print_message(
                f"{format_message_count(stored)} stored; continue with line {part[count][0]}"
            )
        raise refusal
    return count


def _send(admin: AdminClient, part: list[bytes]) -> tuple[int, CommandError | None]:
    """Store messages in order; return the number stored, and the error that stopped the import."""
    with admin.open("POST", "/import", _request_body(part)) as response:
        stored = response.headers.get("X-Stored-Count")
        try:
            return int(admin.read(response)["stored"]), None
        except CommandError as error:
            # If the connection breaks or the server fails, some of them may have been stored.
            if stored is None and (response.status == 200 or 500 <= response.status <= 504):
                raise
            return int(stored or 0), error


def _batches(messages: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[list[NumberedLine]]:
    lines = ((number, _encode(message)) for number, message in messages)
    return in_batches(lines, lambda line: len(line[1]), _BATCH, _BATCH_BYTES)


def in_batches(
    items: Iterable[T], size_of: Callable[[T], int], limit: int, limit_bytes: int
) -> Iterator[list[T]]:
    """Yield batches of up to ``limit`` items and ``limit_bytes``, or of a single larger item."""
    part: list[T] = []
    size = 0
    for item in items:
        if part and (len(part) == limit or size + size_of(item) > limit_bytes):
            yield part
            part, size = [], 0
        part.append(item)
        size += size_of(item)
    if part:
        yield part


def _encode(message: dict[str, Any]) -> bytes:
    """Encode a message as JSON, with the content in base64 if that makes it shorter."""
    content = message["content"].encode()
    text = json.dumps(message, ensure_ascii=False)
    if message.get("encoding") != "base64" and len(text.encode()) > len(content) * 4 // 3:
        in_base64 = message | {"content": b64encode(content).decode(), "encoding": "base64"}
        texts = text, json.dumps(in_base64, ensure_ascii=False)
        text = min(texts, key=lambda line: len(line.encode()))
    return text.encode()


def _request_body(part: list[bytes]) -> bytes:
    return b'{"messages": [' + b",\n".join(part) + b"]}"


@dataclass(slots=True)
class SkippedLines:
    """What an import leaves out, and why."""

    settled: int = 0
    without_content: int = 0  # because retention has removed it
    incomplete: str = ""  # the name of the file, if it is an export without its last line

    def report(self) -> None:
        if self.settled:
            print_message(
                f"{format_message_count(self.settled)} skipped: acked, expired, dead or deleted; "
                "add --settled to publish again"
            )
        if self.without_content:
            count = format_message_count(self.without_content)
            print_message(f"{count} skipped: the export lacks their content")
        if self.incomplete:
            print_message(
                f'{self.incomplete} is an incomplete export: it lacks the line {{"complete": true}}'
            )


def _read_messages(
    file: Any, queue: str | None, skipped: SkippedLines, *, has_settled: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and message of each line to publish, and complete ``skipped``."""
    from phpmq_lite.admin.messages.imports import is_settled, problem_with

    name = Path(str(getattr(file, "name", "<stdin>"))).name
    has_ids = is_complete = False
    for number, line in enumerate(file, 1):  # bytes, because reading text decodes ahead
        if number == 1:
            line = line.removeprefix(BOM_UTF8)
            if has_mark(line):
                raise CommandError(f"{name} is not UTF-8 but UTF-16")
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode())
        except UnicodeDecodeError as error:
            where = f"{name}: line {number} is not valid UTF-8 at byte {error.start + 1}"
            raise CommandError(f"{where}; is the file truncated?") from None
        except ValueError as error:
            raise CommandError(f"{name}: line {number} is not valid JSON: {error}") from None
        if not isinstance(row, dict):
            raise CommandError(f"{name}: line {number} is not a JSON object")
        if row.get("complete") is True:
            is_complete = True
            continue
        has_ids |= "id" in row
        if not has_settled and is_settled(row):
            skipped.settled += 1
            continue
        if "id" in row and row.get("content", "") is None:
            skipped.without_content += 1
            continue
        target = queue or row.get("queue")
        if not isinstance(row.get("content"), str) or not isinstance(target, str):
            raise CommandError(f"{name}: line {number} needs the strings content and queue")
        message = {key: row[key] for key in ("content", "encoding", *PUBLISH) if key in row}
        message |= {"queue": target}
        if problem := problem_with(message):
            raise CommandError(f"{name}: line {number}: {problem}")
        yield number, message
    if has_ids and not is_complete:
        skipped.incomplete = name
