# SPDX-License-Identifier: Apache-2.0
"""Training of a WordPiece vocabulary on counted words.

The `tokenizers` library learns the wordpieces. Its input is words that our basic
tokenizer split and normalised: the library's BertNormalizer differs from the original's
in details (final sigma, newer Unicode, controls), and the vocabulary should not contain
pieces that our tokenizer cannot produce. To make the result reproducible, the pieces
"##x" and the alphabet are given: the library would number the pieces in the order of a
randomly seeded hash table, and choose among equally frequent characters at random.
"""

import contextlib
import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import electra_tf
from electra_tf.errors import UserError
from electra_tf.jobs import job
from electra_tf.jobs.job import Job, Runner
from electra_tf.text import corpus, unicode_classes, units
from electra_tf.text.tokenization import basic_tokenize, raw_words
from electra_tf.text.units import Corpus, Reading, Unit, read_unit
from electra_tf.text.vocabulary import (
    MAX_CHARS_PER_WORD,
    SPECIAL_TOKENS,
    UNK,
    TokenizerConfig,
    Vocabulary,
    is_too_long,
    write_settings,
    write_tokens,
)

# Memory limits, some 100 bytes per word. Beyond them the rarest words are dropped.
_MAX_WORDS = 2_000_000
_MAX_RAW_WORDS = 500_000
_MAX_RAW_CHARS = 64 << 20

# The library takes text, not counts, so words are repeated; larger sums of counts are
# scaled down.
_MAX_REPEATED = 20_000_000
_REPEATED_AT_ONCE = 1000

_NAME = "count_words"
_PUNCTUATION = unicode_classes.code_points(unicode_classes.PUNCTUATION)


class WordCounts(NamedTuple):
    """Counts of words.

    Attributes:
        words: normalised word -> count.
        replaced_in: bytes that were not UTF-8 and were left out, by file.
        num_forgotten: occurrences of rare words that were dropped to limit memory.
        num_too_long: occurrences of words that are too long for the tokenizer.
        num_stripped: occurrences of words that lost accents.
    """

    words: Counter
    replaced_in: Counter = Counter()
    num_forgotten: int = 0
    num_too_long: int = 0
    num_stripped: int = 0


def count(
    text: Corpus, config: TokenizerConfig, reading: Reading, output: str, runner: Runner
) -> WordCounts:
    """Counts the words of a corpus; the runner does not affect the result.

    The counts of parts of the corpus are files in `<output>.<letters>.counts`, from
    which the same call resumes after an interruption.
    """
    settings = {"corpus": text.facts(), "counted": [config, reading], "version": 2}
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
    path = f"{output}.{digest:.8}.counts"
    with job.opened(path, {"sha256": digest}, flag="--output-file") as folder:
        folder.begin()
        parts = units.portions(text.units)
        sizes = [sum(unit.weight for unit in part) for part in parts]
        work = functools.partial(_count_part, config, reading)
        job.run(folder, Job(_NAME, work, parts, sizes), runner)
        records = folder.records(_NAME, len(parts))
        total = total_of(WordCounts(**record["counts"]) for record in records)
        folder.discard_job()
    with contextlib.suppress(OSError):
        os.rmdir(path)
    return total


def _count_part(
    config: TokenizerConfig, reading: Reading, part: list, folder: str
) -> dict[str, Any]:
    documents = (document for u in part for document in read_unit(Unit(*u), reading))
    return {"counts": total_of(piece_counts(documents, config))._asdict()}


def total_of(parts: Iterable[WordCounts]) -> WordCounts:
    """The sum of counts; the order matters if rare words are dropped."""
    words, replaced_in = Counter(), Counter()
    num_forgotten = num_too_long = num_stripped = 0
    for part in parts:
        words.update(part.words)
        replaced_in.update(part.replaced_in)
        num_forgotten += part.num_forgotten + _forget_rare(words)
        num_too_long += part.num_too_long
        num_stripped += part.num_stripped
    return WordCounts(words, replaced_in, num_forgotten, num_too_long, num_stripped)


