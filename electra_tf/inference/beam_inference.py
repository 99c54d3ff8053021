# SPDX-License-Identifier: Apache-2.0
"""A corpus run on the workers of Apache Beam: RunInference with whole shards.

To be imported where Beam is installed.
"""

from __future__ import annotations

import functools
import resource
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from electra_tf import startup
from electra_tf.inference import corpus_run

# What it imports for the models of other libraries takes seconds and memory.
with startup.absent(["torch"]):
    from apache_beam.ml.inference import base

# Without torch it takes it for missing, too, and says so.
base.resource = resource


class ShardHandler(base.ModelHandler[str, Any, None]):
    """One model in a process; its batches are those of the shard's own plan.

    Args:
      call: `function, task -> function(task)`, as `beam.for_each` has it.
    """

    def __init__(self, plan: corpus_run.Plan, call: Callable[..., Any]):
        super().__init__(min_batch_size=1, max_batch_size=1)
        self._plan, self._call = plan, call

    def load_model(self) -> corpus_run.Job | None:
        """The model; None after an error, which is kept for the caller."""
        return self._call(functools.partial(corpus_run.job_of, self._plan), "")

    def run_inference(
        self, batch: Sequence[str], model: Any, inference_args: Any = None
    ) -> Iterable[None]:
        """Makes shards with the model of this process."""
        for task in batch:
            self._call(functools.partial(corpus_run.make_shard, self._plan), task)
            yield None


def transform(plan: corpus_run.Plan, call: Callable[..., Any]) -> base.RunInference:
    """The step of the pipeline that makes the shards."""
    return base.RunInference(ShardHandler(plan, call))
