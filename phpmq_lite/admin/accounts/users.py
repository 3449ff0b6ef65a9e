"""Users: the rules for their names and rights, the page and the API."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, TypeVar

from aiohttp import web
from pydantic import Field, SecretStr

from phpmq_lite.admin.accounts.services import HOW, accounts_of, services_of
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Done, Endpoints, From
from phpmq_lite.admin.http.fields import ActionInput, StrictInput
from phpmq_lite.admin.http.identity import CONTROL
from phpmq_lite.admin.http.input import Form, Lines, Untrimmed, split_lines
from phpmq_lite.admin.http.output import ListPage, ResponseModel
from phpmq_lite.admin.http.problems import Problem, invalid, not_found
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.roles import ROLES, Role, RoleName
from phpmq_lite.settings.loading import SHORTEST_PASSWORD
from phpmq_lite.storage.read.accounts import ApiToken, User

endpoints: Final = Endpoints()
NAME_LENGTH: Final = 64
GLOBS: Final = 50
_RESERVED: Final = frozenset({"local", "control", "nobody", "token"})
_NAME: Final = re.compile(rf"[^\W_][\w.@+-]{{0,{NAME_LENGTH - 1}}}")
_ROLES_TEXT: Final = "viewer, operator or admin"

Globs = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]], Field(max_length=GLOBS)
]
Account = TypeVar("Account", User, ApiToken)


# -- rules for users and tokens


def check_may_manage(call: Call) -> None:
    """Raise a 403 ``Problem`` if the caller is not allowed to create or change users and tokens.

    An admin without a login could create an account that stays valid after others gain access;
    an admin limited to some queues could create an account without that limit.
    """
    if call.identity.kind == "local":
        detail = "Users and tokens cannot be created or changed without a login, because they "
        raise Problem(403, "local", f"{detail}would remain valid after others gain access. {HOW}")
    call.check_all_queues("change users, tokens and sessions")


def visible_accounts(call: Call, accounts: Iterable[Account]) -> list[Account]:
    """Return users or tokens, sorted by name, except those with queues hidden from the caller."""
    visible = (account for account in accounts if all(map(call.may_use, account.queues)))
    return sorted(visible, key=lambda account: account.name)


def check_name(name: str) -> str:
    """Return the name of a new user or token; raise a 422 ``Problem`` if it is not valid."""
    if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
        bound = f"1 to {NAME_LENGTH} letters, digits and . _ @ + -, beginning with a letter or "
        bound += f"digit; not {', '.join(sorted(_RESERVED))}"
        raise invalid(f"{name[:NAME_LENGTH]!r} is not a valid name.", "name", bound)
    return name


def check_globs(globs: Sequence[str]) -> tuple[str, ...]:
    """Return the queue globs without duplicates; raise a 422 ``Problem`` if any is not valid."""
    if untidy := next((glob for glob in globs if split_lines(glob) != [glob]), None):
        detail = f"queues: {untidy!r} contains a line break, or begins or ends with white space. "
        raise invalid(f"{detail}Use the wildcard ? instead.", "queues")
    return tuple(dict.fromkeys(globs))


async def add_user(
    call: Call, name: str, password: str, role: str, globs: Sequence[str], *, is_first: bool = False
) -> User:
    """Store a new user; the first one invalidates the setup token.

    Raises:
        Problem: 409 if the name is taken or, with ``is_first``, if any user exists; 422.
    """
    services, queues = services_of(call), check_globs(globs)
    if not services.accounts.users and (role != Role.ADMIN or queues):
        detail = "The first user must be an admin for all queues, because login becomes mandatory."
        raise invalid(detail, "role", "admin")
    detail = json.dumps({"role": role, "queues": queues})
    entry = call.audit(target=check_name(name), detail=detail)
    if name in services.accounts.users:
        raise Problem(409, "taken", f"The user {name!r} already exists.", field="name")
    user = User(0, name, await services.passwords.hash(password), role, queues, call.now_ms)
    user = await services.accounts.add_user(entry, user, is_first=is_first)
    services.setup.spend()
    return user


# -- endpoints


def _find_visible(call: Call) -> User:
    user = accounts_of(call).user_named(call.path("name"))
    if not visible_accounts(call, [user]):
        raise not_found("user", user.name)
    return user


NamedUser = Annotated[User, From(lambda call: accounts_of(call).user_named(call.path("name")))]
VisibleUser = Annotated[User, From(_find_visible)]


class UserInput(StrictInput):
    """A user to create."""

    name: str = Field(description="1 to 64 characters: letters, digits and . _ @ + -")
    password: Annotated[SecretStr, Untrimmed()] = Field(description="12 to 1024 characters")
    role: RoleName = Field(description=_ROLES_TEXT)
    queues: Annotated[Globs, Lines()] = Field(
        [], description="globs for the visible queues; empty for all"
    )


class UserChangeInput(StrictInput):
    """Changes to a user; omitted members stay unchanged. All of the user's sessions end."""

    password: Annotated[SecretStr | None, Untrimmed()] = Field(
        None, description="12 to 1024 characters; null if unchanged"
    )
    role: RoleName | None = Field(None, description=f"{_ROLES_TEXT}; null if unchanged")
    queues: Annotated[Globs | None, Lines()] = Field(
        None, description="globs for visible queues; null if unchanged"
    )