def piece_counts(
    documents: Iterable[corpus.TextReader], config: TokenizerConfig
) -> Iterator[WordCounts]:
    """Counts of pieces of limited size, each distinct word normalised once."""
    raw, replaced_in, raw_chars = Counter(), Counter(), 0
    for document in documents:
        for lines in document:
            text = "\n".join(lines)
            raw.update(raw_words(text))
            raw_chars += len(text)
            if len(raw) > _MAX_RAW_WORDS or raw_chars > _MAX_RAW_CHARS:
                yield _normalized(raw, config)
                raw, raw_chars = Counter(), 0
        replaced_in += Counter({document.name: document.num_replaced})
    yield _normalized(raw, config)._replace(replaced_in=replaced_in)


def _normalized(raw: Counter, config: TokenizerConfig) -> WordCounts:
    words: Counter = Counter()
    num_too_long = num_stripped = 0
    kept = config._replace(strip_accents=False)
    for text, count in raw.items():
        found = basic_tokenize(text, config)
        if not text.isascii() and found != basic_tokenize(text, kept):
            num_stripped += count
        for word in found:
            if len(word) <= MAX_CHARS_PER_WORD:
                words[word] += count
            else:
                num_too_long += count
    return WordCounts(words, num_too_long=num_too_long, num_stripped=num_stripped)


def _forget_rare(counts: Counter) -> int:
    """Drops the rarest words if there are too many; returns their occurrences."""
    forgotten = threshold = 0
    while len(counts) > (_MAX_WORDS // 2 if threshold else _MAX_WORDS):
        threshold += 1
        for word in [w for w, count in counts.items() if count <= threshold]:
            forgotten += counts.pop(word)
    return forgotten


def train(
    words: Counter,
    config: TokenizerConfig,
    vocab_size: int,
    min_frequency: int = 2,
    num_unused: int = 0,
) -> tuple[list[str], int]:
    """Learns wordpieces from counted words.

    Args:
        words: normalised word -> count.
        config: how they were normalised.
        vocab_size: exact number of tokens.
        min_frequency: how often two adjacent pieces must occur to be joined.
        num_unused: number of tokens [unusedN] after the special tokens, for later use.

    Returns:
        tokens: special tokens, unused ones, characters (printable ASCII always, so that
          plain English words are not [UNK]), pieces "##x" of one character, longer
          pieces in the order of learning, none of them too long to be exported.
        num_padding: number of further tokens [unusedN] at the end.
    """
    import tokenizers

    unused = [f"[unused{i}]" for i in range(num_unused)]
    room = vocab_size - len(SPECIAL_TOKENS) - len(unused)
    chars, inner = _alphabet(words, config, min_frequency, room)
    inner_pieces = [f"##{c}" for c in inner]
    tokens = [*SPECIAL_TOKENS, *unused, *chars, *inner_pieces]
    wanted = requested = vocab_size - len(tokens)
    scale = max(1.0, sum(words.values()) / _MAX_REPEATED)
    short = {*SPECIAL_TOKENS, *chars, *inner_pieces}
    while True:
        trainer = tokenizers.trainers.WordPieceTrainer(
            vocab_size=len(short) + requested,
            min_frequency=max(1, round(min_frequency / scale)),
            special_tokens=[*SPECIAL_TOKENS, *inner_pieces],
            initial_alphabet=list(chars),
            show_progress=False,
        )
        learner = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=UNK))
        learner.pre_tokenizer = tokenizers.pre_tokenizers.CharDelimiterSplit(" ")
        learner.train_from_iterator(_repeated(words, set(chars), scale), trainer)
        numbered = learner.get_vocab()
        learned = sorted((t for t in numbered if t not in short), key=numbered.get)
        kept = [token for token in learned if not is_too_long(token)][:wanted]
        if len(kept) == wanted or len(learned) < requested:
            break
        # A larger vocabulary begins with the same pieces.
        requested = wanted + 2 * (len(learned) - len(kept))
    tokens += kept
    num_padding = wanted - len(kept)
    tokens += [f"[unused{num_unused + i}]" for i in range(num_padding)]
    return tokens, num_padding


