# SPDX-License-Identifier: Apache-2.0
"""Pages about runs with edited files."""

import json

import pytest

from electra_tf.inference import html_report
from electra_tf.inference.model import TokenPrediction

CONFIG, RESULTS = "config.json", "results/unsup_results.json"
RIGHT = {
    CONFIG: json.dumps({"model_size": "small", "temperature": 1.0, "sample_steps": 9}),
    RESULTS: json.dumps({"global_step": 3, "metrics": {"loss": 2.5, "disc_auc": None}}),
}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "results").mkdir()
    for name, text in RIGHT.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_every_value_is_escaped(run):
    """Also of files that someone else has written: as text in the page, not as code."""
    evil = "<script>alert('&\"{x}')</script>"
    config = json.loads(RIGHT[CONFIG]) | {"vocab_file": evil, "model_name": evil}
    (run / CONFIG).write_text(json.dumps(config))
    results = json.loads(RIGHT[RESULTS]) | {"global_step": evil}
    (run / RESULTS).write_text(json.dumps(results))
    folder = run.rename(run.with_name("<script>run"))
    token = TokenPrediction(evil, 0, len(evil), 0.5, evil)
    html_report.write_report(folder, [(evil, [token])], folder / "page.html")
    page = (folder / "page.html").read_text()
    assert "<script" not in page and page.count("&lt;script") >= 7
