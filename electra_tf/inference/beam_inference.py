# SPDX-License-Identifier: Apache-2.0
"""RunInference of Apache Beam: one model in a process, whole shards as its input.

To be imported where Beam is installed.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from electra_tf import beam, startup

# What it imports for the models of other libraries takes seconds and memory.
with startup.absent(["torch"]):
    from apache_beam.ml.inference import base

# Without torch it takes it for missing, too, and says so.
base.resource = resource


class ShardHandler(base.ModelHandler[str, Any, None]):
    """Loads a model once in a process; what it puts into a batch is the shard's affair.

    Args:
      load: gives the model, which `make` finds again.
      make: makes the shard of a task.
      call: calls either, and keeps their errors for the caller.
    """

    def __init__(
        self,
        load: Callable[[str], Any],
        make: Callable[[str], Any],
        call: beam.Call,
    ):
        super().__init__(min_batch_size=1, max_batch_size=1)
        self._load, self._make, self._call = load, make, call

    def load_model(self) -> Any:
        """The model; None after an error."""
        return self._call(self._load, "")

    def run_inference(
        self, batch: Sequence[str], model: Any, inference_args: Any = None
    ) -> Iterable[None]:
        """Makes shards."""
        for task in batch:
            self._call(self._make, task)
            yield None


def step_of(
    load: Callable[[str], Any], make: Callable[[str], Any]
) -> Callable[[beam.Call], base.RunInference]:
    """For `beam.for_each`: see `ShardHandler`."""
    return lambda call: base.RunInference(ShardHandler(load, make, call))
