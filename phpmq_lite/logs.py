"""Logging to standard error with structlog, as JSON or console text, with a limit per event.

A line has ``event``, ``level``, ``ts``, ``area`` and the fields of the call.  Standard fields are
named request_id, client, queue, message_id and trace_id; a body is never logged.  Before logging an
event that peers can cause at any rate, code checks the limit, using a fixed name::

    if not is_quiet("protocol_error"):
        log.warning("protocol_error", client=12, code="bad-framing")

For each name, up to 10 lines per minute are written; a later line counts the suppressed ones.

The newest lines are also kept in memory, in ``recent``, for the admin.  Lines with the area
``access``, one per HTTP request if ``log.access`` is set, are not kept.
"""

import json
import logging
import os
import sys
import threading
import time
import unicodedata
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, Literal, TextIO, cast

from phpmq_lite.standard_streams import GuardedOutput

# If rich is installed, structlog imports all of it to draw tracebacks, which we do not use.
# An entry of None hides rich; this saves a tenth of the startup time and 5 MB of memory.
_absent = {"rich": None} if "rich" not in sys.modules else {}
sys.modules.update(_absent)  # type: ignore[arg-type]
try:
    import structlog
    from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger
finally:
    for _name in _absent:
        del sys.modules[_name]

LINES_A_MINUTE: Final = 10
ACCESS: Final = "access"  # value of ``area`` in access log lines
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
RECENT_LINES: Final = 1_000
RECENT_BYTES: Final = 1 << 20  # maximum total size of lines kept in memory
LINE_BYTES: Final = 8 << 10  # longer texts in kept lines, such as tracebacks, are truncated
_ESCAPED: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # control, format, surrogate, separator
_SECRET: Final = frozenset({"token"})  # shown only on a terminal, and never kept in memory
_MULTILINE: Final = "exception"  # line breaks in this field are not escaped


class RateLimit:
    """Limits each kind of line to ``limit`` lines per ``window_s``, and counts the excess lines.

    Kinds are never evicted, so they must be a few fixed names, never text from a peer.
    """

    __slots__ = ("_kinds", "_limit", "_window_s")

    def __init__(self, limit: int = LINES_A_MINUTE, window_s: float = 60.0) -> None:
        self._limit = limit
        self._window_s = window_s
        self._kinds: dict[str, tuple[float, int]] = {}  # kind -> (window start, lines)

    def count(self, kind: str, now_s: float) -> tuple[bool, int]:
        """Count a line; return whether to write it, and how many lines were suppressed earlier.

        ``now_s`` is monotonic time.  The second value is above 0 only for a window's first line.
        """
        start_s, lines = self._kinds.get(kind, (now_s, 0))
        not_shown = 0
        if now_s - start_s >= self._window_s:
            not_shown = max(lines - self._limit, 0)
            start_s, lines = now_s, 0
        self._kinds[kind] = (start_s, lines + 1)
        return lines < self._limit, not_shown


_peers = RateLimit()


@dataclass(slots=True, frozen=True)
class LogLine:
    """One log line."""

    number: int  # sequence number; the process's first line is 1
    ts: str
    level: str
    area: str
    event: str
    fields: str  # the other fields, such as "client=12 code=bad-framing"
    detail: str = ""  # traceback, or empty if there is none

    @property
    def size(self) -> int:
        """The approximate size of the line in bytes."""
        return len(self.event) + len(self.fields) + len(self.detail) + 100


class RecentLogLines:
    """A thread-safe buffer of the newest log lines, oldest first, limited in number and size."""

    def __init__(self, lines: int = RECENT_LINES, size: int = RECENT_BYTES) -> None:
        self._limit = lines
        self._limit_bytes = size
        self._lines: deque[LogLine] = deque()
        self._bytes = 0
        self._number = 0
        self._lock = threading.Lock()

    def add(self, event: EventDict) -> None:
        """Add a line, with long texts truncated; evict the oldest lines if a limit is exceeded."""
        separate = {"event", "ts", "level", "area", _MULTILINE}
        fields = " ".join(
            f"{key}={value if isinstance(value, str) else json.dumps(value, default=str)}"
            for key, value in event.items()
            if key not in separate and key not in _SECRET and not key.startswith("_")
        )
        with self._lock:
            self._number += 1
            line = LogLine(
                self._number,
                str(event.get("ts", "")),
                str(event.get("level", "info")),
                str(event.get("area") or getattr(event.get("_record"), "name", "")),
                _cut(str(event.get("event", ""))),
                _cut(fields),
                _cut(str(event.get(_MULTILINE, ""))),
            )
            self._lines.append(line)
            self._bytes += line.size
            while len(self._lines) > self._limit or self._bytes > self._limit_bytes:
                self._bytes -= self._lines.popleft().size

    def lines(self, least: str = "debug") -> list[LogLine]:
        """Return the log lines at level ``least`` or above, newest first."""
        levels = LEVELS[LEVELS.index(least) :]
        with self._lock:
            lines = [line for line in self._lines if line.level in levels]
        return lines[::-1]


