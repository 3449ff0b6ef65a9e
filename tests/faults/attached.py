"""A broker under a shim that was preloaded without a control file: it takes this one.

``python -m tests.faults.attached CONTROL MUTANT serve …``; ``-`` means no mutant.  It is for
brokers forked from a process that has loaded the shim, see ``tests/support/fork_server.py``.  The
periodic work of each second runs every 0.05 s, and its timeouts are shorter.
"""

import sys
from pathlib import Path
from typing import Final

from phpmq_lite.cli.main import main
from phpmq_lite.server import engine
from phpmq_lite.storage import disk_space
from tests.faults.mutants import MUTANTS
from tests.faults.shim import attach

EACH_S: Final = 0.05
MAX_TROUBLE_S: Final = 1.0

if __name__ == "__main__":
    attach(Path(sys.argv.pop(1)))
    setattr(engine, "_MAINTENANCE_S", EACH_S)  # noqa: B010 - a constant is not assigned to
    setattr(disk_space, "RETRY_S", EACH_S)  # noqa: B010
    setattr(disk_space, "MAX_TROUBLE_S", MAX_TROUBLE_S)  # noqa: B010
    mutant = sys.argv.pop(1)
    if mutant != "-":
        MUTANTS[mutant]()
    main()
