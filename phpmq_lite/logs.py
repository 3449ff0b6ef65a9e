"""The log: structlog on standard error, JSON or console, with a limit for what peers can cause.

A line has ``event``, ``level``, ``ts``, ``area`` and what the call adds: client, queue,
message_id; never a body.  What a peer can cause as often as it likes asks first, with a short
name of ours::

    if not is_quiet("protocol_error"):
        log.warning("protocol_error", client=12, code="bad-framing")

Of each name 10 lines a minute are written; after a gap one line says how many were not.
"""

import logging
import os
import sys
import time
import unicodedata
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

LINES_A_MINUTE: Final = 10
_ESCAPED: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # control, invisible, half, line ends
_MULTILINE: Final = "exception"  # tracebacks keep their line ends


class RateLimit:
    """Lets ``limit`` lines of a kind through per ``window_s``, and counts the others.

    Kinds are few and ours, never a peer's text: they are not forgotten.
    """

    __slots__ = ("_kinds", "_limit", "_window_s")

    def __init__(self, limit: int = LINES_A_MINUTE, window_s: float = 60.0) -> None:
        self._limit = limit
        self._window_s = window_s
        self._kinds: dict[str, tuple[float, int]] = {}  # kind -> (start of its window, lines)

    def take(self, kind: str, now_s: float) -> tuple[bool, int]:
        """Count a line; tell whether it may be written, and how many before it were not.

        ``now_s`` is monotonic.  The second number is above 0 for the first line of a window only.
        """
        start_s, lines = self._kinds.get(kind, (now_s, 0))
        not_shown = 0
        if now_s - start_s >= self._window_s:
            not_shown = max(lines - self._limit, 0)
            start_s, lines = now_s, 0
        self._kinds[kind] = (start_s, lines + 1)
        return lines < self._limit, not_shown


_peers = RateLimit()


def is_quiet(kind: str) -> bool:
    """Tell whether a line that a peer caused stays out of the log, for it had ten a minute."""
    is_written, not_shown = _peers.take(kind, time.monotonic())
    if not_shown:
        get_logger(__name__).warning("lines_not_shown", kind=kind, count=not_shown)
    return not is_written


def escape(text: str) -> str:
    r"""Write control, invisible and direction characters as ``\x1b`` or ``\u202e``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        ascii(char)[1:-1] if unicodedata.category(char) in _ESCAPED else char for char in text
    )


def _escape_value(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, bytes):
        return escape(value.decode("utf-8", "backslashreplace"))
    if isinstance(value, dict):
        return {_escape_value(key): _escape_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_escape_value(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return escape(str(value))


def _escape_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if key == _MULTILINE and isinstance(value, str):
            event[key] = "\n".join(map(escape, value.split("\n")))
        elif not key.startswith("_"):  # structlog's own
            event[key] = _escape_value(value)
    return event


def configure(
    level: str = "info",
    style: Literal["auto", "json", "console"] = "auto",
    stream: TextIO | None = None,
) -> None:
    """Send our log and that of the libraries to ``stream`` (standard error), once a process.

    Args:
        level: the least that is written: debug, info, warning or error.
        style: ``auto`` is console on a terminal, else JSON.
        stream: where to.
    """
    out = sys.stderr if stream is None else stream
    is_console = style == "console" or (style == "auto" and out.isatty())
    least = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        structlog.processors.format_exc_info,
        _escape_event,
    ]
    structlog.configure(
        processors=[*shared, _renderer(is_console, out)],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(file=out),
    )
    handler = logging.StreamHandler(out)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            _renderer(is_console, out),
        ],
    )
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=max(least, logging.WARNING), force=True)


def _renderer(is_console: bool, out: TextIO) -> Processor:
    if not is_console:
        return structlog.processors.JSONRenderer(ensure_ascii=False)
    return structlog.dev.ConsoleRenderer(
        colors=out.isatty() and not os.environ.get("NO_COLOR"),
        exception_formatter=structlog.dev.plain_traceback,
        timestamp_key="ts",
    )


def get_logger(name: str) -> FilteringBoundLogger:
    """Return a logger for a module (``__name__``); it follows a later ``configure()`` too."""
    logger: FilteringBoundLogger = structlog.get_logger(area=name.removeprefix("phpmq_lite."))
    return logger
