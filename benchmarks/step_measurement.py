# SPDX-License-Identifier: Apache-2.0
"""What a training step costs: its floating point operations, its memory, its time.

Shared by pretraining_step.py and peer_torch.py, which run in different interpreters:
standard library only.

Operations are those that the model needs, not those that a program happens to make:
matrix products only, a multiply-add as two, the backward pass as two products for each
of the forward pass. Element-wise work, softmax, layer norm, sampling, metrics and the
optimizer count as nothing (though their time counts); looking up an embedding is no
product; the vocabulary softmax is needed at the masked positions only.
"""

from __future__ import annotations

import dataclasses
import resource
import statistics
import time
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Encoder:
    """The sizes of a transformer."""

    layers: int
    hidden: int
    intermediate: int
    heads: int

    def flops_per_token(self, length: int, embedding: int) -> int:
        """Forward pass over a sequence of `length`, without a head."""
        h = self.hidden
        projections = 2 * 4 * h * h  # query, key, value, output
        attention = 2 * 2 * length * h  # scores, weighted sum of the values
        feed_forward = 2 * 2 * h * self.intermediate
        project = 2 * embedding * h if embedding != h else 0
        return self.layers * (projections + attention + feed_forward) + project


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Everything that the operations of a step depend on."""

    discriminator: Encoder
    generator: Encoder
    embedding: int
    vocab: int
    batch: int
    length: int
    masked: int  # positions per sequence with a vocabulary softmax

    @classmethod
    def from_dict(cls, sizes: dict) -> Sizes:
        """The inverse of dataclasses.asdict."""
        networks = {
            name: Encoder(**sizes[name]) for name in ("discriminator", "generator")
        }
        return cls(**sizes | networks)

    def step_flops(self) -> int:
        """Of one training step: forward and backward pass of both networks.

        ELECTRA-Small, 32 x 128, 19 masked: 288e9, of which 254 are the discriminator's
        encoder, 20 the generator's, 14 the generator's head and softmax, 2 the
        discriminator's head.
        """
        tokens = self.batch * self.length
        encoders = sum(
            network.flops_per_token(self.length, self.embedding)
            for network in (self.discriminator, self.generator)
        )
        h = self.discriminator.hidden
        prediction = 2 * h * h + 2 * h
        transform = 2 * self.generator.hidden * self.embedding
        softmax = 2 * self.embedding * self.vocab
        masked = self.batch * self.masked
        return 3 * (tokens * (encoders + prediction) + masked * (transform + softmax))


def memory_now() -> int:
    """Resident memory of this process in bytes; 0 where /proc is missing."""
    return _status("VmRSS")


def peak_memory() -> int:
    """Largest resident memory since the last `reset_peak_memory`, in bytes."""
    # ru_maxrss counts what the parent had before it became this program.
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak_memory() -> bool:
    """Starts a new maximum; False where the kernel does not offer that."""
    try:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
    except OSError:
        return False
    return True


def _status(name: str) -> int:
    try:
        with open("/proc/self/status") as f:
            for line in f:
                if line.startswith(name):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def time_steps(
    run: Callable[[int], None], matmul: Callable[[], None], flops: float, count: int
) -> dict:
    """Times `count` loops of steps, with matrix products before, between and after.

    Args:
      run: makes that many steps and waits for their results.
      matmul: makes one large product and waits for it.
      flops: of that product.

    Returns: "seconds" per step, for each loop, and "cpu_seconds" of all threads, which
      other programs hardly change; "rates" in FLOP/s of the products
      "before", "during" and "after"; "faults", page faults per step.
    """

    def rates(repeats):
        found = []
        for _ in range(repeats):
            started = time.perf_counter()
            matmul()
            found.append(flops / (time.perf_counter() - started))
        return found

    rates(3)
    before, during, seconds, faults = rates(15), [], [], []
    cpu_seconds = []
    run(1)
    started = time.perf_counter()
    run(1)
    # As the training loop does: so many steps at a time that they take half a second.
    loop = max(1, min(200, int(0.5 / (time.perf_counter() - started))))
    if loop > 1:
        run(loop)
    for _ in range(count):
        faults_before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        started, cpu_started = time.perf_counter(), time.process_time()
        run(loop)
        seconds.append((time.perf_counter() - started) / loop)
        cpu_seconds.append((time.process_time() - cpu_started) / loop)
        faults_after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        faults.append((faults_after - faults_before) / loop)
        during += rates(3)
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "rates": {"before": before, "during": during, "after": rates(15)},
        "faults": statistics.median(faults),
    }
