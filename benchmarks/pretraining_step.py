# SPDX-License-Identifier: Apache-2.0
"""One training step: how fast, how much memory, how soon the first.

    python benchmarks/pretraining_step.py
    python benchmarks/pretraining_step.py --precision float32 --jit on --peer torch
    python benchmarks/pretraining_step.py --precision float32 --jit on \\
        --model electra_small,electric_small

The step is that of run_pretraining.py: masking, sampling, both networks, clipping,
optimizer and metrics, on files of random tokens. Every variant runs in a process of its
own, one at a time, the order reversed from one repeat to the next.
benchmarks/measurement.py defines what counts as a FLOP; large matrix products are timed
in the same process between the steps.

On a GPU, first of all (each result names its device; without one it is "CPU"):

    python benchmarks/pretraining_step.py --repeats 1 --jit on --precision \\
        mixed_bfloat16 --batch-size 128 --model electra_small,electra_base --profile P
    python benchmarks/pretraining_step.py --repeats 1 --jit on --precision \\
        mixed_bfloat16 --batch-size 64 --model electra_base \\
        --hparams '{"max_seq_length": 512}'

Goals for an H100 or H200 in sequences per second, input included: ELECTRA-Small with
128 tokens 10,000, Base with 128 tokens 4,000, Base with 512 tokens 700. In the profile
(five steps, for TensorBoard with the package xprof) look first for idle time between
kernels, then for kernels that only read and write activations. cuDNN's fused attention
is not used: TensorFlow has no operation for it, and its dropout cannot be seeded as
resuming needs.
"""

import functools
import itertools
import tempfile
import time

import measurement
from absl import flags
from measurement import define_choices, median, print_table, step_flops

from electra_tf import cli, startup
from electra_tf.config.pretraining import PretrainingConfig, read_hparams
from electra_tf.config.run import NO_DATA, read_config
from electra_tf.errors import UserError

FLAGS = flags.FLAGS
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")

define_choices("precision", [*PRECISIONS[:2]], PRECISIONS, "Types of numbers")
define_choices("jit", ["on", "off"], ("on", "off"), "Whether XLA compiles the step")
flags.DEFINE_list("model", "electra_small", "Recipes of configs/.")
flags.DEFINE_float("dropout", 0.1, "Dropout rate.", lower_bound=0, upper_bound=1)
flags.DEFINE_enum("peer", None, ["torch"], "Also times the same step in PyTorch.")
flags.DEFINE_integer("repeats", 2, "Processes for each variant.", lower_bound=1)
cli.define_path("profile", None, "Folder for profiles of 5 more steps of TensorFlow.")
flags.DEFINE_string("hparams", "{}", "Hparams of run_pretraining.py.")
flags.DEFINE_integer("batch_size", 32, "Sequences of a step.", lower_bound=1)
flags.DEFINE_integer("steps", 10, "Loops of steps that are timed.", lower_bound=1)
flags.DEFINE_string("json", None, "File for all that was measured.")


SHOWN = "{version} on {device}, {seconds[0]:.4g} s, loss {loss[0]:.3f} to {loss[1]:.3f}"
MEDIANS = "seconds cpu_seconds rates start_s first_s first_cpu_s peak_first".split()
MEDIANS += ["peak_steps"]
SPEED = (
    "variant | seq/s | s/step, median | minimum | x the first | CPU s/step | GFLOP/s | "
    "matmul GFLOP/s | fraction",
    "{name} | {speed:,.1f} | {seconds:.4g} | {minimum:.4g} | {relative:.2f} | "
    "{cpu_seconds:.4g} | {gflops} | {matmul:,.0f} | {fraction}",
)
START = (
    "variant | start, s | first step, s | CPU s in it | peak in it, GB | "
    "peak in later steps (of a GPU if there is one)",
    "{name} | {start_s:.1f} | {first_s:.1f} | {first_cpu_s:.1f} | {peak_first:.2f} | "
    "{peak_steps:.2f}",
)


def main(_):
    chosen = variants()
    print(measurement.machine())
    for model in FLAGS.model:
        config = config_of(chosen[0] | {"model": model})
        flops = flops_of(config)
        shape = f"{config.train_batch_size} x {config.max_seq_length} tokens"
        counted = f", {flops / 1e9:.1f} GFLOP of matrix products" * bool(flops)
        print(f"{model}: {shape}{counted}", flush=True)
    makers = {v["name"]: functools.partial(run_variant, v) for v in chosen}
    results = measurement.in_turns(makers, FLAGS.repeats, SHOWN)
    measurement.save(FLAGS.json, results)
    if results:
        print_results(results)


