"""Checks of the listeners: ports, access, certificates."""

import asyncio
import errno
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple

from phpmq_lite.admin.auth.services import initial_password
from phpmq_lite.admin.base.formats import plural
from phpmq_lite.admin.monitoring.processes import PeerProcess, find_listener
from phpmq_lite.admin.monitoring.system_view import Certificate, read_certificates
from phpmq_lite.cli.doctor.findings import Finding, as_root, bad, ok, warn
from phpmq_lite.errors import SettingsError
from phpmq_lite.server.addresses import (
    ListenAddress,
    bind_tcp,
    check_wide_binds,
    is_loopback,
    read_endpoints,
)
from phpmq_lite.server.tls import server_context
from phpmq_lite.settings import Settings
from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.storage.integrity.stopped_database import has_admin

NAME: Final = "listeners"
_DAY_MS: Final = 86_400_000
SOON_DAYS: Final = 21  # left for a certificate: time to get the next one


class ListenerProbe(NamedTuple):
    """One address to listen on, and what came of trying it."""

    setting: str
    endpoint: ListenAddress
    error: OSError | None = None  # None: it is free
    process: PeerProcess | None = None  # that has it, where that can be seen
    may_stop: bool = True  # it is a process of this account, or we are root


def check_listeners(settings: Settings, pid: str | None) -> Iterator[Finding]:
    """Try the addresses, then look who may come there."""
    try:
        wanted = list(_wanted(settings))
    except SettingsError as error:
        yield bad(NAME, str(error), "mend it: a start is refused with exit code 78")
        return
    yield from port_findings([_tried(*one) for one in wanted], pid)
    yield access_finding(settings, _access_problem(settings), wanted)
    yield from _tls(settings)


def _wanted(settings: Settings) -> Iterator[tuple[str, ListenAddress]]:
    for name, texts in (
        ("tcp.listen", settings.tcp.listen),
        ("tcp.legacy_listen", settings.tcp.legacy_listen),
        ("admin.listen", settings.admin.listen),
    ):
        yield from ((name, endpoint) for endpoint in read_endpoints(name, texts))


# -- ports


def _tried(setting: str, endpoint: ListenAddress) -> ListenerProbe:
    """Bind an address and let it go; nobody can connect to it meanwhile."""
    try:
        if endpoint.kind == "unix":
            _try_unix(endpoint)
        else:
            for bound in asyncio.run(bind_tcp(endpoint)):
                bound.close()
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE and endpoint.kind == "tcp"
        process = find_listener(endpoint.port) if taken else None
        return ListenerProbe(
            setting, endpoint, error, process, process is None or _may_stop(process.pid)
        )
    return ListenerProbe(setting, endpoint)


