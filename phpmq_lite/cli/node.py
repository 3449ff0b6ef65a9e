"""Talks to a running broker: HTTP over ``control.sock`` in its data folder, or to a URL."""

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import aiohttp
import click
from yarl import URL

from phpmq_lite.cli.main import ERROR, NOT_FOUND, REFUSED, TIMED_OUT, CommandError
from phpmq_lite.cli.options import data_option, load_settings, settings_options
from phpmq_lite.logs import escape

_EXIT_CODES: Final = {404: NOT_FOUND, 410: NOT_FOUND, 408: TIMED_OUT, 504: TIMED_OUT}
_REFUSALS: Final = {401, 403, 409, 412, 413, 421, 422, 429, 503, 507}
_PAGE: Final = 200  # the API's limit
_TIMEOUT_S: Final = 600.0  # a purge of millions goes in slices


class Node(NamedTuple):
    """Where the broker is; one of both is set."""

    socket: Path | None
    url: str = "http://localhost"

    def list(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the items of a list, page by page."""
        cursor = None
        while True:
            query = {"limit": _PAGE} | ({"cursor": cursor} if cursor else {})
            page = asyncio.run(self._request("GET", f"{path}?{urlencode(query)}", None))
            yield from page["items"]
            cursor = page.get("next")
            if not cursor:
                return

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Ask for an action and wait until it is stored."""
        return asyncio.run(self._request("POST", path, body))

    async def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        base = self.url.rstrip("/")
        connector = aiohttp.UnixConnector(path=str(self.socket)) if self.socket else None
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        headers = {"Origin": base} if body is not None else {}
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.request(
                    method, URL(base + path, encoded=True), json=body, headers=headers
                ) as response,
            ):
                return read_answer(response.status, await response.read())
        except TimeoutError:
            raise CommandError(f"no answer within {_TIMEOUT_S:.0f} s", TIMED_OUT) from None
        except aiohttp.ClientConnectorError as error:
            raise CommandError(f"{self._nobody()}: {error.strerror}") from None
        except (aiohttp.ClientError, ValueError) as error:
            raise CommandError(f"{self.socket or self.url}: {error}") from None

    def _nobody(self) -> str:
        if self.socket is None:
            return f"no broker answers on {self.url}"
        return f"no broker answers on {self.socket} (--data names its folder, --node its URL)"


def read_answer(status: int, content: bytes) -> Any:
    """Give the document of an answer, or raise what its problem means here."""
    try:
        document = json.loads(content) if content else None
    except ValueError:
        document = None
    if status < 300:
        if content and document is None:
            raise CommandError(f"the broker answered {status} without JSON")
        return document
    problem = document if isinstance(document, dict) else {}
    text = problem.get("detail") or problem.get("title") or f"the broker answered {status}"
    code = REFUSED if status in _REFUSALS else _EXIT_CODES.get(status, ERROR)
    raise CommandError(escape(str(text)), code)


def node_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--data``, ``--config``, ``--set`` and ``--node``; the command gets a ``node``."""

    @wraps(command)
    def find_first(
        data: Path | None,
        config: Path | None,
        assignments: tuple[tuple[str, str], ...],
        url: str | None,
        **others: Any,
    ) -> None:
        command(node=_find(data, config, assignments, url), **others)

    node = click.option("--node", "url", metavar="URL", help="The admin's address, not the socket.")
    return node(data_option(settings_options(find_first)))


def _find(
    data: Path | None,
    config: Path | None,
    assignments: tuple[tuple[str, str], ...],
    url: str | None,
) -> Node:
    if url:
        return Node(None, url)
    effective = load_settings(config, assignments, data=data)
    return Node(effective.settings.data / "control.sock")
