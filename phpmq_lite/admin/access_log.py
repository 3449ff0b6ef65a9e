"""What is noted of every answer: the counts for the metrics, and a line where they are wanted."""

from typing import Final

from aiohttp import web

from phpmq_lite import logs
from phpmq_lite.admin.access.identity import address_of, identity_of
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.render import REQUEST_ID, ROUTE_NAME

_STREAM: Final = "text/event-stream"
_log = logs.get_logger(f"phpmq_lite.{logs.ACCESS}")


def note_answer(request: web.Request, response: web.StreamResponse, seconds: float) -> None:
    """Count an answer, and log it where ``log.access`` is set.

    The line has the path without its query: what people search for is nobody's business.
    """
    context = context_of(request)
    route = request.get(ROUTE_NAME, "other")
    is_stream = response.content_type == _STREAM
    context.http.add(route, request.method, response.status, None if is_stream else seconds)
    if context.settings.log.access:
        _log.info(
            "request",
            method=request.method,
            path=request.path,
            status=response.status,
            bytes=response.body_length if response.prepared else response.content_length,
            ms=round(seconds * 1_000, 1),
            address=address_of(request),
            actor=identity_of(request).actor,
            request_id=request.get(REQUEST_ID, ""),
        )
