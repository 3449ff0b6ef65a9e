"""Views of a message body: as a tree, indented, raw or in hex.  Pure."""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from phpmq_lite.admin.formats import HIDDEN_RUN, TextPiece, split_hidden
from phpmq_lite.admin.messages.drafts import check_json

VIEWS: Final = ("tree", "pretty", "raw", "hex")
HEX_BYTES: Final = 64 * 1024  # maximum number of body bytes shown as hex
PREVIEW_CHARACTERS: Final = 120
PRETTY_CHARACTERS: Final = 1 << 20  # maximum length of an indented body; longer ones are shown raw
TREE_NODES: Final = 2_000  # maximum number of members shown in a tree
TREE_DEPTH: Final = 24  # maximum number of levels in a tree; deeper values are shown as text
_OPEN_NODES: Final = 100  # a branch with more children is initially collapsed
_LEAF_CHARACTERS: Final = 4_000  # maximum number of characters shown per value in a tree
_INDENT: Final = "  "
_DEEPEST_INDENT: Final = 32  # deeper levels are not indented further
_COLOURED: Final = 4_000  # maximum number of tokens with syntax highlighting

_MARKS: Final = frozenset("{}[]:,")
_SPACE: Final = re.compile(r"[ \t\r\n]+")
_URN: Final = re.compile(rb'^\s*\{\s*"(?:job|urn)"\s*:\s*"([^"\\]+)"')
# Linear in any text: a space is not matched, and a string may lack its end.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)


@dataclass(slots=True, frozen=True)
class ShownBody:
    """One view of a message body.

    ``views`` lists the available views; ``note`` says what is omitted or unusual, if anything.
    """

    view: str
    views: tuple[str, ...]
    pieces: list[TextPiece]
    note: str | None
    tree: "BodyBranch | None" = None  # set only if ``view`` is "tree"


@dataclass(slots=True)
class BodyBranch:
    """A JSON value in a tree; ``mark`` is ``{`` or ``[``, or empty for a leaf."""

    key: list[TextPiece]  # with quotes; empty for the root and for list items
    value: list[TextPiece]  # value of a leaf
    mark: str = ""
    children: "list[BodyBranch]" = field(default_factory=list)
    count: int = 0  # number of members, including hidden ones

    @property
    def close(self) -> str:
        """The closing bracket, or an empty string for a leaf."""
        return {"{": "}", "[": "]"}.get(self.mark, "")

    @property
    def is_open(self) -> bool:
        """Return whether the branch is initially expanded."""
        return len(self.children) <= _OPEN_NODES

    @property
    def hidden(self) -> int:
        """The number of omitted members."""
        return self.count - len(self.children)


def decode_text(content: bytes, *, is_whole: bool) -> str | None:
    """Decode UTF-8 text, dropping a truncated last character; return None for invalid UTF-8."""
    for dropped in range(1 if is_whole else 4):
        try:
            return content[: len(content) - dropped].decode()
        except UnicodeDecodeError:
            continue
    return None


def preview(content: bytes | None, size: int) -> list[TextPiece]:
    """Return the beginning of a body on one line: as text with collapsed white space, or in hex."""
    if content is None:
        return []
    text = decode_text(content, is_whole=len(content) >= size)
    if text is None:
        return [TextPiece(content[:40].hex(" "), "hex")]
    return split_hidden(_SPACE.sub(" ", text)[:PREVIEW_CHARACTERS].strip())


def preview_envelope(content: bytes | None, size: int) -> list[TextPiece]:
    """Return an envelope's URN and data on one line, or the ``preview`` of any other body."""
    urn = _URN.search(content or b"")
    data = preview_data(content, size) if urn else []
    if urn is None or not data:
        return preview(content, size)
    return [*split_hidden(urn[1].decode(errors="replace") + " "), *data]


