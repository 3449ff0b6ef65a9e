"""Cancels and reschedules messages by their unique keys, over the broker's HTTP API."""

import json
import ssl
from datetime import datetime
from http.client import HTTPException
from typing import Any, Final

from phpmq_lite.admin.urls import encode_name
from phpmq_lite.errors import ClientError, ConnectionLostError
from phpmq_lite.http_client import HttpClient, HttpRequest

_NONE: Final = ("unknown_unique_key", "unknown_queue")


class Admin:
    """The admin of a broker, by its URL; ``token`` is that of a user who may operate the queues.

    Both methods return whether there was a message, and wait until the change is stored.

    Raises:
        ClientError: nothing was changed: a consumer holds the message, or the broker refuses it.
        ConnectionLostError: the message may or may not be changed.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:9101",
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ClientError(f"the URL is {url}; it must begin with http:// or https://")
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._url = url
        self._http = HttpClient(url, headers, tls=tls, timeout_s=timeout_s)

    def cancel(self, queue: str, unique_key: str) -> bool:
        """Delete the live message with a unique key."""
        return self._post(queue, "cancel", {"unique_key": unique_key})

    def reschedule(
        self,
        queue: str,
        unique_key: str,
        *,
        delay_s: float = 0,
        deliver_at: datetime | int | str | None = None,
    ) -> bool:
        """Set when the live message with a unique key is ready; without a time, now."""
        if deliver_at is None and not delay_s:
            delay_s = 0.001  # a date would wait for a clock that is in doubt
        at = deliver_at.isoformat() if isinstance(deliver_at, datetime) else deliver_at
        form = {"unique_key": unique_key, "delay_s": delay_s, "deliver_at": at}
        return self._post(queue, "reschedule", form)

    def _post(self, queue: str, action: str, form: dict[str, Any]) -> bool:
        path = f"/api/v1/queues/{encode_name(queue)}/{action}"
        content = json.dumps({name: value for name, value in form.items() if value is not None})
        request = HttpRequest("POST", path, content=content.encode(), is_repeatable=False)
        try:
            with self._http.send(request) as response:
                status, answer = response.status, response.read()
        except (OSError, HTTPException) as error:
            raise ConnectionLostError(f"{self._url}: {error}") from None
        if status == 200:
            return True
        try:
            problem = json.loads(answer)
            code, detail = problem["code"], problem["detail"]
        except (ValueError, TypeError, KeyError):
            code, detail = "", f"the answer has status {status} and is not that of a broker's admin"
        if code in _NONE:
            return False
        raise ClientError(f"{self._url}: {detail}")
