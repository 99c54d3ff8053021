# SPDX-License-Identifier: Apache-2.0
"""What a head says of examples, in their order: for scores and for predictions."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import as_user_error
from electra_tf.finetune import batches
from electra_tf.finetune.model import FinetuningModel
from electra_tf.finetune.preprocessing import FeatureStore

# Model -> (task, what its batches are like) -> what was traced of it. A trial that is
# evaluated while it trains asks again and again.
_TRACED = weakref.WeakKeyDictionary()


class HeadOutputs:
    """The head of one task, with the encoder below it, on one device.

    Args:
      task_name: of the head.
    """

    def __init__(
        self, model: FinetuningModel, task_name: str, config: FinetuningConfig
    ):
        self._model, self._task_name, self._config = model, task_name, config

    def batches(self, store: FeatureStore) -> Iterator[list[dict[str, Any]]]:
        """The outputs for each example of each batch, in order, without padding."""
        config, padding = self._config, len(self._model.heads)
        buckets = batches.evaluation_buckets(config, store.lengths)
        traced = _traced(
            self._model,
            self._task_name,
            batches.specs_of(store, config.eval_batch_size),
        )
        try:
            for batch in batches.in_order(store, config.eval_batch_size, buckets):
                tensors = {name: tf.constant(x) for name, x in batch.items()}
                arrays = {k: v.numpy() for k, v in traced(tensors).items()}
                real = np.flatnonzero(batch["task_id"] != padding)
                yield [{k: v[row] for k, v in arrays.items()} for row in real]
        except tf.errors.OpError as error:
            raise as_user_error(error) or error from error


def _traced(
    model: FinetuningModel, task_name: str, specs: dict[str, tf.TensorSpec]
) -> Callable[..., dict[str, tf.Tensor]]:
    """The head of a task as a graph for batches of all lengths; traced once a model."""
    known = _TRACED.setdefault(model, {})
    key = task_name, *sorted(specs.items())
    if key not in known:
        weakly = weakref.ref(model)  # Otherwise what is known of it would keep it.

        def outputs(batch):
            return weakly()(batch, training=False).outputs[task_name]

        known[key] = tf.function(outputs, [specs], autograph=False)
    return known[key]
