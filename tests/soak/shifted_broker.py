"""``phpmq-lite`` with a wall clock that differs by the milliseconds in a file.

A script of its own: ``BrokerProcess(…, program=(__file__,), env={FILE: path, …})``.
"""

import os
from pathlib import Path

from phpmq_lite import clock
from phpmq_lite.broker_process import BrokerProcess
from phpmq_lite.cli.main import main

FILE = "PHPMQ_TESTS_SHIFT"
_read = clock.read_clocks


def shifted_broker(data: Path, *flags: str) -> BrokerProcess:
    """Return a broker with an admin server, whose clock ``set_shift`` sets."""
    set_shift(data, 0)
    environment = os.environ | {FILE: str(_file(data))}
    flags = ("--admin", "127.0.0.1:0", *flags)
    return BrokerProcess(data, [*flags], program=(__file__,), env=environment)


def set_shift(data: Path, shift_ms: int) -> None:
    """Set the clock of the broker with this data folder, whether it runs or not."""
    new = _file(data).with_suffix(".new")
    new.write_text(str(shift_ms), encoding="ascii")
    new.replace(_file(data))


def _file(data: Path) -> Path:
    return data.with_name(f"{data.name}.shift")


def _shifted() -> tuple[int, int]:
    wall_ms, running_ms = _read()
    return wall_ms + int(Path(os.environ[FILE]).read_text(encoding="ascii")), running_ms


if __name__ == "__main__":
    clock.read_clocks = _shifted
    main()
