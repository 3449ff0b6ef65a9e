"""The objects that every handler needs, created once per application."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from phpmq_lite.admin.http.browser_sessions import BrowserSessions
from phpmq_lite.admin.http.live_feeds import LiveFeeds
from phpmq_lite.admin.http.memory import HttpMemory
from phpmq_lite.admin.http.route import Route
from phpmq_lite.admin.http.templates import PageTemplates
from phpmq_lite.admin.urls import Urls
from phpmq_lite.server.maintenance import Maintenance
from phpmq_lite.server.rollups import Rollups
from phpmq_lite.server.status import BrokerHandle
from phpmq_lite.settings import Settings
from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.storage.read.messages import MessageReader
from phpmq_lite.storage.read.read_pool import Readers
from phpmq_lite.storage.search.reader import Search


@dataclass(slots=True)
class Context:
    """The components that all handlers of an admin application share."""

    app: web.Application  # has the state of each slice under a ``web.AppKey``
    broker: BrokerHandle
    readers: Readers  # read-only database connections
    reader: MessageReader
    search: Search  # uses its own database connection
    settings: Settings
    sources: Mapping[str, str]  # where each setting's value came from
    urls: Urls
    routes: tuple[Route, ...]
    templates: PageTemplates
    memory: HttpMemory  # for large requests and responses; its size is a setting
    version: str
    is_ready: Callable[[], bool]
    now_ms: Callable[[], int]  # returns the time in Unix ms
    layout: Callable[[Any], dict[str, Any]]  # returns what the layout of each page needs of a call
    sessions: BrowserSessions = field(default_factory=BrowserSessions)
    rollups: Rollups = field(default_factory=Rollups)  # statistics for the last hour
    maintenance: Maintenance | None = None  # backups and scrubs; None until the broker is ready
    live: LiveFeeds = field(default_factory=LiveFeeds)  # open streams and waiting requests

    @property
    def database(self) -> Path:
        """Path of the database file of a broker that stores in SQLite."""
        return self.settings.data / DATABASE


CONTEXT: Final = web.AppKey("context", Context)
