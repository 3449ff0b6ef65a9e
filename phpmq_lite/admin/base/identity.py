"""The identity of a caller: user, token, local or control socket."""

from dataclasses import dataclass
from typing import Final, Literal

from aiohttp import web

from phpmq_lite.admin.base.context import QUEUES
from phpmq_lite.admin.base.route import Role
from phpmq_lite.storage.read.accounts import ApiToken
from phpmq_lite.storage.read.readers import read_owner

Kind = Literal["user", "token", "local", "control", "nobody"]


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

_IDENTITY: Final = web.RequestKey("identity", Identity)


def set_identity(request: web.Request, identity: Identity) -> None:
    """Set who asks; from here on ``status_of`` shows only the queues that they may see.

    Reads of the request wait in the line of this identity.
    """
    request[_IDENTITY] = identity
    read_owner.set(identity.actor)
    request[QUEUES] = identity.queues


def identity_of(request: web.Request) -> Identity:
    """Give who asks; nobody where the middleware did not come to it."""
    identity: Identity = request.get(_IDENTITY, NOBODY)
    return identity


def identity_of_token(token: ApiToken) -> Identity:
    """Return the identity of a request with this token."""
    return Identity(token.name, Role(token.role), "token", token.queues, token.created_by)
