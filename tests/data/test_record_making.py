# SPDX-License-Identifier: Apache-2.0
"""Packing that uses all text; tests/parity has the original's."""

import numpy as np
import pytest

from electra_tf.data.record_making import FullPacker
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.runs import SPECIAL

VOCAB = Vocabulary((*SPECIAL, *"abcdefghijklmnop"))
# A line of three tokens, a document's end twice, a long line, an empty one.
LINES = ["abc", "", "", "defghijk", "", "", "lm"]
IS_BLANK = [False, True, True, False, False, True, False]
PACKED = ["[CLS]abc|[SEP]", "[CLS]defg[SEP]", "[CLS]hijk[SEP]"]
LAST = ["[CLS]|lm[SEP][PAD]"]


def pack(packer, lines, is_blank):
    ids = [VOCAB.ids[letter] for line in lines for letter in line]
    splits = np.cumsum([0, *map(len, lines)])
    return shown(packer.add_lines(np.array(ids, np.int32), splits, is_blank))


def shown(examples):
    """Rows as text; | is a [SEP] between documents."""
    ids, mask, segments, _ = examples
    assert ids.dtype == np.int32 and mask.dtype == segments.dtype == np.uint8
    assert ids.shape == mask.shape == segments.shape and not segments.any()
    assert ((ids != VOCAB.ids["[PAD]"]) == mask).all()
    rows = ["".join(VOCAB.tokens[i] for i in row) for row in ids]
    return [row.replace("[SEP]", "|", row.count("[SEP]") - 1) for row in rows]


@pytest.mark.parametrize("size", [1, 2, 7])
def test_lines_continue_and_documents_are_separated(size):
    """However many lines come at a time."""
    packer, found = FullPacker(VOCAB, 6), []
    for i in range(0, len(LINES), size):
        found += pack(packer, LINES[i : i + size], IS_BLANK[i : i + size])
    assert found == PACKED
    assert shown(packer.last()) == LAST


@pytest.mark.parametrize(
    ("lines", "last"),
    [([], []), ([""], []), (["", "a", ""], ["[CLS]a[SEP][PAD][PAD][PAD]"])],
)
def test_short_texts(lines, last):
    packer = FullPacker(VOCAB, 6)
    assert pack(packer, lines, [not line for line in lines]) == []
    assert shown(packer.last()) == last
