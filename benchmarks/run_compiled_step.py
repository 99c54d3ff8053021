# SPDX-License-Identifier: Apache-2.0
"""Runs the step that aot_compile.py wrote, on whatever device JAX has; no TensorFlow.

    python benchmarks/run_compiled_step.py --step-dir step --measure
    python benchmarks/run_compiled_step.py --step-dir step --max-wall-time 20m

Needs jax, flatbuffers and absl-py. --measure times steps and changes nothing. Without
it the run goes on from state.npz or, at first, initial_state.npz; batches and masking
are those of run_pretraining.py. State and metrics are written into the folder: at the
start and the end, on SIGTERM and every --save-minutes; take_back_state.py makes a
checkpoint of them. weights.npz is the state without the optimizer's, a third of it.
The step has the form that suits one kind of device (aot_compile.py --target); where
this is another kind, a line on stderr says so.
"""

import gzip
import hashlib
import io
import json
import statistics
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from absl import flags
from measurement import NOTE, STEP_FORMAT

from electra_tf import cli
from electra_tf.data.permutation import batch_indices
from electra_tf.data.uniform_draws import uniforms
from electra_tf.errors import (
    EXIT_DAMAGED,
    EXIT_DIVERGED,
    EXIT_OK,
    EXIT_PREEMPTED,
    UserError,
)
from electra_tf.pretrain.metrics import ALL_METRICS, training_metrics
from electra_tf.storage.files import atomic_write
from electra_tf.storage.lock import RunLock
from electra_tf.storage.stored_tensors import SLOTS
from electra_tf.train.metrics import overflowed, step_metrics
from electra_tf.train.reporting import MetricsFile
from electra_tf.train.stopping import StopRequest, parse_duration

FLAGS = flags.FLAGS

cli.define_path("step_dir", None, "What aot_compile.py --output-dir wrote.")
flags.DEFINE_boolean("measure", False, "Time steps; write nothing.")
flags.DEFINE_integer("steps", 30, "Steps of a loop of --measure.", lower_bound=1)
flags.DEFINE_integer(
    "until", None, "Train up to this step; else num_train_steps.", lower_bound=1
)
flags.DEFINE_string("max_wall_time", None, "Save and end before: 1200, 20m, 1h30m.")
flags.DEFINE_float("save_minutes", 5.0, "Time between saves.", lower_bound=0.0)
flags.DEFINE_integer("log_steps", 100, "Steps between lines.", lower_bound=1)
cli.define_path("profile", None, "Where a profile of 5 steps goes (--measure).")
flags.mark_flag_as_required("step_dir")

SCALES = {"loss_scale": 2.0**15}  # what --measure starts with, where it is not noise


def main(_) -> int:
    started = time.monotonic()
    if FLAGS.profile and not FLAGS.measure:
        raise UserError("--profile is of the steps of --measure: give both.", 1)
    limit = FLAGS.max_wall_time and parse_duration(
        FLAGS.max_wall_time, "--max-wall-time"
    )
    folder = Path(FLAGS.step_dir)
    spec = read_spec(folder)
    if FLAGS.measure:
        measure(folder, spec)
        return EXIT_OK
    with RunLock(folder), StopRequest(limit, started) as stop:
        return train(folder, spec, stop)


