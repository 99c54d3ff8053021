# SPDX-License-Identifier: Apache-2.0
"""From token ids to what a network reads: [CLS] ... [SEP], padded, with mask.

The same as TensorFlow ops, for graphs that are exported, is in `export.signatures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from electra_tf.text.vocabulary import Vocabulary


class Row(NamedTuple):
    """One text or pair of texts with its special tokens."""

    input_ids: list[int]
    segment_ids: list[int]


class PackedTexts(NamedTuple):
    """Rows of one length, int32 [B, L] each."""

    input_ids: np.ndarray
    input_mask: np.ndarray  # 1 at tokens, 0 at padding
    segment_ids: np.ndarray


def room(length: int, second: Sequence[int] = ()) -> int:
    """How many tokens of the texts `join` can put into `length` tokens."""
    return length - (3 if second else 2)


def join(vocab: Vocabulary, first: Sequence[int], second: Sequence[int] = ()) -> Row:
    """[CLS] first [SEP], in segment 0, and second [SEP], in segment 1.

    A second without tokens is none, as the original has it.
    """
    ids = [vocab.cls_id, *first, vocab.sep_id]
    segments = [0] * len(ids)
    if second:
        ids += [*second, vocab.sep_id]
        segments += [1] * (len(second) + 1)
    return Row(ids, segments)


def pad(rows: Sequence[Row], pad_id: int, length: int | None = None) -> PackedTexts:
    """Rows as arrays.

    Args:
      length: L; None: of the longest row.
    """
    if length is None:
        length = max(len(row.input_ids) for row in rows)
    packed = PackedTexts(*np.zeros([3, len(rows), length], np.int32))
    packed.input_ids[:] = pad_id
    for number, row in enumerate(rows):
        real = len(row.input_ids)
        packed.input_ids[number, :real] = row.input_ids
        packed.input_mask[number, :real] = 1
        packed.segment_ids[number, :real] = row.segment_ids
    return packed


def pack(
    vocab: Vocabulary, texts: Sequence[Sequence[int]], length: int | None = None
) -> PackedTexts:
    """[CLS] text [SEP] for each text, given as ids; otherwise as `pad`."""
    return pad([join(vocab, ids) for ids in texts], vocab.pad_id, length)
