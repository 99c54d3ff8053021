# SPDX-License-Identifier: Apache-2.0
"""Text -> framed records, for one process of a build."""

import dataclasses
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from electra_tf.data import record_index, tfrecord
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.units import Reading, Unit, read_unit
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary

_BATCH_CHARS = 1 << 20  # of text to tokenise at once
# How lines become examples, the default first.
PACKINGS = ("original", "full")


class BuildSettings(NamedTuple):
    """The settings of a build.

    Attributes:
        vocab_file: path of the vocabulary.
        tokenizer: how text is normalised.
        max_seq_length: tokens of an example, with [CLS] and [SEP].
        blanks_separate_docs: whether blank lines separate documents; None: in text
          files, but not in records.
        seed: of the random numbers.
        reading: how the text is read.
        packing: one of PACKINGS: `ExampleBuilder` or `FullPacker`.
    """

    vocab_file: str
    tokenizer: TokenizerConfig
    max_seq_length: int = 128
    blanks_separate_docs: bool | None = None
    seed: int = 42
    reading: Reading = Reading()
    packing: str = PACKINGS[0]


class Counts(NamedTuple):
    """Counts of a part of the corpus, or of all of it.

    Attributes:
        examples: number of records.
        texts: files, members of archives, documents, or pieces of long files.
        lines: including blank ones.
        tokens: in the text.
        tokens_kept: tokens of the text in examples.
        text_bytes: size of the text.
        replaced_bytes: bytes that are not UTF-8 and were left out.
        replaced_in: the same by file.
    """

    examples: int = 0
    texts: int = 0
    lines: int = 0
    tokens: int = 0
    tokens_kept: int = 0
    text_bytes: int = 0
    replaced_bytes: int = 0
    replaced_in: dict[str, int] = {}  # noqa: RUF012 (never changed in place)

    def plus(self, other: "Counts") -> "Counts":
        sums = [a + b for a, b in zip(self[:-1], other[:-1], strict=True)]
        replaced = Counter(self.replaced_in) + Counter(other.replaced_in)
        return Counts(*sums, dict(replaced))


@dataclasses.dataclass
class RecordMaker:
    """Turns units into framed records.

    Args:
      is_only_unit: whether the corpus has a single unit.
    """

    settings: BuildSettings
    is_only_unit: bool

    def __post_init__(self):
        self.vocab = Vocabulary.load(self.settings.vocab_file)
        self._tokenizer = Tokenizer(self.vocab, *self.settings.tokenizer)
        self.token_counts = np.zeros(len(self.vocab), np.int64)

    def records(self, units: Iterable[Unit]) -> Iterator[tuple[list[bytes], Counts]]:
        """Yields the records of units in blocks, with the counts of each block.

        Adds the tokens of each block to `token_counts` (int64 [V]).
        """
        settings, builder = self.settings, None
        length, is_full = settings.max_seq_length, settings.packing == "full"
        packer = FullPacker(self.vocab, length)
        for unit in units:
            if not is_full:
                # Those of a single file are the original's after random.seed(seed), and
                # so are the examples. Names of files need not be UTF-8.
                name = f"{settings.seed}/{unit.stream}"
                seed = name.encode("utf-8", "surrogateescape")
                rng = random.Random(settings.seed if self.is_only_unit else seed)
                builder = ExampleBuilder(self.vocab, length, rng)
            for lines, is_blank, counts in _line_batches(unit, settings):
                ids, row_splits = self._tokenizer.tokenize_lines(lines)
                examples = (builder or packer).add_lines(ids, row_splits, is_blank)
                yield self._framed(examples, counts._replace(tokens=len(ids)))
        yield self._framed(packer.last(), Counts())

    def _framed(
        self, examples: "Examples", counts: Counts
    ) -> tuple[list[bytes], Counts]:
        ids, mask, segments, _ = examples
        records = tfrecord.encode_examples(ids, mask, segments)
        self.token_counts += record_index.count_tokens(ids, mask, self.vocab)
        is_special = np.isin(ids, (self.vocab.cls_id, self.vocab.sep_id))
        kept = int(mask.sum()) - int(is_special.sum())
        counts = counts._replace(examples=len(records), tokens_kept=kept)
        return [*map(tfrecord.frame, records)], counts


