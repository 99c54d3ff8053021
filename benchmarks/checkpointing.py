# SPDX-License-Identifier: Apache-2.0
"""What being able to continue costs: saving, stopping, and the way back to a step.

    python benchmarks/checkpointing.py
    python benchmarks/checkpointing.py --what saving --hparams configs/electra_base.json
    python benchmarks/checkpointing.py --what resuming --rounds 1

Saving: steps alone, steps while a checkpoint is written beside them, and a save that
training waits for. What a checkpoint costs is the time by which the steps beside it
took longer than as many steps alone, copy of the state included.

Resuming: run_pretraining.py as a process of its own, from its start to the first row
of metrics that it adds, then kill -9. The checkpoints of steps 1,000 and 1,000,000 hold
the same tensors, and metrics.jsonl a row for every step before.

Stopping: SIGTERM at a random time, until the process has ended.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from absl import flags
from measurement import ROOT, median, print_table, save
from preparation import make_loop, write_data

from electra_tf import cli, startup
from electra_tf.config.hparams import read_hparams
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import EXIT_PREEMPTED, UserError
from electra_tf.storage.checkpoint_manifest import MANIFEST, name_of

FLAGS = flags.FLAGS
VOCAB_SIZE = 30522
EXAMPLES = 10_000

PARTS = ("saving", "resuming", "stopping")

flags.DEFINE_list("what", list(PARTS), "What to measure.")
flags.DEFINE_string("hparams", "{}", "Hparams of run_pretraining.py.")
flags.DEFINE_integer("steps", 10, "Steps alone in each round.", lower_bound=1)
flags.DEFINE_integer("rounds", 3, "Times that all is measured.", lower_bound=1)
flags.DEFINE_list("from_steps", "1000,1000000", "Steps to resume from.")
flags.DEFINE_string("directory", None, "Where to write, instead of a temporary place.")
flags.DEFINE_string("json", None, "File for all that was measured.")


def main(_):
    if unknown := set(FLAGS.what) - set(PARTS):
        raise UserError(f"--what {unknown.pop()}: it is some of {', '.join(PARTS)}.")
    startup.import_tensorflow()
    results = {}
    with tempfile.TemporaryDirectory(dir=FLAGS.directory) as folder:
        data = Path(folder)
        # The same settings wherever a run starts: a schedule that none comes to the
        # end of, and no save before it is killed.
        hparams = {"num_train_steps": 2_000_000} | read_hparams(FLAGS.hparams)
        hparams["vocab_size"] = VOCAB_SIZE
        config = PretrainingConfig.from_hparams(str(data), "benchmark", hparams)
        write_data(config, EXAMPLES)
        if "saving" in FLAGS.what:
            results["saving"] = measure_saving(config)
            print_saving(results["saving"])
        if "resuming" in FLAGS.what:
            results["resuming"] = measure_resuming(data, hparams)
            print_resuming(results["resuming"])
        if "stopping" in FLAGS.what:
            results["stopping"] = measure_stopping(data, hparams)
            print_stopping(results["stopping"])
    save(FLAGS.json, results)


# ------------------------------------------------------------------------- saving


def measure_saving(config: PretrainingConfig) -> dict:
    """Times steps alone, steps beside a save, and saves alone."""
    from electra_tf.storage.checkpoints import BackgroundSaver, Checkpoints

    run, state = make_loop(config)
    variables = state.variables()
    checkpoints = Checkpoints(
        config.model_dir, keep=config.keep_checkpoint_max, log=lambda text: None
    )
    saver = BackgroundSaver(checkpoints)
    for _ in range(3):
        run(1)
    size = sum(v.shape.num_elements() * v.dtype.size for v in variables.values())
    found = {"bytes": size, "interval": config.save_checkpoints_steps, "rounds": []}
    for number in range(FLAGS.rounds):
        row = {}
        started = time.perf_counter()
        run(FLAGS.steps)
        row["step_s"] = (time.perf_counter() - started) / FLAGS.steps

        waited = saver.blocked_seconds
        started = time.perf_counter()
        saver.save(2 * number + 1, variables)
        row["copy_s"] = saver.blocked_seconds - waited
        steps = 0
        while saver.is_writing() or not steps:
            run(1)
            steps += 1
        row["beside_s"] = time.perf_counter() - started
        row["beside_steps"] = steps
        saver.wait()
        row["write_s"] = saver.seconds

        started = time.perf_counter()
        saver.save(2 * number + 2, variables)
        saver.wait()
        row["alone_s"] = time.perf_counter() - started
        found["rounds"].append(row)
    return found


def print_saving(found: dict) -> None:
    """Medians over the rounds, and the share of a run at the interval."""
    rounds = found["rounds"]
    for row in rounds:
        # By how much a save lengthened the steps beside it.
        row["extra_s"] = row["beside_s"] - row["beside_steps"] * row["step_s"]
    costs = {
        "step": "step_s",
        "copy, training waits": "copy_s",
        "write, beside training": "write_s",
        "cost of a save": "extra_s",
        "save that training waits for": "alone_s",
    }
    size, interval = found["bytes"] / 1e6, found["interval"]
    run = interval * median(rounds, "step_s")

    def share(name, seconds):
        return "" if name == "step" else f"{100 * seconds / run:.2f} %"

    columns = {
        f"{size:.0f} MB of state, a save in {interval} steps": lambda name, _: name,
        "s": lambda _, seconds: f"{seconds:.3f}",
        "share": share,
    }
    print_table(((name, median(rounds, key)) for name, key in costs.items()), columns)


# ----------------------------------------------------------------------- resuming


def measure_resuming(data: Path, hparams: dict) -> dict:
    """Seconds from a process's start to what it did: step -> a row per round.

    The first start from a step compiles, others find its program unless hparams differ.
    """
    first = start_to_first_step(data, "first", hparams | {"num_train_steps": 1})
    found = {"new run": [first]}
    for step in map(int, FLAGS.from_steps):
        forge(data, step)
        for _ in range(1 + FLAGS.rounds):
            row = start_to_first_step(data, f"at_{step}", hparams, step)
            name = f"{step:,}, again" if f"{step:,}" in found else f"{step:,}"
            found.setdefault(name, []).append(row)
    return found


def forge(data: Path, step: int) -> None:
    """Makes a run that has `step` steps behind it from one that has made one."""
    import numpy as np
    import tensorflow as tf

    from electra_tf.storage.checkpoints import Checkpoints

    old = Checkpoints(data / "models" / "first", read_only=True)
    manifest = old.verify(1)
    reader = tf.train.load_checkpoint(old.prefix(1))
    tensors = {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()}
    tensors["global_step"] = np.array(step, np.int64)
    directory = data / "models" / f"at_{step}"
    Checkpoints(directory, identity=manifest.identity, settings=manifest.settings).save(
        step, tensors
    )
    row = json.loads((old.directory / "metrics.jsonl").read_text())
    with open(directory / "metrics.jsonl", "w", encoding="utf-8") as f:
        for number in range(1, step + 1):
            f.write(json.dumps(row | {"step": number}) + "\n")


def start_to_first_step(data: Path, model: str, hparams: dict, step: int = 0) -> dict:
    """Starts a run and kills it at its first row of metrics, if it has not ended."""
    process, started, row = start(data, model, hparams)
    found = wait_for_row(data, model, process, started)
    if hparams["num_train_steps"] > 1:
        process.kill()
    process.communicate()
    if found["step"] <= step:
        raise UserError("run_pretraining.py began at another step.", 1)
    row["first_step_s"] = found["time"] - started
    return row


def start(
    data: Path, model: str, hparams: dict
) -> tuple[subprocess.Popen, float, dict]:
    """Starts a run; returns when it begins to train: process, since when, times."""
    command = [sys.executable, str(ROOT / "run_pretraining.py")]
    command += [f"--data-dir={data}", f"--model-name={model}"]
    command += [f"--hparams={json.dumps(hparams)}"]
    row = {}
    started = time.time()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ
        | {"PYTHONUNBUFFERED": "1", "ELECTRA_TF_CACHE": str(data / "cache")},
    )
    text = []
    for line in process.stdout:
        text.append(line)
        # Comes after the arguments and every byte of the checkpoint were looked at.
        if line.startswith("Config:"):
            row["checked_s"] = time.time() - started
        if "Running training" in line:
            row["built_s"] = time.time() - started
            return process, started, row
    raise UserError(f"run_pretraining.py failed:\n{''.join(text[-3:])}", 1)


def wait_for_row(
    data: Path, model: str, process: subprocess.Popen, since: float
) -> dict:
    """Waits for a row of metrics that was written after `since`."""
    metrics = data / "models" / model / "metrics.jsonl"
    # A row of the round before stays until the run cuts it off.
    while (found := last_row(metrics))["time"] < since and process.poll() is None:
        time.sleep(0.01)
    if found["time"] < since:
        raise UserError("run_pretraining.py ended before its next step.", 1)
    return found


def last_row(metrics: Path) -> dict:
    """The last whole row of a file of metrics, however long it is."""
    try:
        with open(metrics, "rb") as f:
            f.seek(max(0, f.seek(0, os.SEEK_END) - 4096))
            lines = f.read().split(b"\n")[:-1]
    except FileNotFoundError:
        lines = []
    return json.loads(lines[-1]) if lines else {"step": -1, "time": 0.0}


def print_resuming(found: dict) -> None:
    """Medians of the rounds: seconds from the start of the process."""
    columns = {
        "s since the start, from step": lambda name, _: name,
        "checked": lambda _, rows: f"{median(rows, 'checked_s'):.2f}",
        "built": lambda _, rows: f"{median(rows, 'built_s'):.2f}",
        "first step": lambda _, rows: f"{median(rows, 'first_step_s'):.2f}",
    }
    print_table(found.items(), columns)


# ----------------------------------------------------------------------- stopping


def measure_stopping(data: Path, hparams: dict) -> list[dict]:
    """Seconds from SIGTERM to the end of a run, which the next round continues."""
    rng = random.Random(1)
    rows = []
    for _ in range(FLAGS.rounds):
        process, now, _ = start(data, "stopped", hparams)
        found = []
        for _ in range(3):
            found.append(wait_for_row(data, "stopped", process, now))
            now = time.time()
        steps = found[-1]["step"] - found[0]["step"]
        row = {"step_s": (found[-1]["time"] - found[0]["time"]) / steps}
        time.sleep(rng.random() * row["step_s"])  # any moment of a step
        sent = time.time()
        process.terminate()
        process.communicate()
        ended = time.time()
        if process.returncode != EXIT_PREEMPTED:
            raise UserError(f"a run ended with {process.returncode} at SIGTERM.", 1)
        directory = data / "models" / "stopped"
        last = last_row(directory / "metrics.jsonl")
        manifest = directory / (name_of(last["step"]) + MANIFEST)
        saved = manifest.stat().st_mtime
        row["to_step_s"] = last["time"] - sent
        row["to_saved_s"] = saved - last["time"]
        row["to_end_s"] = ended - last["time"]
        row["stopped_s"] = ended - sent
        rows.append(row)
    return rows


def print_stopping(rows: list[dict]) -> None:
    """Median and worst of all rounds."""
    names = {
        "step_s": "step",
        "to_step_s": "SIGTERM to end of step",
        "to_saved_s": "step to saved",
        "to_end_s": "step to end",
        "stopped_s": "SIGTERM to end",
    }
    columns = {
        f"{len(rows)} runs, s": lambda key, text: text,
        "median": lambda key, _: f"{median(rows, key):.2f}",
        "worst": lambda key, _: f"{max(row[key] for row in rows):.2f}",
    }
    print_table(names.items(), columns)


if __name__ == "__main__":
    cli.run(main)
