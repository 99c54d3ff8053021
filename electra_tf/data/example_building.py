# SPDX-License-Identifier: Apache-2.0
"""Tokenised lines -> pre-training examples: one or two segments of running text.

The examples, and every draw of random numbers, are those of the original program: for
the same stream of numbers and the same text the ids are identical. Only the work is
arranged differently: lines come in blocks, a segment is a list of ranges in the block's
ids, and the arrays of all examples of a block are filled at once.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from electra_tf.text.vocabulary import Vocabulary

# How often an example has one segment only, as in tasks with single sentences.
_SINGLE_SEGMENT_PROB = 0.1
_NO_TARGET = 100_000

# How often an example is begun with a random length in mind, so that short texts are
# no surprise to the model; from how many tokens on.
_RANDOM_LENGTH_PROB = 0.05
MIN_LENGTH = 5


class Examples(NamedTuple):
    """Examples of L tokens, padded with id 0.

    Attributes:
        input_ids: int32 [n, L], [CLS] first segment [SEP] second segment [SEP].
        input_mask: uint8 [n, L], 1 at tokens and 0 at padding.
        segment_ids: uint8 [n, L], 1 at the second segment and its [SEP].
        emitted_at: int64 [n], index of the line that completed the example; the number
            of lines where the end of the text did.
    """

    input_ids: np.ndarray
    input_mask: np.ndarray
    segment_ids: np.ndarray
    emitted_at: np.ndarray


class _Segments(NamedTuple):
    """One example as ranges of token positions, trimmed to what fits."""

    first: list[list[int]]
    second: list[list[int]]
    num_first: int
    num_second: int


class ExampleBuilder:
    """Packs lines into examples of at most `max_length` tokens.

    Consecutive lines are collected until they fill an example, or a document ends.
    Text beyond an example's length is dropped, as in the original: lines much longer
    than `max_length` tokens lose their ends.
    """

    def __init__(self, vocab: Vocabulary, max_length: int, rng: random.Random):
        self._cls_id, self._sep_id = vocab.cls_id, vocab.sep_id
        self._max_length = max_length
        self._random = rng
        self._target_length = max_length
        self._pending = np.zeros(0, np.int32)  # ids of the lines not yet used
        self._pending_ends: list[int] = []  # where each of those lines ends

    def add_lines(
        self, ids: np.ndarray, row_splits: np.ndarray, is_blank: Sequence[bool]
    ) -> Examples:
        """Adds lines; a blank one ends the document. Returns what they completed.

        Args:
          ids: int32 [number of tokens], of all lines.
          row_splits: int [n + 1], where each line's ids begin and end.
          is_blank: [n]; a line may also have no tokens without being blank.
        """
        offset = len(self._pending)
        ids = np.concatenate([self._pending, ids])
        ends = (row_splits[1:] + offset).tolist()
        current = self._pending_ends
        start = 0  # of the first line of the example being collected
        position = current[-1] if current else 0
        finished: list[_Segments] = []
        emitted_at: list[int] = []
        for line, (end, blank) in enumerate(zip(ends, is_blank, strict=True)):
            # Lines without tokens change nothing, so they are not even collected.
            if end > position:
                current.append(end)
                position = end
                complete = end - start >= self._target_length
            else:
                complete = blank and current
            if complete:
                finished.append(self._split(start, current))
                emitted_at.append(line)
                current = []
                start = position
        self._pending = ids[start:].copy()
        self._pending_ends = [end - start for end in current]
        return self._assemble(ids, finished, emitted_at)

    def finish(self) -> Examples:
        """Ends the document at the end of a file. Returns its last example, if any."""
        return self.add_lines(np.zeros(0, np.int32), np.zeros(2, np.int64), [True])

    def _split(self, start: int, ends: list[int]) -> _Segments:
        """Deals lines, tokens `start` to `ends`, to the two segments.

        A line joins the first segment if that is empty, or stays shorter than half of
        the example with it, or by the toss of a coin when it is the one to cross that.
        """
        draw = self._random.random
        if draw() < _SINGLE_SEGMENT_PROB:
            half = _NO_TARGET
        else:
            half = (self._target_length - 3) // 2  # without [CLS] and two [SEP]
        first: list[list[int]] = []
        second: list[list[int]] = []
        num_first = num_second = 0
        for end in ends:
            length = end - start
            if (
                num_first == 0
                or num_first + length < half
                or (num_second == 0 and num_first < half and draw() < 0.5)
            ):
                ranges = first
                num_first += length
            else:
                ranges = second
                num_second += length
            if ranges and ranges[-1][1] == start:
                ranges[-1][1] = end
            else:
                ranges.append([start, end])
            start = end
        if draw() < _RANDOM_LENGTH_PROB:
            self._target_length = self._random.randint(MIN_LENGTH, self._max_length)
        else:
            self._target_length = self._max_length
        num_first = min(num_first, self._max_length - 2)
        num_second = min(num_second, max(0, self._max_length - num_first - 3))
        return _Segments(first, second, num_first, num_second)

    def _assemble(
        self, ids: np.ndarray, examples: list[_Segments], emitted_at: list[int]
    ) -> Examples:
        """Fills the arrays of the examples."""
        input_ids = np.zeros((len(examples), self._max_length), np.int32)
        for row, example in zip(input_ids, examples, strict=True):
            _copy(ids, example.first, row, 1, example.num_first)
            if example.num_second:
                begin = example.num_first + 2
                _copy(ids, example.second, row, begin, example.num_second)
        num_first = np.array([e.num_first for e in examples], np.int64)[:, None]
        num_second = np.array([e.num_second for e in examples], np.int64)[:, None]
        total = num_first + 2 + num_second + (num_second > 0)
        position = np.arange(self._max_length)
        rows = np.arange(len(examples))
        input_ids[rows, 0] = self._cls_id
        input_ids[rows, num_first[:, 0] + 1] = self._sep_id
        input_ids[rows, total[:, 0] - 1] = self._sep_id
        input_mask = position < total
        segment_ids = (position > num_first + 1) & input_mask
        return Examples(
            input_ids,
            input_mask.view(np.uint8),
            segment_ids.view(np.uint8),
            np.array(emitted_at, np.int64),
        )


def _copy(
    ids: np.ndarray, ranges: list[list[int]], row: np.ndarray, begin: int, count: int
) -> None:
    """Copies the first `count` ids of `ranges` to `row[begin:]`."""
    for start, end in ranges:
        length = min(end - start, count)
        row[begin : begin + length] = ids[start : start + length]
        begin += length
        count -= length
        if not count:
            break
