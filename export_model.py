# SPDX-License-Identifier: Apache-2.0
"""Exports a model: to another library, for serving, for publishing.

  python3 export_model.py --data-dir $DATA_DIR --model-name electra_small_owt \\
      --format tf1 --output-dir exported

The model is the newest checkpoint of a run (--data-dir, --model-name), or any
checkpoint that can be read (--init-checkpoint, --vocab-file): an original one by its
prefix. What was written is read again and compared before it is put in place.
"""

from __future__ import annotations

import importlib
import os
from typing import NamedTuple

from absl import flags

# TensorFlow is imported further down, after everything that can be checked without it.
from electra_tf import cli, startup
from electra_tf.config.hparams import read_hparams
from electra_tf.errors import EXIT_OK, UserError
from electra_tf.interop import output_folder, sources

# Format -> the module and function that writes it, called with a Request.
FORMATS = {
    "huggingface": ("electra_tf.export.formats", "write_huggingface"),
    "keras_hub": ("electra_tf.export.formats", "write_keras_hub"),
    "hub": ("electra_tf.export.hub_publishing", "publish"),
    "saved_model": ("electra_tf.export.saved_models", "write_saved_model"),
    "tflite": ("electra_tf.export.tflite", "write"),
    "tf1": ("electra_tf.export.formats", "write_tf1"),
}
PRECISIONS = {
    "saved_model": ["float32", "mixed_bfloat16"],
    "tflite": ["float32", "float16", "int8"],
}

_DATA_DIR = flags.DEFINE_string("data_dir", None, "The run's --data-dir.")
_MODEL_NAME = flags.DEFINE_string("model_name", None, "The run's --model-name.")
_INIT_CHECKPOINT = flags.DEFINE_string(
    "init_checkpoint", None, "Instead of a run: a checkpoint prefix or a directory."
)
_VOCAB_FILE = flags.DEFINE_string(
    "vocab_file", None, "Vocabulary of --init-checkpoint, if none lies beside it."
)
_HPARAMS = flags.DEFINE_string(
    "hparams",
    "{}",
    "JSON text or file: what the files of --init-checkpoint do not say, such as "
    "num_attention_heads in model_hparam_overrides.",
)
_FORMAT = flags.DEFINE_enum(
    "format", None, sorted(FORMATS), "What to write; docs/checkpoints.md, serving.md."
)
_WHAT = flags.DEFINE_string(
    "what",
    None,
    "The part to write; by default all that the format takes. Of saved_model: encoder, "
    "preprocessor, detector, generator, scorer, or a task that the run was fine-tuned "
    "on; of tflite: encoder, detector.",
)
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "Where to write; a new or empty directory."
)
_HANDLE = flags.DEFINE_string(
    "handle", None, "With --format hub: the name to publish under, owner/model."
)
_LICENSE = flags.DEFINE_string(
    "license", "apache-2.0", "With --format hub: the licence of the weights."
)
_PRECISION = flags.DEFINE_enum(
    "precision",
    "float32",
    ["float32", "mixed_bfloat16", "float16", "int8"],
    "With --format saved_model: the type of the computation (float32, mixed_bfloat16); "
    "of tflite: of the weights (float32, float16, int8).",
)
_PUBLISH = flags.DEFINE_enum(
    "publish",
    None,
    ["kaggle", "huggingface"],
    "With --format hub: upload what was written, or what --output-dir holds already.",
)
flags.mark_flags_as_required(["format", "output_dir"])


class Request(NamedTuple):
    """What the command line asks for."""

    model_dir: str | None  # of a run
    init_checkpoint: str | None
    vocab_file: str | None
    hparams: dict
    what: str | None
    output_dir: str
    handle: str | None
    license: str
    precision: str
    publish: str | None


def main(argv: list[str]) -> int:
    """Reads the model, writes and verifies it; returns the exit code."""
    del argv
    request = Request(
        _model_dir(),
        _INIT_CHECKPOINT.value,
        _VOCAB_FILE.value,
        read_hparams(_HPARAMS.value),
        _WHAT.value,
        _OUTPUT_DIR.value,
        _HANDLE.value,
        _LICENSE.value,
        _PRECISION.value,
        _PUBLISH.value,
    )
    _check(request)
    if _FORMAT.value != "hub":  # To upload what is there, it is not needed.
        startup.import_tensorflow()
    module, function = FORMATS[_FORMAT.value]
    written = getattr(importlib.import_module(module), function)(request)
    print(f"Written to {written}")
    return EXIT_OK


def _check(request: Request) -> None:
    """Raises a UserError for what can be told without TensorFlow."""
    if request.publish and _FORMAT.value != "hub":
        raise UserError("--publish goes with --format hub.")
    if request.precision not in PRECISIONS.get(_FORMAT.value, ["float32"]):
        raise UserError(
            f"--precision {request.precision} does not go with --format "
            f"{_FORMAT.value}; that has "
            f"{', '.join(PRECISIONS.get(_FORMAT.value, ['float32']))}."
        )
    if _FORMAT.value not in ("hub", "saved_model"):
        output_folder.check_free(request.output_dir)
    if request.init_checkpoint:
        sources.check(request.init_checkpoint)


def _model_dir() -> str | None:
    run = _DATA_DIR.value, _MODEL_NAME.value
    if _INIT_CHECKPOINT.value:
        if any(run):
            raise UserError(
                "--init-checkpoint and --data-dir with --model-name both name a model; "
                "give one."
            )
        return None
    if not all(run):
        raise UserError(
            "which model? Give --data-dir and --model-name of a run, or "
            "--init-checkpoint."
        )
    if _VOCAB_FILE.value:
        raise UserError("--vocab-file goes with --init-checkpoint; a run has its own.")
    model_dir = os.path.join(run[0], "models", run[1])
    if not os.path.isdir(model_dir):
        raise UserError(
            f"{model_dir} not found: no run of that name.\nCheck --data-dir and "
            "--model-name."
        )
    return model_dir


if __name__ == "__main__":
    cli.run(main)