def _cut(text: str) -> str:
    return text if len(text) <= LINE_BYTES else text[:LINE_BYTES] + "…"


recent: Final = RecentLogLines()


def is_quiet(kind: str) -> bool:
    """Count a line of this kind; return True if ten such lines were already written this minute."""
    is_written, not_shown = _peers.count(kind, time.monotonic())
    if not_shown:
        get_logger(__name__).warning("lines_not_shown", kind=kind, count=not_shown)
    return not is_written


def escape(text: str) -> str:
    r"""Escape control, invisible and bidirectional characters as ``\x1b``, for example."""
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
        elif not key.startswith("_"):  # names that begin with an underscore belong to structlog
            event[key] = _escape_value(value)
    return event


class _LogFile:
    """A stream for log lines, whose failures are counted; standard error also never blocks."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        output = getattr(stream, "buffer", None)
        self._output = output if isinstance(output, GuardedOutput) else None
        self._dropped = 0
        if self._output is not None:
            self._output.on_resumed = self._report

    @property
    def dropped(self) -> int:
        return self._dropped if self._output is None else self._output.dropped

    def write(self, text: str) -> None:
        if self._output is not None:  # flushing, which the text stream does, would wait
            encoding = self._stream.encoding or "utf-8"
            self._output.write(text.encode(encoding, "backslashreplace"))
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._dropped += 1

    def flush(self) -> None:
        """Do nothing, because ``write`` has done what is possible without waiting."""

    @staticmethod
    def _report(lines: int) -> None:
        get_logger(__name__).warning("lines_not_written", count=lines)


_file = _LogFile(sys.stderr)


def dropped_lines() -> int:
    """Return how many log lines could not be written since the start."""
    return _file.dropped


def _remember(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    if event.get("area") != ACCESS:
        recent.add(event)
    return event


def configure(
    level: str = "info",
    style: Literal["auto", "json", "console"] = "auto",
    stream: TextIO | None = None,
) -> None:
    """Send our logs and those of libraries to ``stream``; must be called only once.

    A stream that is closed, full or not read loses lines, which ``dropped_lines`` counts.

    Args:
        level: lowest level to write: debug, info, warning or error.
        style: ``auto`` means console on a terminal, else JSON.
        stream: where to write; None means standard error.
    """
    global _file
    output = sys.stderr if stream is None else stream
    _file = _LogFile(output)
    is_console = style == "console" or (style == "auto" and output.isatty())
    lowest = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        structlog.processors.format_exc_info,
        _escape_event,
        _remember,
    ]
    structlog.configure(
        processors=[*shared, _renderer(is_console, output)],
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _file)),
    )
    handler = logging.StreamHandler(_file)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            _renderer(is_console, output),
        ],
    )
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=max(lowest, logging.WARNING), force=True)


def set_level(level: str) -> None:
    """Change the lowest level that is written, even for existing loggers."""
    lowest = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(lowest))
    logging.getLogger().setLevel(max(lowest, logging.WARNING))


def _renderer(is_console: bool, output: TextIO) -> Processor:
    if not is_console:
        return structlog.processors.JSONRenderer(ensure_ascii=False)
    return structlog.dev.ConsoleRenderer(
        colors=output.isatty() and not os.environ.get("NO_COLOR"),
        exception_formatter=structlog.dev.plain_traceback,
        timestamp_key="ts",
    )


def get_logger(name: str) -> FilteringBoundLogger:
    """Return a logger for a module (``__name__``), which a later ``configure()`` also affects."""
    logger: FilteringBoundLogger = structlog.get_logger(area=name.removeprefix("phpmq_lite."))
    return logger
