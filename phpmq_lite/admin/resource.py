"""One definition of a page and its API call.

``run`` checks, loads or acts. The page renders what it returns, or redirects with a message after
an action; the API call returns it as JSON. A ``Resource`` yields ordinary rows of the route table.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any, Final, get_args

from aiohttp import web
from pydantic import BaseModel, ValidationError

from phpmq_lite.admin.actions.confirmation import check_typed_text
from phpmq_lite.admin.actions.flash_messages import store_message
from phpmq_lite.admin.auth.request_audit import mark_refused
from phpmq_lite.admin.auth.sessions import FlashMessage
from phpmq_lite.admin.base.input import Form, read_form, read_json_model, read_query
from phpmq_lite.admin.base.problems import Problem, problem_of
from phpmq_lite.admin.base.responses import json_response, list_response
from phpmq_lite.admin.base.route import BODY_BYTES, VALUES, Role, Route
from phpmq_lite.admin.base.urls import own_path_or
from phpmq_lite.admin.views.rendering import render_page

_AS_TYPED: Final = frozenset({"password", "queue", "target"})  # leading and trailing spaces count
_LINES: Final = frozenset({"queues"})  # a list, one item a line


@dataclass(slots=True, frozen=True)
class Page:
    """The page of a resource: a template, or a form that acts.

    ``values`` returns what only the page shows. ``done`` returns the message after an action and
    the page to show next, unless the form names one. ``again`` shows the form with its error.
    """

    path: str
    name: str
    template: str = ""  # "": a form
    values: Callable[[web.Request, Any, Any], Awaitable[dict[str, Any]]] | None = None
    done: Callable[[web.Request, Any, Any], tuple[FlashMessage | str, str]] | None = None
    again: Callable[[web.Request, Form, Problem], Awaitable[web.Response]] | None = None
    typed: Callable[[web.Request], Awaitable[Collection[str]]] | None = None  # to confirm
    needs_reason: bool = False


@dataclass(slots=True, frozen=True)
class Api:
    """The API call of a resource."""

    method: str
    path: str
    name: str
    status: int = 200
    cli: str | None = None  # the command that uses it
    query: type[BaseModel] | None = None  # of a GET, if it differs from the page's


@dataclass(slots=True, frozen=True, kw_only=True)
class Resource:
    """A page and its API call.

    ``input_model`` reads the query string of the page, or the form and the JSON body of an action;
    a DELETE has no body, its input is the defaults. ``view`` turns the result of ``run`` into the
    model of the API, if it is none.
    """

    run: Callable[[web.Request, Any], Awaitable[Any]]  # its docstring begins with the summary
    role: Role
    page: Page
    api: Api
    input_model: type[BaseModel] | None = None
    view_model: Any = None
    view: Callable[[web.Request, Any], BaseModel] | None = None
    audit: str | None = None  # of an action
    body: int = BODY_BYTES
    values: int = VALUES

    def routes(self) -> tuple[Route, Route]:
        """Return the rows of the page and of the API call."""
        page, api, model = self.page, self.api, self.input_model
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
                gives=self.view_model, status=api.status, cli=api.cli,
                body=self.body, values=self.values,
            ),
        )  # fmt: skip

    async def show_page(self, request: web.Request) -> web.StreamResponse:
        """Render the page, or list its rows if the query asks for another format."""
        page, query = self.page, None
        if self.input_model is not None:
            query = read_query(request, self.input_model)
        found = await self.run(request, query)
        if getattr(query, "format", "html") != "html":
            return self._as_list(request, query, found)
        more = {} if page.values is None else await page.values(request, query, found)
        return await render_page(request, page.template, query=query, found=found, **more)

    async def submit_form(self, request: web.Request) -> web.StreamResponse:
        """Act on a form; redirect with a message, or show the form again with its error."""
        page, form = self.page, await read_form(request)
        try:
            if page.typed is not None:
                check_typed_text(await page.typed(request), form.raw("confirm"))
            if page.needs_reason:
                check_reason(form)
            data = None if self.input_model is None else read_form_model(form, self.input_model)
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
            store_message(request, message)
        raise web.HTTPSeeOther(own_path_or(form.raw("next"), to))

    async def call_api(self, request: web.Request) -> web.StreamResponse:
        """Answer with JSON, or with JSON lines or CSV if the query asks for them."""
        data: Any = None
        if self.api.query is not None:
            data = read_query(request, self.api.query)
        elif self.input_model is not None and self.api.method != "GET":
            model = self.input_model
            data = model() if self.api.method == "DELETE" else await read_json_model(request, model)
        result = await self.run(request, data)
        if getattr(data, "format", "json") in ("jsonl", "csv"):
            return self._as_list(request, data, result)
        return json_response(self._view_of(request, result), self.api.status)

    def _view_of(self, request: web.Request, result: Any) -> Any:
        return result if self.view is None else self.view(request, result)

    def _as_list(self, request: web.Request, query: Any, result: Any) -> web.Response:
        view = self._view_of(request, result)
        if query.format == "json":
            return json_response(view)
        [model] = get_args(self.view_model.model_fields["items"].annotation)
        return list_response(query.format, model, view.items, view.next)


def check_reason(form: Form) -> None:
    """Refuse a form without a reason.

    Raises:
        Problem: 422.
    """
    if not form.reason():
        raise Problem(422, "invalid", "Enter a reason for the audit. Nothing was changed.",
                      field="reason", bound="1 character or more")  # fmt: skip


def read_form_model(form: Form, model: type[BaseModel]) -> Any:
    """Read a form into a model; empty fields count as absent.

    Raises:
        ValidationError: a value is out of its bounds.
        Problem: as ``Form.ttl_s``.
    """
    values: dict[str, Any] = {}
    for name in model.model_fields:
        if name == "ttl_s":  # a number with its unit
            values[name] = form.ttl_s()
        elif name in _LINES and not form.texts(name, 1):
            continue
        elif name in _LINES:
            values[name] = [line.strip() for line in form.raw(name).splitlines() if line.strip()]
        elif text := form.raw(name) if name in _AS_TYPED else form.raw(name).strip():
            values[name] = text
    return model.model_validate(values, strict=False)
