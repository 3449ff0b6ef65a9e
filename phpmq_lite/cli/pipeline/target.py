"""Determines which broker, results folder and Spark master a pipeline command uses.

This module does not import pyspark, so that invalid flags are reported before a JVM starts.
"""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import click

from phpmq_lite.cli.admin_client import (
    AdminClient,
    admin_url_of,
    find_admin_client,
    read_token,
    url_options,
)
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.output import add_options
from phpmq_lite.cli.parameters import (
    EXISTING_FILE,
    FILE,
    SettingsArguments,
    assignment,
    config_option,
    data_option,
    option,
    repeatable,
)
from phpmq_lite.spark.results_folder import local_folder_of
from phpmq_lite.spark.source_options import is_local

LOCAL_MASTER: Final = "local[*]"
DEFAULT_NICENESS: Final = 19  # the lowest priority: clients of the broker come first
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class PipelineTarget(NamedTuple):
    """The broker, results folder and Spark master that a command uses.

    Either ``url`` or ``path`` is set; ``results`` is a folder or a URI that Spark can write to.
    Only the doctor gets an incomplete target: without ``results``, or without all three, in which
    case ``problem`` says why.
    """

    url: str | None
    token: str | None
    path: Path | None
    results: str
    master: str
    conf: dict[str, str]
    log: Path
    niceness: int = DEFAULT_NICENESS
    problem: str = ""

    @property
    def is_local(self) -> bool:
        """Whether all Spark processes run on this machine."""
        return is_local(self.master)

    @property
    def admin(self) -> AdminClient:
        """A client for the broker's API; raise CommandError if only a database file is given."""
        if self.url is None:
            raise CommandError("this command requires a broker; use --url instead of --path")
        return AdminClient(None, self.url, self.token)

    @property
    def results_folder(self) -> Path | None:
        """The results folder, or None if it is not on the local file system."""
        return local_folder_of(self.results)


def target_options(
    command: Callable[..., None], *, is_incomplete_ok: bool = False
) -> Callable[..., None]:
    """Add the options for the broker, the results and Spark; pass ``target`` to the command."""

    @wraps(command)
    def run(
        master: str,
        conf: tuple[tuple[str, str], ...],
        log: Path | None,
        niceness: int,
        settings_args: SettingsArguments,
        **others: Any,
    ) -> None:
        names = ("url", "token_file", "tls_ca", "path", "location")
        places = [others.pop(name) for name in names]
        source: tuple[str | None, str | None, Path | None, str] = (None, None, None, "")
        problem = ""
        try:
            source = _resolve(settings_args, *places, is_incomplete_ok=is_incomplete_ok)
        except (CommandError, click.UsageError) as error:
            if not is_incomplete_ok:
                raise
            problem = str(error)
        *_, database, results = source
        if database and not is_local(master):
            raise click.UsageError(
                f"--path requires a local master, not {master}: SQLite's locks fail on a network"
                " file system; use --url"
            )
        if log is None and results and (folder := local_folder_of(results)) is not None:
            log = folder / "logs" / "spark.log"
        log = log or Path.cwd() / f"phpmq-spark-{os.getpid()}.log"
        target = PipelineTarget(*source, master, dict(conf), log, niceness, problem)
        command(target=target, **others)

    return url_options(add_options(config_option(_add_spark_options(run)), data_option))


def _add_spark_options(command: Callable[..., None]) -> Callable[..., None]:
    return add_options(
        command,
        option(
            ("--nice", "niceness"),
            "Niceness of this process, Java and Python workers here; 19: idle time only.",
            click.IntRange(0, 19),
            DEFAULT_NICENESS,
            metavar="N",
        ),
        option("--log", "Spark's log file.  [default: OUT/logs/spark.log]", FILE),
        repeatable(
            "--conf",
            "Spark setting, such as spark.driver.memory=4g. Repeatable.",
            assignment,
            metavar="KEY=VALUE",
        ),
        option("--master", "Spark master: local[N] or spark://HOST:PORT.", default=LOCAL_MASTER),
        option(
            ("--out", "location"),
            "Results folder; on a cluster, it must be on shared storage.  [default: DATA/pipeline]",
            metavar="FOLDER",
        ),
        option(
            "--path",
            "Database file to read instead of the broker; requires a local master.",
            EXISTING_FILE,
        ),
    )


def _resolve(
    settings_args: SettingsArguments,
    url: str | None,
    token_file: Path | None,
    tls_ca: Path | None,
    path: Path | None,
    location: str | None,
    *,
    is_incomplete_ok: bool,
) -> tuple[str | None, str | None, Path | None, str]:
    """Return the address, token and database file of the history, and the results folder.

    If ``is_incomplete_ok``, the results folder is empty instead of raising UsageError.
    """
    if url and path:
        raise click.UsageError("--url and --path cannot be combined")
    if path is not None:
        return None, None, path.absolute(), location or str(path.absolute().parent / "pipeline")
    admin = find_admin_client(settings_args, url, None, tls_ca)
    if admin.tls_ca is not None:  # for Spark's processes on this machine, too
        os.environ["SSL_CERT_FILE"] = str(admin.tls_ca.absolute())
    token = read_token(token_file) if token_file else admin.token
    settings = admin.settings  # set only if the broker was found through its data folder
    admin_url = admin.url if settings is None else admin_url_of(settings)
    if location is None and settings is not None:
        location = str(settings.data.absolute() / "pipeline")
    elif location is None:
        data = settings_args.read_optional().settings.data
        is_of_local_broker = urlsplit(admin_url).hostname in _LOOPBACK and data.is_dir()
        if settings_args.data is None and not is_of_local_broker:
            if is_incomplete_ok:
                return admin_url, token, None, ""
            raise click.UsageError(
                f"the data folder {data} does not exist here; use --out (or --data) for the results"
            )
        location = str(data.absolute() / "pipeline")
    elif folder := local_folder_of(location):
        location = str(folder.absolute())  # Spark's processes run in other working folders
    return admin_url, token, None, location
