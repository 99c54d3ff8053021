# SPDX-License-Identifier: Apache-2.0
"""Pages about runs without curves, or with damaged or edited files."""

import json

import pytest

from electra_tf.inference import html_report

CONFIG, RESULTS = "config.json", "results/unsup_results.json"
RIGHT = {
    CONFIG: json.dumps({"model_size": "small", "temperature": 1.0, "phases": []}),
    RESULTS: json.dumps({"global_step": 3, "metrics": {"loss": 2.5, "disc_auc": None}}),
}


def write(run):
    html_report.write_report(run, [], run / "page.html")


@pytest.fixture
def run(tmp_path):
    (tmp_path / "results").mkdir()
    for name, text in RIGHT.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_run_without_curves_has_a_page(run):
    write(run)
    page = (run / "page.html").read_text()
    assert "2.5000" in page
    # A loss that was not finite is stored as null.
    assert "<th>disc_auc</th><td>not a number</td>" in page
