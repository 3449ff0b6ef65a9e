"""The page and the API for managing users."""

from typing import Annotated, Any, Final

from aiohttp import web
from pydantic import Field, SecretStr

from phpmq_lite.admin.accounts import changes
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Done, Endpoints, From
from phpmq_lite.admin.http.fields import ActionInput, Form, FormatQuery, StrictInput
from phpmq_lite.admin.http.forms import Lines, Untrimmed
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.responses import ListPage, ResponseModel
from phpmq_lite.admin.http.route import Role
from phpmq_lite.roles import ROLES, RoleName
from phpmq_lite.settings.initial_password import SHORTEST
from phpmq_lite.storage.read.accounts import User

endpoints: Final = Endpoints()
Globs = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=changes.GLOB_LENGTH)]],
    Field(max_length=changes.GLOBS),
]
Password = Annotated[SecretStr, Untrimmed()]
Named = Annotated[User, From(lambda call: call.accounts.user_named(call.path("name")))]
Visible = Annotated[User, From(lambda call: changes.visible_user(call.request, call.path("name")))]


class UserInput(StrictInput):
    """A user to create."""

    name: str = Field(description="1 to 64 characters: letters, digits and . _ @ + -")
    password: Password = Field(description="12 to 1024 characters")
    role: RoleName = Field(description="viewer, operator or admin")
    queues: Annotated[Globs, Lines()] = Field(
        [], description="globs for the visible queues; empty for all"
    )


class UserChangeInput(StrictInput):
    """Changes to a user; omitted members stay unchanged. All of the user's sessions end."""

    password: Annotated[SecretStr | None, Untrimmed()] = Field(
        None, description="12 to 1024 characters; null if unchanged"
    )
    role: RoleName | None = Field(None, description="viewer, operator or admin; null if unchanged")
    queues: Annotated[Globs | None, Lines()] = Field(
        None, description="globs for visible queues; null if unchanged"
    )


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


def form_values(call: Call, form: Form | None = None) -> dict[str, Any]:
    """Return the values for the user and token forms, including the values entered."""
    fields = ("name", "role", "queues", "days")
    return {
        "form": {} if form is None else {name: form.raw(name) for name in fields},
        "is_local": call.identity.kind == "local",
        "limits": call.identity.queues,
        "roles": ROLES,
        "shortest": SHORTEST,
    }


def _visible(call: Call) -> list[User]:
    return changes.visible_accounts(call.request, call.accounts.users.values())


@endpoints.api("GET /users", "api-users", Role.ADMIN, cli="user list")
async def list_users(call: Call) -> ListPage[UserView]:
    """List the users."""
    return ListPage[UserView](items=[UserView.of(user) for user in _visible(call)])


@endpoints.page("/users", "users", Role.ADMIN, data=list_users)
async def show_users(call: Call, _query: FormatQuery) -> web.Response:
    """List the users."""
    return await call.render_form("users.html", None, found=_visible(call), **form_values(call))


async def _show_again(call: Call, form: Form, problem: Problem) -> web.Response:
    values = form_values(call, form)
    return await call.render_form("users.html", problem, found=_visible(call), **values)


@endpoints.action(
    "/users", "user-add", Role.ADMIN, "user.add", again=_show_again, api="POST", status=201,
    cli="user create",
)  # fmt: skip
async def create_user(call: Call, asked: UserInput) -> Done[NewUserView]:
    """Create a user. After the first one, requests of this machine need a login or a token, too."""
    password = asked.password.get_secret_value()
    user = await changes.add_user(call.request, asked.name, password, asked.role, asked.queues)
    view = NewUserView.of(user, is_first=len(call.accounts.users) == 1)
    return Done(view, f"{user.name} can now log in.")


@endpoints.api("GET /users/{name}", "api-user", Role.ADMIN)
async def get_user(_call: Call, user: Visible) -> UserView:
    """Return a user."""
    return UserView.of(user)


@endpoints.page("/users/{name}", "user", Role.ADMIN)
async def show_user(call: Call, user: Visible) -> web.Response:
    """Return a user."""
    return await _show_user(call, user)


async def _show_user(
    call: Call, user: User, _form: Form | None = None, problem: Problem | None = None
) -> web.Response:
    sessions = call.accounts.sessions_of(user, call.now_ms)
    values = form_values(call) | {"sessions": sessions}
    return await call.render_form("user.html", problem, query=None, found=user, **values)


@endpoints.action(
    "/users/{name}/password", "user-password", Role.ADMIN, "user.password", again=_show_user
)
@endpoints.action(
    "/users/{name}/rights", "user-rights", Role.ADMIN, "user.change", again=_show_user,
    api="PATCH /users/{name}", api_name="api-user-change", cli="user set-password",
)  # fmt: skip
async def change_user(call: Call, user: Named, asked: UserChangeInput) -> Done[UserView]:
    """Change a user's password, role or queues. All of the user's sessions end."""
    password = None if asked.password is None else asked.password.get_secret_value()
    globs = asked.queues
    if globs == changes.split_lines("\n".join(user.queues)):  # the queues field was not changed
        globs = list(user.queues)
    await changes.change_user(call.request, user, role=asked.role, globs=globs, password=password)
    text = f"Nothing was changed: {user.name} is already {user.role}."
    if call.audit().detail:
        what = "has a new password" if password is not None else f"is now {user.role}"
        text = f"{user.name} {what} and must log in again."
    return Done(UserView.of(user), text, call.back(call.url("user", name=user.name)))


@endpoints.action(
    "/users/{name}/remove", "user-remove", Role.ADMIN, "user.remove", again=_show_user,
    typed=lambda _call, user: [user.name], api="DELETE /users/{name}", cli="user delete",
)  # fmt: skip
async def remove_user(call: Call, user: Named, asked: ActionInput) -> Done[UserView]:
    """Remove a user. All of the user's sessions end."""
    await changes.remove_user(call.request, user, asked.reason)
    return Done(UserView.of(user), f"{user.name} was removed.", call.back(call.url("users")))
