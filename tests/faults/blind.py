"""Brokers that do not look at their files, to see that the harness of damage finds them.

``python -m tests.faults.blind NAME serve …`` is ``phpmq-lite serve …`` with that defect.
"""

import sys
from collections.abc import Callable
from typing import Any, Final

from phpmq_lite.cli.main import main
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.integrity import startup
from phpmq_lite.storage.integrity.wal_check import WalScan
from phpmq_lite.storage.statements import many
from phpmq_lite.storage.write.store import Store


def no_scan() -> None:
    """Leave the end of the WAL to SQLite."""
    setattr(startup, "check_wal", lambda *_given, **_more: WalScan())  # noqa: B010


def no_crc() -> None:
    """Deliver bodies as they are; the seal of the database would tell too."""
    no_seal()

    def bodies(self: Store, seqs: list[int], _checksums: str = "") -> dict[int, bytes | None]:
        return dict.fromkeys(seqs) | dict(many("batch", "bodies").run(self.execute, seqs))

    setattr(Store, "_bodies", bodies)  # noqa: B010


def no_seal() -> None:
    """Take any database for the one that was closed."""
    setattr(startup, "break_seal", lambda *_given, **_more: True)  # noqa: B010


def makes_database() -> None:
    """Begin anew where the database is gone; its seal would tell too."""
    no_seal()
    setattr(DataFolder, "check_database", lambda _self: None)  # noqa: B010


BLIND: Final[dict[str, Callable[[], Any]]] = {
    each.__name__: each for each in (no_scan, no_crc, no_seal, makes_database)
}

if __name__ == "__main__":
    BLIND[sys.argv.pop(1)]()
    main()
