"""One connection: what it holds, how it speaks, its frames; label and disconnect."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict

from phpmq_lite.admin import formats, peers
from phpmq_lite.admin.access.identity import allowed_queues, entry_of, identity_of
from phpmq_lite.admin.acting import commands
from phpmq_lite.admin.acting.forms import form_of
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.problems import Problem, not_found
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import next_of, query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.streams import Kept
from phpmq_lite.admin.viewers import FEED
from phpmq_lite.admin.views import plural
from phpmq_lite.server.inspector import FrameRecorder
from phpmq_lite.server.status import ClientStatus
from phpmq_lite.storage.read.consumers import ClientRow, StoredClients

_DIGITS: Final = 18


class ClientQuery(BaseModel):
    """What to show of a connection beside its figures."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    confirm: Literal["disconnect"] | None = None
    process: Literal["1"] | None = None


@dataclass(slots=True, frozen=True)
class _Shown(Kept):
    """How far a recording was shown to those who look at it."""

    began_at: int  # Unix ms; tells recordings apart
    count: int
    missed: int


async def client(request: web.Request) -> web.StreamResponse:
    """One connection: what it holds, how it speaks, its last frames."""
    context, query = context_of(request), query_of(request, ClientQuery)
    number = number_of(request.match_info["client"])
    row = await row_of(request, number)
    look = await peers.look_at(request, number, is_watching=query.confirm is None)
    status = status_of_client(request, number)
    if query.confirm:
        return await page(request, "client.html", view="confirm", row=row, look=look)
    process = None
    may_ask = identity_of(request).role.may(Role.OPERATOR) and peers.is_local(row.address, row.kind)
    if query.process and may_ask and look.is_open:
        process = await peers.process_of(row.address, look.pid)
    labels = await peers.labels_of(context)
    return await page(
        request,
        "client.html",
        view="page",
        row=row,
        look=look,
        client=status,
        figures=peers.figures(status) if status else {},
        label=peers.label_of(row.address, labels),
        own_label=labels.get(peers.host_of(row.address), ""),
        host=peers.host_of(row.address),
        may_ask=may_ask and look.is_open,
        asked=query.process is not None,
        process=process,
        frames=_frames(request, look.recorder)[::-1],
        errors=peers.errors_of(request, number),
        speaks=peers.speaks,
    )


def number_of(text: str) -> int:
    """Read the number of a connection.

    Raises:
        Problem: 404 where it is none.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise not_found("client", text)
    return int(text)


async def row_of(request: web.Request, number: int) -> ClientRow:
    """Give the row of a connection, open or not.

    Raises:
        Problem: 404 where there never was one, or its row is gone.
    """
    status = status_of_client(request, number)
    if status is not None:
        return ClientRow(number, status.kind, status.address, status.opened_at, None,
                         status.framing, status.revision, None)  # fmt: skip
    found = await StoredClients(context_of(request).readers).one(number) if number else None
    if found is None:
        raise not_found("client", str(number))
    return found


def status_of_client(request: web.Request, number: int) -> ClientStatus | None:
    """Give the figures of an open connection."""
    return next((c for c in status_of(request).clients if c.client == number), None)


def _frames(request: web.Request, recorder: FrameRecorder | None) -> list[dict[str, Any]]:
    if recorder is None:
        return []
    may_see = peers.sees(request)
    return [peers.frame_row(one, recorder.began_at, may_see) for one in recorder.frames]


async def live_client(request: web.Request, argument: str, _ids: tuple[int, ...]) -> dict[str, Any]:
    """Give what changes on the page of a connection, and the frames that passed since."""
    context, number = context_of(request), number_of(argument)
    look = await peers.look_at(request, number, is_watching=True)
    status = status_of_client(request, number)
    shown = {"state": "open" if look.is_open else "closed"}
    if status is not None:
        shown |= peers.figures(status)
    rows, missed = _new_frames(request, context, look.recorder)
    return {
        "shown": shown,
        "points": {},
        "new": 0,
        "says": f"Holds {look.held_total}" if look.is_open else "The connection has ended",
        "rows": rows,
        "missed": missed,
    }


def _new_frames(
    request: web.Request, context: Context, recorder: FrameRecorder | None
) -> tuple[list[dict[str, Any]], int]:
    """Give the frames since the last evaluation of this feed, and how many were left out."""
    if recorder is None:
        return [], 0
    key = request[FEED]
    before = context.live.kept.get(key)
    count, missed = 0, recorder.missed
    if isinstance(before, _Shown) and before.began_at == recorder.began_at:
        count, missed = before.count, before.missed
    context.live.kept[key] = _Shown(recorder.began_at, recorder.count, recorder.missed)
    may_see = peers.sees(request)
    rows = [
        peers.frame_row(one, recorder.began_at, may_see)
        for one in recorder.frames
        if one.number > count
    ]
    return rows, recorder.count - count - len(rows) + recorder.missed - missed


# -- what the buttons do


async def disconnect(request: web.Request) -> web.StreamResponse:
    """Close a connection; what it holds goes back to its place."""
    context = context_of(request)
    number = number_of(request.match_info["client"])
    form = await form_of(request)
    entry = entry_of(request, target=str(number), reason=form.text("reason", 500))
    count = await commands.disconnect(context, entry, number, allowed_queues(request))
    goes = plural(count, "message goes back to its", "messages go back to their")
    context.sessions.note(
        request, f"Client {number} is disconnected; {formats.number(count)} {goes} place."
    )
    raise web.HTTPSeeOther(await next_of(request, context.urls.to("clients")))


async def label(request: web.Request) -> web.StreamResponse:
    """Give an address or a network a label; an empty one takes it away."""
    context, form = context_of(request), await form_of(request)
    name = peers.read_label_name(form.text("name", 64))
    if name is None:
        raise Problem(422, "invalid", "This is neither an address nor a network.", field="name",
                      bound="10.0.0.7, 10.0.0.0/24 or unix")  # fmt: skip
    text = form.text("label", peers.LABEL_MAX)
    entry = entry_of(request, target=name)
    before = (await peers.labels_of(context)).get(name, "")
    if text == before.strip():
        pass  # the form was saved as it was shown
    elif text:
        await commands.save(context, entry, peers.LABEL, name, text)
    else:
        await commands.forget(context, entry, peers.LABEL, name)
    said = f"{name} is labelled {text}." if text else f"{name} has no label any more."
    context.sessions.note(request, said)
    raise web.HTTPSeeOther(await next_of(request, context.urls.to("clients")))


ROUTES: Final = (
    Route("POST", "/clients/label", Role.OPERATOR, "client-label", label, "client.label"),
    Route("GET", "/clients/{client}", Role.VIEWER, "client", client),
    Route(
        "POST", "/clients/{client}/disconnect", Role.OPERATOR, "client-disconnect", disconnect,
        "client.disconnect",
    ),
)  # fmt: skip
