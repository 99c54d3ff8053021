# SPDX-License-Identifier: Apache-2.0
"""One training step of ELECTRA-Small: how fast, how much memory, how soon the first.

    python benchmarks/pretraining_step.py
    python benchmarks/pretraining_step.py --precision float32 --jit on --peer torch
    python benchmarks/pretraining_step.py --jit on --dropout 0,0.1 \\
        --part step,given_samples,no_optimizer,forward

The step is the one that run_pretraining.py makes: masking, sampling, both networks,
clipping, optimizer and metrics, on random tokens. Every variant runs in a process of
its own, one at a time, the order reversed from one repeat to the next. What counts as a
floating point operation stands in benchmarks/measurement.py; large matrix products
are timed in the same process before, between and after the steps.
"""

import functools
import itertools
import json
import platform
import statistics
import subprocess
import sys
import time

import measurement
from absl import flags
from measurement import ROOT, Encoder, Sizes, median, print_table
from preparation import PARTS, define_process_flags, define_step_flags, measure

from electra_tf import cli
from electra_tf.config.pretraining import PretrainingConfig, read_hparams
from electra_tf.config.run import NO_DATA
from electra_tf.errors import UserError

FLAGS = flags.FLAGS
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")

flags.DEFINE_list("precision", "float32,mixed_bfloat16", f"Of {', '.join(PRECISIONS)}.")
flags.DEFINE_list("jit", "on,off", "Whether XLA compiles the step: on, off.")
flags.DEFINE_list("dropout", "0.1", "Dropout rates.")
flags.DEFINE_list(
    "part",
    "step",
    "What is timed: step; given_samples: a step that is told the samples; "
    "no_optimizer: without the update; forward: without the backward pass, too.",
)
flags.DEFINE_enum("peer", None, ["torch"], "Also times the same step in PyTorch.")
flags.DEFINE_string("peer_python", sys.executable, "A Python that has PyTorch.")
flags.DEFINE_boolean("peer_compile", False, "Also times it under torch.compile.")
flags.DEFINE_integer("layers", None, "Of both networks.", lower_bound=1)
define_step_flags("run_pretraining.py")
define_process_flags()


def main(_):
    if FLAGS.variant:
        variant = json.loads(FLAGS.variant)
        config = config_of(variant)
        flops = sizes_of(config).step_flops()
        print(json.dumps(measure(config, flops, FLAGS.steps, variant)))
        return
    chosen = variants()
    print_header(sizes_of(config_of(chosen[0])))
    for variant in chosen:
        if variant["framework"] == "torch":
            variant["fused"] = run_variant(variant)["fused"]
    makers = {v["name"]: functools.partial(run_variant, v) for v in chosen}
    results = measurement.in_turns(makers, FLAGS.repeats, progress_line)
    for variant in chosen:
        compiled = variant["jit"] and variant["framework"] == "tensorflow"
        if FLAGS.xla_buffers and compiled:
            first = functools.partial(run_variant, variant | {"compile_only": True})
            buffers = measurement.xla_buffers(first)
            results[variant["name"]][0]["xla_buffers"] = buffers
    measurement.save(FLAGS.json, results)
    print_speed(results)
    print_memory(results)
    if FLAGS.peer and "step" in FLAGS.part:
        print_ratios(results)


def variants() -> list[dict]:
    """What the flags ask for: every combination, then the peer's."""
    allowed = {"precision": PRECISIONS, "jit": ("on", "off"), "part": PARTS}
    for flag, known in allowed.items():
        for value in FLAGS[flag].value:
            if value not in known:
                raise UserError(f"--{flag} {value}: it is one of {', '.join(known)}.")
    try:
        rates = [float(rate) for rate in FLAGS.dropout]
    except ValueError as error:
        raise UserError(f"--dropout takes numbers: {error}.") from None
    found = []
    for precision, jit, dropout, part in itertools.product(
        FLAGS.precision, FLAGS.jit, rates, FLAGS.part
    ):
        name = f"{precision}, jit {jit}"
        name += f", dropout {dropout:g}" if len(rates) > 1 or dropout != 0.1 else ""
        name += f", {part}" if part != "step" else ""
        settings = {"precision": precision, "jit": jit == "on", "dropout": dropout}
        settings |= {"framework": "tensorflow", "name": name, "part": part}
        found.append(settings)
    return found + (peers(rates[-1]) if FLAGS.peer else [])


