# SPDX-License-Identifier: Apache-2.0
"""Compiles the training step for an accelerator that this machine need not have.

    python benchmarks/aot_compile.py --platform tpu-v5e \\
        --config configs/electra_small.json
    python benchmarks/aot_compile.py --platform h200 \\
        --config configs/electra_base.json \\
        --hparams '{"precision": "mixed_bfloat16", "train_batch_size": 128}'
    python benchmarks/aot_compile.py --data-dir $DATA_DIR --model-name small \\
        --output-dir step

The step is the one that run_pretraining.py makes: masking, both networks, clipping,
optimizer and metrics, on one device. TensorFlow lowers it; the platform's own compiler,
which comes with JAX, makes a program of it and says what memory and how many operations
that needs. Nothing is executed. ./test.sh --accelerators installs JAX and the compilers
into .venv-accelerators, and tensorflow-tpu, which lowers with TPUs' own kernels where
that environment's Python runs this script.

With --output-dir, the folder holds the step as JAX runs it (run_compiled_step.py), and
of a run (--data-dir, --model-name) its newest checkpoint and all its examples. It is in
the form that suits GPUs unless --platform or --target says otherwise; step.json says
which.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import NamedTuple

from absl import flags
from measurement import ROOT, STEP_FORMAT, save
from platforms import PLATFORMS
from preparation import numbers, place

from electra_tf import cli, startup
from electra_tf.config.pretraining import PretrainingConfig, read_hparams
from electra_tf.config.run import NO_DATA
from electra_tf.data.record_index import manifest_sha256
from electra_tf.errors import UserError
from electra_tf.storage.checkpoint_manifest import Manifest
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.files import atomic_write
from electra_tf.storage.new_folder import new_folder
from electra_tf.text.vocabulary import Vocabulary

FLAGS = flags.FLAGS

flags.DEFINE_enum("platform", None, list(PLATFORMS), "What to compile for.")
flags.DEFINE_integer(
    "chips", 1, "How many of --platform share the batch.", lower_bound=1
)
flags.DEFINE_enum(
    "target",
    None,
    ["cpu", "gpu", "tpu"],
    "Whose form of the step; by default the platform's, gpu without one.",
)
cli.define_path("config", None, "JSON file of hparams, such as configs/*.")
flags.DEFINE_string("hparams", "{}", "JSON text or file of hparams.")
cli.define_path("data_dir", None, "Of a run to take state and examples from.")
flags.DEFINE_string("model_name", None, "The run's name.")
cli.define_path("output_dir", None, "Where the step is written; a new folder.")
cli.define_path(
    "compiler_python",
    str(ROOT / ".venv-accelerators" / "bin" / "python"),
    "A Python that has JAX and, for --platform, the compilers.",
)
cli.define_path("json", None, "File for all that was found.")


def main(_):
    if bool(FLAGS.data_dir) != bool(FLAGS.model_name):
        raise UserError("--data-dir and --model-name name a run together.", 1)
    if not (FLAGS.platform or FLAGS.output_dir):
        raise UserError("give --platform, --output-dir or both: nothing to do.", 1)
    if FLAGS.platform and FLAGS.chips > (kind := PLATFORMS[FLAGS.platform]).chips:
        raise UserError(
            f"--chips is {FLAGS.chips}: {FLAGS.platform} ({kind.topology}) has "
            f"{kind.chips}.",
            1,
        )
    run = Run.of_flags()
    if shutil.which(FLAGS.compiler_python) is None:
        raise UserError(f"there is no {FLAGS.compiler_python}.\n{_INSTALL}", 1)
    output = FLAGS.output_dir
    with new_folder(output) if output else tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        report = write_step(run, folder)
        compile_step(folder)
        if FLAGS.platform:
            report |= json.loads((folder / "compiled.json").read_text())
            print_report(run.config, report)
    if output:
        form = f"in the form for {report['target']}"
        print(f"Written to {output}, {form}: run_compiled_step.py runs it.")
    save(FLAGS.json, report)


class Run(NamedTuple):
    """What is compiled, and where its state comes from."""

    config: PretrainingConfig
    vocab: Vocabulary
    checkpoints: Checkpoints | None  # None: shapes without a run
    saved: Manifest | None

    @classmethod
    def of_flags(cls) -> "Run":
        """What the flags name, checked."""
        hparams = read_hparams(FLAGS.hparams)
        file = FLAGS.config
        if FLAGS.data_dir:
            folder = Path(FLAGS.data_dir) / "models" / FLAGS.model_name
            file = file or str(folder / "config.json")
            if not os.path.exists(file):
                raise UserError(f"{folder} holds no run: {file} is missing.\n{_START}")
        config = PretrainingConfig.from_hparams(
            FLAGS.data_dir or NO_DATA,
            FLAGS.model_name or "benchmark",
            hparams,
            read_hparams(file) if file else None,
        )
        check_compilable(config)
        if not FLAGS.data_dir:
            return cls(config, numbers(config.vocab_size), None, None)
        vocab = Vocabulary.load(config.vocab_file)
        vocab.check_size(config.vocab_size)
        checkpoints = Checkpoints(
            config.model_dir,
            identity=config.identity() | {"vocab_sha256": vocab.sha256},
            settings=config.settings() | manifest_sha256(config.pretrain_tfrecords),
            read_only=True,
        )
        saved = checkpoints.newest_intact()
        if saved is None:
            raise UserError(f"{config.model_dir} holds no checkpoint.\n{_START}")
        checkpoints.check_identity(saved)
        return cls(config, vocab, checkpoints, saved)


_INSTALL = (
    "./test.sh --accelerators makes .venv-accelerators with the compilers; "
    "--compiler-python names another place."
)
_START = (
    "Start the run first: run_pretraining.py with --max-wall-time 0 saves its state "
    "before the first step and ends."
)


def check_compilable(config: PretrainingConfig) -> None:
    """Raises `UserError` for what a step that is compiled elsewhere does not do."""
    if config.gradient_accumulation_steps > 1:
        raise UserError(
            f"gradient_accumulation_steps is {config.gradient_accumulation_steps}: a "
            "step that is compiled elsewhere has one batch.\nSet it to 1 in --hparams."
        )
    if not isinstance(config.pretrain_tfrecords, str):
        raise UserError(
            "pretrain_tfrecords are several data sets, a compiled step reads one.\n"
            "Give one pattern; several joined by commas are one data set."
        )
    drawn = config.masking_settings()
    own = [drawn[n] for n in ("random_token_share", "draw_others", "intact_share")]
    own += [config.rare_mask_power, config.word_list]
    if any(own) or len(config.run_phases()) > 1:
        raise UserError(
            "a compiled step is one for all steps, without draws of its own: leave out "
            "phases, random_token_share, rare_mask_power, word_list, "
            "electra_15_positions and the objectives two_stage and electra_sentence."
        )


def write_step(run: Run, folder: Path) -> dict:
    """Writes step.hlo and step.json; of a run, initial_state.npz and tokens.npz."""
    # tensorflow-tpu would start the library of JAX's TPU compiler, which is newer.
    os.environ["TPU_LIBRARY_PATH"] = os.devnull
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the shape of a step needs no GPU
    warnings.filterwarnings("ignore", "TPU_LIBRARY_PATH")
    startup.import_tensorflow()
    import numpy as np
    import tensorflow as tf
    from variable_free import without_variables

    from electra_tf.model.target import set_target

    config, vocab, checkpoints, saved = run
    step, masked_step, inputs = make_step(config, vocab)
    target = target_of_flags()
    set_target(target)
    since = time.monotonic()
    specs = [tf.TensorSpec(*spec) for spec in inputs.values()]
    traced = masked_step.get_concrete_function(*specs)
    variables = step.state.variables()
    kernels, hlo = lower(without_variables(traced, list(variables.values())))
    (folder / "step.hlo").write_bytes(hlo)
    spec = {
        "format": STEP_FORMAT,
        "target": target,
        "state": {n: [list(v.shape), v.dtype.name] for n, v in variables.items()},
        "inputs": inputs,
        "columns": step.columns,
        "row": traced.structured_outputs.shape[0],
        "metrics": [metric.name for metric in step.task.metrics],
        **{name: getattr(config, name) for name in _KEPT},
        "identity": saved.identity if saved else None,
        "settings": checkpoints.settings if saved else config.settings(),
        "of_run": {n: v for n, v in saved.settings.items() if is_of_run(n)}
        if saved
        else None,
        "start": saved.step if saved else None,
    }
    atomic_write(folder / "step.json", json.dumps(spec, indent=1))
    if saved:
        checkpoints.restore(saved, variables)
        arrays = {name: v.numpy() for name, v in variables.items()}
        np.savez_compressed(folder / "initial_state.npz", **arrays)
        np.savez_compressed(folder / "tokens.npz", **read_examples(config, vocab))
    lower_s = time.monotonic() - since
    return {"target": target, "lower_s": lower_s, "kernels": kernels}


def is_of_run(name: str) -> bool:
    """Whether a setting tells runs apart that are of one shape: seed and data."""
    return name == "seed" or name.endswith("sha256")


def target_of_flags() -> str:
    """What the step is for; see `model.target`.

    Never this machine's CPU by itself: what is written here runs elsewhere.
    """
    is_tpu = FLAGS.platform and PLATFORMS[FLAGS.platform].topology
    return FLAGS.target or ("tpu" if is_tpu else "gpu")


def make_step(config: PretrainingConfig, vocab: Vocabulary):
    """The step, the same with masking as a tf.function, and that one's inputs."""
    import tensorflow as tf

    from electra_tf.pretrain import masking, pretraining
    from electra_tf.train import optimization
    from electra_tf.train import step as training_step

    special = (vocab.cls_id, vocab.sep_id, vocab.mask_id)
    task, state, placement = place(
        config,
        lambda: pretraining.TrainablePretrainer(
            pretraining.build_pretrainer(config, special)
        ),
        lambda: optimization.create_optimizer(config),
    )
    step = training_step.TrainingStep(task, state, placement, seed=config.seed)
    rows, length = config.train_batch_size, config.max_seq_length
    slots, repeated = config.max_predictions_per_seq, config.repeated_masks
    columns = masking.draws_per_row(length, slots, repeated)
    features = ("input_ids", "input_mask", "segment_ids")
    inputs = {name: [[rows, length], "int32"] for name in features}
    inputs["draws"] = [[rows, columns], "float32"]

    @tf.function(autograph=False)
    def masked_step(*tensors):
        batch = masking.mask_by_draws(
            dict(zip(features, tensors[:3], strict=True)),
            tensors[3],
            mask_prob=config.mask_prob,
            max_predictions_per_seq=slots,
            repeated_masks=repeated,
            mask_token_share=config.mask_token_share,
            mask_unit=config.mask_unit,
            continuations=vocab.continuations,
            **dict(zip(("cls_id", "sep_id", "mask_id"), special, strict=True)),
        )
        return step.once(batch)

    return step, masked_step, inputs


