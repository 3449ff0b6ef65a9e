"""Declares endpoints: a handler, and the routes, input, output and checks that its signature names.

A handler takes the call, then what it needs, by type: objects that the path names
(``Annotated[…, From(find)]``), a pydantic model (the query string, the form or the JSON body), or a
``Form``.  It returns what the API sends, or ``Done``; a page returns ``call.render(…)``.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from aiohttp import web
from pydantic import ValidationError

from phpmq_lite.admin.http.browser_sessions import FlashMessage
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.confirmation import check_typed_text
from phpmq_lite.admin.http.fields import ActionInput, FormatQuery
from phpmq_lite.admin.http.input import (
    Form,
    path_name,
    read_form_model,
    read_json_model,
    read_query,
)
from phpmq_lite.admin.http.output import respond
from phpmq_lite.admin.http.problems import Problem, problem_of
from phpmq_lite.admin.http.route import Handler, Route
from phpmq_lite.roles import Role
from phpmq_lite.server.status import QueueStatus

V = TypeVar("V")
H = TypeVar("H", bound=Callable[..., Awaitable[Any]])
PREFIX: Final = "/api/v1"
_REASON_CHARACTERS: Final = 1_000  # of a reason whose model has no bound


@dataclass(slots=True, frozen=True)
class From:
    """Marks a parameter that ``find`` reads from the call, or refuses."""

    find: Callable[[Call], Any]


@dataclass(slots=True, frozen=True)
class Done(Generic[V]):
    """What an action did: the API sends ``view``; a form shows ``message`` on the page ``to``.

    Without ``to``, the next page is what the form's ``next`` names, else the form's own page.
    """

    view: V
    message: FlashMessage | str = ""
    to: str = ""


@dataclass(slots=True, frozen=True)
class Signature:
    """What a handler takes and returns, read from its annotations."""

    finds: tuple[Callable[[Call], Any], ...]
    takes: Any  # model or Form of the last parameter, or what documents the body, or None
    has_input: bool  # whether the handler takes it; otherwise, the handler reads the body itself
    gives: Any  # model of the response, or None

    @classmethod
    def of(cls, handler: Callable[..., Any], takes: Any = None) -> Self:
        """Read the annotations of a handler; its first parameter is the call.

        Parameters with a default are not read: with them, a page shows a refused form.  ``takes``
        replaces the model of a handler that several endpoints share.
        """
        hints = get_type_hints(handler, include_extras=True)
        gives = hints.pop("return")
        _, *parameters = inspect.signature(handler).parameters.values()
        hinted = [hints[taken.name] for taken in parameters if taken.default is taken.empty]
        finds = [mark.find for hint in hinted for mark in get_args(hint) if isinstance(mark, From)]
        inputs = [hint for hint in hinted if get_origin(hint) is not Annotated]
        if get_origin(gives) is Done:
            [gives] = get_args(gives)
        is_raw = isinstance(gives, type) and issubclass(gives, web.StreamResponse)
        return cls(
            tuple(finds),
            takes or next(iter(inputs), None),
            bool(inputs),
            None if is_raw or gives is type(None) else gives,
        )

    async def find(self, call: Call) -> list[Any]:
        return [await _result(find(call)) for find in self.finds]

    async def read(self, call: Call, method: str) -> list[Any]:
        """Return the handler's input, from where a request with this method has it."""
        if not self.has_input:
            return []
        match method:
            case "GET":
                return [read_query(call.request, self.takes)]
            case "DELETE":
                return [self.takes()]
        return [await read_json_model(call.request, self.takes)]

    async def read_form(self, call: Call) -> list[Any]:
        """Return the handler's input from a submitted form."""
        if not self.has_input:
            return []
        form = await call.form()
        return [form if self.takes is Form else read_form_model(form, self.takes)]


