# SPDX-License-Identifier: Apache-2.0
"""detection.detect: what is replaced in a long input."""

import pytest

from electra_tf.inference import detection


class Model:
    """Notes what it is asked."""

    def __init__(self):
        self.seeds = []

    def corrupt(self, texts, seed):
        self.seeds.append(seed)
        return [[] for _ in texts]


@pytest.mark.parametrize("seed", [0, -(2**63), 2**63 - 1])
def test_each_chunk_has_a_seed_of_64_bits_of_its_own(seed):
    model, texts = Model(), ["w1"] * 1000
    assert len(list(detection.detect(model, texts, seed))) == 1000
    assert model.seeds[0] == seed and len(set(model.seeds)) == len(model.seeds) > 1
    assert all(-(2**63) <= value < 2**63 for value in model.seeds)