def _repeated(words: Counter, spelled: set[str], scale: float) -> Iterator[str]:
    """Yields each word as often as it was counted, in alphabetical order.

    Words with characters outside the alphabet will be [UNK] and are left out.
    """
    for word in sorted(words):
        times = round(words[word] / scale)
        if times and spelled.issuperset(word):
            # In parts: the library needs some 100 bytes for each character.
            for start in range(0, times, _REPEATED_AT_ONCE):
                yield " ".join([word] * min(_REPEATED_AT_ONCE, times - start))


def _alphabet(
    words: Counter, config: TokenizerConfig, min_frequency: int, room: int
) -> tuple[list[str], list[str]]:
    """Returns the characters of the vocabulary: all, and those inside words ("##x").

    Printable ASCII, and the most frequent others in up to half of the remaining room.
    """
    seen: Counter = Counter()
    inside = set()
    for word, count in words.items():
        inside.update(word[1:])
        for c in word:
            seen[c] += count
    printable = map(chr, range(ord("!"), ord("~") + 1))
    chars = {c.lower() if config.do_lower_case else c for c in printable}
    inside |= chars - _PUNCTUATION
    size = len(chars) + len(chars & inside)
    if size >= room:
        raise UserError(
            f"--vocab-size leaves {room} wordpieces besides special and unused tokens,"
            f"\nbut the characters of ASCII alone take {size}. Set it to 1,000 or more."
        )
    limit = (size + room) // 2
    for c in sorted(seen.keys() - chars, key=lambda c: (-seen[c], c)):
        size += 1 + (c in inside)
        if size > limit or seen[c] < min_frequency:
            break
        chars.add(c)
    return sorted(chars), sorted(chars & inside)


def build(
    text: Corpus,
    config: TokenizerConfig,
    reading: Reading,
    output: str,
    runner: Runner,
    vocab_size: int,
    min_frequency: int = 2,
    num_unused: int = 0,
    **facts: Any,
) -> tuple[Vocabulary, WordCounts, int]:
    """Learns a vocabulary from a corpus (see `train`); writes it and its settings.

    Args:
      facts: of the corpus, for the settings.

    Returns: the vocabulary, the counts, and the number of padding tokens.
    """
    counts = count(text, config, reading, output, runner)
    if not counts.words:
        content = "no words.\nIs it the right one?"
        if counts.num_too_long:
            content = f"only {describe_too_long(counts.num_too_long)}"
        raise UserError(f"the corpus holds {content}")
    tokens, num_padding = train(
        counts.words, config, vocab_size, min_frequency, num_unused
    )
    vocab = Vocabulary(tuple(tokens), output)
    # The settings first: without them the vocabulary would count as uncased.
    write_settings(
        vocab,
        config,
        tool=f"electra_tf {electra_tf.__version__}",
        **facts,
        num_words=counts.words.total() + counts.num_forgotten,
        num_distinct_words=len(counts.words),
        num_words_forgotten=counts.num_forgotten,
        num_words_too_long=counts.num_too_long,
        num_bytes_not_utf8=counts.replaced_in.total(),
        min_frequency=min_frequency,
        num_unused=num_unused + num_padding,
    )
    write_tokens(output, vocab.tokens)
    return vocab, counts, num_padding


def describe_too_long(number: int) -> str:
    """A message about words that are too long for the tokenizer."""
    return (
        f"{number:,} words of more than {MAX_CHARS_PER_WORD} characters, which are "
        "[UNK].\nScripts without spaces need some between words, or shorter lines."
    )
