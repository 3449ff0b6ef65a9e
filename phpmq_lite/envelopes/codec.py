"""Create, encode and decode envelopes with strict checks, and continue traces."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from phpmq_lite.envelopes import indexed_fields, strict_json, validation
from phpmq_lite.envelopes.validation import EmptyListData
from phpmq_lite.errors import EnvelopeError as EnvelopeError


def make(
    urn: str,
    data: Mapping[str, Any],
    queue: str = "default",
    *,
    trace_id: str | None = None,
    meta: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return an envelope with a new ``meta.id``; start a new trace unless ``trace_id`` is given.

    Raises:
        EnvelopeError: the URN is blank, or ``meta`` has a reserved member.
    """
    from babelqueue.codec import EnvelopeCodec
    from babelqueue.exceptions import BabelQueueError

    for name, text in (("urn", urn), ("queue", queue), ("trace_id", trace_id)):
        if not isinstance(text, str) and not (name == "trace_id" and text is None):
            raise EnvelopeError(f"{name} must be a string, not {type(text).__name__}")
    if not isinstance(data, Mapping):
        raise EnvelopeError(f"/data must be a mapping, not {type(data).__name__}")
    try:
        return EnvelopeCodec.make(urn, data, queue=queue, trace_id=trace_id, meta=meta)
    except BabelQueueError as error:
        raise EnvelopeError(str(error)) from error


def from_message(
    message: Any, queue: str = "default", *, inherited_trace_id: str | None = None
) -> dict[str, Any]:
    """Return an envelope for an object that has ``get_babel_urn`` and ``to_payload``.

    The envelope continues the trace from ``get_babel_trace_id``, or else the inherited trace.

    Raises:
        EnvelopeError: as in ``make``, or a method is missing.
    """
    for name in ("get_babel_urn", "to_payload"):
        if not callable(getattr(message, name, None)):
            raise EnvelopeError(f"{type(message).__name__} has no method {name}")
    get_trace = getattr(message, "get_babel_trace_id", None)
    trace_id = get_trace() if callable(get_trace) else None
    if trace_id is None or (isinstance(trace_id, str) and indexed_fields.is_blank(trace_id)):
        trace_id = inherited_trace_id
    return make(message.get_babel_urn(), message.to_payload(), queue=queue, trace_id=trace_id)


def encode(envelope: Mapping[str, Any]) -> bytes:
    """Encode an envelope as compact UTF-8.

    NaN, lone surrogates and values that JSON cannot represent are errors. So are envelopes that no
    consumer would handle and members that a producer must not write (outdated ones and ``urn``).

    Raises:
        EnvelopeError: the message names the member by its JSON pointer.
    """
    if not isinstance(envelope, Mapping):
        raise EnvelopeError(f"the envelope must be a mapping, not {type(envelope).__name__}")
    copy = dict(envelope)
    _check_values(copy)
    for container, name in (*validation.OUTDATED, ("", "urn")):
        target = copy.get(container) if container else copy
        if isinstance(target, dict) and name in target:
            pointer = f"/{container}/{name}" if container else f"/{name}"
            raise EnvelopeError(f"{pointer} must not be written by producers")
    content = json.dumps(copy, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    problem = validation.validate(content, "never").problem
    if problem is not None:
        raise EnvelopeError(f"{problem.pointer or '/'}: {problem.reason}: {problem.detail}")
    return content


_Path = tuple["_Path", object] | None  # (path of the container, name or index in the container)


def _check_values(root: dict[str, Any]) -> None:
    """Raise an error if JSON cannot represent a value or if some parsers would reject it."""
    pending: list[tuple[Any, _Path, int]] = [(root, None, 1)]
    while pending:
        value, path, level = pending.pop()
        if isinstance(value, str):
            _check_surrogates(value, path)
        elif isinstance(value, dict | list | tuple):
            if level > validation.DEPTH_LIMIT:  # also stops at a value that contains itself
                detail = f"nested more than {validation.DEPTH_LIMIT} levels deep"
                raise EnvelopeError(f"{_pointer(path)} is {detail}")
            for name, item in value.items() if isinstance(value, dict) else enumerate(value):
                if isinstance(value, dict):
                    if not isinstance(name, str):
                        raise EnvelopeError(
                            f"{_pointer(path)} has a member name that is not a string: {name!r}"
                        )
                    _check_surrogates(name, (path, name))
                pending.append((item, (path, name), level + 1))
        elif isinstance(value, float):
            if value - value != 0.0:
                raise EnvelopeError(f"{_pointer(path)} is {value}, which JSON cannot represent")
        elif isinstance(value, int):
            if value.bit_length() > 1024:
                raise EnvelopeError(f"{_pointer(path)} is an integer beyond the range of a double")
        elif value is not None:
            raise EnvelopeError(
                f"{_pointer(path)} is a {type(value).__name__}, which JSON cannot represent"
            )


def _check_surrogates(text: str, path: _Path) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise EnvelopeError(f"{_pointer(path)} contains a lone surrogate") from None


def _pointer(path: _Path) -> str:
    """Return a path as a JSON pointer (RFC 6901), truncated if it is long."""
    names: list[str] = []
    while path is not None:
        path, name = path
        names.append(strict_json.child_pointer("", str(name)))
    pointer = "".join(reversed(names)) or "/"
    return pointer[: strict_json.POINTER_CHARACTERS].encode("utf-8", "replace").decode()


def decode(content: bytes | str, empty_list_data: EmptyListData = "php") -> dict[str, Any]:
    """Decode an envelope after validating layers A and B; rename ``urn`` to ``job``.

    Outdated members are dropped, and ``data: []`` becomes ``{}`` if ``empty_list_data`` accepts it.
    All other members are kept.

    Raises:
        EnvelopeError: the envelope is invalid; the message contains the reason.
    """
    from babelqueue.codec import EnvelopeCodec

    content = strict_json.to_bytes(content)
    result = validation.validate(content, empty_list_data)
    if result.problem is not None:
        location = f" at {result.problem.pointer}" if result.problem.pointer else ""
        raise EnvelopeError(f"{result.problem.reason}{location}: {result.problem.detail}")
    envelope: dict[str, Any] = EnvelopeCodec.decode(content.decode())
    if result.is_tolerated:
        envelope["data"] = {}
    return envelope


def urn(envelope: Mapping[str, Any]) -> str:
    """Return the URN of a decoded envelope: ``job``, its alias ``urn``, or an empty string.

    Blank members and members that are not strings are ignored.

    Raises:
        EnvelopeError: ``envelope`` is not a mapping; decode the body first.
    """
    if not isinstance(envelope, Mapping):
        raise EnvelopeError(f"the envelope must be a mapping, not {type(envelope).__name__}")
    for name in ("job", "urn"):
        value = envelope.get(name)
        if isinstance(value, str) and not indexed_fields.is_blank(value):
            return value
    return ""


_current: ContextVar[str | None] = ContextVar("phpmq_lite_trace_id", default=None)


@contextmanager
def continue_trace(envelope: Mapping[str, Any]) -> Iterator[None]:
    """Within the block, published envelopes continue this envelope's trace by default.

    The trace id is kept in a context variable: tasks and ``run_coroutine_threadsafe`` inherit it,
    but new threads do not.
    """
    trace_id = envelope.get("trace_id")
    token = _current.set(trace_id if isinstance(trace_id, str) else None)
    try:
        yield
    finally:
        _current.reset(token)


def current_trace_id() -> str | None:
    """Return the ``trace_id`` of the envelope being handled, or None outside a handler."""
    return _current.get()
