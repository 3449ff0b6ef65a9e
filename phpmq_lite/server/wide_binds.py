"""Closed by default: what listens beyond this machine must have been decided.

``docs/security.md`` 1.
"""

from collections.abc import Callable, Iterator
from typing import Final

from phpmq_lite.errors import SettingsError
from phpmq_lite.server.endpoints import Endpoint, is_loopback, parse_endpoint
from phpmq_lite.settings import Settings

CONTROL_SOCKET: Final = "control.sock"  # of the data folder: whoever connects owns the broker


def read_endpoints(name: str, texts: list[str]) -> list[Endpoint]:
    """Read the addresses of the setting ``name``; ``none`` stands for no listener.

    Raises:
        SettingsError: one cannot be read; the message names the setting.
    """
    try:
        return [endpoint for text in texts if (endpoint := parse_endpoint(text)) is not None]
    except SettingsError as error:
        raise SettingsError(f"{name}: {error}") from None


def check_wide_binds(
    settings: Settings, has_admin_user: Callable[[], bool] = lambda: False
) -> None:
    """Refuse listeners that reach beyond loopback without a decision.

    ``has_admin_user`` looks into the database; it is asked only where the answer counts.

    Raises:
        SettingsError: names the setting, the address, and what would decide it.
    """
    problems = [*_tcp_problems(settings), *_admin_problems(settings, has_admin_user)]
    if problems:
        raise SettingsError("; ".join(problems))


def _tcp_problems(settings: Settings) -> Iterator[str]:
    tcp = settings.tcp
    is_decided = bool(tcp.allow or tcp.tls_cert or tcp.open)
    for name, texts in (
        ("tcp.listen", tcp.listen),
        ("tcp.legacy_listen", tcp.legacy_listen),
    ):
        for endpoint in read_endpoints(name, texts):
            if not (is_decided or is_loopback(endpoint)):
                yield (
                    f"{name} {endpoint} reaches beyond this machine, and whoever can connect can "
                    "read and publish: name the networks in tcp.allow, or set tcp.tls_cert and "
                    "tcp.tls_key, or tcp.open = true"
                )


def _admin_problems(settings: Settings, has_admin_user: Callable[[], bool]) -> Iterator[str]:
    admin = settings.admin
    endpoints = read_endpoints("admin.listen", admin.listen)
    for endpoint in endpoints:
        if endpoint.kind == "unix" and endpoint.path.name == CONTROL_SOCKET:
            yield f"admin.listen {endpoint}: the name {CONTROL_SOCKET} is taken, it needs no login"
    wide = [endpoint for endpoint in endpoints if not is_loopback(endpoint)]
    if not wide:
        return
    reaches = f"admin.listen {', '.join(map(str, wide))} reaches beyond this machine"
    if not (admin.initial_password_file or has_admin_user()):
        yield (
            f"{reaches} and needs an admin user: name a file with the first password in "
            "admin.initial_password_file, or start on loopback and make one with "
            "`phpmq-lite user add NAME` or at /setup"
        )
    if not (admin.tls_cert or admin.trusted_proxies or admin.plaintext):
        yield (
            f"{reaches} unencrypted: set admin.tls_cert and admin.tls_key, or name the proxy in "
            "admin.trusted_proxies, or set admin.plaintext = true"
        )