def read_spec(folder: Path) -> dict:
    """What the step takes and gives."""
    try:
        spec = json.loads((folder / "step.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder} holds no step: step.json: {error}.\n"
            "Make one with aot_compile.py --output-dir."
        ) from None
    found = spec.get("format") if isinstance(spec, dict) else None
    if found != STEP_FORMAT:
        raise UserError(
            f"{folder}/step.json has format {found}, known is {STEP_FORMAT}.\n"
            "Make the step again with aot_compile.py."
        )
    return spec


def read_step(path: Path, spec: dict) -> bytes:
    """What jax.export has written, from gzip or as it is."""
    try:
        content = path.read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
    except (gzip.BadGzipFile, zlib.error, EOFError):
        content = b""
    except OSError as error:
        reason = f"cannot read {path}: {error.strerror}."
        raise UserError(reason, EXIT_DAMAGED) from None
    if hashlib.sha256(content).hexdigest() != spec["step_sha256"]:
        raise UserError(f"{path} is damaged or of another step.", EXIT_DAMAGED)
    return content


_GZIP = b"\x1f\x8b"


class Program:
    """The step, compiled for the device at hand, and the state that it changes."""

    def __init__(self, folder: Path, spec: dict, state: dict[str, np.ndarray]):
        try:
            import flatbuffers  # noqa: F401  jax.export reads with it
            import jax
            import jax.export
        except ImportError as error:
            raise UserError(f"{error}.\npip install jax flatbuffers", 1) from None

        content = read_step(folder / "step.jax", spec)
        jax.config.update("jax_enable_x64", True)  # the state has int64 counters
        self._jax, self.device = jax, jax.devices()[0]
        self.target = spec["target"]
        say_if_of_another_kind(self.target, self.device.platform)
        exported = jax.export.deserialize(bytearray(content))
        donated = tuple(range(len(spec["state"])))
        step = jax.jit(exported.call, donate_argnums=donated)
        since = time.monotonic()
        self._step = step.trace(*exported.in_avals).lower().compile()
        self.compile_s = time.monotonic() - since
        self.names = list(spec["state"])
        self._state = [self.put(state[name]) for name in self.names]

    def put(self, array: np.ndarray):
        return self._jax.device_put(array, self.device)

    def __call__(self, batch: list):
        """Makes a step; returns its row, which may be still to come."""
        *self._state, row = self._step(*self._state, *batch)
        return row

    def state(self) -> dict[str, np.ndarray]:
        return dict(zip(self.names, map(np.asarray, self._state), strict=True))

    def facts(self) -> dict:
        """Device, and memory in bytes where it says."""
        found = self._step.memory_analysis()
        used = self.device.memory_stats() or {}
        return {
            "device": self.device.device_kind,
            "target": self.target,
            "jax": self._jax.__version__,
            "compile_s": self.compile_s,
            "program_temp_bytes": getattr(found, "temp_size_in_bytes", None),
            "peak_bytes": used.get("peak_bytes_in_use"),
        }


def say_if_of_another_kind(target: str, platform: str) -> None:
    """Says that times are not those of a step for this device, where that is so."""
    kind = "gpu" if platform in ("cuda", "rocm") else platform  # by JAX's version
    if kind != target:
        print(
            f"{NOTE}the step was lowered for {target}, the device is a {kind}: "
            "it may be slow in this form",
            file=sys.stderr,
            flush=True,
        )


class Batches:
    """The inputs of steps, by number: as run_pretraining.py reads and masks them."""

    def __init__(self, spec: dict, tokens: dict[str, np.ndarray]):
        self._tokens, self._seed = tokens, spec["seed"]
        self._size, self._draws = spec["train_batch_size"], spec["inputs"]["draws"][0]

    def __getitem__(self, step: int) -> list[np.ndarray]:
        count = len(self._tokens["input_ids"])
        index = batch_indices(step, self._size, count, self._seed)
        names = ("input_ids", "input_mask", "segment_ids")
        features = [self._tokens[name][index].astype(np.int32) for name in names]
        return [*features, uniforms(self._seed, step, tuple(self._draws))]

    def on_device(self, program: Program, first: int) -> Iterator[list]:
        """Batches from `first` on, made and moved while the device computes."""

        def make(step):
            return [program.put(array) for array in self[step]]

        with ThreadPoolExecutor(1) as thread:
            waiting = [thread.submit(make, first + i) for i in range(4)]
            while True:
                yield waiting.pop(0).result()
                waiting.append(thread.submit(make, (first := first + 1) + 3))


# -------------------------------------------------------------------------- files


def load(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file."""
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise UserError(
            f"{path} is missing: the step was written without a run.\nMake one with "
            "aot_compile.py --data-dir ... --model-name ..., or give --measure."
        ) from None
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError) as error:
        raise UserError(f"{path} is damaged: {error}.", EXIT_DAMAGED) from None


def load_state(path: Path, spec: dict, slots: bool = True) -> dict[str, np.ndarray]:
    """The state in a file; `UserError` if it is not one of this step.

    Args:
      slots: whether those of the optimizer are in it.
    """
    state = load(path)
    found = {name: [list(a.shape), a.dtype.name] for name, a in state.items()}
    step = {n: v for n, v in spec["state"].items() if slots or not n.endswith(SLOTS)}
    for name in sorted(found.keys() | step.keys()):
        there, wanted = found.get(name), step.get(name)
        if there != wanted:
            raise UserError(
                f"{path} is not a state of this step: {name} is {there or 'missing'}, "
                f"the step has {wanted or 'none'}.",
                EXIT_DAMAGED,
            )
    return state


def save(folder: Path, state: dict[str, np.ndarray]) -> None:
    """Writes state.npz and weights.npz, each whole or not at all."""
    weights = {name: v for name, v in state.items() if not name.endswith(SLOTS)}
    for name, arrays in (("state.npz", state), ("weights.npz", weights)):
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        atomic_write(folder / name, buffer.getvalue())


# --------------------------------------------------------------------- the two uses


def measure(folder: Path, spec: dict) -> None:
    """Times steps, with their input and without; on noise where there is no run.

    Prints what was found before the profile is made, whose failure costs no numbers.
    """
    rng = np.random.default_rng(0)
    state, tokens = {}, {}
    for name, (shape, dtype) in spec["state"].items():
        noise = rng.standard_normal(shape, np.float32) * np.float32(0.02)
        slot = name.endswith(SLOTS) or dtype != "float32"
        value = np.zeros(shape) if slot else noise + ("gamma" in name)
        state[name] = np.asarray(SCALES.get(name, value), dtype)
    if (folder / "tokens.npz").exists():
        tokens = load(folder / "tokens.npz")
    else:
        shape = (4096, spec["max_seq_length"])
        tokens["input_ids"] = rng.integers(5, spec["vocab_size"], shape, np.int32)
        tokens["input_mask"] = np.ones(shape, np.int32)
        tokens["segment_ids"] = np.zeros(shape, np.int32)
    program = Program(folder, spec, state)
    batches = Batches(spec, tokens).on_device(program, 0)
    started = time.monotonic()
    first = np.asarray(program(next(batches)))
    first_s = time.monotonic() - started
    same = next(batches)
    seconds, seconds_with_input = [], []
    for _ in range(5):
        for found, get in (
            (seconds, lambda: same),
            (seconds_with_input, partial(next, batches)),
        ):
            started = time.monotonic()
            for _ in range(FLAGS.steps):
                row = program(get())
            row = np.asarray(row)  # waits
            found.append((time.monotonic() - started) / FLAGS.steps)
    rate = spec["train_batch_size"] / statistics.median(seconds_with_input)
    found = program.facts() | {
        "shape": [spec["train_batch_size"], spec["max_seq_length"]],
        "precision": spec["precision"],
        "first_step_s": first_s,
        "step_ms": [1e3 * s for s in seconds],
        "step_with_input_ms": [1e3 * s for s in seconds_with_input],
        "sequences_per_s_with_input": rate,
        "loss": [float(first[0]), float(row[0])],
    }
    print(json.dumps(found, indent=1), flush=True)
    if FLAGS.profile:
        import jax

        with jax.profiler.trace(FLAGS.profile):
            for _ in range(5):
                row = program(same)
            np.asarray(row)


def train(folder: Path, spec: dict, stop: StopRequest) -> int:
    """Trains on from what the folder holds; returns the exit code."""
    begun = (folder / "state.npz").exists()
    path = folder / ("state.npz" if begun else "initial_state.npz")
    state = load_state(path, spec)
    tokens = load(folder / "tokens.npz")
    done = int(state["global_step"])
    end = min(FLAGS.until or spec["num_train_steps"], spec["num_train_steps"])
    program = Program(folder, spec, state)
    print(
        f"{program.device.device_kind}: compiled in {program.compile_s:.1f} s",
        flush=True,
    )
    batches = Batches(spec, tokens).on_device(program, done)
    rows_of = MetricsFile(folder / "metrics.jsonl", done)

    def keep() -> float:
        """Saves; how long that took."""
        since = time.monotonic()
        rows_of.sync()
        save(folder, program.state())
        return time.monotonic() - since

    # Shows before the first hour whether the disk takes it, and how long it takes.
    saving, saved, reason = keep(), time.monotonic(), None
    while done < end and not reason:
        started, count = (
            time.monotonic(),
            min(FLAGS.log_steps - done % FLAGS.log_steps, end - done),
        )
        rows = np.stack(
            [np.asarray(row) for row in [program(next(batches)) for _ in range(count)]]
        )
        report(rows, spec, done, rows_of, time.monotonic() - started)
        done += count
        pace = time.monotonic() - started
        reason = stop.reason(3 * pace + 2 * saving)  # one may be due before the last
        if time.monotonic() - saved > 60 * FLAGS.save_minutes:
            saving, saved = keep(), time.monotonic()
    keep()
    rows_of.close()
    print(json.dumps(program.facts()))
    print(f"{reason or 'Done'}: saved at step {done} in {folder / 'state.npz'}.")
    return EXIT_PREEMPTED if reason else EXIT_OK


def report(
    rows: np.ndarray, spec: dict, done: int, file: MetricsFile, seconds: float
) -> None:
    """Writes the metrics of steps and prints the last; refuses what is not finite."""
    own = [metric for metric in ALL_METRICS if metric.name in spec["metrics"]]
    metrics = step_metrics(rows, spec["columns"], partial(training_metrics, own))
    harmless = metrics["finite"].astype(bool) | overflowed(metrics)
    if not harmless.all():
        step = done + 1 + int(np.argmin(harmless))
        raise UserError(
            f"loss or gradients of step {step} are not finite; what was saved before "
            "is kept.\nA lower learning_rate or mixed_bfloat16 may help.",
            EXIT_DIVERGED,
        )
    file.write(
        [
            {"step": done + 1 + i}
            | {k: float(f"{v[i]:.7g}") for k, v in metrics.items()}
            for i in range(len(rows))
        ]
    )
    rate = len(rows) * spec["train_batch_size"] / seconds
    print(
        f"step {done + len(rows)}/{spec['num_train_steps']}  loss "
        f"{metrics['loss'][-1]:.4f}  {rate:,.0f} sequences/s",
        flush=True,
    )


if __name__ == "__main__":
    cli.run(main)
