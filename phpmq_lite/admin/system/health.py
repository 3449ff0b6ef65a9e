"""The health endpoints /livez, /readyz and /startupz, and the warnings that every page shows."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.system.attention import measure_replication
from phpmq_lite.admin.urls import Urls
from phpmq_lite.checks import CHECKS, Check, Level, asynchronous_text, problems
from phpmq_lite.roles import Role
from phpmq_lite.server.addresses import is_loopback, parse_endpoint
from phpmq_lite.server.status import LATE_S, BrokerStatus
from phpmq_lite.settings import Settings

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
    is_needed: bool  # if False, a broker that fails the check is degraded but still ready


def start_percent(step: str) -> int:
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
    addresses, count = (*settings.tcp.listen, *settings.tcp.legacy_listen), len(status.listeners)
    required, is_draining = len(addresses) - addresses.count("none"), status.is_draining
    age_s, is_open = status.oldest_batch_s, is_draining or count >= required
    draining = "draining" if is_draining else "accepts messages"
    return [
        _result(Check.STARTED, is_started, schema),
        *store,
        _result(Check.BATCHES, age_s < LATE_S, f"the oldest without an answer: {age_s:.1f} s"),
        _result(Check.LISTENERS, is_open, f"{count} of {required} open"),
        _result(Check.DRAINING, not is_draining, draining),
    ]


def _result(check: Check, is_good: bool, text: str) -> HealthCheck:
    return HealthCheck(CHECKS[check].ready, is_good, text, not CHECKS[check].is_degraded)


def _disk(folder: Path, status: BrokerStatus) -> list[HealthCheck]:
    """Check the data folder's disk; call this in a thread, because it blocks.

    A broker with little disk space is still ready, because consumers must reach it to free space.
    """
    try:
        file_system = os.statvfs(folder)
    except OSError as error:
        return [_result(Check.STORING, is_good=False, text=f"data folder: {error.strerror}")]
    is_writable = not file_system.f_flag & os.ST_RDONLY and os.access(folder, os.W_OK)
    text = "the data folder is writable" if is_writable else "the data folder is not writable"
    free = formats.format_size(file_system.f_bavail * file_system.f_frsize)
    shortage, problem = status.shortage, status.write_problem
    space = f"{free} free" if shortage is None else shortage.detail
    return [
        _result(Check.STORING, is_writable and not problem, problem or text),
        _result(Check.SHORTAGE, shortage is None, space),
    ]


def _server(status: BrokerStatus) -> list[HealthCheck]:
    """Check the database server; a broker that can store without a spare replica is degraded."""
    store, problem = status.store, status.write_problem
    ready = "not read yet"
    if store.replicas_ready is not None:
        ready = f"{store.replicas_ready} can confirm, {store.replicas_required} must"
    texts = "; ".join(text for _, _, text in problems(measure_replication(store)))
    role = f"standby of {store.active_broker}" if store.active_broker else "not active yet"
    role = "active" if store.is_active else role
    if store.standby_problem:
        role += f", which it could not replace: {store.standby_problem}"
    has_active = store.is_active or bool(store.active_broker)
    return [
        _result(Check.ACTIVE, has_active, f"{role}, epoch {store.epoch}"),
        _result(Check.STORING, not problem, problem or "the database accepts writes"),
        _result(Check.QUORUM, not texts, texts or ready),
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
    status = context.broker.summary()
    checks = await run_checks(context, status)
    is_serving = context.is_ready() or status.is_relaying
    is_good = is_serving and all(check.is_good or not check.is_needed for check in checks)
    if is_good:
        word = "ready" if all(check.is_good for check in checks) else "degraded"
        word = "standby" if status.is_relaying else word
    elif status.is_draining:
        word = "draining"
    else:
        word = "not ready" if context.is_ready() else "starting"
    lines = [word]
    if call.identity.role.may(Role.VIEWER):
        lines += [f"{'ok' if c.is_good else 'BAD':3} {c.name}: {c.text}" for c in checks]
    text = "".join(f"{line}\n" for line in lines)
    return web.Response(status=200, text=text) if is_good else _not_now(text)


def _not_now(text: str) -> web.Response:
    return web.Response(status=503, text=text, headers=_RETRY)


@endpoints.page("/startupz", "startupz", Role.PUBLIC, is_early=True)
async def answer_startupz(call: Call) -> web.StreamResponse:
    """Return 200 if startup is complete, otherwise 503 with the current step and the progress."""
    status = call.context.broker.summary()
    if is_started(call.context) or status.is_relaying:
        return web.Response(text="started\n")
    return _not_now(f"starting: {status.step}, {start_percent(status.step)} %\n")


def is_started(context: Context) -> bool:
    """Return whether startup is complete; this remains True while the broker drains."""
    return context.is_ready() or context.broker.summary().is_draining


def is_relaying(context: Context) -> bool:
    """Return whether this broker is a standby, which itself answers metrics and health checks."""
    return context.broker.summary().is_relaying


def check_started(context: Context) -> None:
    """Raise a 503 ``Problem`` until startup is complete; a standby's names the active broker."""
    if is_started(context):
        return
    status = context.broker.summary()
    store, code = status.store, "standby"
    if store.is_active:
        code, text = "starting", f"The broker is starting: {status.step}."
    elif store.active_broker:
        text = f"This broker is a standby; the active one is on {store.active_broker}. Repeat this "
        text += "there, or with the admin address of any broker (--url): standbys relay it."
    else:
        text = f"No broker is active, and this one is waiting to become active: {status.step}."
    raise Problem(503, code, text, headers=_RETRY)


