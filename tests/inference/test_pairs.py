# SPDX-License-Identifier: Apache-2.0
"""Minimal pairs: reading, comparing by models of several kinds, accuracy and error."""

import io
import json

import pytest

from electra_tf.console import Console
from electra_tf.inference import pairs
from electra_tf.inference.pairs import Pair, read_pairs, summary
from electra_tf.inference.scoring import TextScore
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.exporting import model_of
from tests.helpers.runs import SPECIAL, refused
from tests.helpers.tiny_pretraining import VOCAB_SIZE, tiny_model

BLIMP = {"UID": "a", "sentence_good": "w1 w2", "sentence_bad": "w1 w3", "pair_id": 0}


def write(path, *rows):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_both_sets_of_keys(tmp_path):
    own = {"good": "w4", "bad": "w5 w6", "set": "b"}
    path = write(tmp_path / "p.jsonl", BLIMP, "", own)
    assert read_pairs(path) == [("w1 w2", "w1 w3", "a"), ("w4", "w5 w6", "b")]
    for row in (BLIMP | {"UID": None}, own | {"bad": " "}, {"good": "w4"}, "w4", "5"):
        path = write(tmp_path / "p.jsonl", BLIMP, row)
        words = "p.jsonl, line 2", '"sentence_good"'
        refused(lambda path=path: read_pairs(path), *words, code=65)


@pytest.mark.parametrize(
    "hparams",
    [
        {"objective": "electric"},
        {"objective": "mlm"},
        {"objective": "multi_choice", "generator": "unigram"},
        {"objective": "corrective_lm"},
    ],
)
def test_agrees_with_the_scores(hparams):
    words = [f"w{i}" for i in range(VOCAB_SIZE - len(SPECIAL))]
    model = model_of(Vocabulary((*SPECIAL, *words)), tiny_model(**hparams))
    rows = [Pair(f"w{i} w{i + 7} w1", f"w{i} w{i + 30} w1 w2", "s") for i in range(8)]
    rows.insert(3, Pair("w5 w6", "W5  w6", "s"))  # equal for the model
    right = list(pairs.compare(rows, model, None, Console(io.StringIO())))
    scores = [[s.score for s in model.score(pair[:2])] for pair in rows]
    expected = [float(good > bad) for good, bad in scores]
    expected[3] = 0.5
    assert right == expected


def test_ties_count_half_and_texts_are_compared_within_pairs():
    class Model:
        def score_texts(self, texts, method):
            assert method == "mask_each"
            return (TextScore(-float(text), 1, 0) for text in texts)

    rows = [Pair("1", "2", "a"), Pair("2", "2.00001", "a"), Pair("3", "2.9", "a")]
    found = pairs.compare(rows, Model(), "mask_each", Console(io.StringIO()))
    assert list(found) == [1, 0.5, 0]


def test_mean_over_sets_and_standard_error():
    rows = [Pair("", "", name) for name in "b" * 100 + "a" * 400]
    found = summary(rows, [1.0] * 60 + [0.5] * 20 + [0.0] * 20 + [1.0, 0.0] * 200)
    assert [*found["sets"]] == ["b", "a"]
    assert [row["pairs"] for row in (found, *found["sets"].values())] == [500, 100, 400]
    b, a = found["sets"].values()
    assert (b["accuracy"], a["accuracy"], found["accuracy"]) == (70, 50, 60)
    # sqrt(variance of a pair / pairs): 100 sqrt(.16 / 100), 100 sqrt(.25 / 400).
    assert b["standard_error"] == pytest.approx(4.0, rel=0.1)
    assert a["standard_error"] == pytest.approx(2.5, rel=0.1)
    both = (16 + 6.25) ** 0.5 / 2
    assert found["standard_error"] == pytest.approx(both, rel=0.1)
