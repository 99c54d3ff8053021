# SPDX-License-Identifier: Apache-2.0
"""Compiles the training step for an accelerator that this machine need not have.

    python benchmarks/aot_compile.py --platform tpu-v5e \\
        --config configs/electra_small.json
    python benchmarks/aot_compile.py --platform h200 \\
        --config configs/electra_base.json \\
        --hparams '{"precision": "mixed_bfloat16", "train_batch_size": 128}'

The step is that of run_pretraining.py: masking, both networks, clipping, optimizer and
metrics, on one device. TensorFlow lowers it; the platform's own compiler, which comes
with JAX, makes a program of it and reports the memory and operations that it needs.
Nothing is executed. ./test.sh --accelerators installs JAX and the compilers into
.venv-accelerators, and tensorflow-tpu, which lowers with TPUs' own kernels when this
script is run with that environment's Python.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import types
import warnings
from pathlib import Path
from typing import NamedTuple

from absl import flags
from measurement import ROOT, numbers, place, save

from electra_tf import cli, startup
from electra_tf.config.pretraining import PretrainingConfig, read_hparams
from electra_tf.config.run import NO_DATA, read_config
from electra_tf.errors import UserError


class Platform(NamedTuple):
    """One chip, by its maker's data sheet; FLOPs in bfloat16, without sparsity."""

    topology: str  # for the compiler of TPUs; "" for a GPU
    flops: float  # per second
    bandwidth: float  # bytes per second
    memory: float  # bytes
    hertz: float = float("nan")  # of a TPU, to convert its compiler's cycles
    cores: int = 0  # of a GPU


PLATFORMS = {
    # 4 units of 128 x 128 x 2 operations at 1.5 GHz make 197e12 a second.
    "tpu-v5e": Platform("v5e:2x2", 197e12, 819e9, 16e9, hertz=1.5e9),
    "tpu-v5p": Platform("v5p:2x2x1", 459e12, 2765e9, 95e9),
    "tpu-v6e": Platform("v6e:2x2", 918e12, 1640e9, 32e9),
    "h100": Platform("", 989e12, 3352e9, 80e9, cores=132),
    "h200": Platform("", 989e12, 4800e9, 141e9, cores=132),
}
# What XLA would ask the driver of a Hopper GPU for.
GPU_TARGET = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472 core_count: {cores} fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth:.0f} l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: {memory:.0f} cuda_compute_capability {{ major: 9 }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }}
runtime_version {{ major: 13 }} device_description_str: "GPU"
"""

FLAGS = flags.FLAGS

flags.DEFINE_enum("platform", None, list(PLATFORMS), "Compile for it.", required=True)
flags.DEFINE_integer(
    "chips",
    1,
    "How many of --platform share the batch.",
    lower_bound=1,
    upper_bound=4,  # of each topology above
)
cli.define_path("config", None, "A recipe of configs/, or a JSON file.")
flags.DEFINE_string("hparams", "{}", "JSON text or file of hparams.")
cli.define_path(
    "compiler_python",
    str(ROOT / ".venv-accelerators" / "bin" / "python"),
    "A Python that has JAX and the compilers.",
)
cli.define_path("json", None, "File for the report.")

_INSTALL = (
    "./test.sh --accelerators makes .venv-accelerators with the compilers; "
    "--compiler-python names another place."
)


def main(_):
    config = PretrainingConfig.from_hparams(
        NO_DATA, "benchmark", read_hparams(FLAGS.hparams), read_config(FLAGS.config)
    )
    check_compilable(config)
    if shutil.which(FLAGS.compiler_python) is None:
        raise UserError(f"there is no {FLAGS.compiler_python}.\n{_INSTALL}", 1)
    with tempfile.TemporaryDirectory() as name:
        report = write_step(config, Path(name)) | compile_step(Path(name))
        print_report(config, report)
    save(FLAGS.json, report)


def check_compilable(config: PretrainingConfig) -> None:
    """Raises `UserError` for more than one step, or more kinds of draws."""
    is_more = config.gradient_accumulation_steps > 1 or len(config.run_phases()) > 1
    if config.random_token_share or is_more:
        raise UserError(
            "one step without draws of its own is compiled: leave out "
            "gradient_accumulation_steps, phases, random_token_share and the objective "
            "two_stage."
        )


def write_step(config: PretrainingConfig, folder: Path) -> dict:
    """Writes step.hlo and step.json; returns how the step was lowered."""
    # tensorflow-tpu would start the library of JAX's TPU compiler, which is newer.
    os.environ["TPU_LIBRARY_PATH"] = os.devnull
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # lowering needs no GPU
    warnings.filterwarnings("ignore", "TPU_LIBRARY_PATH")
    startup.import_tensorflow()
    import tensorflow as tf
    from variable_free import without_variables

    from electra_tf.model.target import set_target

    kind = PLATFORMS[FLAGS.platform]
    step, masked_step, inputs = make_step(config)
    target = "tpu" if kind.topology else "gpu"
    set_target(target)
    started = time.monotonic()
    specs = [tf.TensorSpec(*spec) for spec in inputs.values()]
    traced = masked_step.get_concrete_function(*specs)
    variables = step.state.variables()
    kernels, hlo = lower(without_variables(traced, list(variables.values())))
    (folder / "step.hlo").write_bytes(hlo)
    spec = {
        "topology": kind.topology,
        "gpu": GPU_TARGET.format(**kind._asdict()),
        "chips": FLAGS.chips,
        "state": {n: [list(v.shape), v.dtype.name] for n, v in variables.items()},
        "inputs": inputs,
        "row": traced.structured_outputs.shape[0],
    }
    (folder / "step.json").write_text(json.dumps(spec, indent=1))
    seconds = time.monotonic() - started
    return {"target": target, "lower_s": seconds, "kernels": kernels}


def make_step(config: PretrainingConfig):
    """The step, the same with masking as a tf.function, and that one's inputs."""
    import tensorflow as tf

    from electra_tf.pretrain import masking
    from electra_tf.train import step as training_step

    vocab = numbers(config.vocab_size)
    special = (vocab.cls_id, vocab.sep_id, vocab.mask_id)
    task, state, placement = place(config, special)
    step = training_step.TrainingStep(task, state, placement, seed=config.seed)
    rows, length = config.train_batch_size, config.max_seq_length
    settings = masking.Masking.of(config, vocab)
    columns = settings.draws_per_row(length)
    features = ("input_ids", "input_mask", "segment_ids")
    inputs = {name: [[rows, length], "int32"] for name in features}
    inputs["draws"] = [[rows, columns], "float32"]

    @tf.function(autograph=False)
    def masked_step(*tensors):
        batch = masking.mask_by_draws(
            dict(zip(features, tensors[:3], strict=True)), tensors[3], settings
        )
        number = tf.cast(state.optimizer.iterations.value, tf.int64)
        return step.replica_step(batch, number, state.loss_scale.read_value())

    return step, masked_step, inputs


