"""The files of the named statements: those that both engines share, and those of one engine."""

import re
from pathlib import Path
from typing import Final

from phpmq_lite.storage import statements

FOLDER: Final = Path(statements.__file__).parent / "sql"


def files(engine: str) -> set[str]:
    """Return the names of the files from which an engine has statements."""
    return {path.stem for path in FOLDER.glob("*.sql")} | {
        path.stem for path in (FOLDER / engine).glob("*.sql")
    }


def comments(file: str, engine: str) -> dict[str, str]:
    """Return the comment of each statement, by name."""
    found = {}
    for path in (FOLDER / f"{file}.sql", FOLDER / engine / f"{file}.sql"):
        pieces = re.split(
            r"^-- (name|part): (\w+)$", path.read_text("utf-8") if path.exists() else "", flags=re.M
        )
        for kind, name, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            if kind == "name":
                comment = "\n".join(re.findall(r"^--.*$", text, flags=re.M))
                for each in (name, *re.findall(r"^-- twin: (\w+)$", comment, flags=re.M)):
                    found[each] = comment
    return found
