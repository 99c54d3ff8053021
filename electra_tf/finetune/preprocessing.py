# SPDX-License-Identifier: Apache-2.0
"""Features of tasks: built once, kept on disk; the summary that a run prints.

A store is a directory of .npy files with a manifest: a digest of data, vocabulary and
settings, and sizes and hashes of the files. Another digest is another store; a damaged
store is made again.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune.task import reasons, without_files
from electra_tf.paths import not_mirrored
from electra_tf.storage.atomic_folder import atomic_folder
from electra_tf.storage.manifest import verify_folder, write_manifest
from electra_tf.text import tokenization

# Version of the files here and of the readers of data sets; to be raised with either.
FORMAT = 6
# Hparams that features depend on.
_SETTINGS = (
    "max_seq_length",
    "do_lower_case",
    "double_unordered",
    "max_query_length",
    "doc_stride",
    "on_bad_example",
)


class FeatureStore(dict):
    """Arrays [n, ...] by name, in memory only as far as they are read.

    Its length is the number of examples.

    Args:
      manifest: the one that `_build` writes.
    """

    def __init__(self, arrays: dict, num_tasks: int, manifest: Mapping = {}):
        super().__init__(arrays)
        self.num_tasks = num_tasks
        self.digest = manifest.get("digest", "")
        # What "on_bad_example": "skip" left out, and where.
        self.skipped: list[str] = manifest.get("skipped", [])
        self.remarks: list[str] = manifest.get("remarks", [])  # from `Task.remark`
        self.num_cut: int = manifest.get("num_cut", 0)  # tokens beyond max_seq_length
        lengths = np.asarray(arrays["input_mask"]).sum(axis=-1)
        self.lengths = lengths if lengths.ndim == 1 else lengths.max(axis=1)

    def __len__(self) -> int:
        return len(self.lengths)

    def sorted_by_length(self, index: np.ndarray) -> np.ndarray:
        """Numbers of examples, those of the shortest first."""
        return index[np.argsort(self.lengths[index], kind="stable")]


def features(
    config: FinetuningConfig, tasks: list[Any], split: str, is_training: bool, only=None
) -> FeatureStore:
    """The features of a split of all tasks, or of `only` one of them.

    A run makes them, or verifies the files, once.
    """
    chosen = tasks if only is None else [only]
    digest = _digest(config, tasks, chosen, split, is_training)
    made = chosen[0].stores
    if digest not in made:
        place = Path(not_mirrored(config.preprocessed_data_dir))
        directory = place / f"{split}_{digest[:16]}"
        found = _open(directory) if config.use_tfrecords_if_existing else None
        if found is None:
            found = _build(directory, config, tasks, chosen, split, is_training, digest)
        arrays, manifest = found
        made[digest] = FeatureStore(arrays, len(tasks), manifest)
    return made[digest]


def _open(directory: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """(arrays, manifest), which stay if others replace the files.

    None where they are not there, or not as they were written.
    """
    try:
        manifest = verify_folder(directory)
        paths = [directory / name for name in manifest["files"]]
        return {path.stem: np.load(path, mmap_mode="r") for path in paths}, manifest
    except (UserError, OSError, KeyError):
        return None


def _digest(config, tasks, chosen, split, is_training) -> str:
    """A hash of all that features depend on."""
    facts = {name: getattr(config, name) for name in _SETTINGS}
    facts |= {"format": FORMAT, "split": split, "is_training": is_training}
    facts["vocab"] = chosen[0].tokenizer.vocab.sha256
    facts["tasks"] = [
        (tasks.index(t), t.name, t.fingerprint(split), without_files(t.description))
        for t in chosen
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def data_facts(
    config: FinetuningConfig, tasks: Sequence[Any]
) -> dict[str, dict[str, str]]:
    """Task -> split that a run uses -> its fingerprint."""
    found = {}
    for task in tasks:
        splits = ["train"] if config.do_train else []
        splits += task.splits("dev") if config.scores_dev else []
        found[task.name] = {split: task.fingerprint(split) for split in splits}
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
    shared = tokenization.Row._fields
    packed = [tokenization.Row(*(found[name] for name in shared)) for _, found in rows]
    arrays = _padded(packed, length)._asdict()
    arrays["task_id"] = np.array([numbers[task] for task, _ in rows], np.int32)
    for task in numbers:
        for spec in task.feature_specs():
            arrays[feature_key(task, spec.name)] = np.zeros(
                (len(rows), *spec.shape), spec.dtype
            )
    for number, (task, found) in enumerate(rows):
        for name in found.keys() - {*shared}:
            value = found[name]
            place = (number, slice(len(value))) if isinstance(value, list) else number
            arrays[feature_key(task, name)][place] = value
    return arrays


def _padded(rows: Sequence[tokenization.Row], length: int) -> tokenization.PackedTexts:
    """[n, length] each; of examples that are lists of sequences [n, C, length]."""
    if not rows or not isinstance(rows[0].input_ids[0], list):
        return tokenization.pad(rows, 0, length)
    count, flat = max(len(row.input_ids) for row in rows), []
    for ids, segments in rows:
        empty = [[]] * (count - len(ids))
        flat += map(tokenization.Row, [*ids, *empty], [*segments, *empty])
    packed = tokenization.pad(flat, 0, length)
    arrays = (array.reshape(len(rows), count, length) for array in packed)
    return tokenization.PackedTexts(*arrays)


def _build(directory, config, tasks, chosen, split, is_training, digest):
    """Makes a store; returns it as `_open` does."""
    rows: list[tuple[Any, dict[str, Any]]] = []
    before = sum(task.num_cut for task in chosen)
    for task in chosen:
        for example in task.read(split):
            rows += [(task, found) for found in task.featurize(example, is_training)]
    skipped = [line for task in chosen for line in task.skipped.get(split, ())]
    if not rows:
        names = ", ".join(task.name for task in chosen)
        raise UserError(
            f"{names}: no example of {split} can be used{reasons(skipped)}."
        )
    arrays = pack(rows, {t: tasks.index(t) for t in chosen}, config.max_seq_length)
    counts = [item for t in chosen for item in t.remarks.get(split, {}).items()]
    remarks = [f"{count:,} {what}" if count else what for what, count in counts]
    num_cut = sum(task.num_cut for task in chosen) - before
    manifest = {"digest": digest, "examples": len(rows), "format": FORMAT}
    manifest |= {"skipped": skipped, "remarks": remarks, "num_cut": num_cut}
    # Jobs that start together may all make the features.
    if not (config.use_tfrecords_if_existing and _open(directory)):
        shutil.rmtree(directory, ignore_errors=True)
    try:
        with atomic_folder(directory) as folder:
            for name, array in arrays.items():
                np.save(folder / f"{name}.npy", array)
            write_manifest(folder, manifest, ("electra-tf",))
    except UserError:
        if not _open(directory):  # else another job was faster, with the same content
            raise
    return _open(directory) or (arrays, manifest)


# A run prints a summary of its data: only its user can see that a label is mistyped or
# that too much text was cut off.
_LISTED = 40
_SKIPPED = 20
_RARE = 2


def summary(store: FeatureStore, what: str, tasks: Sequence[Any]) -> Iterator[str]:
    """Number of features, shares of lost tokens, remarks and skipped examples.

    Args:
      what: name of the data set.
    """
    ids, mask = np.asarray(store["input_ids"]), np.asarray(store["input_mask"]) > 0
    kept = int(mask.sum())
    unknown = int(np.sum((ids == tasks[0].tokenizer.vocab.unk_id) & mask))
    shares = {
        "cut off": store.num_cut / max(store.num_cut + kept, 1),
        "[UNK]": unknown / max(kept, 1),
    }
    found = [f", {s:.1%} of them {name}" for name, s in shares.items() if s >= 0.0005]
    longest = f"; the longest has {store.lengths.max():,} tokens{''.join(found)}"
    yield f"Features: {len(store):,} of {what}{longest}"
    for remark in store.remarks:
        yield f"Note: {what}: {remark}."
    if store.skipped:
        yield f"Left out of {what}: {len(store.skipped)} examples"
    yield from (f"  {line}" for line in store.skipped[:_SKIPPED])


def summary_of_classes(task: Any) -> Iterator[str]:
    """The classes of a task with their counts, and warnings about them."""
    examples = task.read("train") if task.labels else ()
    classes = itertools.chain.from_iterable(map(task.classes_of, examples))
    counts = collections.Counter(classes)
    dev = map(task.known_hash, task.splits("dev"))
    if task.config.scores_dev and task.known_hash("train") in dev:
        yield f"Warning: {task.name}: the dev set is the training set."
    if task.labels and not counts:
        yield f"Warning: {task.name}: no span in the training set, all tags are O."
    if not counts:
        return
    listed = [f"{name} {count:,}" for name, count in counts.most_common()]
    yield f"Classes of {task.name}: {_shortened(listed)}"
    if weights := getattr(task.head, "class_weights", None):
        pairs = zip(task.labels, weights, strict=True)
        listed = [f"{name} {weight:.4g}" for name, weight in pairs]
        yield f"Class weights of {task.name}: {_shortened(listed)}"
    rare = [f"{name!r} ({count})" for name, count in counts.items() if count <= _RARE]
    if rare:
        yield (
            f"Warning: {task.name}: classes with one or two examples: "
            f"{_shortened(rare)}; mistyped?"
        )


def _shortened(found: Sequence[str]) -> str:
    more = f" and {len(found) - _LISTED} more" * (len(found) > _LISTED)
    return ", ".join(found[:_LISTED]) + more
