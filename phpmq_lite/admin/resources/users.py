"""The page and the API for managing users."""

from typing import Annotated, Any, Final, Literal

from aiohttp import web
from pydantic import Field, SecretStr

from phpmq_lite.admin.auth import users
from phpmq_lite.admin.auth.passwords import SHORTEST
from phpmq_lite.admin.auth.request_audit import audit_entry
from phpmq_lite.admin.base.context import context_of
from phpmq_lite.admin.base.identity import identity_of
from phpmq_lite.admin.base.input import ActionInput, Form, FormatQuery, StrictInput, path_name
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.admin.base.responses import ListPage, ResponseModel
from phpmq_lite.admin.base.route import Role, Route
from phpmq_lite.admin.resource import Api, Page, Resource, render_form
from phpmq_lite.storage.read.accounts import User

RoleName = Literal["viewer", "operator", "admin"]
Globs = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=users.GLOB_LENGTH)]],
    Field(max_length=users.GLOBS),
]


class UserInput(StrictInput):
    """A user to create."""

    name: str = Field(description="1 to 64 characters: letters, digits and . _ @ + -")
    password: SecretStr = Field(description="12 to 1024 characters")
    role: RoleName = Field(description="viewer, operator or admin")
    queues: Globs = Field([], description="globs for the visible queues; empty for all")


class UserChangeInput(StrictInput):
    """Changes to a user; omitted members stay unchanged. All of the user's sessions end."""

    password: SecretStr | None = Field(None, description="12 to 1024 characters; null if unchanged")
    role: RoleName | None = Field(None, description="viewer, operator or admin; null if unchanged")
    queues: Globs | None = Field(None, description="globs for visible queues; null if unchanged")


class UserView(ResponseModel):
    """A user."""

    name: str = Field(description="user name")
    role: str = Field(description="viewer, operator or admin")
    queues: list[str] = Field(description="globs for the visible queues; empty for all")
    created_at: int = Field(description="when the user was created, Unix ms")
    last_login_at: int | None = Field(description="time of the last login, Unix ms; null if never")


class NewUserView(UserView):
    """A user who was just created."""

    is_first: bool = Field(
        description="whether this is the only user: until now, this machine needed no login"
    )


async def find_users(request: web.Request, _query: FormatQuery) -> list[User]:
    """List the users."""
    known = context_of(request).auth.accounts.users.values()
    return users.visible_accounts(request, known)


async def create_user(request: web.Request, asked: UserInput) -> NewUserView:
    """Create a user. After the first one, requests of this machine need a login or a token, too."""
    password = asked.password.get_secret_value()
    user = await users.add_user(request, asked.name, password, asked.role, asked.queues)
    known = context_of(request).auth.accounts.users
    return NewUserView.of(user, is_first=len(known) == 1)


async def find_user(request: web.Request, _query: None) -> User:
    """Return a user."""
    return users.visible_user(request, path_name(request, "name"))


async def change_user(request: web.Request, asked: UserChangeInput) -> UserView:
    """Change a user's password, role or queues. All of the user's sessions end."""
    user = _named(request)
    password = None if asked.password is None else asked.password.get_secret_value()
    globs = asked.queues
    if globs == users.split_lines("\n".join(user.queues)):  # the queues field was not changed
        globs = list(user.queues)
    await users.change_user(request, user, role=asked.role, globs=globs, password=password)
    return UserView.of(user)


async def remove_user(request: web.Request, asked: ActionInput) -> UserView:
    """Remove a user. All of the user's sessions end."""
    user = _named(request)
    await users.remove_user(request, user, asked.reason)
    return UserView.of(user)


def _named(request: web.Request) -> User:
    return context_of(request).auth.accounts.user_named(path_name(request, "name"))


def account_values(request: web.Request, form: Form | None = None) -> dict[str, Any]:
    """Return the values for the user and token forms, including the values entered."""
    fields = ("name", "role", "queues", "days")
    return {
        "form": {} if form is None else {name: form.raw(name) for name in fields},
        "is_local": identity_of(request).kind == "local",
        "limits": identity_of(request).queues,
        "roles": users.ROLES,
        "shortest": SHORTEST,
    }


async def _list_values(request: web.Request, _query: object, _found: object) -> dict[str, Any]:
    return account_values(request)


async def _list_again(request: web.Request, form: Form, problem: Problem) -> web.Response:
    found = await find_users(request, FormatQuery())
    return await render_form(
        request, "users.html", problem, found=found, **account_values(request, form)
    )


async def _user_values(request: web.Request, _query: object, user: User) -> dict[str, Any]:
    context = context_of(request)
    sessions = context.auth.accounts.sessions_of(user, context.now_ms())
    return {**account_values(request), "sessions": sessions}


async def _user_page_again(request: web.Request, _form: Form, problem: Problem) -> web.Response:
    user = _named(request)
    values = await _user_values(request, None, user)
    return await render_form(request, "user.html", problem, found=user, **values)


def _changed(request: web.Request, asked: UserChangeInput, user: UserView) -> tuple[str, str]:
    to = context_of(request).urls.to("user", name=user.name)
    if not audit_entry(request).detail:
        return f"Nothing was changed: {user.name} is already {user.role}.", to
    what = "has a new password" if asked.password is not None else f"is now {user.role}"
    return f"{user.name} {what} and must log in again.", to


async def _typed_name(request: web.Request) -> list[str]:
    return [_named(request).name]


_PATH: Final = "/api/v1/users"
_USER: Final = f"{_PATH}/{{name}}"
_CHANGE: Final = Resource(
    run=change_user, role=Role.ADMIN, audit="user.change",
    page=Page("/users/{name}/rights", "user-rights", done=_changed, again=_user_page_again),
    api=Api("PATCH", _USER, "api-user-change", cli="user set-password"),
)  # fmt: skip
RESOURCES: Final = (
    Resource(
        run=find_users, role=Role.ADMIN, view_model=ListPage[UserView],
        page=Page("/users", "users", "users.html", _list_values),
        api=Api("GET", _PATH, "api-users", cli="user list"),
    ),
    Resource(
        run=create_user, role=Role.ADMIN, audit="user.add",
        page=Page(
            "/users", "user-add", again=_list_again,
            done=lambda request, _asked, user: (f"{user.name} can now log in.", request.path),
        ),
        api=Api("POST", _PATH, "api-user-add", status=201, cli="user create"),
    ),
    Resource(
        run=find_user, role=Role.ADMIN, view_model=UserView,
        page=Page("/users/{name}", "user", "user.html", _user_values),
        api=Api("GET", _USER, "api-user"),
    ),
    _CHANGE,
    Resource(
        run=remove_user, role=Role.ADMIN, audit="user.remove",
        page=Page(
            "/users/{name}/remove", "user-remove", again=_user_page_again, typed=_typed_name,
            done=lambda request, _asked, user: (
                f"{user.name} was removed.", context_of(request).urls.to("users")
            ),
        ),
        api=Api("DELETE", _USER, "api-user-remove", cli="user delete"),
    ),
)  # fmt: skip
ROUTES: Final = (
    *(route for resource in RESOURCES for route in resource.routes()),
    Route("POST", "/users/{name}/password", Role.ADMIN, "user-password",
          _CHANGE.submit_form, "user.password"),
)  # fmt: skip