def _line_batches(
    unit: Unit, settings: BuildSettings
) -> Iterator[tuple[list[str], list[bool], Counts]]:
    """Yields batches: lines, whether each is a blank that ends a document, counts.

    A blank line is added at the end of every text.
    """
    lines: list[str] = []
    is_blank: list[bool] = []
    counts, num_chars = Counts(), 0
    for reader in read_unit(unit, settings.reading):
        blanks_separate_docs = settings.blanks_separate_docs
        if blanks_separate_docs is None:
            blanks_separate_docs = not reader.is_record
        for block in reader:
            counts = counts._replace(lines=counts.lines + len(block))
            blank = [not line.strip() for line in block]
            if not blanks_separate_docs:
                block = [line for line, b in zip(block, blank, strict=True) if not b]
                blank = [False] * len(block)
            lines += block
            is_blank += blank
            num_chars += sum(map(len, block))
            if num_chars >= _BATCH_CHARS:
                yield lines, is_blank, counts
                lines, is_blank, counts, num_chars = [], [], Counts(), 0
        lines.append("")
        is_blank.append(True)
        counts = counts._replace(
            texts=counts.texts + 1, text_bytes=counts.text_bytes + reader.num_bytes
        )
        if num := reader.num_replaced:
            replaced = Counts(replaced_bytes=num, replaced_in={reader.name: num})
            counts = counts.plus(replaced)
    yield lines, is_blank, counts


# Examples.

# The share of examples with a single segment, as in tasks with single sentences.
_SINGLE_SEGMENT_PROB = 0.1
_NO_TARGET = 100_000

# The share of examples with a random target length, so that the model also sees short
# texts; the least such length.
_RANDOM_LENGTH_PROB = 0.05
_MIN_LENGTH = 5


class Examples(NamedTuple):
    """Examples of L tokens, padded with id 0.

    Attributes:
        input_ids: int32 [n, L], [CLS] first segment [SEP] second segment [SEP].
        input_mask: uint8 [n, L], 1 at tokens and 0 at padding.
        segment_ids: uint8 [n, L], 1 at the second segment and its [SEP].
        emitted_at: int64 [n], index of the line that completed the example; None of
          `FullPacker`.
    """

    input_ids: np.ndarray
    input_mask: np.ndarray
    segment_ids: np.ndarray
    emitted_at: np.ndarray | None = None


