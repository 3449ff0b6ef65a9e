"""Where a pipeline command reads and writes: the broker as all commands find it.

No pyspark here: what is wrong with the flags is said before a JVM starts.
"""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import click

from phpmq_lite.cli.admin_client import AdminClient, admin_url_of, find_admin_client, read_token
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.parameters import assignment, broker_url
from phpmq_lite.cli.settings_options import SettingsArguments, data_option, settings_options
from phpmq_lite.spark.results_folder import local_folder_of
from phpmq_lite.spark.source_options import is_local

LOCAL_MASTER: Final = "local[*]"
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class PipelineTarget(NamedTuple):
    """Broker, results and Spark of one command.

    ``url`` or ``path`` is set, never both; ``out`` is a folder or a URI that Spark can write.
    """

    url: str | None
    token: str | None
    path: Path | None
    out: str
    master: str
    conf: dict[str, str]
    log: Path

    @property
    def is_local(self) -> bool:
        """Tell whether all of Spark's processes are on this machine."""
        return is_local(self.master)

    @property
    def node(self) -> AdminClient:
        """The broker's API.

        Raises:
            CommandError: there is no URL, only a file.
        """
        if self.url is None:
            raise CommandError("this asks the broker: give --url and no --path")
        return AdminClient(None, self.url, self.token)

    @property
    def out_folder(self) -> Path | None:
        """The results' folder; None where they lie on storage that only Spark reaches."""
        return local_folder_of(self.out)


def target_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add where to read, where to write and which Spark; the command gets ``target``."""

    @wraps(command)
    def find_first(
        url: str | None,
        token_file: Path | None,
        path: Path | None,
        out: str | None,
        master: str,
        conf: tuple[tuple[str, str], ...],
        log: Path | None,
        given: SettingsArguments,
        **others: Any,
    ) -> None:
        where = _where(url, token_file, path, out, given)
        found_url, token, found_path, found_out = where
        if found_path and not is_local(master):
            raise click.UsageError(
                f"--path needs a local master, not {master}: SQLite's locks fail on a network"
                " file system; give --url"
            )
        target = PipelineTarget(
            found_url, token, found_path, found_out, master, dict(conf),
            log or _log_file(found_out),
        )  # fmt: skip
        command(target=target, **others)

    file = click.Path(exists=True, dir_okay=False, path_type=Path)
    for option in (
        click.option("--log", type=click.Path(dir_okay=False, path_type=Path),
                     help="Spark's log.  [default: OUT/logs/spark.log]"),
        click.option("--conf", type=assignment, multiple=True, metavar="KEY=VALUE",
                     help="A setting of Spark's, as spark.driver.memory=4g. Repeatable."),
        click.option("--master", default=LOCAL_MASTER, show_default=True,
                     help="Where Spark runs: local[N] or spark://HOST:PORT."),
        click.option("--out", metavar="FOLDER",
                     help="Results; on a cluster, storage that all reach."
                     "  [default: DATA/pipeline]"),
        click.option("--path", type=file,
                     help="The database file instead of the broker; local master only."),
        click.option("--token-file", type=file, help="File with an API token, for --url."),
        click.option("--url", type=broker_url, metavar="URL",
                     help="The broker: its admin, as http://HOST:9101.  [default: the context in "
                     "use, --config or ./config.toml, ./phpmq-data, then http://127.0.0.1:9101]"),
    ):  # fmt: skip
        find_first = option(find_first)
    return data_option(settings_options(find_first))


def _where(
    url: str | None,
    token_file: Path | None,
    path: Path | None,
    out: str | None,
    given: SettingsArguments,
) -> tuple[str | None, str | None, Path | None, str]:
    """Find URL, token, path and out."""
    if url and path:
        raise click.UsageError("give one of --url and --path")
    if path is not None:
        return None, None, path.absolute(), out or str(path.absolute().parent / "pipeline")
    node = find_admin_client(given, url, None)
    token = read_token(token_file) if token_file else node.token
    here = node.settings  # of a broker that is found by its folder
    found_url = node.url if here is None else admin_url_of(here)
    if out is None and here is not None:
        out = str(here.data.absolute() / "pipeline")
    elif out is None:
        out = _default_out(found_url, given.read().settings.data, is_named=given.data is not None)
    elif folder := local_folder_of(out):
        out = str(folder.absolute())  # Spark's processes stand in other folders
    return found_url, token, None, out


def _default_out(url: str, data: Path, *, is_named: bool) -> str:
    """Put results beside the broker's data, where that is on this machine."""
    is_here = urlsplit(url).hostname in _LOOPBACK
    if not is_named and not (is_here and data.is_dir()):
        raise click.UsageError(
            f"there is no folder {data} of a broker here: say --out (or --data) for the results"
        )
    return str(data.absolute() / "pipeline")


def _log_file(out: str) -> Path:
    folder = local_folder_of(out)
    if folder is None:
        return Path.cwd() / f"phpmq-spark-{os.getpid()}.log"
    return folder / "logs" / "spark.log"
