# SPDX-License-Identifier: Apache-2.0
"""N-best lists: reading, ranking, errors, the best weight."""

import json
import math

import pytest

from electra_tf.errors import EXIT_DAMAGED
from electra_tf.inference import reranking
from electra_tf.inference.reranking import (
    NBestList,
    count_errors,
    rank,
    read_nbest,
    tune,
)
from tests.helpers.runs import refused

ROW = {
    "id": "u1",
    "hypotheses": [{"text": "a cat", "score": -3.5}, {"text": "", "score": -4}],
    "reference": "the cat",
}


def write(path, *rows):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


# Reading.


def test_json_lines(tmp_path):
    second = {"id": 7, "hypotheses": [{"text": "b", "score": 0, "am": 1}], "x": [1]}
    path = write(tmp_path / "n.jsonl", ROW, "", second)
    one, two = read_nbest(path)
    assert one == NBestList(["a cat", ""], [-3.5, -4.0], "the cat", ROW)
    assert two == NBestList(["b"], [0.0], None, second)


@pytest.mark.parametrize(
    "row",
    [
        "u1-1 a cat",
        ROW | {"hypotheses": []},
        ROW | {"reference": 3},
        ROW | {"hypotheses": [{"text": None, "score": 1}]},
        ROW | {"hypotheses": [{"text": "a", "score": math.nan}]},
    ],
)
def test_damaged_json_lines(tmp_path, row):
    path = write(tmp_path / "n.jsonl", ROW, row)
    refused(lambda: read_nbest(path), "n.jsonl, line 2: ", code=EXIT_DAMAGED)


# Ranking.


def list_of(scores, texts, reference=None):
    return NBestList([*texts], scores, reference, {})


def test_rank():
    three = list_of([-1.0, -2.0, -2.5], "abc")
    ranked = rank(three, [-9.0, -7.0, -8.0], 0.5)
    assert ranked == [(-5.5, 0), (-5.5, 1), (-6.5, 2)]  # the first two tie
    assert rank(list_of([-1.0, -2.0], "ab"), [-9.0, -7.0], 0.6)[0][1] == 1


CAT = "the cat sat"
CHINESE = "小明住在北京市"


@pytest.mark.parametrize(
    ("reference", "counts", "unit", "total"),
    [
        (CAT, {CAT: 0, "the hat sat": 1, "cat sat down": 2, "": 3}, "word", 3),
        ("", {"a b": 2}, "word", 0),
        ("a b c d", {"b a d c": 3}, "word", 4),
        (CHINESE, {CHINESE: 0, "小明 住在北今市": 1, "小明住北京": 2}, "character", 7),
        ("東京タワーへ", {"東京タワへ": 1}, "character", 6),
        ("เขาอยู่ที่กรุงเทพ", {"เขาอยู่กรุงเทพ": 3}, "character", 17),
        ("나는 서울에 산다", {"나는 서울 산다": 1}, "word", 3),
    ],
)
def test_errors_are_counted_in_words_or_characters(reference, counts, unit, total):
    one = list_of([0.0] * len(counts), counts, reference)
    errors = count_errors([one])
    assert errors == (unit, [[*counts.values()]], total)
    line = reranking.describe([one], [one.scores], errors, 1.0)
    assert line.startswith(f"{unit.capitalize()} error rate, of {total} {unit}s: ")


def test_errors_need_all_references():
    known = list_of([0.0], ["a"], "a b")
    assert count_errors([known, known]).counts == [[1], [1]]
    assert count_errors([known, list_of([0.0], ["a"])]) is None


def test_tuning():
    # The model's order is right from weight 2 on.
    lists = [list_of([0.0, -2.0], ["bad", "good"], "good")]
    assert tune(lists, [[-2.0, -1.0]], count_errors(lists)) == 2.5
    # The given order is right up to weight 2.
    lists = [list_of([0.0, -2.0], ["good", "bad"], "good")]
    assert tune(lists, [[-2.0, -1.0]], count_errors(lists)) == 0.0
    assert reranking.GRID[:3] + reranking.GRID[-2:] == (0.0, 0.01, 0.013, 7.9, 10.0)
