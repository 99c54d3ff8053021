# SPDX-License-Identifier: Apache-2.0
"""The classes of a training set with their counts, logged before the training.

A mistyped label is a class of its own to a program, and only a reader sees it.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping

import numpy as np

from electra_tf.finetune.preprocessing import FeatureStore, feature_key
from electra_tf.finetune.task import Task

_LISTED = 40
_RARE = 2


def lines(task: Task, number: int, store: FeatureStore) -> Iterator[str]:
    """The classes of a task with their counts, and warnings about them.

    Args:
      number: the task's, in the store.
    """
    counts = counts_of(task, number, store)
    if not counts:
        return
    usual = counts.most_common(_LISTED)
    more = f" and {len(counts) - _LISTED} more" if len(counts) > _LISTED else ""
    listed = ", ".join(f"{name} {count:,}" for name, count in usual)
    yield f"Classes of {task.name}: {listed}{more}"
    if weights := getattr(task, "class_weights", None):
        pairs = list(zip(task.labels, weights, strict=True))[:_LISTED]
        listed = ", ".join(f"{name} {weight:.4g}" for name, weight in pairs)
        yield f"Class weights of {task.name}: {listed}"
    yield from warnings(task.name, counts)


def counts_of(task: Task, number: int, store: FeatureStore) -> collections.Counter[str]:
    """Training examples of each class; of spans, how many begin."""
    counts: collections.Counter[str] = collections.Counter()
    if task.head.kind == "classification":
        labels = store[feature_key(task, "label_ids")]
        labels = labels[np.asarray(store["task_id"]) == number]
    elif task.head.kind == "multilabel":
        found = np.asarray(store[feature_key(task, "label_flags")]).sum(axis=0)
        for name, count in zip(task.labels, found, strict=True):
            counts[name] = int(count)
        return counts
    elif task.head.kind == "tagging":
        labels = store[feature_key(task, "labels")]
        labels = labels[np.asarray(store[feature_key(task, "labels_mask")]) > 0]
    else:
        return counts
    found = np.bincount(labels, minlength=len(task.labels))
    for name, count in zip(task.labels, found, strict=True):
        if task.head.kind == "classification" or getattr(task, "is_plain", False):
            counts[name] += int(count)
        elif name[:2] in ("B-", "S-"):
            counts[name[2:]] += int(count)
    return counts


def warnings(where: str, counts: Mapping[str, int]) -> Iterator[str]:
    """Classes that are rare."""
    for name, count in counts.items():
        if count <= _RARE:
            examples = "example" if count == 1 else "examples"
            yield (
                f"Warning: {where}: class {name!r} has {count} {examples}; "
                "is it mistyped?"
            )
