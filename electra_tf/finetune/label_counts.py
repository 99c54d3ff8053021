# SPDX-License-Identifier: Apache-2.0
"""The classes of a training set, said before the training: typing mistakes show here.

A mistyped label is a class of its own to a program, and only a reader sees it.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from electra_tf.finetune.preprocessing import FeatureStore, feature_key
from electra_tf.finetune.task import Task

# Classes that are listed, and pairs of names that are compared.
_LISTED = 40
_RARE = 2
_OUTNUMBERED = 5


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
    """Classes that are rare, and pairs whose names nearly are the same."""
    for name, count in counts.items():
        if count <= _RARE:
            examples = "example" if count == 1 else "examples"
            yield (
                f"Warning: {where}: class {name!r} has {count} {examples}; "
                "is it mistyped?"
            )
    names = sorted(counts, key=counts.get)[: 10 * _LISTED]
    for rare, usual in itertools.combinations(names, 2):
        # Both well filled, a letter's difference is meant, as in ADJP and ADVP.
        if are_alike(rare, usual) and counts[rare] * _OUTNUMBERED <= counts[usual]:
            yield (
                f"Warning: {where}: classes {rare!r} ({counts[rare]:,}) and {usual!r} "
                f"({counts[usual]:,}) have nearly the same name."
            )


def are_alike(one: str, other: str) -> bool:
    """Whether two names differ by case and signs only, or by one letter or two turned.

    Names of less than four letters, and a digit for a digit, do not count.
    """
    one, other = ("".join(filter(str.isalnum, x.casefold())) for x in (one, other))
    if one == other:
        return len(one) > 1 and not one.isdigit()
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    one, other, shortest = one[start:], other[start:], min(len(one), len(other))
    end = 0
    while end < min(len(one), len(other)) and one[-1 - end] == other[-1 - end]:
        end += 1
    one, other = one[: len(one) - end], other[: len(other) - end]
    if shortest < 4 or (one + other).isdigit():
        return False
    return len(one) <= 1 and len(other) <= 1 or one == other[::-1] and len(one) == 2
