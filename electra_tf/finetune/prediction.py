# SPDX-License-Identifier: Apache-2.0
"""Runs a fine-tuned model over a data set and hands each example to its scorer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from electra_tf.console import Console, Progress
from electra_tf.errors import as_user_error
from electra_tf.finetune.model import FinetuningModel


def predict(
    model: FinetuningModel,
    task_name: str,
    dataset: tf.data.Dataset,
    *,
    num_batches: int,
    batch_size: int,
    console: Console,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[dict[str, Any]]:
    """Yields the head's outputs for each example, in order, without padding.

    Everything is computed on one device. Ends early once `is_stopped` says so.
    """

    # One trace for batches of all lengths.
    @tf.function(input_signature=[dataset.element_spec], autograph=False)
    def outputs_of(batch):
        found = dict(model(batch, training=False).outputs[task_name])
        return found | {"task_id": batch["task_id"]}

    padding = len(model.heads)
    progress = Progress(console, num_batches, 0, batch_size, num_batches)
    try:
        for number, batch in enumerate(dataset.take(num_batches), start=1):
            if is_stopped():
                return
            arrays = {k: v.numpy() for k, v in outputs_of(batch).items()}
            for row in np.flatnonzero(arrays["task_id"] != padding):
                yield {k: v[row] for k, v in arrays.items() if k != "task_id"}
            progress.update(number, {})
    except tf.errors.OpError as error:
        raise as_user_error(error) or error from error
    finally:
        progress.close()
