"""The settings in force over HTTP."""

from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict

from phpmq_lite import settings
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import OutputFormat


class ConfigQuery(BaseModel):
    """How to give the list."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: OutputFormat = "json"


class SettingOut(BaseModel):
    """One setting in force."""

    setting: str
    value: Any  # sizes in bytes
    text: str  # as it may stand in the environment
    default: str
    source: str  # flag, environment NAME, file PATH, default
    help: str
    bounds: str


class ConfigOut(BaseModel):
    """All settings in force."""

    items: list[SettingOut]
    next: None = None


async def config(request: web.Request) -> web.StreamResponse:
    """List the settings in force with the source of each; secrets are masked."""
    query = query_of(request, ConfigQuery)
    return as_data(query.format, SettingOut, settings_in_force(request))


def settings_in_force(request: web.Request) -> list[SettingOut]:
    """Give every setting with its value and where that comes from."""
    context = context_of(request)
    return [
        SettingOut(
            setting=name,
            value=settings.as_json(value),
            text=settings.as_text(value),
            default=settings.as_text(settings.SETTINGS[name].default),
            source=context.sources.get(name, "default"),
            help=settings.SETTINGS[name].help,
            bounds=settings.SETTINGS[name].bounds,
        )
        for name, value in settings.all_values(context.settings).items()
    ]


ROUTES: Final = (
    Route(
        "GET", "/api/v1/config", Role.ADMIN, "api-config", config,
        query=ConfigQuery, gives=ConfigOut, cli="config show",
    ),
)  # fmt: skip
