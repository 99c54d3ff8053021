# SPDX-License-Identifier: Apache-2.0
"""How often each token is in a build of data: a file beside the manifest.

Line i is the number of times that the token of id i is in the examples; [PAD], [CLS],
[SEP] and [MASK], which are never replaced, count as 0.
"""

import os

import numpy as np

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.storage.files import atomic_write
from electra_tf.storage.remote import expand, fetch_once
from electra_tf.text.vocabulary import Vocabulary

FILE = "token_counts.txt"


def count(input_ids: np.ndarray, input_mask: np.ndarray, vocab: Vocabulary):
    """The counts of examples, int64 [V]."""
    counts = np.bincount(input_ids[input_mask > 0], minlength=len(vocab))
    counts[[vocab.pad_id, vocab.cls_id, vocab.sep_id, vocab.mask_id]] = 0
    return counts


def write(path: str, counts: np.ndarray) -> None:
    """Writes counts, whole or not at all; `UserError` (73) if that fails."""
    atomic_write(path, "".join(f"{n}\n" for n in counts.tolist()))


def read(path: str, vocab_size: int) -> np.ndarray:
    """The counts in a file, int64 [vocab_size]; `UserError` (65) for other content."""
    try:
        with open(path, encoding="ascii") as f:
            counts = np.array(f.read().split(), np.int64)
        if len(counts) != vocab_size:
            raise ValueError(f"{len(counts)} lines for {vocab_size} tokens")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is not the counts of {vocab_size} tokens: {error}.\nBuild the "
            "data again with build_pretraining_dataset.py.",
            EXIT_DAMAGED,
        ) from None
    return counts


def files_beside(pattern: str) -> list[str]:
    """The files of counts beside the shards that a comma-separated list of globs names.

    Raises `UserError`, saying how to get them, if one is missing.
    """
    folders = sorted({os.path.dirname(path) for path in expand(pattern)})
    found = [os.path.join(folder, FILE) for folder in folders]
    for path in found:
        if not os.path.isfile(fetch_once(path)):
            raise UserError(
                f"{path} not found: this run needs to know how often each token is in "
                "the data.\nBuild the data again: "
                "build_pretraining_dataset.py writes it beside manifest.json."
            )
    return found


def of_data(pattern: str, vocab_size: int) -> np.ndarray:
    """The counts of all data that `pattern` names, int64 [vocab_size]."""
    return sum(read(path, vocab_size) for path in files_beside(pattern))
