"""Forms as ``multipart/form-data`` (RFC 7578), read from the whole body.  Pure.

aiohttp reads part by part, lets a part have any number of headers, and answers what is malformed
with 500.
"""

from dataclasses import dataclass
from email.message import Message
from typing import Final

HEAD_BYTES: Final = 4_096  # of one part
_PLAIN_CODINGS: Final = ("", "7bit", "8bit", "binary")


@dataclass(slots=True, frozen=True)
class Upload:
    """A field that is a file; ``name`` is what the browser calls it, empty if none was chosen."""

    name: str
    content: bytes


Field = str | Upload


def boundary_of(content_type: str) -> bytes:
    """Return what stands between the parts.

    Raises:
        ValueError: there is none, or none that RFC 2046 allows.
    """
    boundary = _header(content_type).get_param("boundary")
    if not isinstance(boundary, str) or not 1 <= len(boundary) <= 70 or not boundary.isascii():
        raise ValueError("the boundary is missing, or longer than 70 characters")
    return boundary.encode()


def parts(raw: bytes | bytearray, boundary: bytes, limit: int) -> list[tuple[str, Field]]:
    """Return name and value of each part, in order.

    Raises:
        ValueError: it is malformed, has more than ``limit`` parts, or the head of a part is longer
            than 4 KiB.
        LookupError: a charset is unknown.
    """
    mark = b"\r\n--" + boundary
    at = 0 if raw.startswith(mark[2:]) else raw.find(mark) + 2
    if at == 1:
        raise ValueError("the boundary is not in it")
    found: list[tuple[str, Field]] = []
    while True:
        at += len(mark) - 2
        if raw.startswith(b"--", at):
            return found
        begin = raw.find(b"\r\n", at, at + 200)
        if begin < 0 or raw[at:begin].strip(b" \t"):
            raise ValueError("a boundary is not followed by a line end")
        if len(found) >= limit:
            raise ValueError(f"it has more than {limit} parts")
        begin = _end_of_head(raw, begin)
        end = raw.find(mark, begin - 2)
        if end < 0:
            raise ValueError("it ends within a part")
        found.append(_part(raw, at, begin, max(end, begin)))
        at = end + 2


def _end_of_head(raw: bytes | bytearray, at: int) -> int:
    end = raw.find(b"\r\n\r\n", at, at + HEAD_BYTES)
    if end < 0:
        raise ValueError(f"the head of a part is longer than {HEAD_BYTES} bytes")
    return end + 4


def _part(raw: bytes | bytearray, at: int, begin: int, end: int) -> tuple[str, Field]:
    head = _heads(raw[at : begin - 4].decode())
    shape = _header(head.get("content-disposition", ""))
    name, file = shape.get_param("name"), shape.get_param("filename")
    if not isinstance(name, str):
        raise ValueError("a part has no name")  # noqa: TRY004 - of what was sent
    coding = head.get("content-transfer-encoding", "").strip().lower()
    if coding not in _PLAIN_CODINGS or "content-encoding" in head:
        raise ValueError(f"the part {name[:50]!r} is encoded")
    content = bytes(memoryview(raw)[begin:end])
    kind = _header(head.get("content-type", "text/plain"))
    if file is not None:
        return name, Upload(file if isinstance(file, str) else file[2], content)
    if kind.get_content_maintype() != "text":
        return name, Upload("", content)
    charset = kind.get_param("charset")
    return name, content.decode(charset if isinstance(charset, str) else "utf-8")


def _heads(text: str) -> dict[str, str]:
    """Return the headers of a part by their names in lower case."""
    lines = (line.partition(":") for line in text.split("\r\n") if line.strip())
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def _header(value: str) -> Message:
    """Return what reads the parameters of a header."""
    made = Message()
    made["Content-Type"] = value
    return made
