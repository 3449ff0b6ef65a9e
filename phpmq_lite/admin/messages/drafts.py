"""Pure functions that check the publish form's text and build message bodies from it."""

import json
import re
from base64 import b64decode, encodebytes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from phpmq_lite.admin.http.problems import Problem, invalid

KINDS: Final = ("json", "text", "base64")  # format of the form's text: JSON, plain text or base64
_PLACEHOLDER: Final = re.compile(r"\{\{\s*(uuid|now_ms|n)\s*\}\}")
_BLANK: Final = " \t\n\x0b\x0c\r"  # a URN with only these characters is blank


@dataclass(slots=True, frozen=True)
class DraftError:
    """A JSON error and its position; line and column numbers start at 1."""

    line: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.text}"


def check_json(text: str) -> DraftError | None:
    """Return the first JSON error, or None if the text is standard JSON.

    Numbers are not evaluated.
    """

    def refuse(name: str) -> NoReturn:
        raise json.JSONDecodeError(f"{name} is not allowed in JSON", text, text.find(name))

    try:
        json.loads(text, parse_constant=refuse, parse_int=str, parse_float=str)
    except json.JSONDecodeError as error:
        return DraftError(error.lineno, error.colno, error.msg)
    except RecursionError:
        return DraftError(1, 1, "Nested too deeply")
    return None


def fill_placeholders(text: str, number: int, now_ms: int, new_uuid: Callable[[], str]) -> str:
    """Fill in ``{{n}}`` and ``{{now_ms}}``, and replace each ``{{uuid}}`` with a new UUID."""
    values = {"now_ms": lambda: str(now_ms), "n": lambda: str(number), "uuid": new_uuid}
    return _PLACEHOLDER.sub(lambda placeholder: values[placeholder[1]](), text)


def make_bodies(
    text: str, kind: str, count: int, now_ms: int, new_uuid: Callable[[], str], *, is_filled: bool
) -> list[bytes]:
    """Build the bodies from the form's text; raise a 422 ``Problem`` if it is not valid."""
    if kind == "base64":
        try:
            return [b64decode("".join(text.split()), validate=True)] * count
        except ValueError:
            detail = "The body is not valid base64."
            bound = "A to Z, a to z, 0 to 9, + and /, padded with ="
            raise Problem(422, "not_base64", detail, field="body", bound=bound) from None
    texts = [text]
    if is_filled and _PLACEHOLDER.search(text):
        texts = [fill_placeholders(text, at + 1, now_ms, new_uuid) for at in range(count)]
    for body in texts:
        if kind == "json" and (error := check_json(body)) is not None:
            detail, bound = f"The body is not valid JSON: {error}.", "JSON, or choose the type text"
            raise Problem(422, "not_json", detail, field="body", bound=bound)
    bodies = [body.encode() for body in texts]
    return bodies if len(bodies) == count else bodies * count


def envelope_text(urn: str, data: str, queue: str) -> str:
    """Return an envelope with placeholders; raise a 422 ``Problem`` for its URN or data."""
    urn = urn.strip(_BLANK)
    if not urn:
        raise invalid("An envelope requires a URN.", "urn", "some text")
    data, bound = data.strip() or "{}", "a JSON object"
    if (error := check_json(data)) is not None:
        detail = f"The data is not valid JSON: {error}."
        raise Problem(422, "not_json", detail, field="data", bound=bound)
    if not data.startswith("{"):
        raise invalid("The data is not a JSON object.", "data", bound)
    indented = data.replace("\n", "\n  ")
    return (
        "{\n"
        f'  "job": {json.dumps(urn, ensure_ascii=False)},\n'
        '  "trace_id": "{{uuid}}",\n'
        f'  "data": {indented},\n'
        '  "meta": {\n'
        '    "id": "{{uuid}}",\n'
        f'    "queue": {json.dumps(queue, ensure_ascii=False)},\n'
        '    "lang": "python",\n'
        '    "schema_version": 1,\n'
        '    "created_at": {{now_ms}}\n'
        "  },\n"
        '  "attempts": 0\n'
        "}"
    )


def as_form_text(content: bytes) -> tuple[str, str]:
    """Return a pair: the body as text that a form submits unchanged, and the kind of that text.

    Bodies that a browser's text field would change, because they contain carriage returns or other
    control characters, are returned as base64.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or re.search("[\x00-\x08\x0b-\x1f\x7f]", text):
        return encodebytes(content).decode(), "base64"
    is_json = text.lstrip().startswith(("{", "[")) and check_json(text) is None
    return text, "json" if is_json else "text"
