# SPDX-License-Identifier: Apache-2.0
"""Replays recordings of the original's example building (`examples/` of a golden)."""

import os
import random
from collections.abc import Iterator

import numpy as np

from electra_tf.data.record_making import ExampleBuilder, Examples
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import Vocabulary
from tests.parity.rows import Row, read_json, vocabulary

_IDS = ("input_ids", "input_mask", "segment_ids")


def replay(directory: str) -> Iterator[Row]:
    """Compares with the recordings in `directory`, which holds examples.json.

    The deviation is the number of ids that differ (a recording of another shape counts
    as all of its ids); of random numbers, the difference of the next one to be drawn.
    """
    recorded, vocab = read_json(directory, "examples.json"), vocabulary(directory)
    with np.load(os.path.join(directory, "examples.npz")) as arrays:
        for case in recorded["single"]:
            yield from _replay_single(directory, case, arrays, vocab)
        for case in recorded["pipeline"]:
            yield from _replay_pipeline(directory, case, arrays, vocab)


def _replay_single(directory, case, arrays, vocab: Vocabulary) -> Iterator[Row]:
    """One file through one builder."""
    rng = random.Random(case["seed"])
    builder = ExampleBuilder(vocab, case["max_seq_length"], rng)
    examples = _build_file(builder, os.path.join(directory, "corpus"), case, vocab)
    key = case["key"]
    for name in _IDS:
        yield _compare(f"{key}/{name}", getattr(examples, name), arrays)
    yield _compare(f"{key}/emitted_at_add_line_call", examples.emitted_at, arrays)
    deviation = abs(rng.random() - case["next_random_after"])
    yield Row(f"{key}/next_random_after", deviation, 0.0)


def _replay_pipeline(directory, case, arrays, vocab: Vocabulary) -> Iterator[Row]:
    """One process of the original: its share of the files, shuffled, one builder."""
    corpus = os.path.join(directory, "corpus")
    rng = random.Random(case["seed"])
    files = sorted(os.listdir(corpus))[case["job_id"] :: case["num_processes"]]
    rng.shuffle(files)
    key = case["key"]
    different = sum(a != b for a, b in zip(files, case["file_order"], strict=True))
    yield Row(f"{key}/file_order", different, 0)
    builder = ExampleBuilder(vocab, case["max_seq_length"], rng)
    built = [_build_file(builder, corpus, case | {"file": f}, vocab) for f in files]
    # Dealt to the output files in turn; recorded in the order of their names.
    turn = np.arange(sum(len(e.input_ids) for e in built)) % case["n_out_files"]
    dealt = case["job_id"] + case["num_processes"] * turn
    order = np.argsort(dealt.astype(str), kind="stable")
    yield _compare(f"{key}/out_file_index", dealt[order], arrays)
    for name in _IDS:
        values = np.concatenate([getattr(e, name) for e in built])[order]
        yield _compare(f"{key}/{name}", values, arrays)


def _build_file(builder: ExampleBuilder, corpus, case, vocab: Vocabulary) -> Examples:
    tokenizer = Tokenizer(
        vocab, case.get("do_lower_case", True), case.get("strip_accents", True)
    )
    with open(os.path.join(corpus, case["file"]), encoding="utf-8", newline="\n") as f:
        lines = [line for line in f if line.strip() or case["blanks_separate_docs"]]
    blank = [not line.strip() for line in lines]
    parts = [builder.add_lines(*tokenizer.tokenize_lines(lines), blank)]
    parts.append(
        builder.add_lines(np.zeros(0, np.int32), np.zeros(2, np.int64), [True])
    )
    parts[1].emitted_at[:] = len(lines)
    return Examples(*map(np.concatenate, zip(*parts, strict=True)))


def _compare(key: str, values: np.ndarray, arrays) -> Row:
    expected = arrays[key]
    if values.shape != expected.shape:
        return Row(key, max(values.size, expected.size, 1), 0)
    return Row(key, int((values != expected).sum()), 0)