def peers(dropout: float) -> list[dict]:
    """PyTorch's step in each precision."""
    if "mixed_float16" in FLAGS.precision:
        raise UserError("--peer torch has float32 and mixed_bfloat16 only.")
    test = [FLAGS.peer_python, "-c", "import torch"]
    if subprocess.run(test, capture_output=True, check=False).returncode:
        raise UserError(
            f"--peer torch: {FLAGS.peer_python} cannot import torch.\n"
            "Install it there, or name another interpreter with --peer-python."
        )
    compiled = (False, True) if FLAGS.peer_compile else (False,)
    found = []
    for precision, jit in itertools.product(FLAGS.precision, compiled):
        name = f"PyTorch, {precision}" + (", torch.compile" if jit else "")
        settings = {"precision": precision, "jit": jit, "dropout": dropout}
        found.append(settings | {"framework": "torch", "name": name, "part": "step"})
    return found


def config_of(variant: dict) -> PretrainingConfig:
    """The config of a run of that variant."""
    hparams = {"vocab_size": 30522} | read_hparams(FLAGS.hparams)
    overrides = {
        "hidden_dropout_prob": variant["dropout"],
        "attention_probs_dropout_prob": variant["dropout"],
    }
    if FLAGS.layers:
        overrides["num_hidden_layers"] = FLAGS.layers
    hparams["model_hparam_overrides"] = overrides | hparams.get(
        "model_hparam_overrides", {}
    )
    hparams |= {"train_batch_size": FLAGS.batch_size, "precision": variant["precision"]}
    hparams["jit_compile"] = variant["jit"]
    config = PretrainingConfig.from_hparams(NO_DATA, "benchmark", hparams)
    if (config.objective, config.generator) != ("electra", "masked_lm"):
        raise UserError("This benchmark counts the operations of plain ELECTRA only.")
    return config


def sizes_of(config: PretrainingConfig) -> Sizes:
    return Sizes(
        Encoder.of(config.model_config()),
        Encoder.of(config.generator_config()),
        config.embedding_size,
        config.vocab_size,
        config.train_batch_size,
        config.max_seq_length,
        config.max_predictions_per_seq,
    )


def run_variant(variant: dict, environment: dict | None = None) -> dict:
    """Measures a variant in a new process."""
    command = measurement.this_script(variant)
    if variant["framework"] == "torch":
        sizes = sizes_of(config_of(variant))
        job = variant | {"sizes": sizes, "steps": FLAGS.steps, "launched": time.time()}
        peer = str(ROOT / "benchmarks" / "peer_torch.py")
        command = [FLAGS.peer_python, peer, json.dumps(job)]
    return variant | measurement.in_process(variant["name"], command, environment)


# Printing.


def print_header(sizes: Sizes) -> None:
    """Names the machine and the model, and warns when the machine is busy."""
    print(f"{measurement.machine()}; {platform.platform()}")
    if measurement.is_busy():
        print("Other programs are running: times and rates are not to be quoted.")
    network = sizes.discriminator
    print(
        f"{network.layers} layers of {network.hidden}, generator "
        f"{sizes.generator.hidden}, {sizes.batch} x {sizes.length} tokens, "
        f"{sizes.masked} masked: {sizes.step_flops() / 1e9:.1f} GFLOP per step",
        flush=True,
    )


