"""Who a request comes from, what of the queues they may see, and the audit entry of the request.

The middleware of ``app.py`` sets all of it before any handler runs.
"""

from dataclasses import dataclass
from typing import Final, Literal

from aiohttp import web

from phpmq_lite.admin.access.globs import is_match
from phpmq_lite.admin.access.hosts import is_control
from phpmq_lite.admin.context import QUEUES, status_of
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.urls import decode_name
from phpmq_lite.model import AuditEntry
from phpmq_lite.storage.read.accounts import ApiToken
from phpmq_lite.storage.read.readers import asker

Kind = Literal["user", "token", "local", "control", "nobody"]

_ADDRESS_OF_CONTROL: Final = "control"
_FORWARD: Final = "forward:"  # what on_expire begins with, ahead of a queue


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks: a person, a program with a token, somebody on this machine, or nobody known."""

    name: str
    role: Role
    kind: Kind  # local: loopback, no login needed; control: control.sock
    queues: tuple[str, ...] = ()  # globs; empty: all
    made_by: str = ""  # of a token: the actor who made it

    @property
    def actor(self) -> str:
        """The name in the audit."""
        return f"token {self.name}" if self.kind == "token" else self.name

    @property
    def owner(self) -> str:
        """To whom an app_id belongs; empty: to nobody, on this machine without accounts.

        A token acts for the user who made it, so that one that replaces it goes on.  Tokens that
        are limited to some queues own theirs apart: one user makes tokens for several programs.
        """
        if self.kind == "token":
            return " for ".join(filter(None, (self.made_by, ", ".join(sorted(self.queues)))))
        return "" if self.kind == "local" else self.name


NOBODY: Final = Identity("nobody", Role.PUBLIC, "nobody")
LOCAL: Final = Identity("local", Role.ADMIN, "local")
CONTROL: Final = Identity("control", Role.ADMIN, "control")

ROUTE: Final = web.RequestKey("route", Route)
_IDENTITY: Final = web.RequestKey("identity", Identity)
_ENTRY: Final = web.RequestKey("entry", AuditEntry)
_IS_LEFT: Final = web.RequestKey("is_left", bool)


def set_identity(request: web.Request, identity: Identity) -> None:
    """Set who asks; from here on ``status_of`` shows only the queues that they may see.

    Reads of the request wait in the line of this identity.
    """
    request[_IDENTITY] = identity
    asker.set(identity.actor)
    request[QUEUES] = identity.queues


def identity_of(request: web.Request) -> Identity:
    """Give who asks; nobody where the middleware did not come to it."""
    identity: Identity = request.get(_IDENTITY, NOBODY)
    return identity


def identity_of_token(token: ApiToken) -> Identity:
    """Return the identity of a request with this token."""
    return Identity(token.name, Role(token.role), "token", token.queues, token.created_by)


def address_of(request: web.BaseRequest) -> str:
    """Give the address for the audit: of the browser, also behind a trusted proxy."""
    return _ADDRESS_OF_CONTROL if is_control(request) else (request.remote or "local")


# -- rights


def allowed_queues(request: web.Request) -> frozenset[int] | None:
    """Give the queue_ids that the identity may see; None: all."""
    if not identity_of(request).queues:
        return None
    return frozenset(queue.queue_id for queue in status_of(request).queues)


def may_use(request: web.Request, name: str) -> bool:
    """Tell whether the identity may use a queue of this name, also one that does not exist yet."""
    globs = identity_of(request).queues
    return not globs or is_match(name, globs)


def check_queue_right(request: web.Request, name: str, field: str = "queue") -> None:
    """Refuse a queue that is not among those of the identity.

    Raises:
        Problem: 403, naming the globs.
    """
    if not may_use(request, name):
        identity = identity_of(request)
        raise Problem(
            403, "foreign_queue", f"{identity.actor!r} may not use the queue {name!r}.",
            field=field, bound=", ".join(identity.queues),
        )  # fmt: skip


def check_all_queues(request: web.Request, what: str) -> None:
    """Refuse what concerns all queues to who is limited to some.

    Raises:
        Problem: 403, naming the globs.
    """
    identity = identity_of(request)
    if identity.queues:
        raise Problem(403, "foreign_queue", f"Only an admin of all queues may {what}.",
                      bound=", ".join(identity.queues))  # fmt: skip


def check_forward_right(request: web.Request, on_expire: object, field: str = "on_expire") -> None:
    """Refuse a setting that forwards into a queue that is not among those of the identity.

    Raises:
        Problem: 403, naming the globs.
    """
    if isinstance(on_expire, str) and on_expire.startswith(_FORWARD):
        check_queue_right(request, on_expire.removeprefix(_FORWARD), field)


# -- audit


def name_in(request: web.Request, key: str) -> str:
    """Return the name that stands in the path at ``{key}`` of the route.

    It is read from the path as it was sent: aiohttp's ``match_info`` no longer tells ``%7E`` from
    the ``~`` of ``encode_name``.
    """
    places = request[ROUTE].path.split("/")
    segments = request.rel_url.raw_path.split("/")
    return decode_name(segments[places.index(f"{{{key}}}") - len(places)])


def begin_entry(request: web.Request, route: Route, request_id: str) -> AuditEntry:
    """Make the audit entry of a writing request, before anything can refuse it."""
    identity = identity_of(request)
    source = "http" if route.is_api else "ui"
    entry = AuditEntry(
        actor=identity.actor,
        source="cli" if identity.kind == "control" else source,
        address=address_of(request),
        action=route.audit or route.name,
        target=_target(request),
        request_id=request_id,
    )
    request[_ENTRY] = entry
    return entry


def _target(request: web.Request) -> str:
    """Give what the path names; the last part, of several."""
    for name, value in reversed(request.match_info.items()):
        return name_in(request, name) if name in ("q", "name") else value
    return ""


def entry_of(
    request: web.Request, target: str = "", reason: str = "", detail: str = ""
) -> AuditEntry:
    """Give the one audit entry of this request; what is given fills its fields.

    An operation of the broker writes it; the wrapper in ``app.py`` does where none did.
    """
    entry = request[_ENTRY]
    entry.target = target or entry.target
    entry.reason = reason or entry.reason
    entry.detail = detail or entry.detail
    return entry


def leave_entry(request: web.Request) -> None:
    """Leave the writing of the entry to somebody who goes on after the answer."""
    request[_IS_LEFT] = True


def is_left(request: web.Request) -> bool:
    """Tell whether somebody else writes the entry."""
    return _IS_LEFT in request
