"""Checks of the listeners' ports, access and certificates."""

import asyncio
import errno
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Final, NamedTuple

from phpmq_lite.admin.formats import count_of
from phpmq_lite.cli.doctor.findings import Finding, as_root, bad, ok, ok_if, refusal_of, warn
from phpmq_lite.errors import SettingsError
from phpmq_lite.server.addresses import (
    ListenAddress,
    bind_tcp,
    check_exposed_listeners,
    is_loopback,
    listen_addresses,
)
from phpmq_lite.server.processes import PeerProcess, find_listener
from phpmq_lite.server.tls import Certificate, read_certificates, server_context
from phpmq_lite.service.startup_checks import has_admin
from phpmq_lite.settings import Settings
from phpmq_lite.settings.loading import initial_password

NAME: Final = "listeners"
_DAY_MS: Final = 86_400_000
SOON_DAYS: Final = 21  # a certificate that expires sooner should be renewed


class ListenerProbe(NamedTuple):
    """A listener's address, and the result of an attempt to bind to that address."""

    setting: str
    endpoint: ListenAddress
    error: OSError | None = None  # None if the address is free
    process: PeerProcess | None = None  # process that uses the address, if known
    may_stop: bool = True  # whether this account is allowed to stop ``process``


def check_listeners(settings: Settings, pid: str | None) -> Iterator[Finding]:
    """Check the addresses of the listeners, who can connect to them, and the certificates."""
    try:
        addresses = list(listen_addresses(settings))
    except SettingsError as error:
        yield bad(NAME, str(error), "correct it, or the broker refuses to start (exit code 78)")
        return
    yield from port_findings([_probe(*address) for address in addresses], pid)
    problem = refusal_of(partial(_check_access, settings), SettingsError)
    yield access_finding(settings, problem, addresses)
    yield from _certificate_findings(settings)


# -- ports


def _probe(setting: str, endpoint: ListenAddress) -> ListenerProbe:
    try:
        if endpoint.kind == "unix":
            _try_unix(endpoint)
        else:
            for bound in asyncio.run(bind_tcp(endpoint)):
                bound.close()
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE and endpoint.kind == "tcp"
        process, may_stop = find_listener(endpoint.port) if taken else None, True
        try:
            if process is not None:
                os.kill(process.pid, 0)
        except OSError as refusal:
            may_stop = not isinstance(refusal, PermissionError)
        return ListenerProbe(setting, endpoint, error, process, may_stop)
    return ListenerProbe(setting, endpoint)


def _try_unix(endpoint: ListenAddress) -> None:
    """Raise OSError if a process listens on a Unix socket, or if its folder is not writable."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.setblocking(False)  # do not wait if the listener is slow
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
    """Yield findings about the addresses; a running broker (``pid``) should use all of them."""
    good: list[str] = []
    missing: list[str] = []
    for port in ports:
        may_be_ours = port.process is None or str(port.process.pid) == pid
        if port.error is None:
            is_any_port = port.endpoint.kind == "tcp" and port.endpoint.port == 0
            is_free = is_any_port or port.setting == "store.relay_listen"  # until it is active
            (missing if pid and not is_free else good).append(str(port.endpoint))
        elif pid is not None and port.error.errno == errno.EADDRINUSE and may_be_ours:
            good.append(str(port.endpoint))
        else:
            yield _unavailable_finding(port)
    if missing:
        text = f"the running broker does not listen on {', '.join(missing)}"
        hint = "it was started with other settings; restart it, or run doctor with the same flags"
        yield warn(NAME, text, hint)
    if good:
        yield ok(NAME, f"{', '.join(good)}: {'used by the broker' if pid else 'free'}")


def _unavailable_finding(port: ListenerProbe) -> Finding:
    error, where = port.error or OSError(), f"{port.setting} {port.endpoint}"
    other = f"set another address in {port.setting}"
    if error.errno == errno.EADDRINUSE and port.process is None:
        hint = f"{other}; or {as_root('ss -ltnp')}, to see which program to stop"
        return bad(NAME, f"{where} is in use by another program", hint)
    if error.errno == errno.EADDRINUSE and port.process is not None:
        text = f"{where} is in use by pid {port.process.pid}, {port.process.command}"
        return bad(NAME, text, f"stop that process, or {other}" if port.may_stop else other)
    if error.errno == errno.EACCES and port.endpoint.kind == "tcp":
        command = f"sysctl net.ipv4.ip_unprivileged_port_start={port.endpoint.port}"
        other += f"; or, to allow the port to every account, {as_root(command)}"
    return bad(NAME, f"{where}: {error.strerror or error}", other)


# -- access


def _check_access(settings: Settings) -> None:
    """Raise SettingsError if exposed listeners or an unusable password prevent a start."""
    check_exposed_listeners(settings, lambda: has_admin(settings))
    file = settings.admin.initial_password_file
    if file is not None and not has_admin(settings):
        initial_password(file)


def access_finding(
    settings: Settings, problem: str, listeners: Sequence[tuple[str, ListenAddress]]
) -> Finding:
    """Return a finding about access; ``problem`` states why the broker would refuse to start."""
    if problem:
        return bad("access", problem, "until then, the broker refuses to start (exit code 78)")
    wide = [(name, endpoint) for name, endpoint in listeners if not is_loopback(endpoint)]
    if not wide:
        hint = (
            "a proxy here lets in others, and headers cannot show each proxy: create a user first"
        )
        return ok("access", "only this machine can connect", hint)
    sections = {name.partition(".")[0] for name, _ in wide}
    addresses = ", ".join(f"{name} {endpoint}" for name, endpoint in wide)
    text = f"other machines can connect: {addresses}"
    tcp, admin = settings.tcp, settings.admin
    if "tcp" in sections and tcp.open and not (tcp.allow or tcp.tls_client_ca):
        text += "; with tcp.open, any of them can consume and publish"
        hint = "list their networks in tcp.allow, or require certificates with tcp.tls_client_ca"
        return warn("access", text, hint)
    if "admin" in sections and admin.plaintext and admin.tls_cert is None:
        text += "; with admin.plaintext, passwords and tokens are sent unencrypted"
        hint = "set admin.tls_cert and admin.tls_key, or put a TLS proxy in front"
        return warn("access", text, hint)
    return ok("access", text)


# -- certificates


def _certificate_findings(settings: Settings) -> Iterator[Finding]:
    refused = set()
    for section, client_ca in (("tcp", settings.tcp.tls_client_ca), ("admin", None)):
        pair = getattr(settings, section)
        if pair.tls_cert is not None:
            try:
                server_context(pair.tls_cert, pair.tls_key, client_ca, section=section)
            except SettingsError as error:
                refused.add(section)
                yield bad("TLS", str(error), "the broker refuses to start (exit code 78)")
    now_ms = time.time_ns() // 1_000_000
    for certificate in asyncio.run(read_certificates(settings)):
        if certificate.section not in refused:
            yield certificate_finding(certificate, now_ms)


def certificate_finding(certificate: Certificate, now_ms: int) -> Finding:
    names = ", ".join(certificate.names) or certificate.subject
    text = f"{certificate.section}: {names}"
    if certificate.expires_at is None:
        hint = f"inspect it: openssl x509 -text -in {certificate.path}"
        return bad("TLS", f"{text}: {certificate.error or 'no expiry date'}", hint)
    days = (certificate.expires_at - now_ms) // _DAY_MS
    text += f", {count_of(days, 'day', 'days')} left"
    hint = f"renew {certificate.path} and reload the broker (SIGHUP)"
    return ok_if(days >= SOON_DAYS, "TLS", text, hint)