def progress_line(name: str, result: dict) -> str:
    return (
        f"  {name}: {result['version']} on {result['device']}, "
        f"{median([result], 'seconds'):.4g} s, "
        f"loss {result['loss'][0]:.3f} to {result['loss'][1]:.3f}, "
        f"{result['faults']:,.0f} page faults per step"
    )


def print_speed(results: dict[str, list[dict]]) -> None:
    """Medians over the processes of each variant."""

    def rate(run, when):
        return median([run["rates"]], when)

    def rates(runs):
        for when in ("before", "during", "after"):
            yield f"{statistics.median(rate(run, when) for run in runs) / 1e9:,.0f}"

    def gigaflops(runs):
        return runs[0]["flops"] / median(runs, "seconds") / 1e9

    def fraction(run):
        """The step's rate relative to that of the products made between the steps."""
        return run["flops"] / median([run], "seconds") / rate(run, "during")

    def of_whole(cell):
        """The operations of the forward pass alone are not counted."""
        return lambda _, runs: "" if runs[0]["part"] == "forward" else cell(runs)

    columns = {
        "variant": lambda name, _: name,
        "seq/s": lambda _, runs: f"{FLAGS.batch_size / median(runs, 'seconds'):,.1f}",
        "s/step, median": lambda _, runs: f"{median(runs, 'seconds'):.4g}",
        "minimum": lambda _, runs: f"{min(s for r in runs for s in r['seconds']):.4g}",
        "GFLOP/s": of_whole(lambda runs: f"{gigaflops(runs):,.0f}"),
        "matmul GFLOP/s before / during / after": lambda _, r: " / ".join(rates(r)),
        "fraction": of_whole(lambda r: f"{statistics.median(map(fraction, r)):.2f}"),
    }
    print_table(results.items(), columns)


def print_memory(results: dict[str, list[dict]]) -> None:
    """Start and memory; medians over the processes."""

    def gigabytes(key):
        return lambda _, runs: (
            f"{median(runs, key) / 1e9:.2f}" if key in runs[0] else ""
        )

    columns = {
        "variant": lambda name, _: name,
        "start, s": lambda _, runs: f"{median(runs, 'start_s'):.1f}",
        "first step, s": lambda _, runs: f"{median(runs, 'first_s'):.1f}",
        "CPU s in it": lambda _, runs: f"{median(runs, 'first_cpu_s'):.1f}",
        "operations": lambda _, runs: (
            f"{runs[0]['operations']:,}" if runs[0].get("operations") else ""
        ),
        "memory before it, GB": gigabytes("memory_start"),
        "peak in it": gigabytes("peak_first"),
        "after it": gigabytes("memory_first"),
        "peak in later steps": gigabytes("peak_steps"),
        "XLA's buffers": lambda *row: gigabytes("xla_buffers")(row[0], row[1][:1]),
    }
    if any("gpu_peak_steps" in runs[0] for runs in results.values()):
        columns["on the device: peak in it"] = gigabytes("gpu_peak_first")
        columns["later"] = gigabytes("gpu_peak_steps")
    print_table(results.items(), columns)


def print_ratios(results: dict[str, list[dict]]) -> None:
    """The fastest whole step of each precision, here and in PyTorch."""

    def best(**wanted):
        return min(
            (median(runs, "seconds"), name)
            for name, runs in results.items()
            if wanted.items() <= runs[0].items()
        )

    torch = [run for run, *_ in results.values() if run["framework"] == "torch"]
    for precision in dict.fromkeys(run["precision"] for run in torch):
        wanted = {"precision": precision, "part": "step"}
        theirs = best(framework="torch", **wanted)
        wanted["dropout"] = results[theirs[1]][0]["dropout"]
        ours = best(framework="tensorflow", **wanted)
        print(
            f"\n{precision}: {theirs[0] / ours[0]:.2f} times as fast as PyTorch "
            f"({ours[1]}: {ours[0]:.4g} s; {theirs[1]}: {theirs[0]:.4g} s)"
        )


if __name__ == "__main__":
    cli.run(main)
