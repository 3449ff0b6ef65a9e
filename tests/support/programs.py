"""Programs that tests run until they end."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run_program(
    command: Sequence[str | Path], **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a command and return its exit code and output; ``options`` are those of subprocess."""
    defaults = {"capture_output": True, "text": True, "check": False, "timeout": 200}
    return subprocess.run(command, **defaults | options)
