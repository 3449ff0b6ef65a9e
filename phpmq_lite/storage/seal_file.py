"""Where the seal of an open database lies: twelve bytes beside it, written in place.

To write it need not reach the disk: where it does not, there is no seal.  To strike it must, ahead
of the next write to the database, and that costs one fsync.
"""

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

from phpmq_lite.storage.durable import create_private

_NAME: Final = "seal"
_RECORD: Final = struct.Struct(">4sII")  # a word, the checksum of the database, and that of both
_WORD: Final = b"seal"


def open_file(folder: Path) -> int:
    """Return the file of a data folder, open for writing."""
    file = folder / _NAME
    return os.open(file, os.O_WRONLY) if file.exists() else create_private(file)


def read(folder: Path) -> int | None:
    """Read the checksum that the database had; None where there is none that counts."""
    with suppress(OSError, struct.error):
        word, checksum, check = _RECORD.unpack((folder / _NAME).read_bytes())
        if word == _WORD and check == _check(checksum):
            return int(checksum)
    return None


def write(file: int, checksum: int) -> None:
    """Put the checksum of the database there."""
    os.pwrite(file, _RECORD.pack(_WORD, checksum, _check(checksum)), 0)


def strike(file: int) -> None:
    """Take it away; it is gone from the disk when this returns."""
    os.pwrite(file, bytes(_RECORD.size), 0)
    os.fsync(file)


def strike_left(folder: Path) -> None:
    """Take away what a broker that has ended may have left."""
    if (folder / _NAME).exists():
        file = open_file(folder)
        try:
            strike(file)
        finally:
            os.close(file)


def _check(checksum: int) -> int:
    return crc32(struct.pack(">I", checksum), crc32(_WORD))