def _may_stop(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def _try_unix(endpoint: ListenAddress) -> None:
    """Look whether somebody answers on a socket; what nobody answers on is replaced by a start."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.setblocking(False)  # who is there may be slow to answer
        try:
            probe.connect(str(endpoint.path))
        except BlockingIOError:
            pass
        except (FileNotFoundError, ConnectionRefusedError):
            if not os.access(endpoint.path.parent, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def port_findings(ports: Sequence[ListenerProbe], pid: str | None) -> Iterator[Finding]:
    """Judge the addresses; ``pid`` is the broker that runs, which should have them all."""
    good: list[str] = []
    missing: list[str] = []
    for port in ports:
        if port.error is None:
            (missing if pid and not _is_any(port.endpoint) else good).append(str(port.endpoint))
        elif _is_ours(port, pid):
            good.append(str(port.endpoint))
        else:
            yield _refused(port)
    if missing:
        yield warn(
            NAME,
            f"the broker that runs does not listen on {', '.join(missing)}",
            "it was started with other settings: restart it, or give doctor its flags",
        )
    if good:
        yield ok(NAME, f"{', '.join(good)}: {'of the broker' if pid else 'free'}")


def _is_any(endpoint: ListenAddress) -> bool:
    return endpoint.kind == "tcp" and endpoint.port == 0


def _is_ours(port: ListenerProbe, pid: str | None) -> bool:
    """Tell whether our broker has it: who has it cannot always be seen."""
    is_taken = port.error is not None and port.error.errno == errno.EADDRINUSE
    return is_taken and pid is not None and (port.process is None or str(port.process.pid) == pid)


def _refused(port: ListenerProbe) -> Finding:
    error, where = port.error or OSError(), f"{port.setting} {port.endpoint}"
    other = f"set another address in {port.setting}"
    if error.errno == errno.EADDRINUSE and port.process is None:
        hint = f"{other}; or {as_root('ss -ltnp')}, which says what to stop"
        return bad(NAME, f"{where} is taken by another program", hint)
    if error.errno == errno.EADDRINUSE and port.process is not None:
        found = f"{where} is taken by pid {port.process.pid}, {port.process.command}"
        return bad(NAME, found, f"stop that, or {other}" if port.may_stop else other)
    if error.errno == errno.EACCES and port.endpoint.kind == "tcp":
        command = f"sysctl net.ipv4.ip_unprivileged_port_start={port.endpoint.port}"
        other += f"; or, to allow it to every account, {as_root(command)}"
    return bad(NAME, f"{where}: {error.strerror or error}", other)


# -- who may come in


def _access_problem(settings: Settings) -> str:
    """Say why a start would be refused, for want of a decision or of a usable password."""
    database = settings.data / DATABASE
    try:
        check_wide_binds(settings, lambda: has_admin(database))
        file = settings.admin.initial_password_file
        if file is not None and not has_admin(database):
            initial_password(file)
    except SettingsError as error:
        return str(error)
    return ""


def access_finding(
    settings: Settings, problem: str, wanted: Sequence[tuple[str, ListenAddress]]
) -> Finding:
    """Judge who may connect; ``problem`` is why a start is refused, ``wanted`` where it listens."""
    if problem:
        return bad("access", problem, "until then a start is refused with exit code 78")
    wide = [(name, endpoint) for name, endpoint in wanted if not is_loopback(endpoint)]
    if not wide:
        return ok("access", "only this machine can connect")
    sections = {name.partition(".")[0] for name, _ in wide}
    text = f"others can connect: {', '.join(f'{name} {endpoint}' for name, endpoint in wide)}"
    tcp, admin = settings.tcp, settings.admin
    if "tcp" in sections and tcp.open and not (tcp.allow or tcp.tls_client_ca):
        return warn(
            "access",
            f"{text}; tcp.open: each of them can read and publish",
            "name their networks in tcp.allow, or ask for certificates with tcp.tls_client_ca",
        )
    if "admin" in sections and admin.plaintext and admin.tls_cert is None:
        return warn(
            "access",
            f"{text}; admin.plaintext: passwords and tokens can be read on the way",
            "set admin.tls_cert and admin.tls_key, or put a proxy with TLS in front",
        )
    return ok("access", text)


# -- certificates


def _tls(settings: Settings) -> Iterator[Finding]:
    problems = {}
    for section, client_ca in (("tcp", settings.tcp.tls_client_ca), ("admin", None)):
        pair = getattr(settings, section)
        if pair.tls_cert is not None:
            try:
                server_context(pair.tls_cert, pair.tls_key, client_ca, section=section)
            except SettingsError as error:
                problems[section] = str(error)
                yield bad("TLS", str(error), "a start is refused with exit code 78")
    now_ms = time.time_ns() // 1_000_000
    for one in asyncio.run(read_certificates(settings)):
        if one.section not in problems:
            yield certificate_finding(one, now_ms)


def certificate_finding(one: Certificate, now_ms: int) -> Finding:
    """Judge the time that a certificate has left."""
    names = ", ".join(one.names) or one.subject
    text = f"{one.section}: {names}"
    if one.expires_at is None:
        return bad(
            "TLS",
            f"{text}: {one.error or 'it does not say until when'}",
            f"look at it: openssl x509 -text -in {one.path}",
        )
    days = (one.expires_at - now_ms) // _DAY_MS
    text += f", {days} {plural(days, 'day', 'days')} left"
    if days < SOON_DAYS:
        return warn("TLS", text, f"put a new one to {one.path}, and reload the broker (SIGHUP)")
    return ok("TLS", text)