def preview_data(content: bytes | None, size: int) -> list[TextPiece]:
    """Return the beginning of an envelope's ``data`` on one line, or an empty list if none.

    ``content`` may be only the beginning of the body.
    """
    text = None if content is None else decode_text(content, is_whole=len(content) >= size)
    if not text or not text.lstrip().startswith("{"):
        return []
    depth, data, is_data = 0, "", False
    words: list[str] = _TOKEN.findall(text)
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word in ("}", "]"):
            depth -= 1
        if is_data:
            data += unescape_token(word) + (" " if word in (",", ":") else "")
            if (depth == 1 and word not in (":", "{", "[")) or len(data) > PREVIEW_CHARACTERS:
                break
        elif depth == 1 and after == ":" and word == '"data"':
            is_data = True
        if word in ("{", "["):
            depth += 1
    return split_hidden(data.removeprefix(": ")[:PREVIEW_CHARACTERS])


def view_body(content: bytes, size: int, requested: str | None) -> ShownBody:
    """Return the requested view of a body or of its beginning, if that view is available.

    Otherwise, return the default view: a tree for a JSON object or list, pretty for a JSON string,
    raw for other UTF-8, and hex for everything else.
    """
    is_whole = len(content) == size
    text = decode_text(content, is_whole=is_whole)
    if text is None:
        pieces, note = _hex(content, "This body is not valid UTF-8.")
        return ShownBody("hex", ("hex",), pieces, note)
    # The pretty and raw views of numbers and literals look the same.
    is_container = text.lstrip(" \t\r\n").startswith(("{", "[", '"'))
    is_json = is_whole and is_container and check_json(text) is None
    views = (VIEWS if text.lstrip()[:1] in ("{", "[") else VIEWS[1:]) if is_json else VIEWS[2:]
    view = requested if requested is not None and requested in views else views[0]
    if view == "hex":
        pieces, note = _hex(content, None)
        return ShownBody(view, views, pieces, note)
    note = None
    if view == "tree":
        root, is_whole_tree = build_tree(text)
        note = None if is_whole_tree else "The tree is truncated; Pretty and Raw show everything."
        return ShownBody(view, views, [], note, root)
    if view == "pretty":
        pretty = prettify(text)
        if pretty is not None:
            return ShownBody(view, views, pretty, None)
        view, note = "raw", "This body is too large to indent, so it is shown as sent."
    return ShownBody(view, views, split_hidden(text), note)


def prettify(text: str) -> list[TextPiece] | None:
    """Indent valid JSON without changing tokens such as large numbers or repeated keys.

    Returns None if the result would exceed ``PRETTY_CHARACTERS``.
    """
    pieces: list[TextPiece] = []
    length = 0
    for count, (blank, word, kind) in enumerate(_lay_out(text)):
        length += len(blank) + len(word)
        if length > PRETTY_CHARACTERS:
            return None
        if count >= _COLOURED:
            kind = ""
        _append(pieces, blank, "")
        if kind:
            pieces += split_hidden(word, kind)
        else:
            for piece in split_hidden(word):
                _append(pieces, *piece)
    return pieces


def build_tree(text: str) -> tuple[BodyBranch, bool]:
    """Return the tree of a valid JSON text, and whether the tree is complete.

    Numbers are shown as sent, and strings without unnecessary escapes.  The tokens
    are processed in a loop, not recursively, so deep nesting cannot overflow the stack.
    """
    root = closed = BodyBranch([], [])
    stack: list[BodyBranch] = []
    left, deep, key = TREE_NODES, 0, ""
    is_whole = True
    deeper: list[str] = []  # tokens below the deepest level, which are shown as text
    words: list[str] = _TOKEN.findall(text)
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if deep:
            deeper.append(word)
            deep += (word in "{[") - (word in "}]")
            if not deep:
                closed.value = _leaf("".join(deeper))
                deeper.clear()
        elif word in (",", ":"):
            continue
        elif word in ("}", "]"):
            stack.pop()
        elif after == ":":
            key = word
        else:
            branch = BodyBranch(
                split_hidden(unescape_token(key), "key") if key else [],
                [],
                word if word in "{[" else "",
            )
            key = ""
            left -= 1
            if not stack:
                root = branch
            else:
                stack[-1].count += 1
                if left >= 0:
                    stack[-1].children.append(branch)
            is_whole = is_whole and left >= 0
            if not branch.mark:
                branch.value = _leaf(word) if left >= 0 else []
            elif len(stack) < TREE_DEPTH:
                stack.append(branch)
            else:
                branch.mark, deep, closed = "", 1, branch
                deeper.append(word)
    return root, is_whole


