# SPDX-License-Identifier: Apache-2.0
"""What to measure first on a machine with a GPU, the most important first.

    python benchmarks/gpu_first_hour.py                      # TensorFlow and a GPU
    python benchmarks/gpu_first_hour.py --prepare steps      # TensorFlow, no GPU; then
    python benchmarks/gpu_first_hour.py --steps-dir steps    # JAX and a GPU

docs/gpu.md says what else to do there. Every row is a process of its own, printed when
it is known; --minutes ends the list, and the same command goes on where --json ends.
The steps are those of run_pretraining.py on random tokens, input included. What a
process has to say of its device, such as that it is no GPU, is a row, too.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import measurement
from absl import flags
from measurement import NOTE, ROOT, STEP_FORMAT

from electra_tf import cli
from electra_tf.config.pretraining import PretrainingConfig, read_hparams
from electra_tf.config.run import NO_DATA
from electra_tf.errors import EXIT_CANNOT_WRITE, UserError
from electra_tf.storage.files import atomic_write
from electra_tf.storage.manifest import read_json

FLAGS = flags.FLAGS

cli.define_path("prepare", None, "Write the steps into this new folder; for JAX.")
cli.define_path("steps_dir", None, "What --prepare wrote; measures with JAX alone.")
flags.DEFINE_float("minutes", 25.0, "The list ends after so long.")
flags.DEFINE_string("only", "", "Regular expression of the rows' names.")
flags.DEFINE_string("hparams", "{}", "Hparams that override those of all rows.")
flags.DEFINE_integer("steps", 30, "Steps of a timed loop.", lower_bound=1)
cli.define_path("json", None, "For all that was measured; what is there is kept.")
cli.define_path("profile", None, "Where a profile of 5 steps of the first row goes.")
flags.DEFINE_string("variant", None, "Used by the script itself: the row to measure.")

EXAMPLES = 4096  # that TensorFlow reads from a file
ROW_SECONDS = 240  # for a row at most: compiling and 300 steps
TARGET = "gpu"  # whose form of the steps this list is about


class Row(NamedTuple):
    """A step to measure."""

    model: str  # of configs/
    length: int
    batch: int
    precision: str
    jit: bool = True  # JAX has no other
    goal: int | None = None  # sequences per second on an H100 or H200

    @property
    def name(self) -> str:
        jit = "" if self.jit else "-nojit"
        return f"{self.model}-{self.length}x{self.batch}-{self.precision}{jit}"

    def config(self, data_dir: str = NO_DATA) -> PretrainingConfig:
        file = read_hparams(str(ROOT / "configs" / f"{self.model}.json"))
        shape = {"max_seq_length": self.length, "train_batch_size": self.batch}
        shape |= {"precision": self.precision, "jit_compile": self.jit}
        hparams = shape | read_hparams(FLAGS.hparams)
        return PretrainingConfig.from_hparams(data_dir, "benchmark", hparams, file)


BF16, F16, F32 = "mixed_bfloat16", "mixed_float16", "float32"
ROWS = (
    Row("electra_small", 128, 128, BF16, goal=10_000),
    Row("electra_base", 128, 128, BF16, goal=4_000),
    Row("electra_base", 512, 64, BF16, goal=700),
    Row("electra_small", 128, 128, F32),  # TF32, unless TensorFlow is told otherwise
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
COLUMNS = ("step", "ms", "ms with input", "seq/s", "goal", "peak, GB", "compiling, s")


def main(_) -> int | None:
    if FLAGS.variant:
        if (variant := json.loads(FLAGS.variant)) is None:
            tell_device()
            return
        row, profile = variant
        measure_with_tensorflow(Row(*row), profile)
        return
    if FLAGS.prepare and FLAGS.profile:
        raise UserError(
            "--prepare measures nothing that --profile could show: give it with "
            "--steps-dir.",
            1,
        )
    if FLAGS.profile:
        try:  # now, not after minutes of measuring
            os.makedirs(FLAGS.profile, exist_ok=True)
        except OSError as error:
            reason = f"cannot write --profile {FLAGS.profile}: {error.strerror}."
            raise UserError(reason, EXIT_CANNOT_WRITE) from None
    wanted = [row for row in ROWS if re.search(FLAGS.only, row.name)]
    if FLAGS.prepare or FLAGS.steps_dir:
        wanted = [row for row in wanted if row.jit]
    if not wanted:
        raise UserError(f"--only {FLAGS.only!r} leaves no row.", 1)
    if FLAGS.prepare:
        for row in wanted:
            prepare(row, Path(FLAGS.prepare) / row.name)
        return
    found = measure(wanted)
    return 0 if any("step_ms" in row for row in found.values()) else 1


def measure(rows: list[Row]) -> dict[str, dict]:
    """Measures the rows that there is time for and prints them; what was found.

    Those that --json has are printed only; those that failed are tried again, last.
    """
    print_row(*COLUMNS)
    print(f"{'|---' * len(COLUMNS)}|", flush=True)
    end, said = time.monotonic() + 60 * FLAGS.minutes, set()
    of = conditions(rows) if FLAGS.json else {}
    results = kept_results(of)
    profile, profiled, began = FLAGS.profile, None, time.time()
    for row in sorted(rows, key=lambda row: "failed" in results.get(row.name, {})):
        found = results.get(row.name)
        if found is None or "failed" in found:
            seconds = min(end - time.monotonic(), ROW_SECONDS)
            found = in_process(row, seconds, profile) if seconds > 10 else {}
            if not found or ("failed" in found and time.monotonic() >= end):
                print_row(row.name, "no time left")
                continue
            if profile and "step_ms" in found:
                profile, profiled = None, row.name
            results[row.name] = found | {"conditions": of.get(row.name)}
            if FLAGS.json:
                atomic_write(FLAGS.json, json.dumps(results, indent=1) + "\n")
        for note in found["notes"]:
            if note not in said:
                said.add(note)
                print_row(note)
        print_row(row.name, *cells(row, found))
    if FLAGS.profile:
        print(profile_line(profiled, began))
    return results


def conditions(rows: list[Row]) -> dict[str, dict]:
    """What the numbers of each row depend on, by its name; of "" that of all rows."""
    everywhere = device_here() | {"host": measurement.processor()}
    found = {"": everywhere}
    for row in rows:
        if not FLAGS.steps_dir:
            own = row.config().settings()
        else:
            try:
                spec = read_json(Path(FLAGS.steps_dir) / row.name / "step.json")
            except UserError:  # of which the row itself will tell
                spec = {}
            own = spec.get("settings", {}) | {"step_sha256": spec.get("step_sha256")}
        found[row.name] = everywhere | {"steps": FLAGS.steps} | own
    return json.loads(json.dumps(found))


def kept_results(of: dict[str, dict]) -> dict[str, dict]:
    """What --json has already; `UserError` if it is not of these conditions."""
    if not of or not os.path.exists(FLAGS.json):
        return {}
    results = read_json(Path(FLAGS.json))
    for name, found in results.items():
        here = of.get(name, of[""]) if "step_ms" in found else of[""]
        there = found.get("conditions") or {}
        for key, value in here.items():
            if there.get(key) != value:
                raise UserError(
                    f"{FLAGS.json} has {name}, measured under other conditions: {key} "
                    f"is {there.get(key)!r} there, {value!r} here.\nName another "
                    "--json.",
                    1,
                )
    return results


_JAX_HERE = """
import jax, json
device = jax.devices()[0].device_kind
print(json.dumps({"device": device, "version": f"JAX {jax.__version__}"}))
"""


def device_here() -> dict[str, str]:
    """The device and the library's version, as a process of its own finds them."""
    command = [*measurement.this_script({})[:-1], "--variant=null"]
    if FLAGS.steps_dir:
        command = [sys.executable, "-c", _JAX_HERE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise UserError(f"no device answers: {''.join(last)}", 1)
    return json.loads(done.stdout.splitlines()[-1])


def tell_device() -> None:
    """Prints what `device_here` asks a process with TensorFlow for."""
    from preparation import device_and_version

    from electra_tf import startup

    startup.import_tensorflow()
    found = zip(("device", "version"), device_and_version(), strict=True)
    print(json.dumps(dict(found)), flush=True)


def print_row(*cells: str) -> None:
    """Prints the first cells of a row; the others are empty."""
    given = [*cells, *[""] * (len(COLUMNS) - len(cells))]
    print(f"| {' | '.join(given)} |", flush=True)


def profile_line(name: str | None, began: float) -> str:
    """What is in the profile of a row since a time; None: none was measured.

    A driver that shows its kernels to root only lets the profiler see all the rest.
    """
    if name is None:
        return "No profile: no row was measured."
    files = Path(FLAGS.profile).rglob("*.xplane.pb")
    newest = max(files, key=lambda path: path.stat().st_mtime, default=None)
    if newest is None or newest.stat().st_mtime < began:
        return f"No profile: {name} was measured with it, and wrote none."
    kernels = "with" if _GPU_PLANE in newest.read_bytes() else "without"
    return f"Five steps of {name}: {FLAGS.profile}, {kernels} kernels of a GPU."


_GPU_PLANE = b"\x12\x0d/device:GPU:"  # the name of an XPlane (protobuf) of 13 letters


def prepare(row: Row, folder: Path) -> None:
    """Has aot_compile.py write the step of a row, unless it is there."""
    config = row.config()
    hparams = {name: getattr(config, name) for name in _SHAPE}
    hparams |= read_hparams(FLAGS.hparams)
    if (folder / "step.json").exists():
        wanted = {"format": STEP_FORMAT, "target": TARGET}
        wanted["settings"] = json.loads(json.dumps(config.settings()))
        there = read_hparams(str(folder / "step.json"))
        if {name: there.get(name) for name in wanted} != wanted:
            raise UserError(
                f"{folder} is a step of other --hparams or of an older version of this "
                "script: name another --prepare."
            )
        print(f"{folder} is there.", flush=True)
        return
    script = str(ROOT / "benchmarks" / "aot_compile.py")
    command = [sys.executable, script, f"--output-dir={folder}", f"--target={TARGET}"]
    command += [f"--config={ROOT / 'configs' / row.model}.json"]
    done = subprocess.run(
        [*command, f"--hparams={json.dumps(hparams)}"],
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        raise UserError(f"{row.name} could not be written.", 1)
    (folder / "step.hlo").unlink()  # step.jax says the same in less room
    print(f"{folder}: {(folder / 'step.jax').stat().st_size / 1e6:.1f} MB", flush=True)


_SHAPE = ("max_seq_length", "train_batch_size", "precision", "jit_compile")


def in_process(row: Row, seconds: float, profile: str | None) -> dict:
    """Measures a row in a new process; "failed" says why there are no numbers."""
    if FLAGS.steps_dir:
        script = str(ROOT / "benchmarks" / "run_compiled_step.py")
        folder = Path(FLAGS.steps_dir) / row.name
        command = [sys.executable, script, "--measure", f"--steps={FLAGS.steps}"]
        command += [f"--step-dir={folder}"]
        command += [f"--profile={profile}"] * bool(profile)
    else:
        variant = f"--variant={json.dumps([row, profile])}"
        command = [*measurement.this_script({})[:-1], variant]
    environment = os.environ | {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=seconds,
            env=environment,
            check=False,
        )
        stdout, stderr, why = done.stdout, done.stderr, None
    except subprocess.TimeoutExpired as error:
        stdout, stderr = error.stdout or b"", error.stderr or b""
        why = f"not done in {seconds:.0f} s"
    lines = [
        line for line in stderr.decode(errors="replace").splitlines() if line.strip()
    ]
    notes = [line.removeprefix(NOTE) for line in lines if line.startswith(NOTE)]
    if b"{" in stdout:  # Whatever became of the profile, which is made after it.
        return json.loads(stdout[stdout.index(b"{") :]) | {"notes": notes}
    said = [line for line in lines if not line.startswith(NOTE)] or ["no message"]
    return {"failed": why or said[-1][:100].replace("|", "/"), "notes": notes}


def measure_with_tensorflow(row: Row, profile: str | None) -> None:
    """Prints what run_compiled_step.py --measure does, of TensorFlow's own step."""
    from preparation import make_loop, write_data

    from electra_tf import startup

    startup.import_tensorflow()
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        print(f"{NOTE}TensorFlow finds no GPU", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as data:
        config = row.config(data)
        vocab = write_data(config, EXAMPLES)
        started = time.monotonic()
        loop, _ = make_loop(config, vocab=vocab)
        loss = loop(1)
        first_s, seconds = time.monotonic() - started, []
        for _ in range(5):
            started = time.monotonic()
            last = loop(FLAGS.steps)
            seconds.append((time.monotonic() - started) / FLAGS.steps)
        rate = config.train_batch_size / statistics.median(seconds)
        info = tf.config.experimental.get_memory_info("GPU:0") if gpus else {}
        found = {
            "compile_s": first_s,
            "step_with_input_ms": [1e3 * s for s in seconds],
            "peak_bytes": info.get("peak"),
            "loss": [loss, last],
            "sequences_per_s_with_input": rate,
            "step_ms": [],
        }
        print(json.dumps(found), flush=True)
        if profile:
            with tf.profiler.experimental.Profile(profile):
                loop(5)


def cells(row: Row, found: dict) -> list[str]:
    """The numbers of a row as text."""
    if "failed" in found:
        return [found["failed"], *[""] * 5]
    times = [found["step_ms"], found["step_with_input_ms"]]
    shown = [f"{statistics.median(t):.2f}" if t else "" for t in times]
    goal = f"{row.goal:,}" if row.goal else ""
    peak = found["peak_bytes"]
    memory = f"{peak / 1e9:.1f}" if peak else ""
    rate = f"{found['sequences_per_s_with_input']:,.0f}"
    return [*shown, rate, goal, memory, f"{found['compile_s']:.0f}"]


if __name__ == "__main__":
    cli.run(main)
