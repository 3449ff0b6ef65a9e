"""The warnings in the header of every page, and the problems that affect the entire broker."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.urls import Urls
from phpmq_lite.checks import CHECKS, Check, Level, asynchronous_text
from phpmq_lite.server.addresses import is_loopback, parse_endpoint
from phpmq_lite.settings import Settings


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