def unescape_token(word: str) -> str:
    r"""Return a JSON token without unnecessary escapes such as ``\u00fc`` and ``\/``.

    Hidden characters and unpaired surrogates stay escaped.
    """
    if "\\" not in word or not word.startswith('"'):
        return word
    try:
        text = json.dumps(json.loads(word, strict=False), ensure_ascii=False)
    except ValueError:  # the body may be truncated and therefore invalid JSON
        return word
    return HIDDEN_RUN.sub(lambda run: "".join(map(_escaped, run[0])), text)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else json.dumps(character)[1:-1]


def _leaf(word: str) -> list[TextPiece]:
    word = unescape_token(word)
    if len(word) <= _LEAF_CHARACTERS:
        return split_hidden(word, _kind(word, "") if word[:1] not in "{[" else "")
    cut = TextPiece(f" … {len(word) - _LEAF_CHARACTERS:,} more characters", "dim")
    return [*split_hidden(word[:_LEAF_CHARACTERS], "str" if word[0] == '"' else ""), cut]


def _append(pieces: list[TextPiece], text: str, kind: str) -> None:
    if not text:
        return
    if pieces and pieces[-1].kind == kind == "" and len(pieces[-1].text) < 4_096:
        pieces[-1] = TextPiece(pieces[-1].text + text)
    else:
        pieces.append(TextPiece(text, kind))


def _lay_out(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (preceding white space, token, CSS class) for each token of a JSON text."""
    depth = 0
    words: list[str] = _TOKEN.findall(text)
    before = ""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word in ("}", "]"):
            depth -= 1
            blank = "" if before in ("{", "[") else _line(depth)
        elif before in ("{", "[", ","):
            blank = _line(depth)
        else:
            blank = " " if before == ":" else ""
        if word in ("{", "["):
            depth += 1
        yield blank, word, _kind(word, after)
        before = word


def _line(depth: int) -> str:
    return "\n" + _INDENT * min(depth, _DEEPEST_INDENT)


def _kind(word: str, after: str) -> str:
    if word in _MARKS:
        return ""
    if word.startswith('"'):
        return "key" if after == ":" else "str"
    return "lit" if word in ("true", "false", "null") else "num"


def _hex(content: bytes, note: str | None) -> tuple[list[TextPiece], str | None]:
    head = content[:HEX_BYTES]
    lines = []
    for at in range(0, len(head), 16):
        row = head[at : at + 16]
        ascii_ = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        lines.append(f"{at:08x}  {row[:8].hex(' '):23}  {row[8:].hex(' '):23}  {ascii_}")
    if len(content) > len(head):
        cut = f"Only the first {len(head) // 1024} KiB are shown."
        note = f"{note} {cut}" if note else cut
    return [TextPiece("\n".join(lines))], note


def as_content(content: bytes) -> tuple[str, str]:
    """Return a body as a string for JSON, and the encoding of the string: utf-8 or base64."""
    try:
        return content.decode(), "utf-8"
    except UnicodeDecodeError:
        return b64encode(content).decode(), "base64"


def from_content(content: str, encoding: str) -> bytes:
    """Return the body that ``content`` represents; raise ValueError if it is malformed base64."""
    if encoding == "utf-8":
        return content.encode()
    return b64decode(content, validate=True)
