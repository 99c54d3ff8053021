# SPDX-License-Identifier: Apache-2.0
"""N-best lists: reading, ranking, word errors, the best weight."""

import json
import math

import numpy as np
import pytest

from electra_tf.errors import EXIT_CONFIG, EXIT_DAMAGED, UserError
from electra_tf.inference import reranking
from electra_tf.inference.reranking import (
    Hypothesis,
    NBestList,
    rank,
    read_nbest,
    tune,
    word_errors,
)

ROW = {
    "id": "u1",
    "hypotheses": [{"text": "a cat", "score": -3.5}, {"text": "", "score": -4}],
    "reference": "the cat",
}


def write(path, *rows):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def refused(code, pattern, *args):
    with pytest.raises(UserError, match=pattern) as caught:
        read_nbest(*args)
    assert caught.value.exit_code == code
    assert len(str(caught.value).splitlines()) <= 3


# Reading.


def test_json_lines(tmp_path):
    second = {"id": 7, "hypotheses": [{"text": "b", "score": 0, "am": 1}], "x": [1]}
    path = write(tmp_path / "n.jsonl", ROW, "", second)
    one, two = read_nbest(path)
    found = one.id, one.reference, two.id, two.reference
    assert found == ("u1", "the cat", "7", None)
    assert [(h.text, h.score) for h in one.hypotheses] == [("a cat", -3.5), ("", -4.0)]
    assert two.row == second and two.hypotheses[0].row["am"] == 1


@pytest.mark.parametrize(
    "row",
    [
        "u1-1 a cat",
        ROW | {"id": ""},
        ROW | {"id": "u0"},
        ROW | {"hypotheses": []},
        ROW | {"reference": 3},
        [],
        *(
            ROW | {"hypotheses": [{"text": "a", "score": 1}, bad]}
            for bad in (
                {"score": 1},
                {"text": "a"},
                {"text": None, "score": 1},
                {"text": "a", "score": math.nan},
                {"text": "a", "score": "-1"},
                {"text": "a", "score": 10**400},
            )
        ),
    ],
)
def test_damaged_json_lines(tmp_path, row):
    path = write(tmp_path / "n.jsonl", ROW | {"id": "u0"}, row)
    refused(EXIT_DAMAGED, "n.jsonl, line 2: ", path)


def test_empty_file(tmp_path):
    refused(EXIT_CONFIG, "holds no lists", write(tmp_path / "n.jsonl"))


# Ranking.


def list_of(given, texts, reference=None, name="u"):
    hypotheses = [Hypothesis(t, g, {}) for t, g in zip(texts, given, strict=True)]
    return NBestList(name, hypotheses, reference, {})


def test_rank():
    three = list_of([-1.0, -2.0, -2.5], ["a", "b", "c"])
    rows = rank(three, [-9.0, -7.0, -8.0], 0.5)
    assert [(row.index, row.text) for row in rows] == [(0, "a"), (1, "b"), (2, "c")]
    assert [row.total for row in rows] == [-5.5, -5.5, -6.5]  # the first two tie
    assert rank(list_of([-1.0, -2.0], "ab"), [-9.0, -7.0], 0.6)[0].text == "b"
    assert [row.text for row in rank(list_of([1.0], "a"), [5.0], 3.0)] == ["a"]
    with pytest.raises(UserError, match=r"1e\+300 x 1e\+300 is not a finite .* 'b'"):
        rank(list_of([0.0, 0.0], "ab"), [1.0, 1e300], 1e300)


def test_word_errors():
    for reference, hypothesis, errors in (
        ("the cat sat", "the cat sat", 0),
        ("the cat sat", "the hat sat", 1),
        ("the cat sat", "cat sat down", 2),
        ("the cat", "", 2),
        ("", "a b", 2),
        ("a b c d", "b a d c", 3),
    ):
        assert word_errors(reference, hypothesis) == errors


def random_lists(seed, ties):
    """Lists of one to six hypotheses; with ties many scores are equal."""
    random = np.random.default_rng(seed)
    lists, model, errors = [], [], []
    for number in range(30):
        size = int(random.integers(1, 7))
        scores = random.normal(0, 2, (2, size))
        if ties:
            scores = scores.round()
        texts = ["x"] * size
        lists.append(list_of(scores[0].tolist(), texts, "x y", str(number)))
        model.append(scores[1].tolist())
        errors.append(random.integers(0, 5, size).tolist())
    return lists, model, errors


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_tuning_finds_what_a_fine_grid_finds(seed, ties):
    lists, model, errors = random_lists(seed, ties)
    found = tune(lists, model, errors)

    def at(weight):
        return reranking.chosen_errors(lists, model, errors, weight)

    grid = [at(w) for w in np.linspace(1e-4, 20, 2001)]
    assert found.errors <= min(grid)
    assert at(found.weight) == found.errors
    # The same everywhere between its bounds, another count just outside.
    high = min(found.high, 100.0)
    for weight in np.linspace(found.low, high, 50)[1:-1]:
        assert at(weight) == found.errors
    if found.low > 0:
        assert at(found.low * (1 - 1e-6) - 1e-9) != found.errors
    if found.high < math.inf:
        assert at(found.high * (1 + 1e-6)) != found.errors


def test_tuning_by_hand():
    lists = [list_of([-1.0], ["a"], "b")]
    assert tune(lists, [[-3.0]], [[1]]) == (1.0, 0.0, math.inf, 1)
    # The model's order is right from weight 2 on.
    lists = [list_of([0.0, -2.0], ["bad", "good"], "good")]
    assert tune(lists, [[-2.0, -1.0]], [[1, 0]]) == (4.0, 2.0, math.inf, 0)
    # The given order is right up to weight 2.
    lists = [list_of([0.0, -2.0], ["good", "bad"], "good")]
    assert tune(lists, [[-2.0, -1.0]], [[0, 1]]) == (1.0, 0.0, 2.0, 0)


def test_word_errors_need_references():
    known = list_of([0.0], ["a"], "a b")
    both = [known, list_of([0.0], ["a"], None, "u7")]
    assert reranking.errors_of([known], is_needed=True) == [[1]]
    with pytest.raises(UserError, match="'u7', of 1, has no \"reference\""):
        reranking.errors_of(both, is_needed=True)
    assert reranking.errors_of(both, is_needed=False) is None
