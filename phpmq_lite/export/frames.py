"""What the export process writes on its standard output: a kind, a length, that many bytes.

An answer is HEAD, any number of DATA, END; or ERROR in the place of any of them.  BEAT says that
work goes on.  Data that is followed by no END is not all of it, however it stops.
"""

import struct
from typing import Final

PREFIX: Final = struct.Struct(">cI")  # kind, bytes that follow
PIECE: Final = 1 << 20  # bytes of one frame at most

HEAD: Final = b"H"  # JSON: rows, lo, hi, history_id, queue
DATA: Final = b"D"  # a piece of the Arrow stream
END: Final = b"Z"  # JSON: rows, as they were given
ERROR: Final = b"E"  # JSON: code (empty: no refusal), detail
BEAT: Final = b"B"  # nothing follows
