# SPDX-License-Identifier: Apache-2.0
"""Pages about runs whose files are damaged or edited: which file, and what is in it."""

import json

import pytest

from electra_tf.errors import UserError
from electra_tf.inference import comparison, html_report

CONFIG, RESULTS = "config.json", "results/unsup_results.json"
DEEP = "[" * 100_000
RIGHT = {
    CONFIG: json.dumps({"model_size": "small", "temperature": 1.0, "phases": []}),
    RESULTS: json.dumps({"global_step": 3, "metrics": {"loss": 2.5, "disc_auc": None}}),
}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "results").mkdir()
    for name, text in RIGHT.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def write_both_pages(run):
    html_report.write_report(run, [], run / "report.html")
    comparison.write_comparison(["a", "b"], [run, run], run / "comparison.html")


def test_a_run_without_curves_has_a_page(run):
    write_both_pages(run)
    assert "2.5000" in (run / "report.html").read_text()


@pytest.mark.parametrize(
    ("name", "text", "problem", "code"),
    [
        *((name, text, "cannot be read", 65) for name in RIGHT for text in "{[1"),
        *((name, DEEP, "cannot be read", 65) for name in RIGHT),
        (CONFIG, '{"temperature": "1"}', 'temperature in .* is "1"', 2),
        (CONFIG, '{"phases": 1}', "phases in .* is 1", 2),
        (CONFIG, '{"task_names": ["cola"]}', "is fine-tuned", 2),
        (RESULTS, '{"metrics": null}', 'no object "metrics"', 65),
        (RESULTS, '{"metrics": {"loss": "1"}}', "'loss' is no number", 65),
        (RESULTS, '{"metrics": {"loss": NaN}}', "'loss' is no number", 65),
        (RESULTS, f'{{"metrics": {{"loss": 1{"0" * 400}}}}}', "is no number", 65),
        (RESULTS, '{"metrics": {}, "global_step": "1"}', '"global_step" is', 65),
    ],
)
@pytest.mark.parametrize("page", ["report", "comparison"])
def test_a_damaged_file_is_named(run, page, name, text, problem, code):
    (run / name).write_text(text)
    with pytest.raises(UserError, match=problem) as caught:
        if page == "report":
            html_report.write_report(run, [], run / "page.html")
        else:
            comparison.write_comparison(["a", "b"], [run, run], run / "page.html")
    assert caught.value.exit_code == code and str(run) in str(caught.value)
    assert not (run / "page.html").exists()


@pytest.mark.parametrize("passages", [None, [], [5], [["w"]], [[[1, 2]]]])
def test_a_damaged_sample_is_named(run, passages):
    row = {"step": 7, "passages": passages}
    (run / "samples.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match=r"samples.jsonl: .* at step 7") as caught:
        html_report.write_report(run, [], run / "report.html")
    assert caught.value.exit_code == 65
