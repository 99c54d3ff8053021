# SPDX-License-Identifier: Apache-2.0
"""What to measure first on a machine with a GPU, the most important first.

    python benchmarks/gpu_first_hour.py --json first_hour.json --minutes 25

docs/gpu.md has the goals. Every row is a process of its own, printed once
measured; --minutes ends the list, and the same command continues it from --json. The
steps are those of run_pretraining.py on random tokens, input included.
"""

import json
import re
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from absl import flags
from measurement import (
    in_process,
    make_device,
    make_loop,
    measure_steps,
    median,
    print_table,
    processor,
    write_data,
)

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
flags.DEFINE_integer("steps", 5, "Loops of steps that are timed.", lower_bound=1)
cli.define_path("json", None, "File for all that was measured, and to continue from.")
cli.define_path("profile", None, "Folder for a profile of 5 steps of the first row.")

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
    step_s = median([found], "seconds")
    shown |= {"ms": f"{1e3 * step_s:.2f}", "first": f"{found['first_s']:.0f}"}
    shown["speed"] = f"{row.config().train_batch_size / step_s:,.0f}"
    return shown | {"peak": f"{found['peak_steps'] / 1e9:.1f}"}


def main(_):
    device = in_process(find_device, seconds=120)
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
            found = in_process(measure, row, profile, seconds=seconds)
            profile = profile if "failed" in found else None
            results[row.name] = found | {"conditions": conditions}
            if path:
                atomic_write(path, json.dumps(results, indent=1) + "\n")
        yield row, found


def find_device() -> dict[str, str]:
    """What TensorFlow computes on."""
    startup.import_tensorflow()
    device = make_device("float32")
    return {"device": device.name, "version": device.version}


def measure(row: Row, profile: str | None) -> dict:
    """The measurements of a row."""
    startup.import_tensorflow()
    import tensorflow as tf

    job = {"launched": time.time(), "steps": FLAGS.steps}
    with tempfile.TemporaryDirectory() as data:
        config = row.config(data)
        loop = make_loop(config, write_data(config))
        found = measure_steps(loop, make_device(config.precision), 0, job)
        if profile:
            with tf.profiler.experimental.Profile(profile):
                loop(5)
    return found


if __name__ == "__main__":
    cli.run(main)
