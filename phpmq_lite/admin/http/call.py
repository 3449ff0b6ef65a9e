"""A call: one request, and everything that its handler may use."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Concatenate, Final, Self

from aiohttp import web

from phpmq_lite.admin.http.body import read_form_fields
from phpmq_lite.admin.http.browser_sessions import FlashMessage
from phpmq_lite.admin.http.context import CONTEXT, Context
from phpmq_lite.admin.http.identity import Identity, identity_of
from phpmq_lite.admin.http.input import Form, path_name
from phpmq_lite.admin.http.problems import Problem, invalid, not_found
from phpmq_lite.admin.http.templates import collect_in_slices
from phpmq_lite.admin.urls import own_path_or
from phpmq_lite.broker.broker import Broker, Operation, P, T
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import AuditEntry
from phpmq_lite.queue_settings import FORWARD
from phpmq_lite.server.status import BrokerStatus, QueueStatus

_NOT_FILTER: Final = frozenset({"topic", "ids", "after", "format", "cursor"})  # of a feed
_FILTER_CHARACTERS: Final = 4_000  # maximum length of each filter value in the key of a feed


def ignore_reply(_answer: object) -> None:
    """Ignore the reply to one of several operations in a batch."""


_CALL: Any = web.RequestKey("call", object)


class Call:
    """One request.  All that it returns is limited to what its caller is allowed to see."""

    __slots__ = ("_form", "_status", "context", "entry", "feed", "is_audit_deferred", "request")

    def __init__(self, request: web.Request) -> None:
        self.request = request
        self.context: Context = request.app[CONTEXT]
        self.entry: AuditEntry | None = None  # of a request whose route has an audit name
        self.is_audit_deferred = False  # whether a task writes the entry after the response
        self.feed: Hashable = None  # key of the feed that is requested
        self._form: Form | None = None
        self._status: BrokerStatus | None = None

    @classmethod
    def of(cls, request: web.Request) -> Self:
        """Return the request's call, creating it for the first caller."""
        call: Self | None = request.get(_CALL)
        if call is None or call.request is not request:  # a clone has the values of its original
            call = request[_CALL] = cls(request)
        return call

    @staticmethod
    def forget(request: web.Request) -> None:
        """Break the cycle of references between a request and its call, once it is answered.

        Otherwise, its body would stay in memory until the next garbage collection.
        """
        request.pop(_CALL, None)

    # -- the caller, and what they are allowed to see

    @property
    def identity(self) -> Identity:
        return identity_of(self.request)

    @property
    def actor(self) -> str:
        """The caller's name in the audit log, which also owns selections, jobs and undo records."""
        return self.identity.actor

    @property
    def status(self) -> BrokerStatus:
        """The live statistics, read once for each request because reading takes O(queues) time.

        A caller limited to some queues sees only these queues, even in each client's subscriptions.
        """
        if self._status is None:
            broker, may_use = self.context.broker, self.may_use
            if not self.identity.queues:
                self._status = broker.status()
            else:
                status = broker.status(may_use)
                clients = (
                    replace(client, queues={q: of for q, of in client.queues.items() if may_use(q)})
                    for client in status.clients
                )
                self._status = replace(status, clients=tuple(clients))
        return self._status

    def forget_status(self) -> None:
        """Clear the cache of ``status``, so that a long-lived stream reads current statistics."""
        self._status = None

    @property
    def queues(self) -> tuple[QueueStatus, ...]:
        """The queues that the caller can see."""
        return self.status.queues

    @property
    def allowed(self) -> frozenset[int] | None:
        """The ids of the queues that the caller can see, or None for all queues."""
        if not self.identity.queues:
            return None
        return frozenset(queue.queue_id for queue in self.queues)

    def queue(self, name: str) -> QueueStatus:
        """Return a queue; raise a 404 ``Problem`` if it does not exist."""
        queue = self.find_queue(name)
        if queue is None:
            raise not_found("queue", name)
        return queue

    def find_queue(self, name: str | None) -> QueueStatus | None:
        return next((queue for queue in self.queues if queue.name == name), None)

    def queue_id(self, name: str) -> int | None:
        """Return a queue's id, None for all if no name; raise a ``Problem``, 404 or 422."""
        if name:
            return self.queue(name).queue_id
        if self.allowed is not None:
            raise invalid("You can see only some queues. Specify one of them.", "queue")
        return None

    def may_use(self, name: str) -> bool:
        """Return whether the caller is allowed to use a queue with this name; it need not exist."""
        return self.identity.may_use(name)

    def check_queue(self, name: str, field: str = "queue") -> None:
        """Raise a 403 ``Problem`` with the allowed globs if the caller may not use a queue."""
        if not self.may_use(name):
            detail = f"{self.actor!r} is not allowed to use the queue {name!r}."
            bound = ", ".join(self.identity.queues)
            raise Problem(403, "foreign_queue", detail, field=field, bound=bound)

    def check_setting_targets(self, changes: Mapping[str, Any], prefix: str = "") -> None:
        """Call ``check_queue`` for each queue to which changed settings send messages."""
        on_expire, dead_letter_queue = changes.get("on_expire"), changes.get("dead_letter_queue")
        if isinstance(on_expire, str) and on_expire.startswith(FORWARD):
            self.check_queue(on_expire.removeprefix(FORWARD), f"{prefix}on_expire")
        if dead_letter_queue:
            self.check_queue(dead_letter_queue, f"{prefix}dead_letter_queue")

    def check_all_queues(self, action: str) -> None:
        """Raise a 403 ``Problem`` with the allowed globs if the caller is limited to them."""
        if self.identity.queues:
            detail = f"Only an admin with access to all queues can {action}."
            raise Problem(403, "foreign_queue", detail, bound=", ".join(self.identity.queues))

    # -- input

    def path(self, key: str) -> str:
        """Return the value at the position of ``{key}`` in the path."""
        return path_name(self.request, key)

    @property
    def own_path(self) -> str:
        """The path and query of the request, with the base path, which a proxy may have removed."""
        base_path = self.context.urls.base_path
        return base_path + self.request.path_qs.removeprefix(base_path)

    async def form(self) -> Form:
        """Return the submitted form."""
        if self._form is None:
            self._form = Form(await read_form_fields(self.request))
        return self._form

    def back(self, default: str) -> str:
        """Return the page that the query or the form names as ``next``, else ``default``."""
        form = self._form
        return own_path_or(
            self.request.query.get("next", "") if form is None else form.raw("next"), default
        )

    @property
    def now_ms(self) -> int:
        """The time in Unix ms."""
        return self.context.now_ms()

    def feed_key(self, topic: str, ids: tuple[int, ...] = ()) -> Hashable:
        """Return a feed's key, which viewers with equal topics, rows, filters and rights share."""
        filters = [
            (name, value[:_FILTER_CHARACTERS])
            for name, value in self.request.query.items()
            if value and name not in _NOT_FILTER
        ]
        identity = self.identity
        actor = identity.actor if identity.queues else ""  # limited callers have their own feeds
        return topic, ids, tuple(sorted(filters)), identity.role, identity.queues, actor

    # -- changes

    def audit(self, target: str = "", reason: str = "", detail: str = "") -> AuditEntry:
        """Set fields in the request's audit entry and return the entry.

        A broker operation writes the entry, or ``middlewares.py`` after the response.
        """
        entry = self.entry
        if entry is None:
            raise RuntimeError("the route has no audit name")
        entry.target = target or entry.target
        entry.reason = reason or entry.reason
        entry.detail = detail or entry.detail
        return entry

    async def run(
        self, operation: Operation[T, Concatenate[AuditEntry, P]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a broker operation with the request's audit entry; return its reply."""
        return await self.context.broker.run(operation, self.audit(), *args, **kwargs)

    async def run_on_each(self, operation: Any, names: Sequence[str], *args: Any) -> int:
        """Run an operation on several queues in one batch; return how many still exist."""
        entry = self.audit()

        def run(core: Broker, reply: Callable[[int], None]) -> None:
            remaining = [name for name in names if name in core.queues]
            for name in remaining:
                operation(core, ignore_reply, entry, name, *args)
            if not remaining:
                raise RefusedError("unknown_queue", "the selected queues no longer exist")
            core.reply(reply, len(remaining))

        return await self.context.broker.run(run)

    # -- output

    def url(self, route: str, /, **values: object) -> str:
        return self.context.urls.to(route, **values)

    def redirect(self, route: str, /, **values: object) -> web.HTTPSeeOther:
        """Return a redirect to a route, to be raised or returned."""
        return web.HTTPSeeOther(self.url(route, **values))

    def tell(self, message: FlashMessage | str) -> None:
        """Show a message on the session's next page."""
        sessions = self.context.sessions
        sessions.store_message(sessions.open(self.request), message)

    async def render(self, template: str, *, status: int = 200, **values: Any) -> web.Response:
        """Render a page within the layout; if the page has a form, set the session cookie.

        ``values`` can override values of the layout, such as ``search_text`` or ``is_bare``, which
        is true for a page without navigation, search and menu, such as the login page.
        """
        page = await self.context.templates.get(template)
        pieces = page.generate(self.context.layout(self) | values)
        text = "".join(await collect_in_slices(pieces, self.context.broker.pause))
        response = web.Response(text=text, status=status, content_type="text/html", charset="utf-8")
        self.context.sessions.set_cookie(self.request, response)
        return response

    async def render_form(
        self, template: str, problem: Problem | None, **values: Any
    ) -> web.Response:
        """Render the page of a form; if the form was refused, show the problem with its status."""
        status = problem.status if problem else 200
        response = await self.render(template, status=status, problem=problem, **values)
        response.headers.update(problem.headers if problem else {})
        return response
