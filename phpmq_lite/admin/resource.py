"""Defines a page together with the API call that does the same, or an API call alone.

``run`` validates, loads or acts. The page renders its result, or redirects with a message after an
action; the API call returns the result as JSON. Both become ordinary rows of the route table. The
annotations of ``run`` name its input and output models.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import cache, partial, update_wrapper
from typing import Any, Final, get_args, get_type_hints

from aiohttp import web
from pydantic import BaseModel, ValidationError

from phpmq_lite.admin.http.browser_sessions import FlashMessage
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.confirmation import check_typed_text
from phpmq_lite.admin.http.fields import Form, read_form, read_json_model, read_query
from phpmq_lite.admin.http.problems import Problem, problem_of
from phpmq_lite.admin.http.rendering import render_page
from phpmq_lite.admin.http.request_audit import audit_entry, mark_refused
from phpmq_lite.admin.http.responses import json_response, list_response
from phpmq_lite.admin.http.route import BODY_BYTES, VALUES, Role, Route
from phpmq_lite.admin.urls import own_path_or

_AS_TYPED: Final = frozenset({"password", "queue", "target"})  # not stripped of white space
_LINES: Final = frozenset({"queues"})  # fields that contain a list, one item per line


@dataclass(slots=True, frozen=True)
class Page:
    """A resource's page: a template, or a form that performs an action.

    ``values`` returns additional values for the template. ``done`` returns the message after an
    action and the default next page. ``again`` shows a refused form with its error.
    """

    path: str
    name: str
    template: str = ""  # empty if the page is a form
    values: Callable[[web.Request, Any, Any], Awaitable[dict[str, Any]]] | None = None
    done: Callable[[web.Request, Any, Any], tuple[FlashMessage | str, str]] | None = None
    again: Callable[[web.Request, Form, Problem], Awaitable[web.Response]] | None = None
    typed: Callable[[web.Request], Awaitable[Collection[str]]] | None = None  # confirmation texts
    needs_reason: bool = False


@dataclass(slots=True, frozen=True)
class Api:
    """A resource's API call."""

    method: str
    path: str
    name: str
    status: int = 200
    cli: str | None = None  # CLI command that makes this API call
    query: type[BaseModel] | None = None  # model of the query string, for GET


@dataclass(slots=True, frozen=True, kw_only=True)
class Resource:
    """A page and the API call that does the same.

    The second parameter of ``run`` is read from the page's query string, or from an action's form
    or JSON body. A DELETE has no body, so it uses the defaults. ``view`` converts the result of
    ``run`` to a ``view_model``; without it, ``view_model.of`` does.
    """

    run: Callable[[web.Request, Any], Awaitable[Any]]  # its docstring's first line is the summary
    role: Role
    page: Page
    api: Api
    view_model: Any = None  # None if ``run`` returns the response model itself
    view: Callable[[web.Request, Any], BaseModel] | None = None
    audit: str | None = None  # name of the action in the audit log
    body: int = BODY_BYTES
    values: int = VALUES

    def routes(self) -> tuple[Route, Route]:
        """Return the page's route and the API call's route."""
        page, api, (model, output) = self.page, self.api, input_and_output(self.run)
        method, show = ("GET", self.show_page) if page.template else ("POST", self.submit_form)
        is_get = api.method == "GET"
        return (
            Route(
                method, page.path, self.role, page.name, update_wrapper(partial(show), self.run),
                self.audit, body=self.body, values=self.values,
            ),
            Route(
                api.method, api.path, self.role, api.name,
                update_wrapper(partial(self.call_api), self.run), self.audit,
                query=api.query if is_get else None,
                takes=None if is_get or api.method == "DELETE" else model,
                gives=self.view_model or output, status=api.status, cli=api.cli,
                body=self.body, values=self.values,
            ),
        )  # fmt: skip

    async def show_page(self, request: web.Request) -> web.StreamResponse:
        """Render the page as HTML, or return its rows if the query requests another format."""
        page, query = self.page, None
        model, _ = input_and_output(self.run)
        if model is not None:
            query = read_query(request, model)
        found = await self.run(request, query)
        if (format_ := getattr(query, "format", "html")) != "html":
            return view_response(self._view_of(request, found), format_)
        more = {} if page.values is None else await page.values(request, query, found)
        return await render_form(request, page.template, None, query=query, found=found, **more)

    async def submit_form(self, request: web.Request) -> web.StreamResponse:
        """Perform a form's action and redirect with a message, or show the form with the error."""
        page, form = self.page, await read_form(request)
        try:
            if page.typed is not None:
                check_typed_text(await page.typed(request), form.raw("confirm"))
            audit_entry(request, reason=form.reason())
            if page.needs_reason:
                check_reason(form)
            model, _ = input_and_output(self.run)
            data = None if model is None else read_form_model(form, model)
            result = await self.run(request, data)
        except (Problem, ValidationError) as error:
            problem = problem_of(error)
            if page.again is None or problem is None:
                raise
            mark_refused(request, problem)
            return await page.again(request, form, problem)
        to = request.path
        if page.done is not None:
            message, to = page.done(request, data, result)
            Call.of(request).tell(message)
        raise web.HTTPSeeOther(own_path_or(form.raw("next"), to))

    async def call_api(self, request: web.Request) -> web.StreamResponse:
        """Respond with JSON, or with JSON lines or CSV if the query requests that format."""
        model = self.api.query
        if self.api.method != "GET":
            model, _ = input_and_output(self.run)
        data = await _read_input(request, self.api.method, model)
        view = self._view_of(request, await self.run(request, data))
        return view_response(view, getattr(data, "format", "json"), self.api.status)

    def _view_of(self, request: web.Request, result: Any) -> Any:
        if self.view is not None:
            return self.view(request, result)
        if isinstance(result, list):
            model = _item_model(self.view_model)
            return self.view_model(items=[model.of(one) for one in result])
        if result is None or isinstance(result, BaseModel):
            return result
        return self.view_model.of(result)


