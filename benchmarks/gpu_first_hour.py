# SPDX-License-Identifier: Apache-2.0
"""What to measure first on a machine with a GPU, the most important first.

    python benchmarks/gpu_first_hour.py --json first_hour.json --minutes 25

docs/gpu.md has the goals. Every row is a process of its own, printed once
measured; --minutes ends the list, and the same command continues it from --json. The
steps are those of run_pretraining.py on random tokens, input included.
"""

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from absl import flags
from measurement import make_device, make_loop, print_table, processor, write_data

from electra_tf import cli, startup
from electra_tf.config.pretraining import PretrainingConfig, read_hparams
from electra_tf.config.run import NO_DATA, read_config
from electra_tf.errors import UserError
from electra_tf.storage.files import atomic_write
from electra_tf.storage.manifest import read_json

FLAGS = flags.FLAGS

flags.DEFINE_float("minutes", 25.0, "The list ends after so long.")
flags.DEFINE_string("only", "", "Regular expression of the rows' names.")
flags.DEFINE_string("hparams", "{}", "Hparams that override those of all rows.")
flags.DEFINE_integer("steps", 30, "Steps of a timed loop.", lower_bound=1)
cli.define_path("json", None, "File for all that was measured, and to continue from.")
cli.define_path("profile", None, "Folder for a profile of 5 steps of the first row.")
flags.DEFINE_string("variant", None, "Used by the script itself: the row to measure.")

EXAMPLES = 4096  # that TensorFlow reads from a file
ROW_SECONDS = 240  # at most for a row: compiling and 150 steps


class Row(NamedTuple):
    """A step to measure."""

    model: str  # of configs/
    length: int
    batch: int
    precision: str
    jit: bool = True
    goal: int | None = None  # sequences per second on an H100 or H200

    @property
    def name(self) -> str:
        jit = "" if self.jit else "-nojit"
        return f"{self.model}-{self.length}x{self.batch}-{self.precision}{jit}"

    def config(self, data_dir: str = NO_DATA) -> PretrainingConfig:
        shape = {"max_seq_length": self.length, "train_batch_size": self.batch}
        shape |= {"precision": self.precision, "jit_compile": self.jit}
        hparams = shape | read_hparams(FLAGS.hparams)
        return PretrainingConfig.from_hparams(
            data_dir, "benchmark", hparams, read_config(self.model)
        )


BF16, F16, F32 = "mixed_bfloat16", "mixed_float16", "float32"
ROWS = (
    Row("electra_small", 128, 128, BF16, goal=10_000),
    Row("electra_base", 128, 128, BF16, goal=4_000),
    Row("electra_base", 512, 64, BF16, goal=700),
    Row("electra_small", 128, 128, F32),  # TF32, TensorFlow's default on a GPU
    Row("electra_small", 128, 512, BF16, goal=10_000),
    Row("electric_small", 128, 128, BF16),
    Row("electra_large", 512, 16, BF16),
    Row("electra_base", 128, 512, BF16, goal=4_000),
    Row("electra_small", 128, 128, BF16, jit=False),
    Row("electra_base", 512, 256, BF16, goal=700),
    Row("electra_small", 128, 128, F16),
    Row("electra_base", 128, 128, F32),
    Row("electra_small", 128, 2048, BF16),
    Row("electra_large", 512, 64, BF16),
    Row("electric_small", 128, 128, F32),
    Row("electra_base", 128, 128, BF16, jit=False),
    Row("electra_small", 128, 128, F32, jit=False),
)


HEAD = "step | ms with input | seq/s | goal | peak, GB | first step, s"
FORM = "{name} | {ms} | {speed} | {goal} | {peak} | {first}"


def cells(row: Row, found: dict) -> dict[str, str]:
    """A row of the table: what was measured, or why it was not."""
    shown = dict.fromkeys(("speed", "peak", "first"), "")
    shown |= {"name": row.name, "goal": f"{row.goal:,}" if row.goal else ""}
    if "failed" in found:
        return shown | {"ms": found["failed"]}
    shown |= {"ms": f"{1e3 * found['step_s']:.2f}", "first": f"{found['first_s']:.0f}"}
    shown["speed"] = f"{found['sequences_per_s']:,.0f}"
    return shown | {"peak": f"{found['peak_bytes'] / 1e9:.1f}"}


def main(_):
    if FLAGS.variant:
        measure(**json.loads(FLAGS.variant))
        return
    device = in_process({"row": None}, 120)
    if "failed" in device:
        raise UserError(f"TensorFlow finds no device: {device['failed']}", 1)
    device["host"] = processor()
    print(", ".join(device.values()))
    rows = [row for row in ROWS if re.search(FLAGS.only, row.name)]
    measured = measure_rows(rows, device)
    print_table(HEAD, FORM, (cells(row, found) for row, found in measured))


def measure_rows(rows: list[Row], device: dict[str, str]):
    """Yields rows and their results; those in --json are not measured again."""
    path = FLAGS.json and Path(FLAGS.json)
    results = read_json(path) if path and path.exists() else {}
    end, profile = time.monotonic() + 60 * FLAGS.minutes, FLAGS.profile
    for row in rows:
        conditions = device | {"steps": FLAGS.steps} | row.config().settings()
        conditions = json.loads(json.dumps(conditions))
        found = results.get(row.name, {})
        if found.get("conditions") != conditions or "failed" in found:
            seconds = min(end - time.monotonic(), ROW_SECONDS)
            if seconds < 10:
                yield row, {"failed": "no time left"}
                continue
            found = in_process({"row": row, "profile": profile}, seconds)
            profile = None if "step_s" in found else profile
            results[row.name] = found | {"conditions": conditions}
            if path:
                atomic_write(path, json.dumps(results, indent=1) + "\n")
        yield row, found


def in_process(variant: dict, seconds: float) -> dict:
    """Measures a row in a new process; "failed" is the reason if it fails."""
    command = [sys.executable, *sys.argv, f"--variant={json.dumps(variant)}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {seconds:.0f} s"}
    for line in done.stdout.splitlines():
        if line.startswith("{"):  # a profiler that fails later does not matter
            return json.loads(line)
    lines = done.stderr.strip().splitlines() or ["no message"]
    return {"failed": lines[-1][:100].replace("|", "/")}


def measure(row: list | None, profile: str | None = None) -> None:
    """Prints the measurements of a row as JSON; without a row only the device."""
    startup.import_tensorflow()
    import tensorflow as tf

    if row is None:
        device = make_device("float32")
        print(json.dumps({"device": device.name, "version": device.version}))
        return
    with tempfile.TemporaryDirectory() as data:
        config = Row(*row).config(data)
        loop = make_loop(config, write_data(config, EXAMPLES))
        started = time.monotonic()
        loss = loop(1)
        first_s, seconds = time.monotonic() - started, []
        for _ in range(5):
            started = time.monotonic()
            last = loop(FLAGS.steps)
            seconds.append((time.monotonic() - started) / FLAGS.steps)
        gpu_peak = make_device(config.precision).gpu_peak
        found = {"first_s": first_s, "seconds": seconds, "loss": [loss, last]}
        found["step_s"] = statistics.median(seconds)
        found["sequences_per_s"] = config.train_batch_size / found["step_s"]
        found["peak_bytes"] = gpu_peak() if gpu_peak else 0
        print(json.dumps(found), flush=True)
        if profile:
            with tf.profiler.experimental.Profile(profile):
                loop(5)


if __name__ == "__main__":
    cli.run(main)
