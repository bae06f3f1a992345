"""docs/research.ipynb runs from the repository's root, and has the outputs that it stores."""

from __future__ import annotations

import pytest
from conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "research.ipynb"


def texts(notebook) -> list[str]:
    """What the cells print."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return [output["text"] for output in outputs if output.output_type == "stream" and output.name == "stdout"]


def test_the_notebook_runs_and_prints_what_it_shows():
    for module in ("matplotlib", "ipykernel"):
        pytest.importorskip(module, reason=f"not run: the notebook (pip install nbclient ipykernel {module})")
    nbformat = pytest.importorskip("nbformat", reason="not run: the notebook (pip install nbclient ipykernel)")
    nbclient = pytest.importorskip("nbclient", reason="not run: the notebook (pip install nbclient ipykernel)")
    notebook = nbformat.read(PAGE, 4)
    shown = texts(notebook)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(REPOSITORY)}}).execute()
    assert texts(notebook) == shown and len(shown) == 2
    pictures = [
        output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 1 and PAGE.stat().st_size < 200_000
