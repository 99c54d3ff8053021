# SPDX-License-Identifier: Apache-2.0
"""What a head says of examples, in their order: for scores and for predictions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import as_user_error
from electra_tf.finetune import batches
from electra_tf.finetune.model import FinetuningModel
from electra_tf.finetune.preprocessing import FeatureStore


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
        # For batches of all lengths.
        specs = batches.specs_of(store, config.eval_batch_size)
        outputs = self._model.traced(self._task_name, specs)
        try:
            for batch in batches.in_order(store, config.eval_batch_size, buckets):
                tensors = {name: tf.constant(x) for name, x in batch.items()}
                arrays = {k: v.numpy() for k, v in outputs(tensors).items()}
                real = np.flatnonzero(batch["task_id"] != padding)
                yield [{k: v[row] for k, v in arrays.items()} for row in real]
        except tf.errors.OpError as error:
            raise as_user_error(error) or error from error
