# SPDX-License-Identifier: Apache-2.0
"""How often each token is in the data, as build_pretraining_dataset.py counts it."""

import shutil

import numpy as np
import pytest

from electra_tf.data import token_counts
from electra_tf.errors import UserError
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.building import VOCAB, examples_in, succeed, write_corpus


def test_counts_are_those_of_the_examples(tmp_path):
    text, one = write_corpus(tmp_path / "text"), tmp_path / "one"
    flags = ["--num-out-files=3", "--max-seq-length=64", "--num-processes=2"]
    succeed(text, one, *flags)
    vocab = Vocabulary.load(str(VOCAB))
    ids, mask, _ = examples_in(one)
    expected = np.bincount(ids[mask > 0], minlength=len(vocab))
    expected[[vocab.pad_id, vocab.cls_id, vocab.sep_id, vocab.mask_id]] = 0
    pattern = f"{one}/pretrain_data.tfrecord*"
    found = token_counts.of_data(pattern, len(vocab))
    np.testing.assert_array_equal(found, expected)
    assert found.sum() > 1000
    # Two data sets together.
    two = shutil.copytree(one, tmp_path / "two")
    both = token_counts.of_data(f"{pattern},{two}/pretrain*", len(vocab))
    np.testing.assert_array_equal(both, 2 * expected)
    hidden = [path.name for path in one.glob(".*")]
    assert all(name.startswith(".records-") for name in hidden), hidden  # the index


@pytest.mark.parametrize("text", ["", "1\n2\n", "1\n2\nx\n"])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / token_counts.FILE
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="is not the counts of 3 tokens") as caught:
        token_counts.read(str(path), 3)
    assert caught.value.exit_code == 65
