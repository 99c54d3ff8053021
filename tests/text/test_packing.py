# SPDX-License-Identifier: Apache-2.0
"""[CLS] ... [SEP] and padding."""

import numpy as np

from electra_tf.text import packing
from electra_tf.text.vocabulary import Vocabulary

# [PAD] is not the first token, so that a 0 in its place would be seen.
VOCAB = Vocabulary(("[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]", "a", "b"))
PAD, CLS, SEP = 4, 1, 2


def test_a_text_and_a_pair():
    one = packing.join(VOCAB, [5, 6])
    assert one == ([CLS, 5, 6, SEP], [0, 0, 0, 0])
    assert packing.join(VOCAB, [5], []) == ([CLS, 5, SEP], [0, 0, 0])
    pair = packing.join(VOCAB, [5], [6, 6])
    assert pair == ([CLS, 5, SEP, 6, 6, SEP], [0, 0, 0, 1, 1, 1])
    ids, mask, segments = packing.pad([one, pair], PAD, 7)
    expected = [[CLS, 5, 6, SEP, PAD, PAD, PAD], [CLS, 5, SEP, 6, 6, SEP, PAD]]
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(mask.sum(axis=1), [4, 6])
    np.testing.assert_array_equal(mask, ids != PAD)
    np.testing.assert_array_equal(segments, [[0] * 7, [0, 0, 0, 1, 1, 1, 0]])
    assert {ids.dtype, mask.dtype, segments.dtype} == {np.dtype(np.int32)}


def test_without_a_length_the_longest_text_decides():
    packed = packing.pack(VOCAB, [[5], [], [6, 5, 6]])
    expected = [[CLS, 5, SEP, PAD, PAD], [CLS, SEP, PAD, PAD, PAD]]
    np.testing.assert_array_equal(packed.input_ids, [*expected, [CLS, 6, 5, 6, SEP]])
    assert not packed.segment_ids.any()