_KEPT = ("model_name", "seed", "train_batch_size", "max_seq_length", "vocab_size")
_KEPT += ("num_train_steps", "precision")


def lower(function) -> tuple[str, bytes]:
    """The HLO module of a function, and whose kernels made it."""
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


def read_examples(config: PretrainingConfig, vocab: Vocabulary) -> dict:
    """All examples as arrays [n, L], in the order of the files."""
    import numpy as np

    from electra_tf.pretrain import pretrain_data

    source = pretrain_data.ExampleSource(
        config.pretrain_tfrecords,
        config.max_seq_length,
        vocab,
        skip_damaged=config.on_bad_record == "skip",
        num_segments=config.model_config().type_vocab_size,
    )
    ids, mask, segments = (
        np.concatenate(parts)
        for parts in zip(
            *(
                source.read(np.arange(first, min(first + 1000, len(source))))
                for first in range(0, len(source), 1000)
            ),
            strict=True,
        )
    )
    ids = ids.astype(np.uint16) if len(vocab) <= 1 << 16 else ids
    narrow = {"input_mask": mask.astype(np.uint8)}
    return {"input_ids": ids, **narrow, "segment_ids": segments.astype(np.uint8)}


def compile_step(folder: Path) -> None:
    """Runs aot_program.py, in a process that has no TensorFlow in it."""
    script = str(ROOT / "benchmarks" / "aot_program.py")
    command = [FLAGS.compiler_python, script, str(folder)]
    command += [FLAGS.platform, str(FLAGS.chips)] if FLAGS.platform else []
    environment = {k: v for k, v in os.environ.items() if k != "TPU_LIBRARY_PATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        if full := re.search(r"RESOURCE_EXHAUSTED: (.*)", done.stderr):
            raise UserError(
                f"the step does not fit on {FLAGS.platform}: {full[1]}\nA smaller "
                'train_batch_size or precision "mixed_bfloat16" needs less.'
            )
        last = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise UserError(
            f"{FLAGS.compiler_python} could not compile the step:\n{last}\n{_INSTALL}",
            1,
        )


def print_report(config: PretrainingConfig, report: dict) -> None:
    """Memory, operations, what dominates and the bounds that follow."""
    kind = PLATFORMS[FLAGS.platform]
    compute, memory = report["flops"] / kind.flops, report["bytes"] / kind.bandwidth
    rows = config.train_batch_size
    report |= {"compute_ms": 1e3 * compute, "memory_ms": 1e3 * memory}
    report["sequences_per_s_at_most"] = rows / max(compute, memory)
    place = FLAGS.platform if FLAGS.chips == 1 else f"{FLAGS.chips} x {FLAGS.platform}"
    print(
        f"Compiled, not run: {place} ({report['device']}), {rows} x "
        f"{config.max_seq_length}, {config.precision}, in the form for "
        f"{report['target']}, kernels of {report['kernels']}; lowered in "
        f"{report['lower_s']:.0f} s, compiled in {report['compile_s']:.0f} s"
    )
    aliased = "all" if report["aliased"] == report["variables"] else report["aliased"]
    each = "" if FLAGS.chips == 1 else " of each chip"
    print(
        f"Memory{each}: peak {report['peak_bytes'] / 1e9:.2f} of "
        f"{kind.memory / 1e9:.0f} GB, of which temporary "
        f"{report['temp_bytes'] / 1e9:.2f}; updated in place: "
        f"{aliased} of {report['variables']} variables"
    )
    print(
        f"Roofline{each}: {report['flops'] / 1e12:.3f} TFLOP, {1e3 * compute:.2f} ms; "
        f"{report['bytes'] / 1e9:.1f} GB read and written, {1e3 * memory:.2f} ms; at "
        f"most {report['sequences_per_s_at_most']:,.0f} sequences/s"
    )
    if "cycles" in report:
        milliseconds = 1e3 * report["cycles"] / kind.hertz if kind.hertz else 0
        time_of = f", {milliseconds:.2f} ms" if milliseconds else ""
        print(f"Compiler's estimate: {report['cycles']:,} cycles{time_of}")
    counted = ", ".join(f"{n} {name}" for name, n in report["ops"].items() if n)
    print(f"Operations: {report['ops_in_entry']}, of which {counted or 'none rare'}")
    if unknown := report["loops_of_unknown_length"]:
        print(f"Loops whose length is not known, counted once: {unknown}")
    print(f"What dominates, by {report['parts_by']}:")
    for name, share in list(report["parts"].items())[:12]:
        print(f"  {share:6.1%}  {name}")


if __name__ == "__main__":
    cli.run(main)
