# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: operations, memory and time of a step; processes; tables.

Imported first, it puts the checkout before an installed electra_tf. peer_torch.py uses
it in another interpreter: standard library only.

Operations are those that the model needs, not those that a program happens to make:
matrix products only, a multiply-add as two, the backward pass as two products for each
of the forward pass. Element-wise work, softmax, layer norm, sampling, metrics and the
optimizer count as nothing (though their time counts); looking up an embedding is no
product; the vocabulary softmax is needed at the masked positions only.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

STEP_FORMAT = 3  # of the step.json that aot_compile.py writes and others read
NOTE = "note: "  # on stderr, what a process that measures has to say of its device


class Encoder(NamedTuple):
    """The sizes of a transformer."""

    layers: int
    hidden: int
    intermediate: int
    heads: int

    @classmethod
    def of(cls, config) -> Encoder:
        """That of a ModelConfig."""
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
    """Everything that the operations of a step depend on."""

    discriminator: Encoder
    generator: Encoder
    embedding: int
    vocab: int
    batch: int
    length: int
    masked: int  # positions per sequence with a vocabulary softmax

    def step_flops(self) -> int:
        """Of one training step: forward and backward pass of both networks.

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
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(name: str) -> int:
    try:
        found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else 0


def time_steps(
    run: Callable[[int], object], matmul: Callable[[], object], flops: float, count: int
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

    def page_faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    rates(3)
    before, during, seconds, cpu_seconds, faults = rates(15), [], [], [], []
    run(1)
    started = time.perf_counter()
    run(1)
    # As the training loop does: so many steps at a time that they take half a second.
    loop = max(1, min(200, int(0.5 / (time.perf_counter() - started))))
    if loop > 1:
        run(loop)
    for _ in range(count):
        faults_before = page_faults()
        started, cpu_started = time.perf_counter(), time.process_time()
        run(loop)
        seconds.append((time.perf_counter() - started) / loop)
        cpu_seconds.append((time.process_time() - cpu_started) / loop)
        faults.append((page_faults() - faults_before) / loop)
        during += rates(3)
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "rates": {"before": before, "during": during, "after": rates(15)},
        "faults": statistics.median(faults),
    }


class Device(NamedTuple):
    """What makes the steps."""

    name: str
    version: str  # of the library
    make_matmul: Callable  # () -> a large product that is waited for, its operations
    gpu_peak: Callable[[], int] | None  # bytes since the last call; None on CPUs


def measure_steps(run, device: Device, flops: float, count: int, variant: dict) -> dict:
    """Makes a first step, then times others, unless the variant is "compile_only".

    Args:
      run: makes that many steps; returns the loss of the last.
      device: where.
      flops: that a step needs.
      count: loops of steps that are timed.
      variant: has "launched", when the process was started, as time.time() says.

    Returns: times in seconds, memory in bytes, losses; see `time_steps`.
    """
    ready = time.time()
    result = {"device": device.name, "version": device.version, "flops": flops}
    result |= {"start_s": ready - variant["launched"], "memory_start": memory_now()}
    reset_peak_memory()
    used = time.process_time()
    loss = run(1)
    result |= {"first_s": time.time() - ready, "peak_first": peak_memory()}
    result["first_cpu_s"] = time.process_time() - used
    if variant.get("compile_only"):
        return result
    result["memory_first"] = memory_now()
    reset_peak_memory()
    if device.gpu_peak:
        result["gpu_peak_first"] = device.gpu_peak()
    result |= time_steps(run, *device.make_matmul(), count)
    result["peak_steps"] = peak_memory()
    if device.gpu_peak:
        result["gpu_peak_steps"] = device.gpu_peak()
    return result | {"loss": [loss, run(1)]}


# ---------------------------------------------------------------------- processes


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


def this_script(variant: dict) -> list[str]:
    """The command that measures a variant, with the flags of this process."""
    variant = json.dumps(variant | {"launched": time.time()})
    return [sys.executable, *sys.argv, f"--variant={variant}"]


def in_process(name: str, command: list[str], environment: dict | None = None) -> dict:
    """The JSON object that a process prints last."""
    from electra_tf.errors import UserError

    environment = os.environ | (environment or {})
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env=environment, check=False
    )
    if done.returncode:
        raise UserError(f"{name} ended with code {done.returncode}.", 1)
    return json.loads(done.stdout.splitlines()[-1])


def xla_buffers(first_step: Callable[[dict[str, str]], object]) -> int | None:
    """Bytes of the buffers that XLA assigns to a step; from a dump of its plan.

    Args:
      first_step: makes a step in a new process with these environment variables.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = os.environ.get("XLA_FLAGS", "")
        dump = f"{given} --xla_dump_to={folder} --xla_dump_hlo_as_text"
        first_step({"XLA_FLAGS": dump.strip()})
        totals = [0]
        for plan in Path(folder).glob("*buffer-assignment.txt"):
            # " Total bytes used: 1535121408 (1.43GiB)", or a line for each buffer.
            found = re.search(r"[Tt]otal bytes used: (\d+)", plan.read_text())
            totals.append(int(found[1]) if found else 0)
    return max(totals) or None


# ------------------------------------------------------------------------ printing


def processor() -> str:
    """Its name, and how many cores there are for this process."""
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    name = found[1] if found else platform.machine()
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def machine() -> str:
    """Processor, cores and load."""
    return f"{processor()}, load {os.getloadavg()[0]:.1f}"


def is_busy() -> bool:
    """Whether other programs are running."""
    return os.getloadavg()[0] > 0.3 * len(os.sched_getaffinity(0))


def median(runs: Iterable[dict], key: str) -> float:
    """Over runs with a number, or over all numbers of runs with lists."""
    found = [run[key] for run in runs]
    if isinstance(found[0], list):
        found = [number for numbers in found for number in numbers]
    return statistics.median(found)


def print_table(rows: Iterable[tuple], columns: dict[str, Callable[..., str]]) -> None:
    """As Markdown; columns have what makes a cell of a row."""
    print(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for row in rows:
        print(f"| {' | '.join(cell(*row) for cell in columns.values())} |", flush=True)


def save(path: str | None, results) -> None:
    """Writes all that was measured, where --json was given."""
    if path:
        Path(path).write_text(json.dumps(results, indent=1) + "\n")