def lower(function) -> tuple[str, bytes]:
    """Whose kernels lowered a function, and its HLO module."""
    make = function.experimental_get_compiler_ir(*function.input_signature)
    # `tensorflow` has those of CPUs, the same as for GPUs; `tensorflow-tpu` has TPUs'.
    missing = ("No registered", "could not find registered")
    for kernels in ("CPU", "TPU"):
        try:
            return kernels, make(stage="hlo_serialized", platform_name=kernels)
        except ValueError as error:
            if kernels == "TPU" or not any(text in str(error) for text in missing):
                raise
    raise AssertionError


def compile_step(folder: Path) -> dict:
    """Runs aot_program.py, in a process without TensorFlow; returns its report."""
    script = str(ROOT / "benchmarks" / "aot_program.py")
    command = [FLAGS.compiler_python, script, str(folder)]
    environment = {k: v for k, v in os.environ.items() if k != "TPU_LIBRARY_PATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False
    )
    if full := re.search(r"RESOURCE_EXHAUSTED: (.*)", done.stderr):
        raise UserError(f"the step does not fit on {FLAGS.platform}: {full[1]}")
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise UserError(f"{script} failed:\n{last}\n{_INSTALL}", 1)
    return json.loads((folder / "compiled.json").read_text())


def print_report(config: PretrainingConfig, report: dict) -> None:
    """Memory, operations, what dominates, and the bounds that follow."""
    kind = PLATFORMS[FLAGS.platform]
    compute, memory = report["flops"] / kind.flops, report["bytes"] / kind.bandwidth
    rows = config.train_batch_size
    report |= {"compute_ms": 1e3 * compute, "memory_ms": 1e3 * memory}
    report["sequences_per_s_at_most"] = rows / max(compute, memory)
    each = "" if FLAGS.chips == 1 else " of each chip"
    shown = types.SimpleNamespace(**report)
    counted = ", ".join(f"{n} {name}" for name, n in shown.ops.items() if n)
    print(
        f"Compiled, not run: {FLAGS.chips} x {FLAGS.platform} ({shown.device}), "
        f"{rows} x {config.max_seq_length}, {config.precision}, in the form for "
        f"{shown.target}, kernels of {shown.kernels}; lowered in {shown.lower_s:.0f} "
        f"s, compiled in {shown.compile_s:.0f} s\n"
        f"Memory{each}: peak {shown.peak_bytes / 1e9:.2f} of {kind.memory / 1e9:.0f} "
        f"GB, of which temporary {shown.temp_bytes / 1e9:.2f}; updated in place: "
        f"{shown.aliased} of {shown.variables} variables\n"
        f"Roofline{each}: {shown.flops / 1e12:.3f} TFLOP, {shown.compute_ms:.2f} ms; "
        f"{shown.bytes / 1e9:.1f} GB read and written, {shown.memory_ms:.2f} ms; at "
        f"most {shown.sequences_per_s_at_most:,.0f} sequences/s\n"
        f"Operations: {counted}; the bodies of loops count once"
    )
    if cycles := report["cycles"]:
        milliseconds = 1e3 * cycles / kind.hertz
        print(f"Compiler's estimate: {cycles:,} cycles, {milliseconds:.2f} ms")


if __name__ == "__main__":
    cli.run(main)