def variants() -> list[dict]:
    """Every combination of the flags, then the peer's, by kind of attention."""
    found = []
    for model, precision, jit in itertools.product(
        FLAGS.model, FLAGS.precision, FLAGS.jit
    ):
        name = f"{model}, " * (len(FLAGS.model) > 1) + f"{precision}, jit {jit}"
        variant = {"name": name, "framework": "tensorflow", "model": model}
        found.append(variant | {"precision": precision, "jit": jit == "on"})
    if not FLAGS.peer:
        return found
    uncounted = not all(flops_of(config_of(variant)) for variant in found)
    if "mixed_float16" in FLAGS.precision or uncounted or len(FLAGS.model) > 1:
        raise UserError("--peer torch: plain ELECTRA in float32 and mixed_bfloat16.")
    for precision, fused in itertools.product(FLAGS.precision, (True, False)):
        name = f"PyTorch, {precision}, {'fused' if fused else 'plain'} attention"
        variant = {"name": name, "framework": "torch", "model": FLAGS.model[0]}
        found.append(variant | {"precision": precision, "jit": False, "fused": fused})
    return found


def config_of(variant: dict, data_dir: str = NO_DATA) -> PretrainingConfig:
    """The config of a run of that variant."""
    hparams = {"vocab_size": 30522} | read_config(variant["model"])
    hparams |= read_hparams(FLAGS.hparams)
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    overrides = dict.fromkeys(names, FLAGS.dropout)
    overrides |= hparams.get("model_hparam_overrides", {})
    hparams |= {"model_hparam_overrides": overrides, "precision": variant["precision"]}
    # One length: that of the hparams, not of a recipe's phases.
    hparams |= {
        "phases": [],
        "train_batch_size": FLAGS.batch_size,
        "jit_compile": variant["jit"],
    }
    return PretrainingConfig.from_hparams(data_dir, "benchmark", hparams)


def flops_of(config: PretrainingConfig) -> int:
    """FLOPs of a step of plain ELECTRA; 0 for others, which are not counted."""
    plain = (config.objective, config.generator) == ("electra", "masked_lm")
    return step_flops(config) if plain else 0


def run_variant(variant: dict) -> dict:
    """Measures a variant in a new process."""
    job = variant | {"launched": time.time(), "steps": FLAGS.steps}
    return variant | measurement.in_process(measure, job)


def measure(job: dict) -> dict:
    """Builds the model and measures its steps."""
    if job["framework"] == "torch":
        import peer_torch

        return peer_torch.measure(job, config_of(job))
    startup.import_tensorflow()
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as data:
        config = config_of(job, data)
        loop = measurement.make_loop(config, measurement.write_data(config))
        device = measurement.make_device(config.precision)
        found = measurement.measure_steps(loop, device, flops_of(config), job)
        if FLAGS.profile:
            with tf.profiler.experimental.Profile(f"{FLAGS.profile}/{job['name']}"):
                loop(5)
    return found


def print_results(results: dict[str, list[dict]]) -> None:
    """Speed, start and memory: medians over the processes of each variant."""
    base, rows = median(next(iter(results.values())), "seconds"), []
    for name, runs in results.items():
        row = {key: median(runs, key) for key in MEDIANS} | {"name": name}
        rate = runs[0]["flops"] / row["seconds"]
        row |= {
            "speed": FLAGS.batch_size / row["seconds"],
            "minimum": min(s for r in runs for s in r["seconds"]),
            "relative": row["seconds"] / base,
            "gflops": f"{rate / 1e9:,.0f}" if rate else "",
            # of the rate of the products between the steps
            "fraction": f"{rate / row['rates']:.2f}" if rate else "",
            "matmul": row["rates"] / 1e9,
            "peak_first": row["peak_first"] / 1e9,
            "peak_steps": row["peak_steps"] / 1e9,
        }
        rows.append(row)
    print_table(*SPEED, rows)
    print_table(*START, rows)


if __name__ == "__main__":
    cli.run(main)
