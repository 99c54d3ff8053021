# SPDX-License-Identifier: Apache-2.0
"""From text to batches in a few calls; the same as the scripts.

vocab = electra_tf.train_vocabulary("corpus/*.txt", size=8192)
records = electra_tf.build_dataset("corpus/*.txt", vocab, "records/")
batches = electra_tf.make_dataset(records, config, vocab)
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.data import dataset_building, vocabulary_training
from electra_tf.data.record_making import BuildSettings
from electra_tf.jobs.job import Runner
from electra_tf.paths import escape
from electra_tf.text import corpus, units
from electra_tf.text.vocabulary import (
    TokenizerConfig,
    Vocabulary,
    resolve_settings,
    settings_path,
)

# Removed when the process ends.
_temporary: list[tempfile.TemporaryDirectory] = []


def train_vocabulary(
    corpus_files: str | os.PathLike,
    size: int,
    output_file: str | os.PathLike | None = None,
    *,
    do_lower_case: bool = True,
    strip_accents: bool = True,
    min_frequency: int = 2,
    num_processes: int = 1,
) -> Vocabulary:
    """Trains a WordPiece vocabulary, as build_vocab.py does.

    Args:
      corpus_files: a directory, a file or a glob.
      size: number of tokens, the special ones included.
      output_file: vocab.txt, replaced if it exists; None: a temporary file, which
        `build_dataset` copies beside the records.
      num_processes: more than one requires a program that starts under
        `if __name__ == "__main__"`.

    Raises `UserError` for a corpus without words.
    """
    config = TokenizerConfig(do_lower_case, strip_accents)
    text = units.file_corpus(os.fspath(corpus_files))
    if not output_file:
        _temporary.append(tempfile.TemporaryDirectory(prefix="electra_tf_vocabulary_"))
        output_file = os.path.join(_temporary[-1].name, "vocab.txt")
    vocab, *_ = vocabulary_training.build(
        text,
        config,
        units.Reading(),
        os.fspath(output_file),
        Runner(num_processes),
        size,
        min_frequency,
        corpus={"corpus": os.fspath(corpus_files)},
    )
    return vocab


def build_dataset(
    corpus_files: str | os.PathLike,
    vocab: Vocabulary,
    output_dir: str | os.PathLike,
    *,
    max_seq_length: int = 128,
    num_processes: int = 1,
    seed: int = 42,
) -> str:
    """Builds TFRecords, as build_pretraining_dataset.py does, unless they exist.

    The vocabulary is copied beside them.

    Args:
      corpus_files: a directory, a file or a glob.
      vocab: from a file (`train_vocabulary`, `Vocabulary.load`).
      num_processes: see `train_vocabulary`; does not change the result.

    Returns: the glob of the shards, for `make_dataset` and the hparam
      pretrain_tfrecords.
    """
    corpus.check_outside(os.fspath(output_dir), os.fspath(corpus_files), "output_dir")
    text = units.file_corpus(os.fspath(corpus_files))
    settings = BuildSettings(
        vocab_file=vocab.path,
        tokenizer=resolve_settings(vocab),
        max_seq_length=max_seq_length,
        seed=seed,
    )
    dataset_building.build(
        text, os.fspath(output_dir), settings, num_processes=num_processes
    )
    folder = os.fspath(output_dir)
    for source in (vocab.path, settings_path(vocab.path)):
        copy = os.path.join(folder, os.path.basename(source))
        if os.path.isfile(source) and not os.path.exists(copy):
            shutil.copyfile(source, copy)
    return os.path.join(escape(folder), "pretrain_data.tfrecord*")


def make_dataset(
    records: str | list | dict,
    config: PretrainingConfig,
    vocab: Vocabulary,
    *,
    num_batches: int | None = None,
    start_step: int = 0,
    num_replicas: int = 1,
) -> Any:
    """The masked batches of a run, as a tf.data.Dataset.

    Batch k is a function of (seed, k).

    Args:
      records: globs of shards, as the hparam pretrain_tfrecords.
      num_batches: length of the data set, in the order of the files, as for an
        evaluation; None: endless and shuffled, for training.
      num_replicas: number of devices; each global batch is cut into as many elements.
    """
    from electra_tf.pretrain.pretrain_data import RunData

    part = config.replaced(
        vocab_size=len(vocab),
        pretrain_tfrecords=records,
        eval_tfrecords=records,
        phases=[],
    )
    return RunData(vocab).dataset(
        part,
        training=num_batches is None,
        batch_size=config.train_batch_size,
        start_step=start_step,
        num_batches=num_batches,
        num_replicas=num_replicas,
    )