@dataclass(slots=True)
class Endpoints:
    """The endpoints of one part of the admin, in the order in which they match."""

    routes: list[Route] = field(default_factory=list)

    def api(
        self,
        call: str,
        name: str,
        role: Role = Role.VIEWER,
        audit: str | None = None,
        *,
        takes: Any = None,
        **more: Any,
    ) -> Callable[[H], H]:
        """Declare an API call, such as ``GET /queues/{q}``; ``more`` are fields of ``Route``."""
        method, _, path = call.partition(" ")

        def declare(handler: H) -> H:
            signature = Signature.of(handler, takes)
            is_get, status = method == "GET", more.get("status", 200)

            async def answer(request: web.Request) -> web.StreamResponse:
                call = Call.of(request)
                objects = await signature.find(call)
                data = await signature.read(call, method)
                [model] = data or [None]
                if isinstance(model, ActionInput):
                    call.audit(reason=model.reason[:_REASON_CHARACTERS])
                result = await handler(call, *objects, *data)
                format_ = model.format if isinstance(model, FormatQuery) else "json"
                return respond(result.view if isinstance(result, Done) else result, format_, status)

            fields = {
                "query": signature.takes if is_get else None,
                "takes": None if is_get or method == "DELETE" else signature.takes,
                "gives": signature.gives,
            } | more
            self._add(handler, Route(method, PREFIX + path, role, name, answer, audit, **fields))
            return handler

        return declare

    def page(
        self,
        path: str,
        name: str,
        role: Role = Role.VIEWER,
        audit: str | None = None,
        *,
        data: Callable[..., Any] | None = None,
        is_early: bool = False,
    ) -> Callable[[H], H]:
        """Declare a page; if the query requests another format, it sends the result of ``data``."""

        def declare(handler: H) -> H:
            signature = Signature.of(handler)
            has_query = data is not None and Signature.of(data).has_input

            async def show(request: web.Request) -> web.StreamResponse:
                call = Call.of(request)
                objects = await signature.find(call)
                query = await signature.read(call, "GET")
                if data is not None:
                    [filters] = query or [read_query(request, FormatQuery)]
                    if filters.format != "html":
                        arguments = (*objects, *(query if has_query else ()))
                        return respond(await data(call, *arguments), filters.format)
                response: web.StreamResponse = await handler(call, *objects, *query)
                return response

            self._add(handler, Route("GET", path, role, name, show, audit, is_early=is_early))
            return handler

        return declare

    def action(
        self,
        path: str,
        name: str,
        role: Role,
        audit: str,
        *,
        ask: Callable[..., Any] | None = None,
        typed: Callable[..., Sequence[str]] | None = None,
        show_refused: Callable[..., Awaitable[web.StreamResponse]] | None = None,
        form_page: str = "",
        api: str = "",
        api_name: str = "",
        takes: Any = None,
        **more: Any,
    ) -> Callable[[H], H]:
        """Declare a change: the route ``name``, to which the form at ``path`` is posted.

        ``ask`` returns the confirmation page (route ``NAME-form``, a GET of ``path``), and what a
        form must satisfy.  ``typed`` returns the text to type into another page's form.
        ``show_refused`` shows a form with its error, ``form_page`` (by default the confirmation)
        names a page that does.  ``api``, a method with or without a path, declares ``api-NAME``;
        ``more`` are fields of its ``Route``, limits are the form's, too.
        """

        def declare(handler: H) -> H:
            signature = Signature.of(handler, takes)

            async def submit(request: web.Request) -> web.StreamResponse:
                call = Call.of(request)
                form, objects = await call.form(), await signature.find(call)
                try:
                    if ask is not None:
                        (await _result(ask(call, *objects))).check(form)
                    if typed is not None:
                        check_typed_text(typed(call, *objects), form.raw("confirm"))
                    call.audit(reason=form.reason())
                    result = await handler(call, *objects, *await signature.read_form(call))
                except (Problem, ValidationError) as error:
                    problem = problem_of(error)
                    if show_refused is None or problem is None:
                        raise
                    call.audit().result = problem.code
                    return await show_refused(call, *objects, form, problem)
                return _after(call, result)

            if ask is not None:
                show = _confirmation_page(signature, ask)
                self._add(handler, Route("GET", path, role, f"{name}-form", show))
            limits = {key: more[key] for key in ("body", "has_content", "values") if key in more}
            page = form_page or (f"{name}-form" if ask is not None else "")
            route = Route("POST", path, role, name, submit, audit, form_page=page, **limits)
            self._add(handler, route)
            if api:
                to = api if " " in api else f"{api} {path}"
                self.api(to, api_name or f"api-{name}", role, audit, takes=takes, **more)(handler)
            return handler

        return declare

    def _add(self, of: Any, route: Route) -> None:
        update_wrapper(route.handler, of)
        self.routes.append(route)


def _confirmation_page(signature: Signature, ask: Callable[..., Any]) -> Handler:
    async def show(request: web.Request) -> web.StreamResponse:
        call = Call.of(request)
        objects = await signature.find(call)
        return await call.render("confirm.html", ask=await _result(ask(call, *objects)))

    return show


def _after(call: Call, result: Any) -> web.StreamResponse:
    if isinstance(result, web.StreamResponse):
        return result
    if result.message:
        call.tell(result.message)
    raise web.HTTPSeeOther(result.to or call.back(call.request.path))


async def _result(value: Any) -> Any:
    """Return what a function returned, which may be asynchronous."""
    return await value if inspect.isawaitable(value) else value


def find_queue_name(call: Call) -> str:
    """Return the queue name in the path; raise a 403 ``Problem`` for a change not allowed."""
    name = path_name(call.request, "q")
    if call.request.method not in ("GET", "HEAD"):
        call.check_queue(name)
    return name


Queue = Annotated[QueueStatus, From(lambda call: call.queue(find_queue_name(call)))]
QueueName = Annotated[str, From(find_queue_name)]  # it need not exist
