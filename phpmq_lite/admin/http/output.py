"""Turns what a handler returns into a response."""

from typing import Any, get_args

from aiohttp import web

from phpmq_lite.admin.http.responses import json_response, list_response


def respond(result: Any, format_: str = "json", status: int = 200) -> web.StreamResponse:
    """Return a result as JSON, a list as JSON lines or CSV, and None as an empty response."""
    if isinstance(result, web.StreamResponse):
        return result
    if result is None:
        return web.Response(status=status)
    if format_ in ("jsonl", "csv"):
        [model] = get_args(type(result).model_fields["items"].annotation)
        return list_response(format_, model, result.items, result.next)
    return json_response(result, status)
