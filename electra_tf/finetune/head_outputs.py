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


def head_outputs(
    model: FinetuningModel,
    task_name: str,
    config: FinetuningConfig,
    store: FeatureStore,
) -> Iterator[list[dict[str, Any]]]:
    """The outputs of a task's head for each example of each batch.

    The head and the encoder below it work on one device.
    """
    buckets = batches.evaluation_buckets(config, store.lengths)
    # For batches of all lengths.
    specs = batches.specs_of(store, config.eval_batch_size)
    outputs = model.traced(task_name, specs)
    try:
        for batch in batches.in_order(store, config.eval_batch_size, buckets):
            tensors = {name: tf.constant(x) for name, x in batch.items()}
            arrays = {k: v.numpy() for k, v in outputs(tensors).items()}
            real = np.flatnonzero(batch["task_id"] != len(model.heads))
            yield [{k: v[row] for k, v in arrays.items()} for row in real]
    except tf.errors.OpError as error:
        raise as_user_error(error) or error from error
