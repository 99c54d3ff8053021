# SPDX-License-Identifier: Apache-2.0
"""The files of pre-training data, and what the manifests beside them promise."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence

from electra_tf.config.pretraining import Phase, PretrainingConfig
from electra_tf.data import record_index
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.jobs.job import STATE
from electra_tf.paths import escape, globs_in, joined
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary


def pattern_of(config: PretrainingConfig) -> str:
    """The files that a run reads in all phases, as a list of globs."""
    name = "pretrain_tfrecords" if config.do_train else "eval_tfrecords"
    places = [joined(getattr(phase.config, name)) for phase in config.run_phases()]
    return ",".join(dict.fromkeys(places))


def check_tokenizers(phases: Sequence[Phase], ours: TokenizerConfig) -> None:
    """Raises `UserError` for data that were built with other tokenizer settings.

    Args:
      phases: those whose data are to be read.
    """
    for config in (phase.config for phase in phases):
        if config.do_train:
            record_index.check_tokenizer(joined(config.pretrain_tfrecords), ours)
        if config.do_eval or config.eval_every_steps:
            record_index.check_tokenizer(joined(config.eval_tfrecords), ours)


def find_shards(pattern: str) -> list[str]:
    """The files that a comma-separated list of globs names, sorted; at least one."""
    # One file may be named in several ways.
    paths = {os.path.abspath(path): path for path in record_index.expand(pattern)}
    if paths:
        return sorted(paths.values())
    raise UserError(
        f"no file matches {pattern}.\nBuild the data (build_pretraining_dataset.py; an "
        'interrupted build continues), or\nset "pretrain_tfrecords" (of evaluation: '
        '"eval_tfrecords").'
    )


def check_manifests(
    paths: list[str], pattern: str, vocab: Vocabulary
) -> dict[str, dict]:
    """Compares the vocabulary with the manifests; returns entries of listed shards."""
    entries, there = {}, {os.path.abspath(path) for path in paths}
    here = escape(os.getcwd())
    patterns = [os.path.normpath(os.path.join(here, p)) for p in globs_in(pattern)]
    for folder in sorted({os.path.dirname(os.path.abspath(path)) for path in paths}):
        manifest = record_index.read_manifest(folder)
        if manifest is None:
            if record_index.file_beside(folder, STATE):
                raise UserError(
                    f"the data set in {folder} is not finished: its build was "
                    "interrupted.\nRun the same build_pretraining_dataset.py command "
                    "again; it continues."
                )
            continue
        vocab.check_same(
            manifest["vocab"]["sha256"],
            f"the data in {folder} were built",
            "Use the vocabulary of the data, or build the data again.",
        )
        files = {os.path.join(folder, file["name"]): file for file in manifest["files"]}
        entries |= files
        stray = sorted(p for p in there - files.keys() if os.path.dirname(p) == folder)
        if stray:
            raise UserError(
                f"{stray[0]} is not among the shards that {folder}/manifest.json lists."
                f"\nMove it to another folder, or narrow {pattern}."
            )
        for path in sorted(files.keys() - there):
            if any(fnmatch.fnmatch(path, part) for part in patterns):
                raise UserError(
                    f"{path} is missing, of {files[path]['examples']} examples by "
                    f"{folder}/manifest.json.\nRestore it, or build the data again.",
                    EXIT_DAMAGED,
                )
    return entries


def check_counts(
    index: record_index.RecordIndex, entries: dict[str, dict], skip_damaged: bool
) -> int:
    """Finds shards that lost whole records, which no checksum detects.

    Returns how many records are lost according to the manifests.
    """
    lost = 0
    for path, count in zip(index.paths, index.counts.tolist(), strict=True):
        entry = entries.get(os.path.abspath(path))
        if entry is None or entry["examples"] == count:
            continue
        problem = f"{path}: {count} of {entry['examples']} records can be read"
        if not skip_damaged:
            size = index.size_of(path)
            raise UserError(
                f"{problem}: it ends after record {count} at byte {size}.\n"
                "Restore the file, or build the data again.",
                EXIT_DAMAGED,
            )
        lost += entry["examples"] - count
        print(f"warning: {problem}", flush=True)
    return lost
