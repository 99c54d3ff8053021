# SPDX-License-Identifier: Apache-2.0
"""The summary of the data that a run prints before it trains.

A mistyped label is a class of its own to a program, a text that was cut off is as good
as any, and only a reader sees it.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

import numpy as np

from electra_tf.finetune.preprocessing import FeatureStore, feature_key
from electra_tf.finetune.task import Task

_LISTED = 40
_SKIPPED = 20
_RARE = 2


def of_features(store: FeatureStore, what: str, tasks: Sequence[Task]) -> Iterator[str]:
    """How many there are, what is lost of them, and what was recognised or left out.

    Args:
      what: the features are of.
    """
    ids, mask = np.asarray(store["input_ids"]), np.asarray(store["input_mask"]) > 0
    kept = int(store.lengths.sum())
    unknown = int(np.sum((ids == tasks[0].tokenizer.vocab.unk_id) & mask))
    shares = {
        "cut off": store.num_cut / max(store.num_cut + kept, 1),
        "[UNK]": unknown / max(kept, 1),
    }
    found = [f", {share:.1%} of them {name}" for name, share in shares.items() if share]
    longest = f"; the longest has {store.lengths.max():,} tokens{''.join(found)}"
    yield f"Features: {len(store):,} of {what}{longest}"
    for remark in store.remarks:
        yield f"Note: {what}: {remark}."
    if store.skipped:
        yield f"Left out of {what}: {len(store.skipped)} examples"
    yield from (f"  {line}" for line in store.skipped[:_SKIPPED])
    if len(store.skipped) > _SKIPPED:
        yield f"  and {len(store.skipped) - _SKIPPED} more"


def lines(task: Task, number: int, store: FeatureStore) -> Iterator[str]:
    """The classes of a task with their counts, and warnings about them.

    Args:
      number: the task's, in the store.
    """
    counts = counts_of(task, number, store)
    if task.config.scores_dev and task.known_hash("train") in map(
        task.known_hash, task.splits("dev")
    ):
        yield f"Warning: {task.name}: the dev set is the training set."
    if task.head.kind == "tagging" and not counts:
        yield f"Warning: {task.name}: no span in the training set, all tags are O."
    if not counts:
        return
    usual = counts.most_common(_LISTED)
    more = f" and {len(counts) - _LISTED} more" if len(counts) > _LISTED else ""
    listed = ", ".join(f"{name} {count:,}" for name, count in usual)
    yield f"Classes of {task.name}: {listed}{more}"
    if weights := task.head.class_weights:
        pairs = list(zip(task.labels, weights, strict=True))[:_LISTED]
        listed = ", ".join(f"{name} {weight:.4g}" for name, weight in pairs)
        yield f"Class weights of {task.name}: {listed}"
    rare = [f"{name!r} ({count})" for name, count in counts.items() if count <= _RARE]
    if rare:
        more = f" and {len(rare) - _LISTED} more" * (len(rare) > _LISTED)
        yield (
            f"Warning: {task.name}: classes with one or two examples: "
            f"{', '.join(rare[:_LISTED])}{more}; mistyped?"
        )


def counts_of(task: Task, number: int, store: FeatureStore) -> collections.Counter[str]:
    """Training examples of each class; of spans, how many begin."""
    kind = task.head.kind
    if kind == "multilabel":
        counts = np.asarray(store[feature_key(task, "label_flags")]).sum(axis=0)
    elif kind == "classification":
        labels = store[feature_key(task, "label_ids")]
        labels = labels[np.asarray(store["task_id"]) == number]
        counts = np.bincount(labels, minlength=len(task.labels))
    elif kind == "tagging":
        labels = store[feature_key(task, "labels")]
        labels = labels[np.asarray(store[feature_key(task, "labels_mask")]) > 0]
        counts = np.bincount(labels, minlength=len(task.labels))
    else:
        return collections.Counter()
    found: collections.Counter[str] = collections.Counter()
    for name, count in zip(task.labels, counts, strict=True):
        if kind != "tagging" or task.is_plain:
            found[name] = int(count)
        elif name[:2] in ("B-", "S-"):
            found[name[2:]] += int(count)
    return found
