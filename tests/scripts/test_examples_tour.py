# SPDX-License-Identifier: Apache-2.0
"""The cells of examples/electra_tf_tour.ipynb, executed with fewer steps."""

import json
import runpy

import pytest

from tests.helpers.runs import ROOT

NOTEBOOK = ROOT / "examples" / "electra_tf_tour.ipynb"
CELLS = [
    cell
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    if cell["cell_type"] == "code"
]


def test_stored_outputs_are_complete_and_small():
    assert NOTEBOOK.stat().st_size < 300_000
    kinds = [o["output_type"] for cell in CELLS for o in cell["outputs"]]
    assert "error" not in kinds and "display_data" in kinds
    assert [cell["execution_count"] for cell in CELLS] == [*range(1, len(CELLS) + 1)]


@pytest.mark.slow
def test_cells_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    script = tmp_path / "tour.py"
    script.write_text("\n".join("".join(cell["source"]) + "\n" for cell in CELLS))
    script.write_text(script.read_text().replace("STEPS = 1300", "STEPS = 20"))
    names = runpy.run_path(str(script))
    assert names["STEPS"] == 20
    assert names["answer"]["label"].numpy()[0].decode() in {"Burnett", "Doyle"}