class UserView(ResponseModel):
    """A user."""

    name: str = Field(description="user name")
    role: str = Field(description=_ROLES_TEXT)
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
        "shortest": SHORTEST_PASSWORD,
    }


def _visible(call: Call) -> list[User]:
    return visible_accounts(call, accounts_of(call).users.values())


@endpoints.api("GET /users", "api-users", Role.ADMIN, cli="user list")
async def list_users(call: Call) -> ListPage[UserView]:
    """List the users."""
    return ListPage[UserView](items=[UserView.of(user) for user in _visible(call)])


@endpoints.page("/users", "users", Role.ADMIN, data=list_users)
async def show_users(
    call: Call, form: Form | None = None, problem: Problem | None = None
) -> web.Response:
    """List the users."""
    values = form_values(call, form)
    return await call.render_form("users.html", problem, users=_visible(call), **values)


@endpoints.action(
    "/users",
    "user-add",
    Role.ADMIN,
    "user.add",
    show_refused=show_users,
    api="POST",
    status=201,
    cli="user create",
)
async def create_user(call: Call, body: UserInput) -> Done[NewUserView]:
    """Create a user. After the first one, requests of this machine need a login or a token, too."""
    check_may_manage(call)
    password = body.password.get_secret_value()
    user = await add_user(call, body.name, password, body.role, body.queues)
    view = NewUserView.of(user, is_first=len(accounts_of(call).users) == 1)
    return Done(view, f"{user.name} can now log in.")


@endpoints.api("GET /users/{name}", "api-user", Role.ADMIN)
async def get_user(_call: Call, user: VisibleUser) -> UserView:
    """Return a user."""
    return UserView.of(user)


@endpoints.page("/users/{name}", "user", Role.ADMIN)
async def show_user(
    call: Call, user: VisibleUser, _form: Form | None = None, problem: Problem | None = None
) -> web.Response:
    """Return a user."""
    values = form_values(call) | {"sessions": accounts_of(call).sessions_of(user, call.now_ms)}
    return await call.render_form("user.html", problem, user=user, **values)


@endpoints.action(
    "/users/{name}/password", "user-password", Role.ADMIN, "user.password", show_refused=show_user
)
@endpoints.action(
    "/users/{name}/rights",
    "user-rights",
    Role.ADMIN,
    "user.change",
    show_refused=show_user,
    api="PATCH /users/{name}",
    api_name="api-user-change",
    cli="user set-password",
)
async def change_user(call: Call, user: NamedUser, body: UserChangeInput) -> Done[UserView]:
    """Change a user's password, role or queues. All of the user's sessions end."""
    check_may_manage(call)
    role, queues, password = body.role or user.role, user.queues, None
    # A form sends the queues without the white space of older ones, even if nobody changed them.
    if body.queues is not None and body.queues != split_lines("\n".join(user.queues)):
        queues = check_globs(body.queues)
    before, after = {"role": user.role, "queues": user.queues}, {"role": role, "queues": queues}
    detail: dict[str, object] = {"before": before, "after": after} if before != after else {}
    if body.password is not None:
        detail["password"] = "changed"  # noqa: S105 - says that it changed, not its value
    text = f"Nothing was changed: {user.name} is already {user.role}."
    if detail:
        entry = call.audit(target=user.name, detail=json.dumps(detail))
        services = services_of(call)
        if body.password is not None:
            password = await services.passwords.hash(body.password.get_secret_value())
        await services.accounts.change_user(
            entry, user, role=role, queues=queues, password=password
        )
        change = "has a new password" if password is not None else f"is now {user.role}"
        text = f"{user.name} {change} and must log in again."
    return Done(UserView.of(user), text, call.back(call.url("user", name=user.name)))


@endpoints.action(
    "/users/{name}/remove",
    "user-remove",
    Role.ADMIN,
    "user.remove",
    show_refused=show_user,
    typed=lambda _call, user: [user.name],
    api="DELETE /users/{name}",
    cli="user delete",
)
async def remove_user(call: Call, user: NamedUser, body: ActionInput) -> Done[UserView]:
    """Remove a user. All of the user's sessions end."""
    check_may_manage(call)
    services, is_opening = services_of(call), call.identity is CONTROL
    entry = call.audit(target=user.name)
    # Who can read the data folder may remove even the only user: then nobody needs a login again.
    await services.accounts.remove_user(entry, user, is_opening=is_opening)
    if not services.accounts.users:
        services.setup.make()
    return Done(UserView.of(user), f"{user.name} was removed.", call.back(call.url("users")))
