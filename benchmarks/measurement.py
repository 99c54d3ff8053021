# SPDX-License-Identifier: Apache-2.0
"""Shared by the benchmarks: FLOPs, memory and time of a step; processes; tables.

Imported first, it puts the checkout before an installed electra_tf. peer_torch.py
imports it in another interpreter, so it uses the standard library only.

FLOPs are those that the model needs: matrix products only, a multiply-add as two, the
backward pass as two products for each of the forward pass. Element-wise work, softmax,
layer norm, sampling, metrics and the optimizer are not counted, though their time is;
an embedding lookup is not a product; the vocabulary softmax is counted at the masked
positions only.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


class Encoder(NamedTuple):
    """The sizes of a transformer."""

    layers: int
    hidden: int
    intermediate: int
    heads: int

    @classmethod
    def of(cls, config) -> Encoder:
        """The sizes in a ModelConfig."""
        return cls(
            config.num_hidden_layers,
            config.hidden_size,
            config.intermediate_size,
            config.num_attention_heads,
        )

    def flops_per_token(self, length: int, embedding: int) -> int:
        """Forward pass over a sequence of `length`, without a head."""
        h = self.hidden
        projections = 2 * 4 * h * h  # query, key, value, output
        attention = 2 * 2 * length * h  # scores, weighted sum of the values
        feed_forward = 2 * 2 * h * self.intermediate
        project = 2 * embedding * h if embedding != h else 0
        return self.layers * (projections + attention + feed_forward) + project


class Sizes(NamedTuple):
    """Everything that the FLOPs of a pre-training step depend on."""

    discriminator: Encoder
    generator: Encoder
    embedding: int
    vocab: int
    batch: int
    length: int
    masked: int  # positions per sequence with a vocabulary softmax

    def step_flops(self) -> int:
        """FLOPs of one training step: forward and backward pass of both networks.

        ELECTRA-Small, 32 x 128, 19 masked: 288e9, of which 252 are the discriminator's
        encoder, 20 the generator's, 14 the generator's head and softmax, 2 the
        discriminator's head.
        """
        tokens = self.batch * self.length
        encoders = sum(
            network.flops_per_token(self.length, self.embedding)
            for network in (self.discriminator, self.generator)
        )
        h = self.discriminator.hidden
        head = 2 * h * h + 2 * h
        transform = 2 * self.generator.hidden * self.embedding
        softmax = 2 * self.embedding * self.vocab
        masked = self.batch * self.masked
        return 3 * (tokens * (encoders + head) + masked * (transform + softmax))


def peak_memory() -> int:
    """Largest resident memory since the last `reset_peak_memory`, in bytes."""
    # Not ru_maxrss, which includes what the parent had before exec.
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])


def reset_peak_memory() -> None:
    """Starts a new maximum, where the kernel offers that."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def time_steps(
    run: Callable[[int], object], matmul: Callable[[], object], flops: float, count: int
) -> dict:
    """Times `count` loops of steps, with matrix products between them.

    Args:
      run: makes that many steps and waits for their results.
      matmul: computes one large product and waits for it.
      flops: of that product.

    Returns: for each loop "seconds" per step and "cpu_seconds" of all threads, which
      depend little on other programs; for each product "rates" in FLOP/s.
    """
    rates, seconds, cpu_seconds = [], [], []
    matmul()
    run(1)
    started = time.perf_counter()
    run(1)
    # As the training loop does: as many steps at a time as take half a second.
    loop = max(1, min(200, int(0.5 / (time.perf_counter() - started))))
    if loop > 1:
        run(loop)
    for _ in range(count):
        started, cpu_started = time.perf_counter(), time.process_time()
        run(loop)
        seconds.append((time.perf_counter() - started) / loop)
        cpu_seconds.append((time.process_time() - cpu_started) / loop)
        for _ in range(3):
            started = time.perf_counter()
            matmul()
            rates.append(flops / (time.perf_counter() - started))
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "rates": rates}


class Device(NamedTuple):
    """The device that computes the steps."""

    name: str
    version: str  # of the library
    make_matmul: Callable  # () -> a function that waits for a large product, its FLOPs
    gpu_peak: Callable[[], int] | None  # bytes since the last call; None on CPUs


def measure_steps(run, device: Device, flops: float, job: dict) -> dict:
    """Makes a first step, then times others.

    Args:
      run: makes that many steps; returns the loss of the last.
      flops: that a step needs; 0 if they are not counted.
      job: has "launched", the time.time() at which the process was started, and
        "steps", the number of loops to time.

    Returns: times in seconds, memory in bytes, losses; see `time_steps`.
    """
    ready = time.time()
    result = {"device": device.name, "version": device.version, "flops": flops}
    result["start_s"] = ready - job["launched"]
    reset_peak_memory()
    cpu_started = time.process_time()
    loss = run(1)
    result |= {"first_s": time.time() - ready, "peak_first": peak_memory()}
    result["first_cpu_s"] = time.process_time() - cpu_started
    reset_peak_memory()
    if device.gpu_peak:
        device.gpu_peak()
    result |= time_steps(run, *device.make_matmul(), job["steps"])
    result["peak_steps"] = device.gpu_peak() if device.gpu_peak else peak_memory()
    return result | {"loss": [loss, run(1)]}


def in_turns(
    makers: dict[str, Callable[[], dict]],
    repeats: int,
    progress: Callable[[str, dict], str],
) -> dict[str, list[dict]]:
    """Calls each maker `repeats` times, reversing the order from one to the next.

    Returns: name -> results.
    """
    results: dict[str, list[dict]] = {name: [] for name in makers}
    for repeat in range(repeats):
        for name in list(makers)[:: -1 if repeat % 2 else 1]:
            results[name].append(makers[name]())
            print(progress(name, results[name][-1]), flush=True)
    return results


def in_process(name: str, command: list[str]) -> dict:
    """Runs a command and returns the JSON object in its last line of output."""
    from electra_tf.errors import UserError

    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UserError(f"{name} ended with code {done.returncode}.", 1)
    return json.loads(done.stdout.splitlines()[-1])


def processor() -> str:
    """The processor's name, and the number of cores that this process may use."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    name = found[1] if found else platform.machine()
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def machine() -> str:
    """Processor, cores and load; a second line if other programs are running."""
    load = os.getloadavg()[0]
    busy = "\nOther programs are running: times and rates are not to be quoted."
    is_busy = load > 0.3 * len(os.sched_getaffinity(0))
    return f"{processor()}, load {load:.1f}{busy * is_busy}"


def median(runs: Iterable[dict], key: str) -> float:
    """The median over runs with a number, or over all numbers of runs with lists."""
    found = [run[key] for run in runs]
    if isinstance(found[0], list):
        found = [number for numbers in found for number in numbers]
    return statistics.median(found)


def print_table(rows: Iterable[tuple], columns: dict[str, Callable[..., str]]) -> None:
    """Prints Markdown; each column has a function from a row to its cell."""
    print(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for row in rows:
        print(f"| {' | '.join(cell(*row) for cell in columns.values())} |", flush=True)


def save(path: str | None, results) -> None:
    """Writes all that was measured, if --json was given."""
    if path:
        Path(path).write_text(json.dumps(results, indent=1) + "\n")
