# SPDX-License-Identifier: Apache-2.0
"""Exports a model: to another library, for serving, for publishing.

  python3 export_model.py --data-dir $DATA_DIR --model-name electra_small_owt \\
      --format tf1 --output-dir exported

The model is the newest checkpoint of a run (--data-dir, --model-name), or another
checkpoint (--init-checkpoint, --vocab-file; an original one by its prefix). The export
is read again and compared before it is put in place. --what chooses a part:

  huggingface   discriminator, generator, encoder, or a task of the run
  keras_hub     discriminator, generator, encoder
  onnx          encoder, detector, generator, scorer, or a task
  saved_model   the same, and preprocessor
"""

from __future__ import annotations

from absl import flags

# TensorFlow is imported after all checks that do not need it.
from electra_tf.commands.shared_flags import define_path
from electra_tf.config.hparams import read_hparams
from electra_tf.errors import EXIT_OK
from electra_tf.export import formats

define_path("data_dir", "The run's --data-dir.")
flags.DEFINE_string("model_name", None, "The run's --model-name.")
define_path("init_checkpoint", "Instead of a run: a checkpoint prefix or a directory.")
define_path("vocab_file", "Vocabulary of --init-checkpoint, if not beside it.")
flags.DEFINE_string(
    "hparams",
    "{}",
    "JSON text or file: hparams that --init-checkpoint lacks, such as "
    "num_attention_heads in model_hparam_overrides.",
)
flags.DEFINE_enum(
    "format",
    None,
    sorted(formats.FORMATS),
    "Format to write; docs/checkpoints.md and docs/serving.md describe them.",
)
flags.DEFINE_string(
    "what",
    None,
    "The part to write, see above. Default: all parts that the format has.",
)
define_path("output_dir", "Where to write; a new or empty directory.")
flags.DEFINE_string(
    "handle",
    None,
    "owner/model: the name to publish under, and the title of the model card.",
)
flags.DEFINE_string(
    "license",
    None,
    "License of the weights, for the model card. Default: apache-2.0 with --format "
    "hub, else none is stated.",
)
flags.DEFINE_string(
    "language", None, "Languages of the model, for its card: codes such as en or en,de."
)
flags.DEFINE_enum(
    "precision",
    "float32",
    ["float32", "mixed_bfloat16"],
    "With --format saved_model: the type of the computation.",
)
flags.DEFINE_enum(
    "publish",
    None,
    ["kaggle", "huggingface"],
    "With --format hub or huggingface: upload the export, or, without a model, an "
    "existing --output-dir.",
)
flags.DEFINE_boolean(
    "private", False, "With --publish huggingface: make the upload private."
)
flags.DEFINE_boolean(
    "dry_run", False, "With --publish: list the upload without uploading."
)
flags.DEFINE_boolean(
    "allow_pytorch_bin",
    False,
    "Read weights from pytorch_model.bin if safetensors are missing, with "
    "torch.load(weights_only=True), which runs no code of the file.",
)
flags.mark_flags_as_required(["format", "output_dir"])


def main(argv: list[str]) -> int:
    """Reads the model, writes and verifies it; returns the exit code."""
    names = formats.ExportRequest._fields
    request = formats.ExportRequest(*(flags.FLAGS[name].value for name in names))
    request = request._replace(hparams=read_hparams(request.hparams))
    formats.export(request)
    return EXIT_OK