# -- warnings on every page


@dataclass(slots=True, frozen=True)
class HeaderWarning:
    """A warning shown in the page header."""

    title: str
    text: str
    url: str = ""


def list_access_warnings(call: Call) -> Iterator[HeaderWarning]:
    """Yield warnings about open access (see section 1 of ``docs/operate/security.md``)."""
    settings, urls = call.context.settings, call.context.urls
    if call.identity.kind == "local":
        yield HeaderWarning(
            "No login",
            "Anyone on this machine can read and change everything here.",
            urls.to("setup"),
        )
    yield from unprotected_listeners(settings, urls)
    if settings.store.url and settings.store.allow_asynchronous:
        yield HeaderWarning(
            "No quorum required",
            "Without a quorum, messages are confirmed all the same (store.allow_asynchronous).",
            urls.to("system"),
        )


def unprotected_listeners(settings: Settings, urls: Urls) -> Iterator[HeaderWarning]:
    """Yield warnings about unprotected listeners that other machines can reach."""
    tcp, admin = settings.tcp, settings.admin
    system = urls.to("system")
    if not (tcp.allow or tcp.tls_cert) and _is_wide(*tcp.listen, *tcp.legacy_listen):
        yield HeaderWarning(
            "Unprotected TCP",
            "Anyone who can reach the TCP listener can read, publish and acknowledge.",
            system,
        )
    is_encrypted = admin.tls_cert or (admin.trusted_proxies and not admin.plaintext)
    if not is_encrypted and _is_wide(*admin.listen):
        yield HeaderWarning(
            "Unencrypted HTTP", "Passwords and messages are sent in plain text.", system
        )


def _is_wide(*listeners: str) -> bool:
    endpoints = filter(None, map(parse_endpoint, listeners))
    return not all(map(is_loopback, endpoints))


def list_broker_problems(call: Call) -> list[str]:
    """Return the problems that affect the entire broker; every page shows them in a red bar."""
    status, context = call.status, call.context
    problems = [f"Last error: {status.last_error}"] if status.last_error else []
    if status.is_draining and context.is_ready():
        problems.append(
            "Draining: new messages are refused, and the broker stops once no messages are held."
        )
    if status.write_problem:
        problems.append(f"Nothing can be stored: {status.write_problem}.")
    if status.shortage:
        return [*problems, f"Publishing is stopped: {status.shortage.detail}."]
    if (age_s := status.store.replica_age_s) is not None:
        problems.append(
            f"No broker is active. These pages show a replica of the database, which was written "
            f"{age_s:.0f} s ago; nothing can be changed."
        )
    if not status.store.has_file:
        if status.store.asynchronous is not None:
            problems.append(f"{asynchronous_text(status.store.asynchronous)}.")
        return problems
    with suppress(OSError):  # takes only microseconds, because the disk is local
        disk = shutil.disk_usage(context.settings.data)
        problems += disk_warning(disk.used, disk.used + disk.free)
    return problems


def disk_warning(used: int, usable: int) -> list[str]:
    """Return a warning if the disk is nearly full; space reserved for root is not usable."""
    if CHECKS[Check.DISK].notice.level(used / usable) is not Level.BAD:
        return []
    return [f"The disk is {used / usable:.0%} full. Publishing stops when it is full."]
