# SPDX-License-Identifier: Apache-2.0
"""Tables and fitness of measures, on numbers worked out by hand; the task of marks."""

import pytest
import report
import scales
from report import RANDOM, Comparison, Row, Variant

from tests.helpers.runs import ROOT

pytestmark = pytest.mark.thorough
ELECTRA = Row(
    Variant("ELECTRA", paper=85.0, x=2.0, line="a"), 1000, 2e12, {"m": [60.0, 62.0]}
)
BERT = Row(Variant("BERT", x=1.0, line="a"), 1500, 2e12, {"m": [58.0, 62.0]})
NOTHING = Row(RANDOM, 0, 0.0, {"m": [50.0, 51.0]})


def test_fitness_compares_spread_of_seeds_with_what_training_brings():
    # Variances 2 and 8, one degree of freedom each; random weights have 0.5.
    expected = pytest.approx((5**0.5, 61 - 50.5, True))
    assert report.fitness([BERT, ELECTRA, NOTHING], "m") == expected
    wide = NOTHING._replace(scores={"m": [40.0, 60.0]})
    spread, _, is_fit = report.fitness([ELECTRA, wide], "m")
    assert spread == pytest.approx(200**0.5) and not is_fit
    lower = NOTHING._replace(scores={"m": [90.0, 91.0]})
    assert not report.fitness([ELECTRA, lower], "m")[2]
    one = ELECTRA._replace(scores={"m": [60.0]})
    assert report.fitness([one, NOTHING], "m") is None


def test_undefined_scores_are_left_out_of_all_measures():
    found = {"a": {"m": 1.0, "n": 2.0}, "b": {"m": None, "n": 3.0}, "c": {"m": 5.0}}
    scores, left_out = report.defined(found, ["m", "n"])
    assert scores == {"m": [1.0], "n": [2.0]} and left_out == ["b"]


def test_table():
    two = [r._replace(scores=r.scores | {"n": [1.0, 3.0]}) for r in (ELECTRA, BERT)]
    lines = report.table(two, ["m", "n"])
    assert lines[0] == "|  | FLOPs | steps | seeds | m | n | mean | paper |"
    # Standard errors: 1.414 / sqrt(2); of the means 30.5 and 32.5, too.
    scores = "2 | 61.00 ± 1.00 | 2.00 ± 1.00 | 31.50 ± 1.00"
    assert lines[2] == f"| ELECTRA | 2e+12 | 1,000 | {scores} | 85.0 |"


def test_measures_that_are_not_fit_are_not_reported(tmp_path):
    comparison = Comparison("c", "Title", "Table 5", [])
    rows = [ELECTRA, BERT, NOTHING]
    rows = [r._replace(scores=r.scores | {"bad": [10.0, 90.0]}) for r in rows]
    metrics = {"m": "f1", "bad": "accuracy"}
    text = report.write(tmp_path / "c", comparison, rows, metrics, "head")
    assert (tmp_path / "c.md").read_text() == text + "\n"
    assert "| seeds | m | paper |" in text
    assert "bad (accuracy): spread over seeds 56.57" in text
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    none = report.write(tmp_path / "c", comparison, rows, {"bad": "accuracy"}, "head")
    assert not (tmp_path / "c.png").exists()
    assert "| ELECTRA | 2e+12 | 1,000 | 2 | 85.0 |" in none


def test_words_carry_the_mark_that_follows_them():
    line = '"Yes, Watson\'s here;" he said. 42 -- Why?!'
    words = "yes watson's here he said why".split()
    tags = ["B-comma", "O", "B-stop", "O", "B-stop", "B-stop"]
    assert scales.tagged(line) == list(zip(words, tags, strict=True))


def test_splits_of_the_marks_task_do_not_overlap(tmp_path):
    scales.write_marks(tmp_path, ROOT / "examples")
    parts = {}
    for split in ("train", "tuning", "test"):
        text = (tmp_path / f"marks_{split}.txt").read_text().strip()
        parts[split] = set(text.split("\n\n"))
    assert len(parts["train"]) == scales.PASSAGES["train"]
    assert not parts["train"] & parts["test"] and not parts["train"] & parts["tuning"]
    assert not parts["tuning"] & parts["test"]
