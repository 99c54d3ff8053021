# SPDX-License-Identifier: Apache-2.0
"""One training step of Electric: time and memory, beside ELECTRA's of the same size.

    python benchmarks/electric_step.py

Three variants, each in a process of its own, the order reversed from one repeat to the
next: ELECTRA; Electric as it is trained here, with the vocabulary scores of
`cloze_chunk_size` positions at one time; and Electric with the direct formulation,
which forms the scores of all positions and keeps them for the backward pass.

The last lines hold Electric to its goals: peak memory at most 1.3 times ELECTRA's, and
seconds at most 1.35 times ELECTRA's and the vocabulary products that only Electric
needs, at the rate of large products in ELECTRA's process. Those are one forward and two
backward products at each position that ELECTRA does not mask; what is computed again
in the backward pass is not counted.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from absl import flags

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from step_process import measure, xla_buffers
from step_tables import processor

from electra_tf import cli
from electra_tf.config.pretraining import (
    PretrainingConfig,
    read_hparams,
)
from electra_tf.errors import UserError

FLAGS = flags.FLAGS
ELECTRIC = {"electra_objective": False, "electric_objective": True}
VARIANTS = {"ELECTRA": {}, "Electric, chunks": ELECTRIC, "Electric, direct": ELECTRIC}
TIME_FACTOR, MEMORY_FACTOR = 1.35, 1.3

flags.DEFINE_string("hparams", "{}", "Hparams of run_pretraining.py, for all variants.")
flags.DEFINE_integer("batch_size", 32, "Sequences of a step.", lower_bound=1)
flags.DEFINE_integer("steps", 10, "Loops of steps that are timed.", lower_bound=1)
flags.DEFINE_integer("repeats", 2, "Processes for each variant.", lower_bound=1)
flags.DEFINE_boolean("xla_buffers", True, "Another process asks XLA for its buffers.")
flags.DEFINE_string("json", None, "File for all that was measured.")
flags.DEFINE_string("variant", None, "Used by the script itself: the one to measure.")


def main(_):
    if FLAGS.variant:
        print(json.dumps(measure_here(json.loads(FLAGS.variant))))
        return
    config = config_of("ELECTRA")
    shape = config.model_config()
    print(
        f"{processor()}, {len(os.sched_getaffinity(0))} cores, "
        f"load {os.getloadavg()[0]:.1f}\n"
        f"{shape.num_hidden_layers} layers of {shape.hidden_size}, generator "
        f"{config.generator_config().hidden_size}, {config.train_batch_size} x "
        f"{config.max_seq_length} tokens, vocabulary {config.vocab_size}",
        flush=True,
    )
    results: dict[str, list[dict]] = {name: [] for name in VARIANTS}
    for repeat in range(FLAGS.repeats):
        for name in list(VARIANTS)[:: -1 if repeat % 2 else 1]:
            results[name].append(run_variant(name))
            seconds = statistics.median(results[name][-1]["seconds"])
            print(f"  {name}: {seconds:.4g} s", flush=True)
    if FLAGS.xla_buffers:
        for name, runs in results.items():
            runs[0]["xla_buffers"] = xla_buffers(
                lambda environment, name=name: run_variant(name, environment)
            )
    if FLAGS.json:
        Path(FLAGS.json).write_text(json.dumps(results, indent=1) + "\n")
    print_table(results)
    print_goals(results, extra_flops(config))


def config_of(name: str) -> PretrainingConfig:
    hparams = {"vocab_size": 30522} | read_hparams(FLAGS.hparams) | VARIANTS[name]
    hparams["train_batch_size"] = FLAGS.batch_size
    return PretrainingConfig.from_hparams("", "benchmark", hparams)


def extra_flops(config: PretrainingConfig) -> float:
    """Of the vocabulary products that Electric needs and ELECTRA does not."""
    positions = config.max_seq_length - config.max_predictions_per_seq
    product = 2.0 * config.embedding_size * config.vocab_size
    return 3 * product * config.train_batch_size * positions


def run_variant(name: str, environment: dict | None = None) -> dict:
    """Measures a variant in a new process; with an environment only its first step."""
    variant = {"name": name, "launched": time.time(), "compile_only": bool(environment)}
    done = subprocess.run(
        [
            sys.executable,
            __file__,
            f"--variant={json.dumps(variant)}",
            f"--hparams={FLAGS.hparams}",
            f"--batch_size={FLAGS.batch_size}",
            f"--steps={FLAGS.steps}",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | (environment or {}),
        check=False,
    )
    if done.returncode:
        raise UserError(f"{name} ended with code {done.returncode}.", 1)
    return json.loads(done.stdout.splitlines()[-1])


def measure_here(variant: dict) -> dict:
    if variant["name"] == "Electric, direct":
        form_all_scores()
    return measure(
        config_of(variant["name"]),
        "step",
        0.0,  # Operations are not counted: times are compared.
        FLAGS.steps,
        variant["launched"],
        variant["compile_only"],
    )


def form_all_scores() -> None:
    """Electric without chunks: TensorFlow's own gradient of all scores at once."""
    import tensorflow as tf

    from electra_tf.pretrain import generators

    def direct(hidden, table, bias, chunk_size):
        del chunk_size
        scores = tf.matmul(hidden, tf.cast(table, hidden.dtype), transpose_b=True)
        scores = tf.cast(scores, tf.float32) + bias  # [M, V]
        best = tf.argmax(scores, axis=-1, output_type=tf.int32)
        return tf.reduce_logsumexp(scores, axis=-1), best

    generators.log_normalizer = direct


