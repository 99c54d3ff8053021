# SPDX-License-Identifier: Apache-2.0
"""Passages of a long input, and how they are shown."""

import pytest

from electra_tf.inference import detection
from electra_tf.inference.model import TokenPrediction


class Model:
    """Records the seeds that it is given."""

    def __init__(self):
        self.seeds = []

    def corrupt(self, texts, seed):
        self.seeds.append(seed)
        return [[] for _ in texts]


@pytest.mark.parametrize("seed", [0, -7])
def test_each_chunk_has_its_own_seed(seed):
    model, texts = Model(), ["w1"] * 1000
    assert len(list(detection.detect(model, texts, seed))) == 1000
    assert model.seeds[0] == seed and len(set(model.seeds)) == len(model.seeds) > 1


def test_html_marks_what_is_above_the_threshold():
    text = "<script>w1</script>"
    tokens = [TokenPrediction("<", 0, 1, 0.4), TokenPrediction("w1", 8, 10, 0.6)]
    detected = [(text, tokens)]
    pages = [
        "".join(detection.show(detected, "html", threshold=limit, colour=False))
        for limit in (0.5, 0.3)
    ]
    assert "<script>" not in pages[0] and pages[0].count("<p") == 2
    assert [page.count('class="alarm"') for page in pages] == [2, 3]  # one is a legend
