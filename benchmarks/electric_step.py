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

import functools
import json
import statistics

import measurement
from absl import flags
from measurement import median, print_table
from preparation import define_process_flags, define_step_flags, measure

from electra_tf import cli
from electra_tf.config.pretraining import PretrainingConfig, read_hparams
from electra_tf.config.run import NO_DATA

FLAGS = flags.FLAGS
ELECTRIC = {"electra_objective": False, "electric_objective": True}
VARIANTS = {"ELECTRA": {}, "Electric, chunks": ELECTRIC, "Electric, direct": ELECTRIC}
TIME_FACTOR, MEMORY_FACTOR = 1.35, 1.3

define_step_flags("run_pretraining.py, for all variants")
define_process_flags()


def main(_):
    if FLAGS.variant:
        print(json.dumps(measure_here(json.loads(FLAGS.variant))))
        return
    config = config_of("ELECTRA")
    shape = config.model_config()
    print(
        f"{measurement.machine()}\n"
        f"{shape.num_hidden_layers} layers of {shape.hidden_size}, generator "
        f"{config.generator_config().hidden_size}, {config.train_batch_size} x "
        f"{config.max_seq_length} tokens, vocabulary {config.vocab_size}",
        flush=True,
    )
    results = measurement.in_turns(
        {name: functools.partial(run_variant, name) for name in VARIANTS},
        FLAGS.repeats,
        lambda name, run: f"  {name}: {median([run], 'seconds'):.4g} s",
    )
    if FLAGS.xla_buffers:
        for name, runs in results.items():
            first = functools.partial(run_variant, name)
            runs[0]["xla_buffers"] = measurement.xla_buffers(first)
    measurement.save(FLAGS.json, results)
    print_variants(results)
    print_goals(results, extra_flops(config))


def config_of(name: str) -> PretrainingConfig:
    hparams = {"vocab_size": 30522} | read_hparams(FLAGS.hparams) | VARIANTS[name]
    hparams["train_batch_size"] = FLAGS.batch_size
    return PretrainingConfig.from_hparams(NO_DATA, "benchmark", hparams)


def extra_flops(config: PretrainingConfig) -> float:
    """Of the vocabulary products that Electric needs and ELECTRA does not."""
    positions = config.max_seq_length - config.max_predictions_per_seq
    product = 2.0 * config.embedding_size * config.vocab_size
    return 3 * product * config.train_batch_size * positions


def run_variant(name: str, environment: dict | None = None) -> dict:
    """Measures a variant in a new process; with an environment only its first step."""
    variant = {"name": name, "compile_only": bool(environment)}
    command = measurement.this_script(variant)
    return measurement.in_process(name, command, environment)


def measure_here(variant: dict) -> dict:
    if variant["name"] == "Electric, direct":
        form_all_scores()
    # Operations are not counted: times are compared.
    return measure(config_of(variant["name"]), 0.0, FLAGS.steps, variant)


def form_all_scores() -> None:
    """Electric without chunks: TensorFlow's own gradient of all scores at once."""
    import tensorflow as tf

    from electra_tf.pretrain import masked_lm_generator

    def direct(hidden, table, bias, chunk_size):
        del chunk_size
        scores = tf.matmul(hidden, tf.cast(table, hidden.dtype), transpose_b=True)
        scores = tf.cast(scores, tf.float32) + bias  # [M, V]
        best = tf.argmax(scores, axis=-1, output_type=tf.int32)
        return tf.reduce_logsumexp(scores, axis=-1), best

    masked_lm_generator.log_normalizer = direct


def cpu_seconds(runs: list[dict]) -> float:
    """Least of all threads together: what is left when other programs run, too."""
    return min(s for run in runs for s in run["cpu_seconds"])


def peak(runs: list[dict]) -> float:
    """Peak memory of the process in steps after the first, on the device if one is."""
    key = "gpu_peak_steps" if "gpu_peak_steps" in runs[0] else "peak_steps"
    return median(runs, key)


def print_variants(results: dict[str, list[dict]]) -> None:
    base = results["ELECTRA"]

    def seconds(runs):
        return median(runs, "seconds")

    def buffers(runs):
        return runs[0].get("xla_buffers", 0) / 1e9

    columns = {
        "variant": lambda name, runs: name,
        "s/step, median": lambda _, runs: f"{seconds(runs):.4g}",
        "minimum": lambda _, runs: f"{min(s for r in runs for s in r['seconds']):.4g}",
        "x ELECTRA": lambda _, runs: f"{seconds(runs) / seconds(base):.2f}",
        "CPU s/step": lambda _, runs: f"{cpu_seconds(runs):.4g}",
        "x ELECTRA ": lambda _, runs: f"{cpu_seconds(runs) / cpu_seconds(base):.2f}",
        "peak, GB": lambda _, runs: f"{peak(runs) / 1e9:.2f}",
        "x ELECTRA  ": lambda _, runs: f"{peak(runs) / peak(base):.2f}",
    }
    if buffers(base):
        columns["XLA's buffers, GB"] = lambda _, runs: f"{buffers(runs):.2f}"
        columns["x ELECTRA   "] = lambda _, runs: f"{buffers(runs) / buffers(base):.2f}"
    columns["loss"] = lambda _, runs: f"{runs[0]['loss'][0]:.3f}"
    print_table(results.items(), columns)


def print_goals(results: dict[str, list[dict]], flops: float) -> None:
    electra, ours = results["ELECTRA"], results["Electric, chunks"]
    rate = statistics.median(r for run in electra for r in run["rates"]["during"])
    extra = flops / rate
    base, seconds = median(electra, "seconds"), median(ours, "seconds")
    goal = TIME_FACTOR * base + extra
    met = "reached" if seconds <= goal else "missed"
    print(
        f"\nTime: {seconds:.4g} s, goal {goal:.4g} s ({TIME_FACTOR} x "
        f"{base:.4g} s and {flops / 1e9:.1f} GFLOP at "
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
