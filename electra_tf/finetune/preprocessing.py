# SPDX-License-Identifier: Apache-2.0
"""Features of tasks: built once, kept on disk.

A store is a directory of .npy files with a manifest that says what it was made from,
and the files with their sizes and hashes. When the data, the vocabulary or a setting
differs, another one is made; one whose files are not those, is made again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune.task import FILES, reasons, without_files
from electra_tf.storage.atomic_folder import sync_folder
from electra_tf.storage.files import PARTIAL, cannot_write, sync_directory
from electra_tf.storage.manifest import verify_folder, write_manifest
from electra_tf.text import packing

# Of the files here and of what readers make of a data set: raise it with either.
FORMAT = 6
# What the features of a split follow from, beside the data and the vocabulary.
_SETTINGS = (
    "max_seq_length",
    "do_lower_case",
    "double_unordered",
    "max_query_length",
    "doc_stride",
    "on_bad_example",
)


class FeatureStore(Mapping):
    """Arrays [n, ...] by name, in memory only as far as they are read."""

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        digest: str,
        num_tasks: int,
        skipped: list[str],
        remarks: Sequence[str] = (),
        num_cut: int = 0,
    ):
        self.arrays, self.digest, self.num_tasks = arrays, digest, num_tasks
        self.skipped = skipped  # what "on_bad_example": "skip" left out, and where
        self.remarks = remarks  # what `Task.remark` counted
        self.num_cut = num_cut  # tokens beyond max_seq_length
        self.lengths = np.asarray(arrays["input_mask"]).sum(axis=1)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def __iter__(self):
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.lengths)

    def sorted_by_length(self, index: np.ndarray) -> np.ndarray:
        """Numbers of examples, those of the shortest first."""
        return index[np.argsort(self.lengths[index], kind="stable")]


def features(
    config: FinetuningConfig, tasks: list[Any], split: str, is_training: bool, only=None
) -> FeatureStore:
    """The features of a split of all tasks, or of `only` one of them.

    A run makes them, or checks what lies there, once.
    """
    chosen = tasks if only is None else [only]
    digest = _digest(config, tasks, chosen, split, is_training)
    made = chosen[0].stores
    if digest not in made:
        directory = Path(config.preprocessed_data_dir) / f"{split}_{digest[:16]}"
        found = _open(directory) if config.use_tfrecords_if_existing else None
        if found is None:
            found = _build(directory, config, tasks, chosen, split, is_training, digest)
        made[digest] = FeatureStore(found[0], digest, len(tasks), *found[1:])
    return made[digest]


def _open(directory: Path) -> tuple[Any, ...] | None:
    """The arguments of a `FeatureStore`, which stay if others replace the files.

    None where they are not there, or not as they were written.
    """
    try:
        manifest = verify_folder(directory)
        paths = [directory / name for name in manifest["files"]]
        arrays = {path.stem: np.load(path, mmap_mode="r") for path in paths}
        more = manifest.get("remarks", []), manifest.get("num_cut", 0)
        return arrays, manifest["skipped"], *more
    except (UserError, OSError, KeyError):
        return None


def _digest(config, tasks, chosen, split, is_training) -> str:
    """Of what features follow from; of a description all but its files."""
    facts = {name: getattr(config, name) for name in _SETTINGS}
    facts |= {"format": FORMAT, "split": split, "is_training": is_training}
    facts["vocab"] = chosen[0].tokenizer.vocab.sha256
    facts["tokenizer"] = list(chosen[0].tokenizer.config)
    facts["task_ids"] = [[tasks.index(t), t.name] for t in chosen]
    for task in chosen:
        description = without_files(config.tasks.get(task.name), FILES)
        facts[f"description of {task.name}"] = description
        facts[f"data of {task.name}"] = task.known_hash(split)
        facts[f"settings of {task.name}"] = task.feature_settings()
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def data_facts(
    config: FinetuningConfig, tasks: Sequence[Any]
) -> dict[str, dict[str, str]]:
    """Task -> split -> a hash of its files and of the class that reads them."""
    found = {}
    for task in tasks:
        splits = ["train"] if config.do_train else []
        splits += task.splits("dev") if config.scores_dev else []
        found[task.name] = hashes(task, splits)
    return found


def hashes(task: Any, splits: Sequence[str]) -> dict[str, str]:
    """Split -> a hash of its file and of the class that reads it."""
    settings = [task.feature_settings(), task.tokenizer.config]
    settings = json.dumps(settings, sort_keys=True)
    found = {}
    for split in splits:
        text = f"{task.known_hash(split)} {settings}"
        found[split] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return found


def feature_key(task: Any, feature: str) -> str:
    """The name of a feature of a task in a batch; all tasks share some others."""
    return f"{task.name}:{feature}"


def pack(
    rows: Sequence[tuple[Any, dict[str, Any]]], numbers: Mapping[Any, int], length: int
) -> dict[str, np.ndarray]:
    """The features of rows, (task, its features) each, as arrays.

    Args:
      numbers: the tasks, and the head of each.
      length: tokens that all are padded to.
    """
    shared = packing.Row._fields
    packed = [packing.Row(*(found[name] for name in shared)) for _, found in rows]
    arrays = packing.pad(packed, 0, length)._asdict()
    arrays["task_id"] = np.array([numbers[task] for task, _ in rows], np.int32)
    for task in numbers:
        for spec in task.feature_specs():
            arrays[feature_key(task, spec.name)] = np.zeros(
                (len(rows), *spec.shape), spec.dtype
            )
    for number, (task, found) in enumerate(rows):
        for name, value in found.items():
            key = feature_key(task, name)
            if name in shared:
                continue
            if isinstance(value, list):
                arrays[key][number, : len(value)] = value
            else:
                arrays[key][number] = value
    return arrays


def _remarks(tasks: Sequence[Any], split: str) -> list[str]:
    counts = (item for task in tasks for item in task.remarks.get(split, {}).items())
    return [f"{count:,} {what}" if count else what for what, count in counts]


def _build(directory, config, tasks, chosen, split, is_training, digest):
    """Makes a store: what `_open` returns of it."""
    rows: list[tuple[Any, dict[str, Any]]] = []
    before = sum(task.num_cut for task in chosen)
    for task in chosen:
        for example in task.read(split):
            rows += [(task, found) for found in task.featurize(example, is_training)]
    if not rows:
        names = ", ".join(task.name for task in chosen)
        why = reasons([s for task in chosen for s in task.skipped.get(split, [])])
        raise UserError(f"{names}: no example of {split} can be used{why}.")
    numbers = {task: tasks.index(task) for task in chosen}
    arrays = pack(rows, numbers, config.max_seq_length)
    skipped = [s for task in chosen for s in task.skipped.get(split, [])]
    manifest = {"digest": digest, "examples": len(rows), "format": FORMAT}
    manifest |= {"skipped": skipped, "remarks": _remarks(chosen, split)}
    manifest["num_cut"] = sum(task.num_cut for task in chosen) - before
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        # Of its own: jobs that start together may all make them.
        name = tempfile.mkdtemp(PARTIAL, f"{directory.name}.", directory.parent)
        partial = Path(name)
        for name, array in arrays.items():
            np.save(partial / f"{name}.npy", array)
        write_manifest(partial, manifest, ("electra-tf",))
        sync_folder(partial)
        found = _open(partial)
        if not (config.use_tfrecords_if_existing and _open(directory)):
            shutil.rmtree(directory, ignore_errors=True)
        try:
            os.rename(partial, directory)
        except OSError as error:  # Another job was faster, with the same content.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shutil.rmtree(partial)
        sync_directory(directory.parent)
    except OSError as error:
        raise cannot_write(directory, error) from error
    return found
