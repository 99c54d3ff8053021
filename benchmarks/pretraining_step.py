# SPDX-License-Identifier: Apache-2.0
"""One training step of ELECTRA-Small: how fast, how much memory, how soon the first.

    python benchmarks/pretraining_step.py
    python benchmarks/pretraining_step.py --precision float32 --jit on --peer torch
    python benchmarks/pretraining_step.py --jit on --dropout 0,0.1 \\
        --part step,given_samples,no_optimizer,forward

The step is the one that run_pretraining.py makes: masking, sampling, both networks,
clipping, optimizer and metrics, on random tokens. Every variant runs in a process of
its own, one at a time, the order reversed from one repeat to the next. What counts as a
floating point operation stands in benchmarks/step_measurement.py; large matrix products
are timed in the same process before, between and after the steps.
"""

import dataclasses
import functools
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from absl import flags

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from step_measurement import Encoder, Sizes
from step_process import PARTS, measure, xla_buffers
from step_tables import (
    print_header,
    print_ratios,
    print_tables,
    progress_line,
)

from electra_tf import cli
from electra_tf.config.pretraining import (
    PretrainingConfig,
    read_hparams,
)
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
flags.DEFINE_integer("steps", 10, "Loops of steps that are timed.", lower_bound=1)
flags.DEFINE_integer("repeats", 2, "Processes for each variant.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Sequences of a step.", lower_bound=1)
flags.DEFINE_integer("layers", None, "Of both networks.", lower_bound=1)
flags.DEFINE_string("hparams", "{}", "Hparams of run_pretraining.py.")
flags.DEFINE_boolean("xla_buffers", True, "Another process asks XLA for its buffers.")
flags.DEFINE_string("json", None, "File for all that was measured.")
flags.DEFINE_string("variant", None, "Used by the script itself: the one to measure.")


def main(_):
    if FLAGS.variant:
        variant = json.loads(FLAGS.variant)
        config = config_of(variant)
        flops = sizes_of(config).step_flops()
        compile_only = variant.get("compile_only", False)
        given = variant["part"], flops, FLAGS.steps, variant["launched"], compile_only
        print(json.dumps(measure(config, *given)))
        return
    chosen = variants()
    print_header(sizes_of(config_of(chosen[0])))
    results = {variant["name"]: [] for variant in chosen}
    for variant in chosen:
        if variant["framework"] == "torch":
            variant["fused"] = run_variant(variant)["fused"]
    for repeat in range(FLAGS.repeats):
        for variant in chosen[:: -1 if repeat % 2 else 1]:
            result = run_variant(variant)
            results[variant["name"]].append(result)
            print(progress_line(variant["name"], result), flush=True)
    for variant in chosen:
        compiled = variant["jit"] and variant["framework"] == "tensorflow"
        if FLAGS.xla_buffers and compiled:
            first = functools.partial(run_variant, variant | {"compile_only": True})
            results[variant["name"]][0]["xla_buffers"] = xla_buffers(first)
    if FLAGS.json:
        Path(FLAGS.json).write_text(json.dumps(results, indent=1) + "\n")
    print_tables(results, FLAGS.batch_size)
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
        found.append(
            {
                "framework": "tensorflow",
                "name": name,
                "precision": precision,
                "jit": jit == "on",
                "dropout": dropout,
                "part": part,
            }
        )
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
    return [
        {
            "framework": "torch",
            "name": f"PyTorch, {precision}" + (", torch.compile" if jit else ""),
            "precision": precision,
            "jit": jit,
            "dropout": dropout,
            "part": "step",
        }
        for precision, jit in itertools.product(FLAGS.precision, compiled)
    ]


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
    config = PretrainingConfig.from_hparams("", "benchmark", hparams)
    plain = config.electra_objective and config.untied_generator
    if not plain or config.uniform_generator or config.two_tower_generator:
        raise UserError("This benchmark counts the operations of plain ELECTRA only.")
    return config


def sizes_of(config: PretrainingConfig) -> Sizes:
    def encoder(shape):
        return Encoder(
            shape.num_hidden_layers,
            shape.hidden_size,
            shape.intermediate_size,
            shape.num_attention_heads,
        )

    return Sizes(
        encoder(config.model_config()),
        encoder(config.generator_config()),
        config.embedding_size,
        config.vocab_size,
        config.train_batch_size,
        config.max_seq_length,
        config.max_predictions_per_seq,
    )


def run_variant(variant: dict, environment: dict | None = None) -> dict:
    """Measures a variant in a new process."""
    if variant["framework"] == "torch":
        sizes = dataclasses.asdict(sizes_of(config_of(variant)))
        job = variant | {"sizes": sizes, "steps": FLAGS.steps, "launched": time.time()}
        command = [FLAGS.peer_python, str(HERE / "peer_torch.py"), json.dumps(job)]
    else:
        command = [
            sys.executable,
            __file__,
            f"--variant={json.dumps(variant | {'launched': time.time()})}",
            f"--hparams={FLAGS.hparams}",
            f"--batch_size={FLAGS.batch_size}",
            f"--steps={FLAGS.steps}",
            *([f"--layers={FLAGS.layers}"] if FLAGS.layers else []),
        ]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | (environment or {}),
        check=False,
    )
    if done.returncode:
        raise UserError(f"{variant['name']} ended with code {done.returncode}.", 1)
    return variant | json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    cli.run(main)
