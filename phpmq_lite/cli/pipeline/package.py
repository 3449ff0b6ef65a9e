"""``pipeline package``: the zip that Spark's executors import the data source from."""

from pathlib import Path

import click

from phpmq_lite.cli.options import talk
from phpmq_lite.cli.pipeline import packing


@click.command()
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    default=Path(),
    help="File, or the folder for it.  [default: .]",
)
def package(to: Path) -> None:
    """Build the zip for --py-files; prints its path.

    For sessions of your own on a cluster: spark-submit --py-files ZIP, or
    spark.sparkContext.addPyFile(ZIP) before the first query. The pipeline's own commands ship it
    themselves. The same code gives the same bytes.
    """
    path = packing.build(to / packing.file_name() if to.is_dir() else to)
    talk(f"{path.stat().st_size:,} bytes, sha256 {packing.digest(path)}")
    click.echo(path)
