"""Users over HTTP; passwords come in, never out."""

from typing import Annotated, Final, Literal, Self

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from phpmq_lite.admin.access import people
from phpmq_lite.admin.access.identity import name_in
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data, as_json
from phpmq_lite.admin.requests import json_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.storage.read.accounts import User

RoleName = Literal["viewer", "operator", "admin"]
Globs = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=people.GLOB_LENGTH)]],
    Field(max_length=people.GLOBS),
]


class UserIn(BaseModel):
    """A user to make."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    password: SecretStr
    role: RoleName
    queues: Globs = Field([], description="globs of the queues they may see; empty: all")


class UserChange(BaseModel):
    """What to change; what is left out stays.  All sessions of the user end."""

    model_config = ConfigDict(extra="forbid", strict=True)

    password: SecretStr | None = None
    role: RoleName | None = None
    queues: Globs | None = None


class UserOut(BaseModel):
    """One user; times are Unix milliseconds."""

    name: str
    role: str
    queues: list[str]
    created_at: int
    last_login_at: int | None

    @classmethod
    def of(cls, user: User) -> Self:
        """Show what may be shown of a user."""
        return cls(
            name=user.name,
            role=user.role,
            queues=list(user.queues),
            created_at=user.created_at,
            last_login_at=user.last_login_at,
        )


class UsersOut(BaseModel):
    """All users."""

    items: list[UserOut]
    next: str | None = None


def users_out(request: web.Request) -> list[UserOut]:
    """Return the users by name, without those of queues that the caller may not use."""
    known = context_of(request).entrance.accounts.users.values()
    return [UserOut.of(user) for user in people.visible(request, known)]


async def users(request: web.Request) -> web.StreamResponse:
    """List the users."""
    return as_data("json", UserOut, users_out(request))


async def add(request: web.Request) -> web.StreamResponse:
    """Make a user."""
    asked = await json_of(request, UserIn)
    password = asked.password.get_secret_value()
    user = await people.add_user(request, asked.name, password, asked.role, asked.queues)
    return as_json(UserOut.of(user), status=201)


async def user(request: web.Request) -> web.StreamResponse:
    """Give one user."""
    name = name_in(request, "name")
    return as_json(UserOut.of(people.visible_user(request, name)))


async def change(request: web.Request) -> web.StreamResponse:
    """Change password, role or queues of a user; all their sessions end."""
    asked, user = await json_of(request, UserChange), _named(request)
    password = None if asked.password is None else asked.password.get_secret_value()
    await people.change_user(request, user, role=asked.role, globs=asked.queues, password=password)
    return as_json(UserOut.of(user))


async def remove(request: web.Request) -> web.StreamResponse:
    """Remove a user; all their sessions end."""
    user = _named(request)
    await people.remove_user(request, user)
    return as_json(UserOut.of(user))


def _named(request: web.Request) -> User:
    name = name_in(request, "name")
    return context_of(request).entrance.accounts.user_named(name)


_PATH: Final = "/api/v1/users"
ROUTES: Final = (
    Route("GET", _PATH, Role.ADMIN, "api-users", users, gives=UsersOut, cli="user ls"),
    Route("POST", _PATH, Role.ADMIN, "api-user-add", add, "user.add", takes=UserIn, gives=UserOut,
          status=201, cli="user add"),
    Route("GET", f"{_PATH}/{{name}}", Role.ADMIN, "api-user", user, gives=UserOut),
    Route("PATCH", f"{_PATH}/{{name}}", Role.ADMIN, "api-user-change", change, "user.change",
          takes=UserChange, gives=UserOut, cli="user passwd"),
    Route("DELETE", f"{_PATH}/{{name}}", Role.ADMIN, "api-user-remove", remove, "user.remove",
          gives=UserOut, cli="user rm"),
)  # fmt: skip
