"""Create, encode and decode envelopes with strict checks; the trace that publishes continue."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from phpmq_lite.envelopes import indexed_fields, strict_json, verdict
from phpmq_lite.envelopes.verdict import EmptyListData
from phpmq_lite.errors import EnvelopeError as EnvelopeError

POINTER_CHARACTERS: Final = 200  # of a pointer in a message


def make(
    urn: str,
    data: Mapping[str, Any],
    queue: str = "default",
    *,
    trace_id: str | None = None,
    meta: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make an envelope with a new ``meta.id``; without a ``trace_id`` a new trace begins.

    Raises:
        EnvelopeError: the URN is blank, or ``meta`` has a reserved member.
    """
    from babelqueue.codec import EnvelopeCodec
    from babelqueue.exceptions import BabelQueueError

    for name, text in (("urn", urn), ("queue", queue), ("trace_id", trace_id)):
        if not isinstance(text, str) and not (name == "trace_id" and text is None):
            raise EnvelopeError(f"{name} is a {type(text).__name__}, not a text")
    if not isinstance(data, Mapping):
        raise EnvelopeError(f"/data is a {type(data).__name__}, not an object")
    try:
        return EnvelopeCodec.make(urn, data, queue=queue, trace_id=trace_id, meta=meta)
    except BabelQueueError as error:
        raise EnvelopeError(str(error)) from error


def from_message(message: Any, queue: str = "default") -> dict[str, Any]:
    """Make the envelope of an object with ``get_babel_urn`` and ``to_payload``.

    Its trace goes on where ``get_babel_trace_id`` gives one.

    Raises:
        EnvelopeError: as ``make``; a method is missing.
    """
    for name in ("get_babel_urn", "to_payload"):
        if not callable(getattr(message, name, None)):
            raise EnvelopeError(f"{type(message).__name__} has no method {name}")
    get_trace = getattr(message, "get_babel_trace_id", None)
    trace_id = get_trace() if callable(get_trace) else None
    return make(message.get_babel_urn(), message.to_payload(), queue=queue, trace_id=trace_id)


def encode(envelope: Mapping[str, Any]) -> bytes:
    """Write compact UTF-8; NaN, lone surrogates and what JSON has not are refused.

    So is what no consumer would handle, and what a producer may not write: outdated members, urn.

    Raises:
        EnvelopeError: the message names the member by its JSON pointer.
    """
    if not isinstance(envelope, Mapping):
        raise EnvelopeError(f"the envelope is a {type(envelope).__name__}, not an object")
    whole = dict(envelope)
    _refuse_unwritable(whole)
    for container, name in (*verdict.OUTDATED, ("", "urn")):
        target = whole.get(container) if container else whole
        if isinstance(target, dict) and name in target:
            pointer = f"/{container}/{name}" if container else f"/{name}"
            raise EnvelopeError(f"{pointer} is not written by producers")
    content = json.dumps(whole, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    problem = verdict.judge(content, "never").problem
    if problem is not None:
        raise EnvelopeError(f"{problem.pointer or '/'}: {problem.reason}: {problem.detail}")
    return content


_Path = tuple["_Path", object] | None  # the way to a value: that to what holds it, its name there


def _refuse_unwritable(root: dict[str, Any]) -> None:
    """Raise for a value that JSON has not, or that not every parser reads; no recursion."""
    waiting: list[tuple[Any, _Path, int]] = [(root, None, 1)]
    while waiting:
        value, path, level = waiting.pop()
        if isinstance(value, str):
            _refuse_half_pairs(value, path)
        elif isinstance(value, dict | list | tuple):
            if level > verdict.DEPTH_LIMIT:  # a value that holds itself ends here too
                raise EnvelopeError(f"{_pointer(path)}: more than {verdict.DEPTH_LIMIT} levels")
            for name, item in value.items() if isinstance(value, dict) else enumerate(value):
                if isinstance(value, dict):
                    if not isinstance(name, str):
                        raise EnvelopeError(f"{_pointer(path)} has the name {name!r}, not a text")
                    _refuse_half_pairs(name, (path, name))
                waiting.append((item, (path, name), level + 1))
        elif isinstance(value, float):
            if value - value != 0.0:
                raise EnvelopeError(f"{_pointer(path)} is {value}, which JSON has not")
        elif isinstance(value, int):
            if value.bit_length() > 1024:
                raise EnvelopeError(f"{_pointer(path)} is an integer beyond every double")
        elif value is not None:
            raise EnvelopeError(f"{_pointer(path)} is a {type(value).__name__}, which JSON has not")


def _refuse_half_pairs(text: str, path: _Path) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise EnvelopeError(f"{_pointer(path)} has half of a surrogate pair") from None


def _pointer(path: _Path) -> str:
    """Write a path as RFC 6901 has it; of a long one only the begin."""
    names: list[str] = []
    while path is not None:
        path, name = path
        names.append(str(name).replace("~", "~0").replace("/", "~1"))
    pointer = "".join(f"/{name}" for name in reversed(names)) or "/"
    return pointer[:POINTER_CHARACTERS].encode("utf-8", "replace").decode()


def decode(content: bytes | str, empty_list_data: EmptyListData = "php") -> dict[str, Any]:
    """Read an envelope that layers A and B accept: ``urn`` folded into ``job``, all else kept.

    Outdated members are dropped, a tolerated ``data: []`` is read as ``{}``.

    Raises:
        EnvelopeError: the message has the reason of the verdict.
    """
    from babelqueue.codec import EnvelopeCodec

    content = strict_json.to_bytes(content)
    found = verdict.judge(content, empty_list_data)
    if found.problem is not None:
        where = f" at {found.problem.pointer}" if found.problem.pointer else ""
        raise EnvelopeError(f"{found.problem.reason}{where}: {found.problem.detail}")
    envelope: dict[str, Any] = EnvelopeCodec.decode(content.decode())
    if found.is_tolerated:
        envelope["data"] = {}
    return envelope


def urn(envelope: Mapping[str, Any]) -> str:
    """Return the URN of a decoded envelope: ``job``, else its alias ``urn``; empty without both.

    A member that is blank or no text does not count.

    Raises:
        EnvelopeError: ``envelope`` is not a mapping; decode a body first.
    """
    if not isinstance(envelope, Mapping):
        raise EnvelopeError(f"the envelope is a {type(envelope).__name__}, not an object")
    for name in ("job", "urn"):
        value = envelope.get(name)
        if isinstance(value, str) and not indexed_fields.is_blank(value):
            return value
    return ""


_current: ContextVar[str | None] = ContextVar("phpmq_lite_trace_id", default=None)


@contextmanager
def continue_trace(envelope: Mapping[str, Any]) -> Iterator[None]:
    """Have publishes inside continue the envelope's trace, unless they name another.

    A context variable: tasks and ``run_coroutine_threadsafe`` inherit it, new threads do not.
    """
    found = envelope.get("trace_id")
    token = _current.set(found if isinstance(found, str) else None)
    try:
        yield
    finally:
        _current.reset(token)


def current_trace_id() -> str | None:
    """Return the trace_id of the envelope that is being handled here; None outside."""
    return _current.get()