def median_seconds(runs: list[dict]) -> float:
    return statistics.median(s for run in runs for s in run["seconds"])


def cpu_seconds(runs: list[dict]) -> float:
    """Least of all threads together: what is left when other programs run, too."""
    return min(s for run in runs for s in run["cpu_seconds"])


def peak(runs: list[dict]) -> float:
    """Peak memory of the process in steps after the first, on the device if one is."""
    key = "gpu_peak_steps" if "gpu_peak_steps" in runs[0] else "peak_steps"
    return statistics.median(run[key] for run in runs)


def print_table(results: dict[str, list[dict]]) -> None:
    base = results["ELECTRA"]
    print(
        "\n| variant | s/step, median | minimum | x ELECTRA | CPU s/step | x ELECTRA | "
        "peak, GB | x ELECTRA | XLA's buffers, GB | x ELECTRA | loss |\n"
        f"{'|---' * 11}|"
    )
    for name, runs in results.items():
        seconds = median_seconds(runs)
        cells = [
            f"{seconds:.4g}",
            f"{min(s for run in runs for s in run['seconds']):.4g}",
            f"{seconds / median_seconds(base):.2f}",
            f"{cpu_seconds(runs):.4g}",
            f"{cpu_seconds(runs) / cpu_seconds(base):.2f}",
            f"{peak(runs) / 1e9:.2f}",
            f"{peak(runs) / peak(base):.2f}",
        ]
        buffers = runs[0].get("xla_buffers")
        known = buffers and base[0]["xla_buffers"]
        cells.append(f"{buffers / 1e9:.2f}" if buffers else "")
        cells.append(f"{buffers / base[0]['xla_buffers']:.2f}" if known else "")
        cells.append(f"{runs[0]['loss'][0]:.3f}")
        print(f"| {name} | {' | '.join(cells)} |")


def print_goals(results: dict[str, list[dict]], flops: float) -> None:
    electra, ours = results["ELECTRA"], results["Electric, chunks"]
    rate = statistics.median(r for run in electra for r in run["rates"]["during"])
    extra = flops / rate
    goal = TIME_FACTOR * median_seconds(electra) + extra
    met = "reached" if median_seconds(ours) <= goal else "missed"
    print(
        f"\nTime: {median_seconds(ours):.4g} s, goal {goal:.4g} s ({TIME_FACTOR} x "
        f"{median_seconds(electra):.4g} s and {flops / 1e9:.1f} GFLOP at "
        f"{rate / 1e9:,.0f} GFLOP/s = {extra:.3g} s): {met}."
    )
    goal = MEMORY_FACTOR * peak(electra)
    met = "reached" if peak(ours) <= goal else "missed"
    print(
        f"Memory: {peak(ours) / 1e9:.2f} GB, goal {goal / 1e9:.2f} GB "
        f"({MEMORY_FACTOR} x {peak(electra) / 1e9:.2f} GB): {met}."
    )


if __name__ == "__main__":
    cli.run(main)