class ExampleBuilder:
    """Packs lines into examples of at most `max_length` tokens.

    Consecutive lines are collected until they fill an example or the document ends.
    Text beyond the length of an example is dropped, as in the original: lines much
    longer than `max_length` tokens lose their ends.
    """

    def __init__(self, vocab: Vocabulary, max_length: int, rng: random.Random):
        self._cls_id, self._sep_id = vocab.cls_id, vocab.sep_id
        self._max_length = max_length
        self._random = rng
        self._target_length = max_length
        self._pending = np.zeros(0, np.int32)  # ids of unused lines
        self._pending_ends: list[int] = []  # the end of each of those lines

    def add_lines(
        self, ids: np.ndarray, row_splits: np.ndarray, is_blank: Sequence[bool]
    ) -> Examples:
        """Adds lines; a blank one ends the document. Returns completed examples.

        Args:
          ids: int32 [number of tokens], of all lines.
          row_splits: int [n + 1], the start of each line's ids, and the end.
          is_blank: [n]; lines without tokens need not be blank.
        """
        ids = np.concatenate([self._pending, ids])
        ends = (row_splits[1:] + len(self._pending)).tolist()
        current = self._pending_ends
        start = 0  # of the first line of the current example
        position = current[-1] if current else 0
        segments: list[tuple[np.ndarray, np.ndarray]] = []
        emitted_at: list[int] = []
        for line, (end, blank) in enumerate(zip(ends, is_blank, strict=True)):
            # Lines without tokens have no effect on examples.
            if end > position:
                current.append(end)
                position = end
                complete = end - start >= self._target_length
            else:
                complete = blank and current
            if complete:
                segments.append(self._split(ids, start, current))
                emitted_at.append(line)
                current = []
                start = position
        self._pending = ids[start:].copy()
        self._pending_ends = [end - start for end in current]
        return self._assemble(segments, emitted_at)

    def _split(
        self, ids: np.ndarray, start: int, ends: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distributes lines between the two segments, and trims these to the length.

        A line joins the first segment if that is empty or remains shorter than half of
        the example; the line that crosses the half joins it with probability 0.5.
        """
        draw = self._random.random
        if draw() < _SINGLE_SEGMENT_PROB:
            half = _NO_TARGET
        else:
            half = (self._target_length - 3) // 2  # without [CLS] and two [SEP]
        first, second = [], [ids[:0]]
        num_first = num_second = 0
        for end in ends:
            length = end - start
            if (
                num_first == 0
                or num_first + length < half
                or (num_second == 0 and num_first < half and draw() < 0.5)
            ):
                first.append(ids[start:end])
                num_first += length
            else:
                second.append(ids[start:end])
                num_second += length
            start = end
        if draw() < _RANDOM_LENGTH_PROB:
            self._target_length = self._random.randint(_MIN_LENGTH, self._max_length)
        else:
            self._target_length = self._max_length
        num_first = min(num_first, self._max_length - 2)
        room = max(0, self._max_length - num_first - 3)
        return np.concatenate(first)[:num_first], np.concatenate(second)[:room]

    def _assemble(
        self, segments: list[tuple[np.ndarray, np.ndarray]], emitted_at: list[int]
    ) -> Examples:
        count, length = len(segments), self._max_length
        sizes = np.array([[*map(len, pair)] for pair in segments], np.int64)
        num_first, num_second = sizes.reshape(count, 2, 1).swapaxes(0, 1)  # [n, 1]
        total = num_first + 2 + num_second + (num_second > 0)
        input_ids = np.zeros((count, length), np.int32)
        for row, (first, second) in zip(input_ids, segments, strict=True):
            row[1 : 1 + len(first)] = first
            row[len(first) + 2 :][: len(second)] = second
        rows = np.arange(count)
        input_ids[rows, 0] = self._cls_id
        input_ids[rows, num_first[:, 0] + 1] = self._sep_id
        input_ids[rows, total[:, 0] - 1] = self._sep_id
        position = np.arange(length)
        input_mask = position < total
        segment_ids = (position > num_first + 1) & input_mask
        return Examples(
            input_ids,
            input_mask.view(np.uint8),
            segment_ids.view(np.uint8),
            np.array(emitted_at, np.int64),
        )


class FullPacker:
    """Packs all text into examples of `max_length` tokens, of one segment each.

    A line or document that does not fit continues in the next example; [SEP] separates
    documents (the "full sentences" of RoBERTa, Liu et al., 2019, section 4.2).
    """

    def __init__(self, vocab: Vocabulary, max_length: int):
        self._cls_id, self._sep_id = vocab.cls_id, vocab.sep_id
        self._room = max_length - 2
        self._pending = np.zeros(0, np.int32)
        self._ends_document = True  # the text so far

    def add_lines(
        self, ids: np.ndarray, row_splits: np.ndarray, is_blank: Sequence[bool]
    ) -> Examples:
        """Adds lines and returns completed examples; see `ExampleBuilder.add_lines`."""
        ends = np.unique(row_splits[1:][np.array(is_blank, bool)])
        if self._ends_document:
            ends = ends[ends > 0]
        stream = np.insert(ids, ends, self._sep_id)
        if len(stream):
            self._ends_document = bool(stream[-1] == self._sep_id)
        stream = np.concatenate([self._pending, stream])
        whole = len(stream) // self._room * self._room
        self._pending = stream[whole:].copy()
        return self._examples(stream[:whole].reshape(-1, self._room))

    def last(self) -> Examples:
        """The example of the text that has not filled one, if any."""
        size = max(0, len(self._pending) - self._ends_document)
        examples = self._examples(self._pending[None, :size][: size > 0])
        padding = (0, 0), (0, self._room - size)
        return Examples(*(np.pad(part, padding) for part in examples[:3]))

    def _examples(self, rows: np.ndarray) -> Examples:
        ends = ((0, 0), (1, 1))
        ids = np.pad(rows, ends, constant_values=(self._cls_id, self._sep_id))
        mask = np.ones(ids.shape, np.uint8)
        return Examples(ids.astype(np.int32), mask, np.zeros_like(mask))
