"""The health endpoints /livez, /readyz and /startupz, and the checks that they run."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from phpmq_lite.admin import formats
from phpmq_lite.admin.context import Context, context_of
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.route import Role
from phpmq_lite.admin.system import view
from phpmq_lite.admin.system.metrics import answer_metrics
from phpmq_lite.server.status import LATE_S, BrokerStatus

endpoints: Final = Endpoints()

# Percentage of the startup that is complete when each step begins.
_STEPS: Final = {
    "starting": 0,
    "checking the write-ahead log": 10,
    "checking the database": 20,
    "migrating": 40,
    "recovering": 60,
    "ready": 100,
}


@dataclass(slots=True, frozen=True)
class HealthCheck:
    """The result of one readiness check."""

    name: str
    is_good: bool
    text: str
    is_needed: bool = True  # if False, a broker that fails the check is degraded but still ready


def start_percent(step: str) -> int:
    """Return how much of the startup is complete, in percent."""
    return _STEPS.get(step, 80)


async def run_checks(context: Context, status: BrokerStatus) -> list[HealthCheck]:
    """Check disk space and all conditions for readiness; the database is not read."""
    settings = context.settings
    store = (
        await asyncio.to_thread(_disk, context.settings.data, status)
        if status.store.has_file
        else _server(status)
    )
    is_started = context.is_ready() or status.is_draining or status.is_relaying
    schema = "the schema is up to date" if is_started else status.step
    texts, count = (*settings.tcp.listen, *settings.tcp.legacy_listen), len(status.listeners)
    wanted, is_draining = len(texts) - texts.count("none"), status.is_draining
    age_s = status.oldest_batch_s
    return [
        HealthCheck("migrated", is_started, schema),
        *store,
        HealthCheck("batches", age_s < LATE_S, f"the oldest without an answer: {age_s:.1f} s"),
        HealthCheck("listeners", is_draining or count >= wanted, f"{count} of {wanted} open"),
        HealthCheck(
            "not draining", not is_draining, "draining" if is_draining else "accepts messages"
        ),
    ]


def _disk(folder: Path, status: BrokerStatus) -> list[HealthCheck]:
    """Check the data folder's disk; call this in a thread, because it blocks.

    A broker with little disk space is still ready, because consumers must reach it to free space.
    """
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return [HealthCheck("writable", is_good=False, text=f"data folder: {error.strerror}")]
    is_writable = not found.f_flag & os.ST_RDONLY and os.access(folder, os.W_OK)
    says = "the data folder is writable" if is_writable else "the data folder is not writable"
    free = formats.format_size(found.f_bavail * found.f_frsize)
    short, problem = status.shortage, status.write_problem
    return [
        HealthCheck("writable", is_writable and not problem, problem or says),
        HealthCheck("disk", short is None, f"{free} free" if short is None else short.detail,
              is_needed=False),
    ]  # fmt: skip


def _server(status: BrokerStatus) -> list[HealthCheck]:
    """Check the database server; a broker that can store without a spare replica is degraded."""
    store, problem = status.store, status.write_problem
    known, must = store.replicas_ready, store.replicas_required
    ready = "not read yet" if known is None else f"{known} can confirm, {must} must"
    wrong = "; ".join(one.text for one in view.replication_problems(store))
    role = f"standby of {store.active_broker}" if store.active_broker else "not active yet"
    role = "active" if store.is_active else role
    if store.standby_problem:
        role += f", which it could not replace: {store.standby_problem}"
    has_active = store.is_active or bool(store.active_broker)
    return [
        HealthCheck("role", has_active, f"{role}, epoch {store.epoch}"),
        HealthCheck("writable", not problem, problem or "the database accepts writes"),
        HealthCheck("replicas", not wrong, wrong or ready, is_needed=False),
    ]


HEALTH_PATHS: Final = frozenset({"/livez", "/readyz", "/startupz"})
_RETRY: Final = {"Retry-After": "1"}


@endpoints.page("/livez", "livez", Role.PUBLIC, is_early=True)
async def answer_livez(_call: Call) -> web.StreamResponse:
    """Return 200 as long as the event loop is running."""
    return web.Response(text="alive\n")


@endpoints.page("/readyz", "readyz", Role.PUBLIC, is_early=True)
async def answer_readyz(call: Call) -> web.StreamResponse:
    """Return 200 if the broker can serve clients, otherwise 503; viewers also see each check."""
    context = call.context
    status = context.engine.summary()
    found = await run_checks(context, status)
    is_serving = context.is_ready() or status.is_relaying
    is_good = is_serving and all(check.is_good or not check.is_needed for check in found)
    if is_good:
        word = "ready" if all(check.is_good for check in found) else "degraded"
        word = "standby" if status.is_relaying else word
    elif status.is_draining:
        word = "draining"
    else:
        word = "not ready" if context.is_ready() else "starting"
    lines = [word]
    if call.identity.role.may(Role.VIEWER):
        lines += [f"{'ok' if one.is_good else 'BAD':3} {one.name}: {one.text}" for one in found]
    text = "".join(f"{line}\n" for line in lines)
    return web.Response(status=200, text=text) if is_good else _not_now(text)


def _not_now(text: str) -> web.Response:
    return web.Response(status=503, text=text, headers=_RETRY)


@endpoints.page("/startupz", "startupz", Role.PUBLIC, is_early=True)
async def answer_startupz(call: Call) -> web.StreamResponse:
    """Return 200 if startup is complete, otherwise 503 with the current step and the progress."""
    status = call.context.engine.summary()
    if is_started(call.request) or status.is_relaying:
        return web.Response(text="started\n")
    return _not_now(f"starting: {status.step}, {start_percent(status.step)} %\n")


def is_started(request: web.Request) -> bool:
    """Return whether startup is complete; this remains True while the broker drains."""
    context = context_of(request)
    return context.is_ready() or context.engine.summary().is_draining


def is_relaying(request: web.Request) -> bool:
    """Return whether this broker is a standby, which itself answers metrics and health checks."""
    return context_of(request).engine.summary().is_relaying


def check_started(request: web.Request) -> None:
    """Refuse a request until startup is complete.

    Raises:
        Problem: 503; on a standby, it names the active broker.
    """
    if is_started(request):
        return
    status = context_of(request).engine.summary()
    store, code = status.store, "standby"
    if store.is_active:
        code, text = "starting", f"The broker is starting: {status.step}."
    elif store.active_broker:
        text = f"This broker is a standby; the active one is on {store.active_broker}. Repeat this "
        text += "there, or with the admin address of any broker (--url): standbys relay it."
    else:
        text = f"No broker is active, and this one is waiting to become active: {status.step}."
    raise Problem(503, code, text, headers=_RETRY)


endpoints.page("/metrics", "metrics", Role.METRICS)(answer_metrics)
