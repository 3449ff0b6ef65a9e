"""A call: one request, and everything that its handler may use."""

from collections.abc import Sequence
from typing import Any, Self

from aiohttp import web

from phpmq_lite.admin.accounts.accounts import Accounts
from phpmq_lite.admin.context import Context, context_of, forget_status, status_of
from phpmq_lite.admin.http import permissions, request_audit
from phpmq_lite.admin.http.browser_sessions import FlashMessage
from phpmq_lite.admin.http.fields import Form, path_name, read_form
from phpmq_lite.admin.http.identity import Identity, identity_of
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.rendering import render_page
from phpmq_lite.admin.urls import own_path_or
from phpmq_lite.broker.broker import Broker
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import AuditEntry
from phpmq_lite.server.status import BrokerStatus, QueueStatus


def ignore_reply(_answer: object) -> None:
    """Ignore the reply to one of several operations in a batch."""


_CALL: Any = web.RequestKey("call", object)


class Call:
    """One request.  All that it returns is limited to what its caller is allowed to see."""

    __slots__ = ("_form", "context", "request")

    def __init__(self, request: web.Request) -> None:
        self.request = request
        self.context: Context = context_of(request)
        self._form: Form | None = None

    @classmethod
    def of(cls, request: web.Request) -> Self:
        """Return the request's call, creating it for the first caller."""
        call: Self | None = request.get(_CALL)
        if call is None or call.request is not request:  # a clone has the values of its original
            call = request[_CALL] = cls(request)
        return call

    # -- the caller, and what they are allowed to see

    @property
    def identity(self) -> Identity:
        """The caller."""
        return identity_of(self.request)

    @property
    def actor(self) -> str:
        """The caller's name in the audit log, which also owns selections, jobs and undo records."""
        return self.identity.actor

    @property
    def status(self) -> BrokerStatus:
        """The live statistics, read once for each request, with only the caller's queues."""
        return status_of(self.request)

    def forget_status(self) -> None:
        """Clear the cache of ``status``, so that a long-lived stream reads current statistics."""
        forget_status(self.request)

    @property
    def queues(self) -> tuple[QueueStatus, ...]:
        """The queues that the caller can see."""
        return self.status.queues

    @property
    def allowed(self) -> frozenset[int] | None:
        """The ids of the queues that the caller can see, or None for all queues."""
        return permissions.allowed_queues(self.request)

    def queue(self, name: str) -> QueueStatus:
        """Return a queue; raise a 404 ``Problem`` if it does not exist."""
        return permissions.queue_named(self.request, name)

    def find_queue(self, name: str | None) -> QueueStatus | None:
        """Return a queue, or None if it does not exist."""
        return permissions.find_queue(self.request, name or "")

    def queue_id(self, name: str) -> int | None:
        """Return a queue's id, or None for all queues if the name is empty.

        Raises:
            Problem: 404 if the queue does not exist; 422 if a caller who can see only some queues
                requests all queues.
        """
        if name:
            return self.queue(name).queue_id
        if self.allowed is not None:
            detail = "You can see only some queues. Specify one of them."
            raise Problem(422, "invalid", detail, field="queue")
        return None

    def check_queue(self, name: str, field: str = "queue") -> None:
        """Raise a 403 ``Problem`` if the caller is not allowed to use a queue with this name."""
        permissions.check_queue_right(self.request, name, field)

    def may_use(self, name: str) -> bool:
        """Return whether the caller is allowed to use a queue with this name."""
        return permissions.may_use(self.request, name)

    def check_all_queues(self, what: str) -> None:
        """Raise a 403 ``Problem`` if a caller limited to some queues wants to do ``what``."""
        permissions.check_all_queues(self.request, what)

    def check_forward(self, on_expire: object, field: str = "on_expire") -> None:
        """Raise a 403 ``Problem`` if the setting forwards to a queue that is not allowed."""
        permissions.check_forward_right(self.request, on_expire, field)

    # -- input

    def path(self, key: str) -> str:
        """Return the value at the position of ``{key}`` in the path."""
        is_name = key in ("name", "trace", "urn")
        return path_name(self.request, key) if is_name else self.request.match_info[key]

    async def form(self) -> Form:
        """Return the submitted form."""
        if self._form is None:
            self._form = await read_form(self.request)
        return self._form

    def back(self, default: str) -> str:
        """Return the page that the query or the form names as ``next``, else ``default``."""
        form = self._form
        return own_path_or(
            self.request.query.get("next", "") if form is None else form.raw("next"), default
        )

    @property
    def accounts(self) -> Accounts:
        """The users, tokens and sessions."""
        return self.context.auth.accounts

    @property
    def now_ms(self) -> int:
        """The time in Unix ms."""
        return self.context.now_ms()

    # -- changes

    def audit(self, target: str = "", reason: str = "", detail: str = "") -> AuditEntry:
        """Set fields in the request's audit entry and return the entry."""
        return request_audit.audit_entry(self.request, target, reason, detail)

    def keep_audit_entry(self) -> None:
        """Write no audit row for the request, unless an operation or another task writes it."""
        request_audit.keep_audit_entry(self.request)

    async def run(self, operation: Any, *args: Any, target: str = "", **options: Any) -> Any:
        """Run a broker operation with the request's audit entry; return its reply."""
        return await self.context.engine.run(operation, self.audit(target), *args, **options)

    async def run_on_each(self, operation: Any, names: Sequence[str], *args: Any) -> int:
        """Run an operation on several queues in one batch; return how many still exist."""
        entry = self.audit()

        def run(core: Broker, reply: Any) -> None:
            known = [name for name in names if name in core.queues]
            for name in known:
                operation(core, ignore_reply, entry, name, *args)
            if not known:
                raise RefusedError("unknown_queue", "the selected queues no longer exist")
            core.reply(reply, len(known))

        count: int = await self.context.engine.run(run)
        return count

    # -- output

    def url(self, route: str, /, **values: object) -> str:
        """Return the URL of a route."""
        return self.context.urls.to(route, **values)

    def redirect(self, route: str, /, **values: object) -> web.HTTPSeeOther:
        """Return a redirect to a route, to be raised or returned."""
        return web.HTTPSeeOther(self.url(route, **values))

    def tell(self, message: FlashMessage | str) -> None:
        """Show a message on the session's next page."""
        self.context.sessions.store_message(self.request, message)

    async def render(self, template: str, *, status: int = 200, **values: Any) -> web.Response:
        """Render a page within the layout."""
        return await render_page(self.request, template, status=status, **values)

    async def render_form(
        self, template: str, problem: Problem | None, **values: Any
    ) -> web.Response:
        """Render the page of a form; if the form was refused, show the problem with its status."""
        status = problem.status if problem else 200
        response = await self.render(template, status=status, problem=problem, **values)
        response.headers.update(problem.headers if problem else {})
        return response
