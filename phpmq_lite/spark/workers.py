"""Checks the Python that Spark runs its workers with."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from phpmq_lite.errors import PipelineError
from phpmq_lite.spark.source_options import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_workers(spark: "SparkSession") -> None:
    """Raise PipelineError if local workers run another Python, which lacks our packages.

    Spark starts them with ``PYSPARK_PYTHON`` or the ``python3`` on the PATH: not with the Python of
    a virtual environment that is not activated. Executors of a cluster are not checked.
    """
    if not hasattr(spark, "_jsparkSession"):  # a session of Spark Connect
        return
    context = spark.sparkContext
    python = shutil.which(context.pythonExec) or context.pythonExec
    if not is_local(context.master or "") or Path(python).parent == Path(sys.executable).parent:
        return
    process = subprocess.run(
        [python, "-c", "import phpmq_lite, pyarrow"], capture_output=True, text=True, check=False
    )
    if process.returncode:
        reason = process.stderr.strip().rpartition("\n")[2]
        raise PipelineError(
            f"Spark's workers run {python}, and this program runs {sys.executable} ({reason})."
            f" Set PYSPARK_PYTHON={shlex.quote(sys.executable)} before the session starts, or"
            " activate the virtual environment"
        )
