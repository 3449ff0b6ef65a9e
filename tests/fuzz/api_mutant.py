"""A broker that trusts cursors, to see that schemathesis finds what that lets out.  A program.

``python -m tests.fuzz.api_mutant serve …`` is ``phpmq-lite serve …`` with that defect.
"""

import json
from base64 import urlsafe_b64decode

from phpmq_lite.admin.http import cursors
from phpmq_lite.cli.main import main


def decode(scope: str, text: str | None) -> cursors.ListCursor | None:
    """Read a cursor, as if only we made such."""
    del scope
    return cursors.ListCursor(*json.loads(urlsafe_b64decode(text))[1:]) if text else None


if __name__ == "__main__":
    cursors.decode_cursor = decode
    main()