@cache
def input_and_output(run: Callable[..., Awaitable[Any]]) -> tuple[type[BaseModel] | None, Any]:
    """Return the models of a function's second parameter and of its result, or None for either."""
    _, *inputs, output = get_type_hints(run).values()
    models = [model for model in inputs if isinstance(model, type) and issubclass(model, BaseModel)]
    return (models[0] if models else None), (None if output is type(None) else output)


async def _read_input(request: web.Request, method: str, model: type[BaseModel] | None) -> Any:
    if model is None:
        return None
    if method == "GET":
        return read_query(request, model)
    return model() if method == "DELETE" else await read_json_model(request, model)


def view_response(view: Any, format_: str = "json", status: int = 200) -> web.Response:
    """Return a view as JSON, or a list as JSON lines or CSV; None becomes an empty response."""
    if view is None:
        return web.Response(status=status)
    if format_ in ("jsonl", "csv"):
        return list_response(format_, _item_model(type(view)), view.items, view.next)
    return json_response(view, status)


def _item_model(list_model: Any) -> Any:
    [model] = get_args(list_model.model_fields["items"].annotation)
    return model


async def render_form(
    request: web.Request, template: str, problem: Problem | None, **values: Any
) -> web.Response:
    """Render the page of a form; if the form was refused, show the problem and use its status."""
    status = problem.status if problem else 200
    response = await render_page(request, template, status=status, problem=problem, **values)
    response.headers.update(problem.headers if problem else {})
    return response


def check_reason(form: Form) -> None:
    """Refuse a form whose reason is empty.

    Raises:
        Problem: 422 if the reason is empty.
    """
    if not form.reason():
        raise Problem(422, "invalid", "Enter a reason for the audit log. Nothing was changed.",
                      field="reason", bound="at least 1 character")  # fmt: skip


def read_form_model(form: Form, model: type[BaseModel]) -> Any:
    """Read a form into a model; empty fields count as absent.

    Raises:
        ValidationError: a value is out of bounds.
        Problem: see ``Form.ttl_s``.
    """
    values: dict[str, Any] = {}
    for name in model.model_fields:
        if name == "ttl_s":  # entered as a number and a unit
            values[name] = form.ttl_s()
        elif name in _LINES and not form.texts(name, 1):
            continue
        elif name in _LINES:
            values[name] = [line.strip() for line in form.raw(name).splitlines() if line.strip()]
        elif text := form.raw(name) if name in _AS_TYPED else form.raw(name).strip():
            values[name] = text
    return model.model_validate(values, strict=False)
