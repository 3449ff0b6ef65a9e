"""The admin interface: server-rendered web pages and an HTTP API, built on aiohttp.

``http/`` declares and serves requests; ``accounts``, ``messages``, ``pipeline``, ``queues`` and
``system`` are slices with pages, calls and models; ``routes.py`` imports their modules, and a new
module must be added there, to the import and to ``_MODULES``. ``ADMIN`` in ``tests/test_layers.py``
says which part imports which; ``middlewares.py`` has what every request passes through.

**A field of an object of the API.** Add it to the model, such as ``QueueView`` in
``queues/view.py`` or ``TokenView`` in ``accounts/tokens.py``, with its description.
``ResponseModel.of`` copies the attribute of the same name from a row of ``storage/read/`` or from
``server/status.py``; ``of(row, name=value)`` adds a value that the row does not have.  Pages, JSON
and CSV share models.  Each time is Unix ms, is named ``at`` or ``*_at``, and says so in its
description.

**An action with button, confirmation, API call and audit entry.** Copy ``remove_queue`` in
``queues/actions.py``: ``ask=`` returns the ``Confirmation``, of which ``title``, ``text``,
``button``, ``url`` and ``back`` are required, and which gets what the handler gets from the path;
``api="POST"`` adds the call with the same path and, unless ``status=`` is given, 200. The form is
the route ``NAME``, its page ``NAME-form`` and the call ``api-NAME`` (``http/endpoint.py``). A
button links to ``url("NAME-form")``; those of a queue are in the macro ``queue_actions`` in
``templates/_partials/actions.html``. The role says who may; ``call.check_all_queues("view
backups")`` refuses callers who are limited to some queues.  The change is an operation in
``broker/operator/``, which ``call.run`` calls with the audit entry, or, for users, tokens and
sessions, a method of ``accounts_of(call)``; the action of an entry has no other list.

**A list with pages, JSON and CSV.** Copy ``accounts/audit.py``, which reads a page of the database
(``queues/list.py`` divides what is in memory): a ``ListQuery``, ``api(…)`` that returns a
``ListPage[View]``, and ``page(…, data=…)``, which sends that list as ``?format=json``, ``jsonl`` or
``csv``. ``audit.html`` uses the macros ``pager`` and ``formats``. A reader of the database is made
where it is used: ``AuditLog(call.context.readers)``; for a reader that only goes forward,
``position_in(decode_cursor(scope, query.cursor)).get("before")`` is where to go on, and
``encode_cursor(scope, "before", number)`` is ``next`` (``http/cursors.py``).

**A page.** ``page("/path", "name")``, and ``call.render("name.html", …)``. An entry in the
navigation is a row of ``NAVIGATION`` in ``http/page_layout.py`` and an icon of the route's name in
``templates/_partials/icons.html``; ``HELP`` names its documentation.  A page below another page's
path needs neither: the other page links to it, as the tabs of ``system.html`` do.  The first route
that matches is used, so ``/backups/log`` stands before ``/backups/{n}``.

Derived, not written: OpenAPI, CSRF checks, audit rows (of refusals, too), the reason of a form or
body, and ``docs/reference/`` (by ``python -m tests.docs.references``). Routes that need values for
the tests of all routes are listed in ``tests/integration/test_every_page.py``.
"""
