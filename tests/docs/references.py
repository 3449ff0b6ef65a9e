"""The generated pages of docs/: command line, HTTP API, metrics, tables, columns, settings.

``python -m tests.docs.references`` writes them; ``test_references.py`` compares.
"""

from collections.abc import Callable, Mapping
from typing import Final

from tests.docs import (
    reference_api,
    reference_cli,
    reference_columns,
    reference_engines,
    reference_metrics,
    reference_settings,
    reference_tables,
    structure,
)
from tests.docs.pages import ROOT

COMMAND: Final = "python -m tests.docs.references"

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "docs/reference/api.md": reference_api.page,
    "docs/develop/architecture.md": structure.architecture_page,
    "docs/reference/cli.md": reference_cli.page,
    reference_columns.PAGE: reference_columns.page,
    reference_columns.SOURCES: reference_columns.dbt_sources,
    reference_engines.PAGE: reference_engines.page,
    "docs/reference/metrics.md": reference_metrics.page,
    "docs/reference/settings.md": reference_settings.page,
    "docs/reference/tables.md": reference_tables.page,
}


def main() -> None:
    for name, page in PAGES.items():
        (ROOT / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
