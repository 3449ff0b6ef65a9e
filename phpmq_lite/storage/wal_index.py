"""Reads the head of the ``-shm`` file: how many frames of the WAL were committed.

SQLite writes it after the frames of a commit are on the disk (``synchronous=FULL``).  So it may
tell of fewer frames than there are, after a power cut also of those of an older WAL, but never of
more: what is missing then was stored and has been lost.  That shows what the WAL alone cannot
tell from a commit that was cut off: damage in its last transaction, and an end that is gone.
"""

import struct
from pathlib import Path
from typing import Final

_HEAD_BYTES: Final = 48  # there are two copies of it; SQLite writes one, then the other
_IS_SET_AT: Final = 12
_FRAMES_AT: Final = 16
_SALTS: Final = slice(32, 40)
_SUMMED: Final = struct.Struct("=10I")  # in the order of this machine, as all of it
_SUM: Final = struct.Struct("=2I")
_WORD: Final = 0xFFFF_FFFF


def committed_frames(index: Path, salts: bytes) -> int:
    """Return the last frame that was committed to the WAL with these salts; 0 where unknown."""
    try:
        with index.open("rb") as file:
            head, copy = file.read(_HEAD_BYTES), file.read(_HEAD_BYTES)
    except OSError:
        return 0
    if len(copy) < _HEAD_BYTES or head != copy or not _is_whole(head):
        return 0
    if not head[_IS_SET_AT] or head[_SALTS] != salts:
        return 0
    frames: int = struct.unpack_from("=I", head, _FRAMES_AT)[0]
    return frames


def _is_whole(head: bytes) -> bool:
    first = second = 0
    words = _SUMMED.unpack_from(head)
    for low, high in zip(words[::2], words[1::2], strict=True):
        first = (first + low + second) & _WORD
        second = (second + high + first) & _WORD
    return _SUM.unpack_from(head, _SUMMED.size) == (first, second)
