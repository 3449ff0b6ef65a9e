"""The files of the named statements: those that both engines share, and those of one engine.

``python -m tests.support.statement_files postgres ready_page`` prints a statement as an engine
executes it; without a name, all statements of the engine.
"""

import re
import sys
from pathlib import Path
from typing import Final

from phpmq_lite.storage import statements

FOLDER: Final = Path(statements.__file__).parent / "sql"


def files(engine: str) -> set[str]:
    return {path.stem for folder in (FOLDER, FOLDER / engine) for path in folder.glob("*.sql")}


def comments(file: str, engine: str) -> dict[str, str]:
    by_name = {}
    for path in (FOLDER / f"{file}.sql", FOLDER / engine / f"{file}.sql"):
        pieces = re.split(
            r"^-- (name|part): (\w+)$", path.read_text("utf-8") if path.exists() else "", flags=re.M
        )
        for kind, name, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            if kind == "name":
                comment = "\n".join(re.findall(r"^--.*$", text, flags=re.M))
                titles = (name, *re.findall(r"^-- twin: (\w+)$", comment, flags=re.M))
                for choice, title in enumerate(titles, start=1):
                    by_name[title] = statements._CHOICE.sub(rf"\{choice}", comment)
    return by_name


def executed(engine: str, name: str | None = None) -> str:
    """Return the statements with a name as an engine executes them, or all of its statements."""
    return "\n".join(
        f"-- {file}.sql: {title}\n{text if engine == 'sqlite' else statements.compiled(text)[0]};\n"
        for file in sorted(files(engine))
        for title, text in statements.load(file, engine).items()
        if name in (None, title)
    )


if __name__ == "__main__":
    sys.stdout.write(executed(*sys.argv[1:3]))
