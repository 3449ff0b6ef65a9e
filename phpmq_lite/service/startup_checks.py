"""What is checked before the data folder is created or a database is opened."""

import asyncio
import errno
import ssl
from contextlib import suppress
from typing import Final

from phpmq_lite import logs
from phpmq_lite.errors import StartRefusedError, os_reason
from phpmq_lite.server import processes
from phpmq_lite.server.addresses import ListenAddress, bind_tcp, listen_addresses
from phpmq_lite.server.admission import max_open_files, open_files, open_files_problem
from phpmq_lite.server.tls import server_context
from phpmq_lite.settings import Settings
from phpmq_lite.storage.data_folder import DATABASE, in_use_message, locking_pid
from phpmq_lite.storage.disk_space import DiskSpaceBounds
from phpmq_lite.storage.sqlite.integrity import startup

_FLAGS: Final = {  # flags of the listeners' settings
    "tcp.listen": "--listen",
    "tcp.legacy_listen": "--legacy-listen",
    "admin.listen": "--admin",
}
_COMMAND_CHARS: Final = 80  # maximum length of the command shown for a process that uses our port
_log = logs.get_logger(__name__)


def has_admin(settings: Settings) -> bool:
    """Return whether a user has the admin role; True if a database server cannot be reached."""
    if settings.store.url:
        from phpmq_lite.storage.postgres.backend import has_admin as has_admin_there

        return has_admin_there(settings.store.url)
    return startup.has_admin(settings.data / DATABASE)


def admin_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return the admin's TLS context, or None for plain HTTP; see ``server_context``."""
    admin = settings.admin
    if admin.tls_cert is None or admin.tls_key is None:
        return None
    return server_context(admin.tls_cert, admin.tls_key, section="admin")


async def check_ports(settings: Settings) -> None:
    """Check that all ports are free, before a folder is created or a database is migrated.

    Raises StartRefusedError: ports are in use or unavailable; the message names all of them.
    """
    problems: list[str] = []
    for name, endpoint in listen_addresses(settings):
        if endpoint.kind == "unix":
            continue
        try:
            for bound in await bind_tcp(endpoint):
                bound.close()
        except OSError as error:
            with suppress(OSError):  # the other program may be a broker with the same data folder
                if (pid := locking_pid(settings.data)) is not None:
                    raise StartRefusedError(in_use_message(settings.data.absolute(), pid)) from None
            flag = _FLAGS.get(name, f"--set {name}")
            problem = await asyncio.to_thread(_port_problem, endpoint, error, flag)
            problems.append(f"{name}: {problem}")
    if problems:
        raise StartRefusedError(" ".join(problems))


def warn_about_open_files(settings: Settings) -> None:
    """Warn if the limit on open files allows fewer connections than the settings do."""
    files = open_files()
    problem = None if files is None else open_files_problem(settings, files, max_open_files())
    if problem is not None:
        _log.warning("few_open_files", found=problem[0], remedy=problem[1])


def disk_space_bounds(settings: Settings) -> DiskSpaceBounds:
    """Return the disk-space limits at which publishing stops, and the size of the reserve."""
    limits, storage = settings.limits, settings.storage
    # A batch uses twice its size: once in the write-ahead log and once in the database.
    least = 2 * (limits.batch_bytes + limits.max_content)
    return DiskSpaceBounds(
        free_bytes=storage.free_bytes,
        max_bytes=storage.max_bytes,
        ballast_bytes=max(storage.ballast_bytes, least) if storage.ballast_bytes else 0,
    )


def _port_problem(endpoint: ListenAddress, error: OSError, flag: str) -> str:
    if error.errno != errno.EADDRINUSE:
        return (
            f"cannot listen on {endpoint}: {os_reason(error)}. Choose another address with {flag}."
        )
    process = processes.find_listener(endpoint.port)
    by = "another program (run `ss -ltnp` as root to see which)"
    if process is not None:
        by = f"{process.command[:_COMMAND_CHARS]} (pid {process.pid})"
    return (
        f"port {endpoint.port} is already in use by {by}. "
        f"Choose another port with {flag}, or stop that process."
    )
