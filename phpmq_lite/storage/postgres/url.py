"""The URL of the database: which servers, which account, and how the connection is protected."""

import os
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from phpmq_lite.errors import SettingsError

# A broken connection is noticed within seconds, so that another server can be tried.
_DEFAULTS: Final = {
    "application_name": "phpmq-lite",
    "connect_timeout": "2",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
    "client_encoding": "UTF8",
}


def connection_info(url: str) -> str:
    """Return libpq's connection string for the setting ``store.url``.

    Raises:
        SettingsError: the URL is malformed, contains a password, or would connect to another
            machine without checking its certificate.
    """
    try:
        parameters = conninfo_to_dict(url)
    except ProgrammingError as error:
        raise SettingsError(f"store.url: {str(error).strip()}") from None
    if "password" in parameters:
        raise SettingsError(
            "store.url contains a password, which other accounts of the machine could read: put it "
            "into a file and name the file in PGPASSFILE, or pass it as the credential pgpass"
        )
    hosts = str(parameters.get("host") or parameters.get("hostaddr") or "").split(",")
    remote = [host for host in hosts if not _is_local(host)]
    if remote and parameters.get("sslmode") != "verify-full":
        raise SettingsError(
            f"store.url: {remote[0]} is another machine, so sslmode=verify-full is required, not "
            f"{parameters.get('sslmode') or 'none'}. Add &sslmode=verify-full&sslrootcert=FILE"
        )
    folder = os.environ.get("CREDENTIALS_DIRECTORY")  # of systemd
    if folder is not None and (password_file := Path(folder) / "pgpass").is_file():
        parameters.setdefault("passfile", str(password_file))
    parts: dict[str, Any] = {**_DEFAULTS, "target_session_attrs": "read-write", **parameters}
    return make_conninfo(**parts)


def reading(conninfo: str, servers: str = "primary") -> str:
    """Return the connection string for reads, by ``primary`` or with ``prefer-standby``."""
    return make_conninfo(conninfo, target_session_attrs=servers)


def place_of(conninfo: str) -> str:
    """Return hosts and database, for pages and log lines."""
    parts = conninfo_to_dict(conninfo)
    ports = str(parts.get("port") or "5432").split(",")
    hosts = str(parts.get("host") or parts.get("hostaddr") or "localhost").split(",")
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    pairs = zip(hosts, ports, strict=True)
    return f"{','.join(f'{host}:{port}' for host, port in pairs)}/{parts.get('dbname') or ''}"


def _is_local(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host in ("", "localhost") or host.startswith(("/", "@"))
