# SPDX-License-Identifier: Apache-2.0
"""Text -> framed records: what one process does with its share of a corpus."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from electra_tf.data import record_index, tfrecord
from electra_tf.data.filters import MAX_DOCUMENT_CHARS, Filters, UnitVerdicts, Verdicts
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.units import Corpus, Reading, Unit, read_unit
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary

_BATCH_BYTES = 1 << 20  # text that is tokenised at a time

_SAMPLED_UNITS = 4
_COMPRESSED_RATIO = 3.5  # bytes of text in a byte of a compressed file, about


class BuildSettings(NamedTuple):
    """What examples are made of the text.

    Attributes:
        vocab_file: path of the vocabulary.
        tokenizer: how text is normalised.
        max_seq_length: tokens of an example, with [CLS] and [SEP].
        blanks_separate_docs: a blank line ends a document, not only the file; None:
          of lines one does, of records none.
        seed: of the random numbers.
        reading: how the text is read.
        filters: which of it is used.
    """

    vocab_file: str
    tokenizer: TokenizerConfig
    max_seq_length: int = 128
    blanks_separate_docs: bool | None = None
    seed: int = 42
    reading: Reading = Reading()
    filters: Filters = Filters()


class Counts(NamedTuple):
    """What went in and came out, of a part of the corpus or of all of it.

    Attributes:
        examples: records written.
        texts: files, members of archives or documents; of a long file, its pieces.
        lines: with the blank ones.
        tokens: in the text.
        tokens_kept: of those, in examples.
        text_bytes: read.
        replaced_bytes: not UTF-8, and therefore left out.
        replaced_in: those bytes by file.
        dropped: documents and lines that filters left out, by filter.
    """

    examples: int = 0
    texts: int = 0
    lines: int = 0
    tokens: int = 0
    tokens_kept: int = 0
    text_bytes: int = 0
    replaced_bytes: int = 0
    replaced_in: dict[str, int] = {}  # noqa: RUF012 (never changed in place)
    dropped: dict[str, int] = {}  # noqa: RUF012

    def plus(self, other: "Counts") -> "Counts":
        sums = [a + b for a, b in zip(self[:-2], other[:-2], strict=True)]
        pairs = zip(self[-2:], other[-2:], strict=True)
        return Counts(*sums, *(dict(Counter(a) + Counter(b)) for a, b in pairs))

    def in_json(self) -> dict[str, Any]:
        """For the manifest, which says of filters only where there are any."""
        found = self._asdict()
        if not self.dropped:
            del found["dropped"]
        return found


class RecordMaker:
    """Turns units into framed records.

    Args:
      is_only_unit: the unit is all of the corpus.
      verdicts: what a comparison of all documents said, if there was one.
    """

    def __init__(
        self,
        settings: BuildSettings,
        is_only_unit: bool,
        verdicts: Verdicts | None = None,
    ):
        self._settings = settings
        self._verdicts = verdicts
        self._is_only_unit = is_only_unit
        self.vocab = Vocabulary.load(settings.vocab_file)
        self._tokenizer = Tokenizer(self.vocab, *settings.tokenizer)
        self.token_counts = np.zeros(len(self.vocab), np.int64)

    def records(self, unit: Unit) -> Iterator[tuple[list[bytes], Counts]]:
        """Yields the records of a unit, in blocks, with what each block counts.

        `token_counts` (int64 [V]) grows by the tokens of each block.
        """
        settings = self._settings
        rng = rng_of(unit, settings.seed, self._is_only_unit)
        builder = ExampleBuilder(self.vocab, settings.max_seq_length, rng)
        batches = _line_batches(unit, settings)
        if settings.filters != Filters():
            own = self._verdicts and self._verdicts.of(unit)
            batches = _filtered(batches, settings.filters, own)
        for lines, is_blank, counts in batches:
            ids, row_splits = self._tokenizer.tokenize_lines(lines)
            examples = builder.add_lines(ids, row_splits, is_blank)
            records = tfrecord.encode_examples(
                examples.input_ids, examples.input_mask, examples.segment_ids
            )
            self.token_counts += record_index.count_tokens(
                examples.input_ids, examples.input_mask, self.vocab
            )
            mask, segments = examples.input_mask, examples.segment_ids
            num_special = 2 * len(mask) + int(segments.any(axis=1).sum())
            counts = counts._replace(
                examples=len(records),
                tokens=len(ids),
                tokens_kept=int(mask.sum()) - num_special,  # without [CLS] and [SEP]
            )
            yield [*map(tfrecord.frame, records)], counts


def rng_of(unit: Unit, seed: int, is_only_unit: bool) -> random.Random:
    """The random numbers of a unit.

    A corpus of a single file has those of `random.seed(seed)`, which makes it equal to
    what the original program builds from that file after that call.
    """
    if is_only_unit:
        return random.Random(seed)
    # Bytes seed as text does, and names of files need not be UTF-8.
    return random.Random(f"{seed}/{unit.stream}".encode("utf-8", "surrogateescape"))


def _line_batches(
    unit: Unit, settings: BuildSettings
) -> Iterator[tuple[list[str], list[bool], Counts]]:
    """Yields lines, which of them end a document, and their counts, in batches.

    Every text ends with a blank line of its own.
    """
    lines: list[str] = []
    is_blank: list[bool] = []
    counts = Counts()
    for reader in read_unit(unit, settings.reading):
        blanks_separate_docs = settings.blanks_separate_docs
        if blanks_separate_docs is None:
            blanks_separate_docs = not reader.is_record
        read = replaced = 0
        for block in reader:
            counts = counts._replace(
                lines=counts.lines + len(block),
                text_bytes=counts.text_bytes + reader.num_bytes - read,
            )
            if new := reader.num_replaced - replaced:
                counts = counts.plus(
                    Counts(replaced_bytes=new, replaced_in={reader.name: new})
                )
            read, replaced = reader.num_bytes, reader.num_replaced
            blank = [not line.strip() for line in block]
            if not blanks_separate_docs:
                block = [line for line, b in zip(block, blank, strict=True) if not b]
                blank = [False] * len(block)
            lines += block
            is_blank += blank
            if counts.text_bytes >= _BATCH_BYTES:
                yield lines, is_blank, counts
                lines, is_blank, counts = [], [], Counts()
        lines.append("")
        is_blank.append(True)
        counts = counts._replace(texts=counts.texts + 1)
    yield lines, is_blank, counts


def _pieces(
    batches: Iterator[tuple[list[str], list[bool], Counts]],
) -> Iterator[tuple[list[tuple[list[str], bool, bool]], Counts]]:
    """Puts the lines of batches together to documents; long ones come in pieces.

    Yields for each batch its pieces, (lines, whether their document began before,
    whether it ends), and its counts.
    """
    held: list[str] = []
    chars, is_continued = 0, False
    for lines, is_blank, counts in batches:
        pieces = []
        for line, blank in zip(lines, is_blank, strict=True):
            if not blank:
                held.append(line)
                chars += len(line)
            if blank or chars > MAX_DOCUMENT_CHARS:
                if held or is_continued:
                    pieces.append((held, is_continued, blank))
                held, chars, is_continued = [], 0, not blank
        yield pieces, counts


def _filtered(
    batches: Iterator[tuple[list[str], list[bool], Counts]],
    filters: Filters,
    verdicts: UnitVerdicts | None,
) -> Iterator[tuple[list[str], list[bool], Counts]]:
    """Leaves out of batches of lines what the filters do not let through."""
    for pieces, counts in _pieces(batches):
        kept: list[str] = []
        ends: list[bool] = []
        dropped: Counter = Counter()
        for piece, is_continued, is_end in pieces:
            problem = filters.problem_of(piece, is_continued) if piece else None
            if piece and not problem and verdicts:
                problem, is_new = verdicts.next(len(piece))
                new = [line for line, n in zip(piece, is_new, strict=True) if n]
                if not problem:
                    dropped["duplicate_lines"] += len(piece) - len(new)
                piece = new
            if problem:
                dropped[problem] += 1
                piece = []
            kept += piece
            ends += [False] * len(piece)
            if is_end:
                kept.append("")
                ends.append(True)
        yield kept, ends, counts._replace(dropped=dict(+dropped))


def scan(unit: Unit, settings: BuildSettings) -> Iterator[list[str]]:
    """Yields the documents of a unit that its other filters let through.

    They are those that `filters.compare` compares, and its verdicts are in their order.
    """
    for pieces, _ in _pieces(_line_batches(unit, settings)):
        for piece, is_continued, _ in pieces:
            if piece and not settings.filters.problem_of(piece, is_continued):
                yield piece


def sample_output(text: Corpus, settings: BuildSettings) -> float:
    """Estimates the bytes of all records from a sample of the text."""
    maker = RecordMaker(settings, len(text.units) == 1)
    chosen = np.linspace(0, len(text.units) - 1, _SAMPLED_UNITS).round().astype(int)
    read = written = 0.0
    for index in sorted(set(chosen.tolist())):
        unit = text.units[index]
        text_bytes = 0
        for records, counts in maker.records(unit):
            written += sum(map(len, records))
            text_bytes += counts.text_bytes
            if text_bytes >= _BATCH_BYTES:
                ratio = _COMPRESSED_RATIO if unit.is_compressed else 1
                read += min(unit.weight, text_bytes / ratio)
                break
        else:
            read += unit.weight
    total = sum(unit.weight for unit in text.units)
    return total * written / max(1.0, read)


# Examples.

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
