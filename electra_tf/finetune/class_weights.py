# SPDX-License-Identifier: Apache-2.0
"""What the losses of each class's examples are multiplied by in training."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from electra_tf.errors import UserError
from electra_tf.finetune.inputs import shown

BALANCED = "balanced"


def weights_of(
    name: str, said: Any, labels: Sequence[str], examples: Iterable[Any]
) -> list[float]:
    """The weight of each label.

    Args:
      name: of the task, for messages.
      said: "balanced"; or numbers, in the order of the labels or by their names, where
        one that is left out is 1.
      labels: in the order of the head's outputs.
      examples: the training set's, with a `label`, or a tuple of labels.

    Raises `UserError` for anything else.
    """
    if said == BALANCED:
        return _balanced(name, labels, [example.label for example in examples])
    listed = ", ".join(labels)
    if isinstance(said, Mapping):
        if unknown := [label for label in said if label not in labels]:
            raise UserError(
                f"task {name}: class_weights has {shown(unknown[0])}, which is no "
                f"class.\nClasses: {listed}."
            )
        said = [said.get(label, 1.0) for label in labels]
    if not isinstance(said, list) or len(said) != len(labels):
        raise UserError(
            f"task {name}: class_weights is {shown(said)}; it is {BALANCED!r}, or a "
            f"list or object with a number for each class: {listed}."
        )
    wrong = [x for x in said if type(x) not in (int, float) or not 0 <= x < math.inf]
    if wrong:
        raise UserError(
            f"task {name}: class_weights has {shown(wrong[0])}; a weight is a number "
            "of at least 0."
        )
    return [float(weight) for weight in said]


def _balanced(name: str, labels: Sequence[str], given: Sequence[Any]) -> list[float]:
    """So that each class has the same part in the loss, the mean weight being 1.

    Where a text has any number of classes: so that it weighs as much to have one as
    not to have it.
    """
    has_one = all(isinstance(label, str) for label in given)
    each = given if has_one else itertools.chain.from_iterable(given)
    counts = collections.Counter(each)
    if missing := next((label for label in labels if not counts[label]), None):
        raise UserError(
            f"task {name}: class_weights is {BALANCED!r}, but no training "
            f"example is {missing}.\nGive the weights as numbers."
        )
    if has_one:
        return [len(given) / (len(labels) * counts[label]) for label in labels]
    return [max(len(given) - counts[x], 1) / counts[x] for x in labels]
