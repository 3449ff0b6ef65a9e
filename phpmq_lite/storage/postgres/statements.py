"""Converts the parameters of statements to those of PostgreSQL."""

import re
from functools import lru_cache
from typing import Final

# What is quoted and casts are matched first, so that nothing in them is taken for a parameter.
_TOKEN: Final = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|::|:([A-Za-z_]\w*)|\?(\d*)""")


@lru_cache(maxsize=1024)
def compiled(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with ``$1``, ``$2``, … for ``:name``, ``?`` and ``?1``, and their names.

    Numbers are assigned as in SQLite: a name has one number, and ``?`` has the next number.  The
    name of a parameter without a name is its number.
    """
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        name, digits = found.groups()
        if name is None and digits is None:
            return found[0]
        name = name or digits or str(len(names) + 1)
        if digits:
            names.extend(str(n) for n in range(len(names) + 1, int(digits) + 1))
            return f"${digits}"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _TOKEN.sub(number, text), tuple(names)
