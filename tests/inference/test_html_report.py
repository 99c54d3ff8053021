# SPDX-License-Identifier: Apache-2.0
"""Pages about runs with edited files."""

import json

from electra_tf.inference import html_report
from electra_tf.inference.model import TokenPrediction

EVIL = "<script>alert('&\"{x}')</script>"
FILES = {
    "config.json": {"sample_steps": 9, "vocab_file": EVIL, "model_name": EVIL},
    "results/unsup_results.json": {
        "global_step": EVIL,
        "metrics": {"loss": 2.5, "disc_auc": None},
    },
}


def test_every_value_is_escaped(tmp_path):
    """Also of files that someone else has written: as text in the page, not as code."""
    run = tmp_path / "<script>run"
    (run / "results").mkdir(parents=True)
    for name, content in FILES.items():
        (run / name).write_text(json.dumps(content) + "\n")
    token = TokenPrediction(EVIL, 0, len(EVIL), 0.5, EVIL)
    html_report.write_report(run, [(EVIL, [token])], run / "page.html")
    page = (run / "page.html").read_text()
    assert "<script" not in page and page.count("&lt;script") >= 7
