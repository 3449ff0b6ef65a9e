"""The notebook of examples/ runs from the first cell to the last, and is stored without outputs."""

import json
import re
from typing import Any, Final

import nbclient
import nbformat
import pytest

from tests.docs.pages import ROOT

NOTEBOOK: Final = ROOT / "examples" / "notebooks" / "history.ipynb"


def outputs(cell: Any) -> str:
    return json.dumps([output.get("data", {}) for output in cell.outputs])


@pytest.mark.acceptance
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_notebook_runs_and_charts_what_it_sent() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    assert [
        cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")
    ] == []
    nbclient.NotebookClient(
        notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
    ).execute()
    texts = [outputs(cell) for cell in notebook.cells if cell.cell_type == "code"]
    errors = [out for cell in notebook.cells for out in cell.get("outputs", []) if "ename" in out]
    assert errors == []
    assert '"600"' in texts[2]
    (chart,) = [text for text in texts if "image/svg+xml" in text]
    counts = [int(count) for count in re.findall(r">(\d+)</text>", chart)]
    assert sum(counts) == 600
    assert len(counts) == len(re.findall("<rect", chart)) == 4
